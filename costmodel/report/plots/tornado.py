"""Sensitivity as a tornado: how much the step shortens or lengthens with each number and switch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from costmodel.report.figures import FILLS, new_figure
from costmodel.report.series import job_title
from costmodel.units import format_seconds

if TYPE_CHECKING:
    from costmodel.sensitivities import Effect, Sensitivity

MOST_BARS = 22
_LEAST_REACH = 5e-4


def tornado_effects(found: Sensitivity, most: int = MOST_BARS) -> list[Effect]:
    """Return the effects that a picture shows, largest first."""
    moving = [effect for effect in found.effects if effect.reach >= _LEAST_REACH]
    return sorted(moving, key=lambda effect: -effect.reach)[:most]


def effect_label(effect: Effect) -> str:
    """Name a number, or a switch with both of its values."""
    return f"{effect.name}: {effect.before} → {effect.after}" if effect.kind == "switch" else effect.name


def draw_tornado(found: Sensitivity) -> Any:
    """Draw a bar for less and a bar for more of each number, and one for the other value of a switch."""
    effects = tornado_effects(found)
    est = found.estimate
    title = (
        f"{job_title(est)}: change of the {format_seconds(float(est.step_time_s), 4)} step\n"
        f"with {found.change:.0%} less or more of a number, or with the other value of a switch"
    )
    figure, axes = new_figure(title, size=(9.0, 0.3 * max(len(effects), 1) + 1.9))
    styles = {"less": (FILLS["hbm"][0], "///", f"{found.change:.0%} less"),
              "more": (FILLS["math"][0], "", f"{found.change:.0%} more"),
              "switch": (FILLS["tp"][0], "...", "the other value")}  # fmt: skip
    named: set[str] = set()
    for row, effect in enumerate(effects):
        sides = [("switch", effect.more)] if effect.kind == "switch" else [("less", effect.less), ("more", effect.more)]
        for side, change in sides:
            colour, hatch, label = styles[side]
            axes.barh(row, 100 * change, height=0.75, facecolor=colour, hatch=hatch, edgecolor="black", linewidth=0.5,
                      label="" if side in named else label)  # fmt: skip
            named.add(side)
        worst = max((change for _, change in sides), key=abs)
        axes.annotate(f"{100 * worst:+.1f} %", (100 * worst, row), textcoords="offset points",
                      xytext=(4 if worst > 0 else -4, 0), ha="left" if worst > 0 else "right", va="center",
                      fontsize="x-small")  # fmt: skip
    axes.axvline(0.0, color="black", linewidth=1.0)
    axes.set_yticks(range(len(effects)), [effect_label(effect) for effect in effects], fontsize="small")
    axes.set(ylim=(len(effects) - 0.3, -0.7), xlabel="change of step time [%]")
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
    if effects:
        figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    return figure
