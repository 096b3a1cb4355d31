"""Sensitivity as a tornado: how much the step shortens or lengthens with each number and switch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from costmodel.base.units import format_seconds
from costmodel.reporting.figures import empty_figure, fill
from costmodel.reporting.series import job_title
from costmodel.what_if.sensitivity import sensitivity

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate
    from costmodel.what_if.sensitivity import Effect, Sensitivity

MOST_BARS = 12
_LEAST_REACH = 5e-4


def tornado_effects(found: Sensitivity, *, switches: bool, most: int = MOST_BARS) -> list[Effect]:
    """Return the numbers, or the switches, that a picture shows, largest first."""
    moving = [effect for effect in found.effects if effect.reach >= _LEAST_REACH]
    held = [effect for effect in moving if (effect.kind == "switch") == switches]
    return sorted(held, key=lambda effect: -effect.reach)[:most]


def effect_label(effect: Effect) -> str:
    """Name a number, or a switch with both of its values; of a longer list only what is added."""
    if effect.kind != "switch":
        return effect.name
    if effect.before and effect.after.startswith(f"{effect.before}+"):
        return f"{effect.name}: + {effect.after.removeprefix(f'{effect.before}+')}"
    return f"{effect.name}: {effect.before} → {effect.after}"


def draw_tornado_of(est: Estimate) -> Any:
    """Draw what each number and each switch of a job is worth."""
    return draw_tornado(sensitivity(est))


def draw_tornado(found: Sensitivity) -> Any:
    """Draw a bar for less and a bar for more of each number; below, one for the other value of each switch."""
    numbers, turned = (tornado_effects(found, switches=which) for which in (False, True))
    est = found.estimate
    title = (
        f"{job_title(est)}: change of the {format_seconds(float(est.step_time_s), 4)} step\n"
        f"with {found.change:.0%} less or more of a number (above), with the other value of a switch (below)"
    )
    heights = [max(len(numbers), 1), max(len(turned), 1)]
    figure = empty_figure(title, size=(9.0, 0.33 * sum(heights) + 2.6))
    above, below = figure.subplots(2, 1, height_ratios=heights)
    less, more = f"{found.change:.0%} less", f"{found.change:.0%} more"
    _bars(
        above,
        numbers,
        [(less, "hbm", lambda effect: effect.less), (more, "math", lambda effect: effect.more)],
    )
    _bars(below, turned, [("the other value", "tp", lambda effect: effect.more)])
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    return figure


def _bars(
    axes: Any, effects: Sequence[Effect], sides: Sequence[tuple[str, str, Callable[[Effect], float]]]
) -> None:
    """Draw the bars of some effects, and write the longer one's value beside it."""
    for label, style, change_of in sides:
        widths = [100 * change_of(effect) for effect in effects]
        axes.barh(range(len(effects)), widths, height=0.75, label=label, **fill(style))
    for row, effect in enumerate(effects):
        worst = 100 * max((change_of(effect) for _, _, change_of in sides), key=abs)
        axes.annotate(
            f"{worst:+.1f} %",
            (worst, row),
            textcoords="offset points",
            va="center",
            fontsize="x-small",
            xytext=(4 if worst > 0 else -4, 0),
            ha="left" if worst > 0 else "right",
        )
    axes.axvline(0.0, color="black", linewidth=1.0)
    labels = ["\n".join(wrap(effect_label(effect), 44)) for effect in effects]
    axes.set_yticks(range(len(effects)), labels, fontsize="x-small")
    axes.set(ylim=(len(effects) - 0.3, -0.7), xlabel="change of step time [%]")
    axes.margins(x=0.18)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
