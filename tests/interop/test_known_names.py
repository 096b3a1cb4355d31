"""Every flag and key of another program that we list is one that the program has: looked up in copies of it.

`tools/check/known_names.py` writes the table; a name that is listed here and stands nowhere there fails.
"""

from pathlib import Path

import pytest
from listed_names import LISTED
from ruamel.yaml import YAML

KNOWN = YAML(typ="safe", pure=True).load(Path(__file__).with_name("known_names.yaml").read_text())

# Flags of Megatron's forks and of its first years that no copy here holds: read where a script has them, never written.
OF_FORKS = frozenset(
    """add-dense-bias ampipe-degree curriculum-learning deepspeed-config expert-interval fp8-hybrid geglu glu-activation
    lora-target-modules loss-chunk-size model parallel-attn post-norm qlora swap-attention train-type rollout-batch-size
    use-dynamic-batch-size use-rms-norm world-size use-lora lora-target-preset rlhf-type
    fp4-recipe custom-model-provider-path""".split()  # noqa: SIM905
)


@pytest.mark.parametrize("framework", LISTED)
def test_names_that_we_list_are_the_frameworks(framework):
    listed, names = LISTED[framework](), [name for text in KNOWN[framework].values() for name in text.split()]
    assert len(listed) > 10
    assert listed - {*names} - (OF_FORKS if framework == "megatron" else set()) == set()
    # What was found leaves the list of what was not, and stands once.
    assert {*names} & OF_FORKS == set()
    assert len(names) == len({*names})
