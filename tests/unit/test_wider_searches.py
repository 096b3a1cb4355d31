"""A larger space is never slower: naming a value that a plan searches never finds a faster plan, over random jobs."""

import random
from collections.abc import Iterator
from typing import Any

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.describe.jobs.fields import KNOBS

MODELS = ("llama3-8b", "qwen3-8b", "llama3-70b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b")
CLUSTERS = ("dgx-h100-ndr", "dgx-a100-hdr", "gb200-nvl72-ndr", "cloud-h100-100gbe")
RECIPES = ("megatron-core", "megatron-bridge", "torchtitan", "deepspeed", "nemo")
TOO_LITTLE = 0.0005
"""Share of a step that a choice has to save to be built upon."""


def jobs(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Draw jobs."""
    rng = random.Random(seed)
    for _ in range(count):
        gpus = rng.choice((8, 16, 32, 64))
        yield {
            "model": rng.choice(MODELS),
            "cluster": rng.choice(CLUSTERS),
            "recipe": rng.choice(RECIPES),
            "gpus": gpus,
            "global_batch": gpus * rng.choice((1, 2, 4)),
            "seq_len": rng.choice((2048, 4096, 8192)),
        }


def named_one(job: dict[str, Any], found: cm.Plan, rng: random.Random) -> dict[str, Any]:
    """Return the job with one searched value named: of a knob, or of a switch."""
    several = {
        name: values.split(" | " if " | " in values else ", ") for name, values in found.searched.items()
    }
    name = rng.choice([name for name, values in several.items() if len(values) > 1 and name != "axis_order"])
    value = rng.choice(several[name])
    return {**job, "fix": {name: value}} if name in KNOBS else {**job, "switches": {name: value}}


def faster_when_named(count: int, seed: int) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield each named job that both plans answer, with the share by which its best is faster than the free one's."""
    rng = random.Random(seed)
    for job in jobs(count, seed):
        try:
            free = cm.plan(**job)
            for _ in range(2):
                named = named_one(job, free, rng)
                least, most = (min(found.tally.best_score.values()) for found in (cm.plan(**named), free))
                yield named, 1.0 - least / most
        except CostModelError:
            continue


def test_naming_a_searched_value_never_finds_a_faster_plan():
    found = list(faster_when_named(3, seed=3))
    assert len(found) >= 2
    assert [one for one in found if one[1] > TOO_LITTLE] == []
