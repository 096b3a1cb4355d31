"""What tests of several subjects ask of the round machine."""

import pytest


@pytest.fixture
def memory_alone_limits_norms(monkeypatch):
    """Let norms and gated activations move bytes alone: on the round machine's one SM they would take longer than all else."""
    monkeypatch.setattr("costmodel.describe.hardware.cluster.SCALAR_PER_SM", {})
