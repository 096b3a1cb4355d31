"""Multi-token prediction: what joins a state and an embedding, its layer, its head, and where they lie."""

from round_jobs import (
    LAYER_PARAMS,
    MIB,
    SMALL,
    TABLE_PARAMS,
    computed_us,
    counts,
    each_us,
    exposed_us,
    memory,
    moved_us,
    near,
    price,
    product_us,
    ring_us,
    sent_bytes,
    weight_us,
)

MODEL = {**SMALL, "mtp_layers": 1}


def parameters(est):
    """Bytes of resident parameters, a number or one a stage."""
    return memory(est, "state.dense.parameters")["state.dense.parameters"]


def test_a_layer_that_predicts_one_token_more():
    """A layer, a projection of 2,048 to 1,024, three norms and a copy of the table on the last stage; the head twice."""
    est = price(MODEL, gpus=2, layout="pp2", global_batch=4, pipeline_layout="even")
    first = 2 * LAYER_PARAMS + TABLE_PARAMS
    joined = 2 * 2**20 + 3 * 1024
    assert parameters(est) == near([2 * first, 2 * (first + 1024 + LAYER_PARAMS + joined + TABLE_PARAMS)])
    assert counts(est)["compute.head.logits.forward"] == 8
    assert counts(est)["compute.mlp.fc1.forward"] == 12
    assert each_us(est)["compute.head.logits.forward"] == near(product_us(1024, 32000, 1024))
    # One stage looks up in the table that it has, and halves the projection over two ranks.
    alone = price(MODEL, gpus=2, layout="tp2", global_batch=1)
    assert parameters(alone) == near(2 * (5 * (15 * 2**19 + 2048) + TABLE_PARAMS + 1024 + 2**20 + 3 * 1024))


def test_what_joins_a_state_and_the_next_embedding():
    """A look-up, two norms, a copy side by side, and a product of 1,024 x 2,048 by 2,048 x 1,024, once a micro-batch."""
    est = price(MODEL, gpus=2, layout="pp2", global_batch=4, pipeline_layout="even")
    assert each_us(est, "compute.mtp") == near(
        {
            "compute.mtp.lookup.forward": moved_us(4 * MIB, 3),
            "compute.mtp.lookup.backward": moved_us(8 * MIB, 3),
            "compute.mtp.hidden_norm.forward": computed_us(0.45 * MIB),
            "compute.mtp.hidden_norm.backward": computed_us(1.1 * MIB, 2),
            "compute.mtp.embedding_norm.forward": computed_us(0.45 * MIB),
            "compute.mtp.embedding_norm.backward": computed_us(1.1 * MIB, 2),
            "compute.mtp.concat.forward": moved_us(8 * MIB),
            "compute.mtp.concat.backward": moved_us(8 * MIB),
            "compute.mtp.projection.forward": product_us(1024, 1024, 2048),
            "compute.mtp.projection.backward_input": product_us(1024, 2048, 1024),
            "compute.mtp.projection.backward_weight": weight_us(1024, 1024, 2048),
        }
    )
    assert set(counts(est, "compute.mtp").values()) == {4}
    # The embedding, both side by side, and the result: 2 + 4 + 2 bytes an element, on the last stage alone.
    assert memory(est, "activation.mtp") == near({"activation.mtp": [0, 8 * MIB]})
    # The first and the last stage sum the gradient of their tables.
    assert sent_bytes(est, "pp.tied")["pp.tied_embedding_grad.all_reduce"] == near(4 * TABLE_PARAMS)


def test_prediction_over_tensor_ranks():
    """The sum of a look-up, both inputs gathered, the columns gathered behind them, and the mirror image."""
    est = price(MODEL, gpus=2, layout="tp2")
    assert each_us(est, "tp.mtp") == near(
        {
            "tp.mtp.lookup.reduce_scatter.forward": ring_us(2 * MIB),
            "tp.mtp.lookup.all_gather.backward": ring_us(2 * MIB),
            "tp.mtp.projection.all_gather.forward": ring_us(4 * MIB),
            "tp.mtp.projection.columns.forward": ring_us(2 * MIB),
            "tp.mtp.projection.all_gather.backward": ring_us(2 * MIB),
            "tp.mtp.projection.all_gather_input.backward": ring_us(4 * MIB),
            "tp.mtp.projection.reduce_scatter.backward": ring_us(4 * MIB),
        }
    )


def test_prediction_on_a_stage_of_its_own():
    """A layer, its projection and a table between the last layers and the head."""
    est = price(MODEL, gpus=4, layout="pp4", global_batch=4, pipeline_layout="Ett|tt|m|L")
    layers, joined = 2 * LAYER_PARAMS, 2 * 2**20 + 3 * 1024
    assert parameters(est) == near(
        [
            2 * (layers + TABLE_PARAMS),
            2 * layers,
            2 * (LAYER_PARAMS + joined + TABLE_PARAMS),
            2 * (TABLE_PARAMS + 1024),
        ]
    )


def test_prediction_runs_again_with_or_without_sequence_parallelism():
    """Columns are gathered again in either case, the inputs only where they are sharded."""
    job = {"gpus": 2, "layout": "tp2", "recompute": "full"}
    sharded = each_us(price(MODEL, **job), "tp.mtp.projection")
    plain = each_us(price(MODEL, sequence_parallel=False, **job), "tp.mtp.projection")
    for found in (sharded, plain):
        assert found["tp.mtp.projection.columns.recompute"] == near(ring_us(2 * MIB))
    assert sharded["tp.mtp.projection.all_gather.recompute"] == near(ring_us(4 * MIB))
    assert "tp.mtp.projection.all_gather.recompute" not in plain


def test_a_predicting_layer_is_of_the_last_layers_sort():
    """The last of two stages waits for the first: its two layers of plain attention and the embedding."""
    mamba = {"kind": "mamba", "inner": 2048, "state": 16, "dt_rank": 64, "conv_kernel": 4}
    model = {**MODEL, "attention_pattern": "fffx", "mixers": {"x": mamba}}
    est = price(model, gpus=2, layout="pp2", global_batch=4, pipeline_layout="even")
    layer, embedding = (
        sum(
            1e6 * float(one.exposed_each_s)
            for one in est.bill.time_lines
            if one.name.startswith(f"compute.{name}.")
        )
        for name in ("dense", "embedding")
    )
    assert exposed_us(est, "pp.bubble") == near({"pp.bubble": 2 * layer + embedding})
