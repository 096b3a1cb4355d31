"""The form of the page, with stand-ins for its widgets: which input a field has, what it offers, who is told."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytest.importorskip("nicegui", reason="nicegui is not installed (extra app)")

from costmodel.app import form
from costmodel.app.asked import SEARCH_FIELDS, WHOLE_RUN_FIELDS
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, names


class Made:
    """A widget that keeps what it is given."""

    def __init__(self, kind, given, named):
        self.kind, self.given, self.named = kind, given, named
        self.value, self.error, self.html_id = named.get("value"), None, "c7"
        self.said, self.looks = [], []
        self.props = Props(self.said)

    def classes(self, look):
        self.looks.append(look)
        return nullcontext()

    def style(self, look):
        self.looks.append(look)


class Props(dict):
    """Attributes of a widget, as words or by name."""

    def __init__(self, said):
        super().__init__()
        self._said = said

    def __call__(self, words):
        self._said.append(words)


@pytest.fixture
def made(monkeypatch):
    """Return a function that makes a form of some fields, and the widgets it made."""
    widgets, told = [], []

    def stand(kind):
        def make(*given, **named):
            widgets.append(Made(kind, given, named))
            return widgets[-1]

        return make

    async def on_change(name, text):
        told.append((name, text))

    ui = SimpleNamespace(**{kind: stand(kind) for kind in ("element", "select", "input", "html")})
    monkeypatch.setattr(form, "ui", ui)

    def make(*fields, texts=(), **more):
        widgets.clear()
        asked = [FIELD[one] if isinstance(one, str) else one for one in fields]
        found = form.Form(asked, dict(texts), on_change, **more)
        return found, widgets[1:], told

    return make


def test_a_word_is_chosen_and_its_default_is_said(made):
    found, (truth, word), _ = made("sequence_parallel", "base_dtype", texts={"base_dtype": "fp8"})
    assert (truth.kind, word.kind) == ("select", "select")
    assert truth.given == ({"": "default: where tp > 1", "true": "true", "false": "false"},)
    assert word.given == ({"": "default: bf16", "bf16": "bf16", "fp8": "fp8", "nf4": "nf4"},)
    assert (truth.named["label"], truth.value) == ("sequence parallel", "")
    assert (word.named["label"], word.value) == ("base dtype", "fp8")
    _, (odd,), _ = made("base_dtype", texts={"base_dtype": "int3"})
    assert odd.value == ""
    assert list(found.inputs) == ["sequence_parallel", "base_dtype"]
    for one, name in ((truth, "sequence_parallel"), (word, "base_dtype")):
        assert one.said == ["outlined dense stack-label no-error-icon hide-hint"]
        assert one.props["hint"] == one.props["title"] == FIELD[name].help
        assert one.props["data-field"] == name
        assert one.looks == []


def test_what_is_no_word_is_typed_and_names_are_offered(made, monkeypatch):
    offered = {"model": ["a<b", "c"]}
    monkeypatch.setattr(form, "known_words", lambda name: offered.get(name, []))
    _, (model, listed, gpus), _ = made("model", "gpus", texts={"model": "a", "gpus": "8"})
    assert (model.kind, gpus.kind) == ("input", "input")
    assert (model.given, model.value, gpus.value) == (("model",), "a", "8")
    typed = f"debounce={form._DEBOUNCE_MS} autocomplete=off spellcheck=false autocapitalize=off"
    assert typed in model.said
    assert "clearable" in model.said
    assert "clearable" not in gpus.said
    assert listed.given == (
        '<datalist id="c7-datalist"><option value="a&lt;b"></option><option value="c"></option></datalist>',
    )
    assert listed.named == {"sanitize": False}
    assert listed.looks == ["display: none"]
    assert (model.looks, gpus.looks) == (["app-wide"], [])
    assert gpus.named["placeholder"] == FIELD["gpus"].default_said


def label(widget):
    return widget.given[0] if widget.kind == "input" else widget.named["label"]


def test_fields_that_a_search_turns_take_several(made):
    _, widgets, _ = made("tp", "sequence_parallel", "precision", several=True)
    tp, zero, precision = (one for one in widgets if one.kind != "html")
    assert (label(tp), tp.named["placeholder"]) == ("tp to try", "every sensible one")
    assert (zero.kind, label(zero)) == ("input", "sequence parallel to try")
    # Several values of a precision are asked for, but it is not turned.
    assert not FIELD["precision"].turned
    assert FIELD["precision"].several
    assert (label(precision), precision.named["placeholder"]) == (
        "precision",
        FIELD["precision"].default_said,
    )
    _, (one, *_), _ = made("tp")
    assert (label(one), one.named["placeholder"]) == ("tp", FIELD["tp"].default_said)
    _, (choose,), _ = made("choose", several=True)
    assert choose.kind == "select"
    # A word of which a search takes several is typed.
    monkeyed = {**vars(FIELD["base_dtype"]), "several": True}
    _, (typed, *_), _ = made(type(FIELD["base_dtype"])(**monkeyed), several=True)
    assert typed.kind == "input"


def test_whoever_types_is_heard_and_who_fills_is_not(made):
    found, (gpus, tp), told = made("gpus", "tp", texts={"gpus": "8"})
    for value in ("16", None, 4):
        asyncio.run(gpus.named["on_change"](SimpleNamespace(value=value)))
    assert told == [("gpus", "16"), ("gpus", ""), ("gpus", "4")]
    told.clear()
    asyncio.run(tp.named["on_change"](SimpleNamespace(value="2")))
    assert told == [("tp", "2")]
    told.clear()
    found.fill({"tp": "8"})
    assert (gpus.value, tp.value) == ("", "8")
    found._filling = True
    asyncio.run(gpus.named["on_change"](SimpleNamespace(value="16")))
    assert told == []
    found.fill({})
    assert found._filling is False


def test_filling_that_fails_ends(made):
    found, *_ = made("gpus")
    found.inputs["gpus"] = object()  # takes no value
    with pytest.raises(AttributeError):
        found.fill({"gpus": "8"})
    assert found._filling is False


def test_an_error_stands_at_its_field_alone(made):
    found, (gpus, tp), _ = made("gpus", "tp")
    assert found.blame("gpus", "too few") is True
    assert (gpus.error, tp.error) == ("too few", None)
    assert found.blame("tp", "too many") is True
    assert (gpus.error, tp.error) == (None, "too many")
    assert found.blame("model", "unknown") is False
    assert (gpus.error, tp.error) == (None, None)


def test_every_field_of_a_job_is_asked_once():
    asked = names((*form.FIRST_FIELDS, *form.LAYOUT_FIELDS, *form.OTHER_FIELDS))
    assert sorted(asked) == sorted(set(names(JOB_FIELDS)) - {"layout", "dp"})
    first = {"model", "cluster", "recipe", "gpus", "global_batch", "seq_len", "tokens"}
    assert set(names(form.FIRST_FIELDS)) == first
    assert {"tp", "pp", "zero_stage"} <= set(names(form.LAYOUT_FIELDS))
    assert sorted(names((*form.KNOB_FIELDS, *form.CONSTRAINT_FIELDS))) == sorted(names(SEARCH_FIELDS))
    assert "tp" in names(form.KNOB_FIELDS)
    assert "headroom" in names(form.CONSTRAINT_FIELDS)
    assert sorted(names((*form.RUN_FIRST_FIELDS, *form.RUN_OTHER_FIELDS))) == sorted(names(WHOLE_RUN_FIELDS))
    run_first = ["dollars", "days", "reliability", "failures_per_node_day", "spare_nodes", "pue"]
    assert sorted(names(form.RUN_FIRST_FIELDS)) == sorted(run_first)
