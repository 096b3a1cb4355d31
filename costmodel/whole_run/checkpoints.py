"""Checkpoints of a job: their size from the states in the memory bill, their times from the storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from costmodel.base.errors import CostModelError
from costmodel.base.units import format_bytes
from costmodel.bill.quantity import quantity
from costmodel.step.anatomy.adapters import num_trained_params
from costmodel.step.anatomy.params import num_params
from costmodel.step.optimizer import whole_state_bytes
from costmodel.step.states import FROZEN_BYTES

if TYPE_CHECKING:
    from costmodel.describe.hardware.cluster import Cluster
    from costmodel.describe.jobs.job import Job
    from costmodel.estimates.estimate import Estimate

# To gather states and start the copy; ByteCheckpoint (arXiv:2407.20143) reports stalls below a second. Assumed.
_SNAPSHOT_S = 0.5


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of the whole job. Bytes and seconds."""

    size_bytes: float
    write_s: float  # On the file system, all nodes together
    pause_s: float  # While training waits
    persist_s: float  # From the end of the pause until a failure cannot hurt it
    load_s: float  # To read it again after a failure


class NoHostMemory(CostModelError):
    """A host has no room for copies of a checkpoint."""

    def __init__(self, how: str, has: str) -> None:
        self.has = has
        super().__init__(
            f"checkpointing: {how} keeps copies in the hosts, but {has}; use blocking, or more GPUs"
        )


def describe_checkpoint(est: Estimate, how: str, storage_bytes_per_s: float | None = None) -> Checkpoint:
    """Size and times of a checkpoint of parameters and optimizer states of an estimate of one layout.

    It is written as `how` says: blocking, async or replica, see `costmodel.describe.reliability.Reliability`. Gradients
    are not saved: bytes a parameter are those of the recipe's states in the memory bill. Of a job of adapters they alone
    are saved; the base that they lie on is read again after a failure. `storage_bytes_per_s` is what the file system
    takes and gives in all, in place of the cluster's.
    """
    job = est.job
    layout, cluster = job.layout, job.cluster
    size, base = _saved_bytes(job)
    nodes = max(float(layout.gpus) / cluster.gpus_per_node, 1.0)
    write_bytes_per_s, read_bytes_per_s = _storage(cluster, nodes, storage_bytes_per_s)
    # States that every replica holds are copied by one of them.
    holders = float(layout.gpus) if layout.zero_stage >= 1 else float(layout.tp * layout.pp)
    copy = size / holders / float(est.priced.placed.host_link.value)
    write, load, again = size / write_bytes_per_s, size / read_bytes_per_s, base / read_bytes_per_s
    if how == "blocking":
        return Checkpoint(size, write, pause_s=write, persist_s=0.0, load_s=load + again)
    copy += _SNAPSHOT_S
    _require_host_memory(est, how, size / holders * float(est.priced.placed.gpus_per_host))
    if how == "async":
        return Checkpoint(size, write, pause_s=copy, persist_s=write, load_s=load + again)
    link = cluster.tiers[min(1, len(cluster.tiers) - 1)].bandwidth_bytes_per_s
    across = size / holders / link
    return Checkpoint(size, write, pause_s=copy, persist_s=across, load_s=across + copy + again)


def _saved_bytes(job: Job) -> tuple[float, float]:
    """Bytes of a checkpoint, and of what is not in it and has to be read beside it: the base of adapters. [B]"""
    dtypes, tuning, whole = job.recipe.dtypes, job.tuning, float(num_params(job.model))
    # A copy of the gradient that a recipe counts among the main weights is not saved either.
    width = dtypes.param_bytes() + min(dtypes.master_weights_bytes, 4.0)
    if tuning.whole:
        return whole * width + whole_state_bytes(job), 0.0
    trained = num_trained_params(job.model, tuning, job.recipe, job.precision)
    # What a job that trains a part may have for an optimizer steps all of it alike.
    states = quantity(job.optimizer.matrices.state_bytes, moments_bytes=dtypes.moments_bytes).value
    saved = trained * (width + float(states))
    if tuning.lora_rank:
        return saved, whole * FROZEN_BYTES
    return saved + (whole - trained) * FROZEN_BYTES, 0.0


def _require_host_memory(est: Estimate, how: str, copied_bytes: float) -> None:
    """Refuse copies in the memory of hosts that have no room for them beside what they hold.

    A replica is a copy of the host's own states and one of another's.
    """
    copies = {"async": 1.0, "replica": 2.0}[how]
    held, have = float(est.host_memory_bytes), est.host_memory_capacity_bytes
    if held + copies * copied_bytes > have:
        raise NoHostMemory(
            how,
            f"the memory of a host ({format_bytes(have)}, {format_bytes(held)} of it in use) has no room for "
            f"{format_bytes(copies * copied_bytes)} of copies",
        )


def _storage(cluster: Cluster, nodes: float, given: float | None) -> tuple[float, float]:
    """Return what so many nodes write and read together [B/s]."""
    if given is not None:
        if not given > 0.0:
            raise CostModelError(f"storage_bandwidth: expected more than 0 bytes a second, got {given!r}")
        return given, given
    storage = cluster.storage
    if storage is None:
        raise CostModelError(
            f"storage: cluster {cluster.name} has none; give what it takes with --storage-bandwidth 100GB/s"
        )
    return (
        min(nodes * storage.write_bandwidth_per_node_bytes_per_s, storage.write_bandwidth_shared_bytes_per_s),
        min(nodes * storage.read_bandwidth_per_node_bytes_per_s, storage.read_bandwidth_shared_bytes_per_s),
    )
