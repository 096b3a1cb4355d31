"""Fields of a form, made from the table of fields: one input each, with its default, its words and its error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import Any

from nicegui import ui

from costmodel.app.asked import SEARCH_FIELDS, WHOLE_RUN_FIELDS
from costmodel.describe.jobs.field import Field
from costmodel.describe.jobs.fields import JOB_FIELDS
from costmodel.describe.jobs.known_words import known_words

_WIDE = ("name", "text", "layout", "order", "switches", "choices")
_DEBOUNCE_MS = 100

FIRST_FIELDS = tuple(
    f
    for f in JOB_FIELDS
    if f.group == "job" and (f.required or f.short or f.name == "tokens") and f.name != "switches"
)
"""What a job is asked first: what has no default, what has a short flag, and how far it trains."""
LAYOUT_FIELDS = tuple(f for f in JOB_FIELDS if f.group == "layout" and f.name not in ("layout", "dp"))
"""The layout; its text and dp say the same once more."""
OTHER_FIELDS = tuple(
    f for f in JOB_FIELDS if f not in (*FIRST_FIELDS, *LAYOUT_FIELDS) and f.name not in ("layout", "dp")
)
KNOB_FIELDS = tuple(f for f in SEARCH_FIELDS if f.turned)
CONSTRAINT_FIELDS = tuple(f for f in SEARCH_FIELDS if not f.turned)
RUN_FIRST_FIELDS = tuple(
    f
    for f in WHOLE_RUN_FIELDS
    if f.name in ("dollars", "days", "reliability", "failures_per_node_day", "spare_nodes", "pue")
)
"""What most people ask of a whole run; the rest is folded."""
RUN_OTHER_FIELDS = tuple(f for f in WHOLE_RUN_FIELDS if f not in RUN_FIRST_FIELDS)


class Form:
    """Inputs of several fields.

    Parameters
    ----------
    fields : iterable of Field
        What is asked, in this order.
    texts : mapping
        What stands in them.
    on_change : callable
        Awaited with the name of a field and its new text when somebody changes it.
    several : bool
        Whether values of fields that a search turns may be several.
    """

    def __init__(
        self,
        fields: Iterable[Field],
        texts: Mapping[str, str],
        on_change: Callable[[str, str], Any],
        *,
        several: bool = False,
    ) -> None:
        self._on_change = on_change
        self._filling = False
        self.inputs: dict[str, Any] = {}
        with ui.element("div").classes("app-fields"):
            for field in fields:
                self._add(field, texts.get(field.name, ""), several and bool(field.turned or field.several))

    def _add(self, field: Field, text: str, several: bool) -> None:
        """Add the input of one field."""

        async def changed(event: Any) -> None:
            if not self._filling:
                await self._on_change(field.name, "" if event.value is None else str(event.value))

        label = field.name.replace("_", " ") + (" to try" if several and field.turned else "")
        default = "every sensible one" if several and field.turned else field.default_said
        if field.kind in ("word", "truth") and not several:
            words = field.words or ("true", "false")
            options = {"": f"default: {default}" if default else "not said", **{word: word for word in words}}
            made: Any = ui.select(
                options, label=label, value=text if text in options else "", on_change=changed
            )
        else:
            made = ui.input(label, value=text, placeholder=default, on_change=changed)
            made.props(f"debounce={_DEBOUNCE_MS} autocomplete=off spellcheck=false autocapitalize=off")
            words = known_words(field.name)
            if words:
                made.props("clearable")
                offered = "".join(f'<option value="{escape(word)}"></option>' for word in words)
                # The name that the library gives the list of this input.
                listed = f'<datalist id="{made.html_id}-datalist">{offered}</datalist>'
                ui.html(listed, sanitize=False).style("display: none")
        made.props("outlined dense stack-label no-error-icon hide-hint")
        made.props["hint"] = made.props["title"] = field.help
        made.props["data-field"] = field.name
        if field.kind in _WIDE:
            made.classes("app-wide")
        self.inputs[field.name] = made

    def fill(self, texts: Mapping[str, str]) -> None:
        """Put other texts into the inputs without telling anybody."""
        self._filling = True
        try:
            for name, made in self.inputs.items():
                made.value = texts.get(name, "")
        finally:
            self._filling = False

    def blame(self, name: str, message: str) -> bool:
        """Show an error at its field, and none at the others; return whether the form has the field."""
        for other, made in self.inputs.items():
            said = message if other == name else None
            if made.error != said:  # what is set is drawn again, the same or not
                made.error = said
        return name in self.inputs
