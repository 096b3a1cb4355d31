"""Parameters of the older text models: BERT-likes, decoders of encoder-decoders, XLM and XLNet.

Encoder-decoders are counted as transformers' ``AutoModelForCausalLM`` builds them: the decoder alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from costmodel.describe.models.huggingface_keys import Keys
from costmodel.describe.models.outline_parts import Counted, linear


def _block(hidden: int, ffn: int, *, cross: bool = False, bias: bool = True) -> int:
    """Return a layer of LayerNorms, attention and an MLP of two matrices, all with biases."""
    attention = 4 * linear(hidden, hidden, bias) + 2 * hidden
    mlp = linear(hidden, ffn, bias=True) + linear(ffn, hidden, bias=True) + 2 * hidden
    return attention * (2 if cross else 1) + mlp


def _shape(layers: int, hidden: int, heads: int, vocab: int) -> dict[str, int]:
    """Return what is said of the size."""
    return {"num_layers": layers, "hidden_size": hidden, "num_heads": heads, "vocab_size": vocab}


def _bert(
    keys: Keys,
    *,
    types: bool = True,
    positions: bool = True,
    norms: int = 1,
    narrow: str = "",
    head: bool = True,
    twice: bool = True,
    more: Callable[[Keys], int] | None = None,
) -> Counted:
    """Return a BERT: tables, layers, and a head of one projection, a norm and a bias of each token.

    `narrow` is the key of the width of its tables, `norms` how many there are outside the layers.
    `twice` is whether an untied head has the bias of each token a second time.
    """
    hidden, layers, vocab = keys.need("hidden_size"), keys.need("num_hidden_layers"), keys.need("vocab_size")
    table = keys.get(narrow, default=hidden) if narrow else hidden
    one = _block(hidden, keys.need("intermediate_size"), cross=bool(keys.get("add_cross_attention")))
    params = vocab * table + layers * one + norms * 2 * table
    params += keys.need("max_position_embeddings") * table if positions else 0
    params += keys.need("type_vocab_size") * table if types else 0
    params += linear(table, hidden, bias=True) if table != hidden else 0
    params += linear(hidden, table, bias=True) + 2 * table if head else 0
    tied = keys.get("tie_word_embeddings", default=True)
    params += vocab + (0 if tied else vocab * table + (vocab if twice else 0))
    params += more(keys) if more else 0
    shape = _shape(layers, hidden, keys.need("num_attention_heads"), vocab)
    return Counted(params, tied, shape)


def _pooler(keys: Keys) -> int:
    return linear(keys.need("hidden_size"), keys.need("hidden_size"), bias=True)


def _tasks(keys: Keys) -> int:
    """Return ERNIE's table of tasks."""
    if not keys.get("use_task_id", default=False):
        return 0
    return int(keys.need("task_type_vocab_size") * keys.need("hidden_size"))


def _adapters(keys: Keys) -> int:
    """Return X-MOD's adapters of each language."""
    hidden = keys.need("hidden_size")
    if keys.get("adapter_layer_norm", default=False) or keys.get("pre_norm", default=False):
        raise keys.refuse("adapter_layer_norm and pre_norm are not supported")
    small = hidden // keys.need("adapter_reduction_factor")
    one = linear(hidden, small, bias=True) + linear(small, hidden, bias=True)
    return int(keys.need("num_hidden_layers") * len(keys.need("languages")) * one)


def _sounds_and_shapes(keys: Keys) -> int:
    """Return RoCBert's tables of how tokens sound and look, and what joins them."""
    hidden, found, wide = keys.need("hidden_size"), 0, keys.need("hidden_size")
    for name in ("pronunciation", "shape"):
        if keys.get(f"enable_{name}", default=True):
            table = keys.need(f"{name}_embed_dim")
            found, wide = found + keys.need(f"{name}_vocab_size") * table, wide + table
    joined = keys.get("concat_input", default=True)
    return found + (linear(wide, hidden, bias=True) if joined else 0)


def _rotary_table(keys: Keys) -> int:
    """Return RoFormer's table of sines, which it keeps as a parameter."""
    head = keys.need("hidden_size") // keys.need("num_attention_heads")
    keys.get("rotary_value")
    return int(keys.need("max_position_embeddings") * head)


def _rembert(keys: Keys) -> Counted:
    """Return RemBERT: narrow input, wide output."""
    hidden, layers, vocab = keys.need("hidden_size"), keys.need("num_hidden_layers"), keys.need("vocab_size")
    inner, outer = keys.need("input_embedding_size"), keys.need("output_embedding_size")
    tables = (vocab + keys.need("max_position_embeddings") + keys.need("type_vocab_size")) * inner
    head = linear(hidden, outer, bias=True) + 2 * outer + linear(outer, vocab, bias=True)
    body = layers * _block(hidden, keys.need("intermediate_size")) + linear(inner, hidden, bias=True)
    tied = keys.get("tie_word_embeddings", default=False)
    shape = _shape(layers, hidden, keys.need("num_attention_heads"), vocab)
    return Counted(tables + 2 * inner + body + head, tied, shape)


def _seq2seq(keys: Keys, *, offset: int = 0, norms: int = 0) -> Counted:
    """Return the decoder of an encoder-decoder: cross attention in every layer.

    `offset` is how many positions its table has more than it says, `norms` how many are outside the layers.
    """
    hidden = keys.need("d_model")
    vocab = keys.get("decoder_vocab_size") or keys.need("vocab_size")
    layers, heads = keys.need("decoder_layers"), keys.need("decoder_attention_heads")
    keys.get(
        "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "num_hidden_layers", "vocab_size"
    )
    one = _block(hidden, keys.need("decoder_ffn_dim"), cross=True)
    positions = (keys.need("max_position_embeddings") + offset) * hidden
    tied = keys.get("tie_word_embeddings", default=True)
    table = vocab * hidden * (1 if tied else 2)
    return Counted(
        table + positions + layers * one + norms * 2 * hidden, tied, _shape(layers, hidden, heads, vocab)
    )


def _bigbird_pegasus(keys: Keys) -> Counted:
    """Return BigBird-Pegasus' decoder: no biases in attention unless it says so, and a head of its own."""
    hidden, layers = keys.need("d_model"), keys.need("decoder_layers")
    plain = 0 if keys.get("use_bias", default=False) else layers * 8 * hidden
    found = _seq2seq(Keys({**keys.raw, "tie_word_embeddings": False}, keys.origin), norms=1)
    keys.used |= keys.raw.keys()
    return found._replace(params=found.params - plain)


def _whisper(keys: Keys) -> Counted:
    """Return Whisper's decoder, whose keys have no biases."""
    renamed = Keys({**keys.raw, "max_position_embeddings": keys.need("max_target_positions")}, keys.origin)
    found = _seq2seq(renamed, norms=1)
    keys.used |= renamed.used
    return found._replace(params=found.params - keys.need("decoder_layers") * 2 * keys.need("d_model"))


def _prophetnet(keys: Keys) -> Counted:
    """Return ProphetNet's decoder, which predicts several tokens at once."""
    hidden, vocab = keys.need("hidden_size"), keys.need("vocab_size")
    layers, heads = keys.need("num_decoder_layers"), keys.need("num_decoder_attention_heads")
    one = _block(hidden, keys.need("decoder_ffn_dim"), cross=keys.get("add_cross_attention", default=True))
    one += linear(hidden, keys.need("num_buckets") * heads, bias=True)
    tables = (vocab + keys.need("max_position_embeddings") + keys.need("ngram")) * hidden
    tied = keys.get("tie_word_embeddings", default=True)
    tables += 0 if tied else vocab * hidden
    return Counted(tables + layers * one + 2 * hidden, tied, _shape(layers, hidden, heads, vocab))


def _xlm(keys: Keys) -> Counted:
    """Return XLM: one table, layers, and a bias of each token."""
    hidden, layers, vocab = keys.need("emb_dim"), keys.need("n_layers"), keys.need("vocab_size")
    if keys.get("asm", default=False):
        raise keys.refuse("asm: an adaptive softmax is not supported")
    languages = keys.get("n_langs", default=1)
    tables = (vocab + keys.need("max_position_embeddings")) * hidden
    tables += languages * hidden if languages > 1 and keys.get("use_lang_emb", default=True) else 0
    tied = keys.get("tie_word_embeddings", default=True)
    tables += vocab + (0 if tied else vocab * hidden)
    body = layers * _block(hidden, 4 * hidden) + 2 * hidden
    return Counted(tables + body, tied, _shape(layers, hidden, keys.need("n_heads"), vocab))


def _xlnet(keys: Keys) -> Counted:
    """Return XLNet: relative positions with biases of each head."""
    hidden, layers, vocab = keys.need("d_model"), keys.need("n_layer"), keys.need("vocab_size")
    heads, ffn = keys.need("n_head"), keys.need("d_inner")
    wide = heads * keys.get("d_head", default=hidden // heads)
    mlp = linear(hidden, ffn, bias=True) + linear(ffn, hidden, bias=True)
    one = 5 * hidden * wide + 5 * wide + 4 * hidden + mlp
    tied = keys.get("tie_word_embeddings", default=True)
    table = vocab * hidden * (1 if tied else 2) + vocab + hidden
    return Counted(table + layers * one, tied, _shape(layers, hidden, heads, vocab))


def _ctrl(keys: Keys) -> Counted:
    """Return CTRL: a decoder with a bias of each token."""
    hidden, layers, vocab = keys.need("n_embd"), keys.need("n_layer"), keys.need("vocab_size")
    tied = keys.get("tie_word_embeddings", default=True)
    table = vocab * hidden * (1 if tied else 2) + vocab
    body = layers * _block(hidden, keys.need("dff")) + 2 * hidden
    return Counted(table + body, tied, _shape(layers, hidden, keys.need("n_head"), vocab))


def _xglm(keys: Keys) -> Counted:
    """Return XGLM: a decoder with positions of sines."""
    hidden, layers, vocab = keys.need("d_model"), keys.need("num_layers"), keys.need("vocab_size")
    tied = keys.get("tie_word_embeddings", default=True)
    table = vocab * hidden * (1 if tied else 2)
    body = layers * _block(hidden, keys.need("ffn_dim")) + 2 * hidden
    return Counted(table + body, tied, _shape(layers, hidden, keys.need("attention_heads"), vocab))


def _neox_japanese(keys: Keys) -> Counted:
    """Return GPT-NeoX Japanese: biases of norms, and one of all attention."""
    hidden, layers, vocab = keys.need("hidden_size"), keys.need("num_hidden_layers"), keys.need("vocab_size")
    ffn = keys.need("intermediate_multiple_size") * hidden
    one = 4 * hidden * hidden + 2 * hidden * ffn + 4 * hidden
    tied = keys.get("tie_word_embeddings", default=True)
    table = vocab * hidden * (1 if tied else 2)
    shape = _shape(layers, hidden, keys.need("num_attention_heads"), vocab)
    return Counted(table + layers * one + hidden + 2 * hidden, tied, shape)


TEXT: Mapping[str, Callable[[Keys], Counted]] = {
    "bart": partial(_seq2seq, offset=2, norms=1),
    "bert": _bert,
    "bert-generation": partial(_bert, types=False, head=False),
    "big_bird": partial(_bert, more=_pooler),
    "bigbird_pegasus": _bigbird_pegasus,
    "blenderbot": partial(_seq2seq, norms=1),
    "blenderbot-small": partial(_seq2seq, norms=1),
    "camembert": _bert,
    "ctrl": _ctrl,
    "data2vec-text": _bert,
    "electra": partial(_bert, narrow="embedding_size", twice=False),
    "ernie": partial(_bert, more=_tasks),
    "gpt_neox_japanese": _neox_japanese,
    "marian": _seq2seq,
    "mbart": partial(_seq2seq, offset=2, norms=2),
    "megatron-bert": _bert,
    "mvp": partial(_seq2seq, offset=2, norms=1),
    "pegasus": partial(_seq2seq, norms=1),
    "plbart": partial(_seq2seq, offset=2, norms=1),
    "prophetnet": _prophetnet,
    "rembert": _rembert,
    "roberta": _bert,
    "roberta-prelayernorm": partial(_bert, norms=2),
    "roc_bert": partial(_bert, more=_sounds_and_shapes),
    "roformer": partial(_bert, positions=False, narrow="embedding_size", more=_rotary_table),
    "trocr": partial(_seq2seq, offset=2, norms=1),
    "whisper": _whisper,
    "xglm": _xglm,
    "xlm": _xlm,
    "xlm-roberta": _bert,
    "xlm-roberta-xl": _bert,
    "xlnet": _xlnet,
    "xmod": partial(_bert, more=_adapters),
}
