"""No key is passed over: one that no table knows is named, or stops the reading where its name says that it matters."""

import functools
import json
from copy import deepcopy
from pathlib import Path

import pytest
from texts import read_as

from costmodel.base.errors import CostModelError
from costmodel.base.yaml_files import read_mapping
from costmodel.interop.keys import key_table
from costmodel.interop.reading import READERS

BASES = read_mapping(Path(__file__).with_name("reader_cases.yaml"), example="read:")["bases"]


def files():
    """Every small file of these tests that is tables in tables: its kind, content and what stands beside it."""
    for name, base in BASES.items():
        if "content" in base and base["kind"] != "hf":
            yield name, base["kind"], base["content"], base.get("given", {})


# The classes that a run_config.yaml lists have every field, those that are not read at their defaults; our own comment;
# tokenizers, variables of the process, and modules by names that their user chose.
LISTED = {
    "megatron-bridge": {"train", "ddp", "optimizer", "mixed_precision"},
    "deepspeed": {"comment"},
    "trainer": {"comment"},
    "nemo": {"tokenizer"},
    "megatron-yaml": {"ENV_VARS"},
    # Losses, and passes that are priced as those of the policy.
    "nemo-rl": {"loss_fn", "teacher", "dpo", "logger"},
    "verl": {"algorithm"},
}


def whole(kind, way):
    """Whether a table is read, or said, as a whole: what has no price, or whether there is recomputation at all."""
    used = key_table(READERS[kind].keys).used | key_table("deepspeed").used
    paths = {
        ".".join(way[first:last]) for first in range(len(way)) for last in range(first + 1, len(way) + 1)
    }
    return bool(paths & used - {"fsdp_config"} or {*way} & LISTED.get(kind, set()))


def tables(raw, way=()):
    yield way
    for key, value in raw.items():
        if isinstance(value, dict):
            yield from tables(value, (*way, key))


def with_key(raw, way, key, value=3):
    changed = deepcopy(raw)
    here = changed
    for part in way:
        here = here[part]
    here[key] = value
    return json.dumps(changed)


@pytest.mark.parametrize(("kind", "raw", "given"), [pytest.param(*rest, id=name) for name, *rest in files()])
def test_a_key_more_is_named_or_stops(kind, raw, given):
    for way in tables(raw):
        if whole(kind, way):
            continue
        try:
            named = " ".join(read_as(kind, with_key(raw, way, "odd_word"), "job", **given).ignored)
        except CostModelError as error:
            named = str(error)
        assert "odd_word" in named.replace("-", "_") or {*way} & {*named.split()}, way
        with pytest.raises(CostModelError, match=r"odd[_-]parallel[_-]size"):
            print(way, read_as(kind, with_key(raw, way, "odd_parallel_size"), "job", **given))


def test_a_key_more_of_a_model_is_named_or_stops():
    """What a model's own file says of experts, of latent widths or of ranks changes its parameters."""
    models = [base["content"] for base in BASES.values() if base["kind"] == "hf"]
    assert len(models) > 3
    for raw in models:
        assert "odd_word" in read_as("hf", with_key(raw, (), "odd_word"), "config.json").ignored
        for key in ("num_odd_experts", "odd_expert_width", "odd_latent_dim", "odd_lora_rank"):
            with pytest.raises(CostModelError, match=key):
                read_as("hf", with_key(raw, (), key), "config.json")


SCRIPTS = {
    "--": "pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 99 "
    "--max-position-embeddings 32 ",
    "": "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.rollout.n=8 ",
}


@pytest.mark.parametrize("dash", SCRIPTS)
@pytest.mark.parametrize(
    ("said", "stops"),
    [
        ("odd_word=3", False),
        ("odd_parallel_size=3", True),
        # A star in the table does not hide what a name says: --data-* is irrelevant, data-parallel-shards is not.
        ("data_parallel_shards=3", True),
        ("moe_router_capacity=3", True),
        ("data_fp8=1", True),
    ],
)
def test_flags_and_overrides(dash, said, stops):
    sections = (
        ("",) if dash else ("trainer.", "data.", "algorithm.", "actor_rollout_ref.rollout.", "rollout.")
    )
    for section in sections:
        text = f"{SCRIPTS[dash]}{dash}{section}{said}"
        kind = "megatron" if dash else "verl"
        if stops:
            with pytest.raises(CostModelError, match="by its name changes"):
                read_as(kind, text, "run.sh", gpus=8)
        elif section != "algorithm.":  # whose own numbers are all irrelevant
            assert [key.replace("-", "_") for key in read_as(kind, text, "run.sh", gpus=8).ignored] == [
                f"{dash.replace('-', '_')}{section}{said[:-2]}"
            ]


def test_a_variable_that_nobody_sets_can_be_given():
    found = read_as("verl", SCRIPTS[""] + "trainer.nnodes=$NNODES", "run.sh", env={"NNODES": "4"})
    assert found.job["gpus"] == 32


VALUES = (-1024, 0, True, 2.5, [], "many")
COUNTS = ("global_batch", "micro_batch", "seq_len", "tp", "pp", "cp", "ep", "gpus")


def test_what_no_field_takes_is_refused_in_every_format():
    """A count of -1024, true or 2.5 goes nowhere, whichever key of whichever program says it."""
    tried = 0
    for name, kind, raw, given in files():
        ways = [(*way, key) for way in tables(raw) for key in functools.reduce(dict.get, way, raw)]
        table = key_table(READERS[kind].keys)
        for way in ways:
            key = ".".join(way)
            plain = {key, way[-1], f"--{way[-1].lstrip('-').replace('_', '-')}"}
            fields = [ours for ours, field in table.fields.items() if plain & {*field.keys}]
            if not fields or fields[0] not in COUNTS:
                continue
            for value in VALUES:
                tried += 1
                try:
                    found = read_as(kind, with_key(raw, way[:-1], way[-1], value), "job", **given)
                except CostModelError:
                    continue
                for ours in COUNTS:
                    count = found.job.get(ours, 1)
                    assert type(count) is int, (name, key, value, ours, count)
                    assert count > 0, (name, key, value, ours, count)
    assert tried > 200


def test_a_key_that_is_off_or_one_stops_nothing():
    with pytest.raises(CostModelError, match="odd_pipeline: True"):
        read_as("trainer", with_key(BASES["axolotl"]["content"], (), "odd_pipeline", True), gpus=8)
    for value in (False, 0, None, "none", 1):
        assert read_as(
            "trainer", with_key(BASES["axolotl"]["content"], (), "odd_parallel_size", value), gpus=8
        ).ignored in (
            (),
            ("odd_parallel_size",),
        )
    with pytest.raises(CostModelError, match="experts"):
        read_as("trainer", with_key(BASES["axolotl"]["content"], (), "odd_experts", 1), gpus=8)
    for key in ("odd_dtype", "odd_optimizer", "odd_batch_size", "odd_gpus", "odd_nodes"):
        with pytest.raises(CostModelError, match=f"{key}: 3 is not understood, and by its name changes"):
            read_as("trainer", with_key(BASES["axolotl"]["content"], (), key), gpus=8)
