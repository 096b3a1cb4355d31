"""What configs are read as, as it was last accepted: a net under the values of `test_reader_defaults.py`.

Of every type a small config, the same without each of its keys (what is the default?), with each of its numbers
doubled and its words and truths turned (which field follows?), and with each key more that its reader looks for, as
true, false, 3 and a list of layers; keys that are known and change nothing are listed.
`recorded_readings.jsonl` holds a type a line: the model and the outline that were read, and of each change only what
it changed, or the error. A change that is meant is recorded by ``python tests/unit/test_recorded_readings.py``. A new
type needs no record.
"""

import json
from pathlib import Path

import pytest
from small_configs import PUBLISHED, TINY, WIDE
from small_outlines import OUTLINED

from costmodel.base.errors import CostModelError
from costmodel.describe.models import huggingface, outlines
from costmodel.describe.models.huggingface import read_hf_config
from costmodel.describe.models.huggingface_keys import Keys
from costmodel.describe.models.huggingface_wrappers import _FLAT_TYPE, CLASS_DEFAULTS
from costmodel.describe.models.outlines import outline_of

RECORDED = Path(__file__).with_name("recorded_readings.jsonl")
# Language models beside towers: what their class fills in, nested or of before nesting.
WRAPPED = {
    **{
        f"nested {kind}": (
            0,
            {"model_type": "llava", "text_config": {"model_type": kind}, "vision_config": {}},
        )
        for kind in CLASS_DEFAULTS
    },
    **{
        f"mpt {key}": (0, {**(TINY | PUBLISHED)["mpt"][1], "model_type": "mpt", "attn_config": {key: word}})
        for key, word in (("attn_type", "multiquery_attention"), ("qk_ln", True), ("alibi", True))
    },
    **{
        f"laguna {word}": (0, {**OUTLINED["laguna"][1], "model_type": "laguna", "gating": word})
        for word in ("per-head", "per-element")
    },
    "gpt_neo told twice": (
        0,
        {**TINY["gpt_neo"][1], "model_type": "gpt_neo", "attention_layers": ["global", "local"] * 2},
    ),
    **{f"flat {kind}": (0, {"model_type": kind, **WIDE, "vision_config": {}}) for kind in _FLAT_TYPE},
}
CONFIGS = TINY | PUBLISHED | OUTLINED | WRAPPED


def flat(node, path=""):
    """Yield place and value of all that is not empty."""
    if isinstance(node, dict):
        for key, child in node.items():
            yield from flat(child, f"{path}.{key}" if path else str(key))
    elif node not in (None, "", [], ()):
        yield path, node


def read(config, kind):
    """Return what a config is read as, by place."""
    found = {}
    try:
        model = read_hf_config({"model_type": kind, **config}, kind)
    except CostModelError as error:
        found["refused"] = str(error)
    else:
        dumped = model.model.model_dump(mode="json", exclude_defaults=True, exclude={"source", "name"})
        found |= dict(flat({"model": dumped, "ignored": list(model.ignored)}))
    try:
        outline = outline_of({"model_type": kind, **config}, kind)
    except CostModelError as error:
        return {**found, "refused outline": str(error)}
    if outline is not None:
        more = {"outline": outline.shape, "left": list(outline.ignored), "out": list(outline.left_out)}
        found |= dict(flat(more))
    return json.loads(json.dumps(found))


def looked_for(config, kind):
    """Return the keys that the readers of a config look for and do not find."""
    made = []

    class Noting(Keys):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        for module in (huggingface, outlines):
            patch.setattr(module, "Keys", Noting)
        read(config, kind)
    return sorted({key for keys in made for key in keys.used - keys.raw.keys()})


def turned(value):
    """Return other values of the same sort by what was done, none where there is no plain one."""
    if isinstance(value, bool):
        return {"other": not value}
    if isinstance(value, int | float):
        return {"other": 2 * value}
    if isinstance(value, list) and value and not isinstance(value[0], dict):
        ends = {"first": [value[0]] * len(value), "last": [value[-1]] * len(value), "back": value[::-1]}
        return {"other": value[:-1], **{name: other for name, other in ends.items() if other != value}}
    return {}


def difference(base, other):
    """Return what another reading has otherwise; of one that is refused only why."""
    refused = {"model", "ignored"} if "refused" in other else set()
    refused |= {"outline", "left", "out"} if "refused outline" in other else set()
    return {
        place: other.get(place)
        for place in sorted({*base, *other})
        if base.get(place) != other.get(place) and place.partition(".")[0] not in refused
    }


def readings(kind):
    """Return what a type's config is read as, and what each change of a key changes."""
    _, config = CONFIGS[kind]
    base = read(config, kind)
    found = {"": base}
    looked = looked_for(config, kind)
    more = {
        f"{value} {key}": {**config, key: value} for key in looked for value in (True, False, 3, [0, 1, 1, 1])
    }
    found |= {
        name: changed for name, other in more.items() if (changed := difference(base, read(other, kind)))
    }
    # Keys that are known and change nothing.
    found["silent"] = [key for key in looked if not any(name.split()[-1:] == [key] for name in found)]
    for key in config:
        rest = {name: value for name, value in config.items() if name != key}
        changes = {f"without {key}": rest}
        changes |= {f"{name} {key}": {**config, key: other} for name, other in turned(config[key]).items()}
        for name, changed in changes.items():
            found[name] = difference(base, read(changed, kind))
    return found


KINDS = sorted(CONFIGS)
KNOWN = (
    {}
    if __name__ == "__main__"
    else {row["type"]: row["read"] for row in map(json.loads, RECORDED.read_text().splitlines())}
)


@pytest.mark.parametrize("kind", KNOWN)
def test_a_config_is_read_as_it_was(kind):
    assert readings(kind) == KNOWN[kind]


if __name__ == "__main__":
    RECORDED.write_text(
        "".join(json.dumps({"type": kind, "read": readings(kind)}, sort_keys=True) + "\n" for kind in KINDS)
    )
