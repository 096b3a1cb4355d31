"""Which layouts are possible, rule by rule, on small round models; and what a layout is where it does not say."""

from round_jobs import SMALL, model_file

from costmodel.describe.jobs.layout import layout_problems, make_layout
from costmodel.describe.models.model_files import load_model
from costmodel.describe.switch_table import GROUPS

# 4 layers, 8 heads (4 of keys), an MLP of 4,096.
DENSE = load_model(model_file(SMALL))


def broken(model=DENSE, *, global_batch=64, seq_len=1024, method="ring", swapped=0, **layout):
    """Return the rules that a layout breaks."""
    overlap = GROUPS["overlap"](cp_method=method, cp_a2a_ranks=swapped)
    found = layout_problems(make_layout(**{"gpus": 8, **layout}), model, global_batch, seq_len, overlap)
    return {problem.code for problem in found if problem.bad.any()}


def test_what_just_fits():
    for layout in [
        {"gpus": 8, "tp": 8},
        # An end may be a stage of its own: 4 layers on 6 stages, on 2 of 3 chunks.
        {"gpus": 6, "pp": 6, "global_batch": 6},
        {"gpus": 4, "pp": 2, "vp": 3},
        # Without sequence parallelism a context rank's part stays whole.
        {"gpus": 8, "cp": 2, "tp": 4, "seq_len": 1030, "sequence_parallel": False},
        # States are sharded over the ranks of context too; without ZeRO over nobody.
        {"gpus": 8, "cp": 4, "zero_stage": 1, "shard_group": 8},
        {"gpus": 8, "zero_stage": 0, "shard_group": 3},
        {"gpus": 8, "micro_batch": 8},
        # One replica takes an odd batch; shards of one rank are any number.
        {"gpus": 1, "global_batch": 63},
        {"gpus": 3, "global_batch": 3, "zero_stage": 1, "shard_group": 1},
    ]:
        assert broken(**layout) == set()


def test_a_batch_is_asked_of_whole_replicas_alone():
    """16 ranks of a replica on 24 GPUs are one and a half: there is no batch that would do."""
    for layout in ({"tp": 2, "cp": 4, "pp": 2}, {"tp": 4, "cp": 2, "pp": 2}):
        assert broken(gpus=24, **layout) == {"gpus_not_divisible"}


def test_rules_of_context_methods():
    """Ulysses deals 8 heads to tp·cp ranks; of a2a+p2p the first ranks deal 4 heads of keys."""
    assert broken(cp=8, method="ulysses") == set()
    assert broken(gpus=16, cp=8, tp=2, method="ulysses") == {"heads_not_divisible_by_cp"}
    assert broken(cp=8, method="a2a+p2p", swapped=4) == set()
    assert broken(cp=8, method="a2a+p2p", swapped=8) == {"heads_not_divisible_by_a2a"}
    assert broken(cp=2, gpus=8, tp=4, method="a2a+p2p", swapped=2) == {"heads_not_divisible_by_a2a"}
    assert broken(cp=1, method="a2a+p2p", swapped=8) == set()
    assert broken(gpus=6, cp=6, seq_len=1020, global_batch=6, method="a2a+p2p", swapped=4) == {
        "heads_not_divisible_by_a2a"
    }
    # A rank by itself deals nothing out.
    assert broken(gpus=3, cp=3, seq_len=1023, global_batch=3, method="a2a+p2p", swapped=1) == set()
    assert broken(gpus=8, cp=2, tp=4, method="a2a+p2p", swapped=1) == set()


def test_rules_of_embeddings_of_each_layer():
    each = load_model(model_file({**SMALL, "layer_embedding_size": 256, "layer_embedding_rows": 1000}))
    assert broken(each, cp=2) == set()
    assert broken(each, tp=2) == broken(each, pp=2) == {"layer_embeddings_split"}
