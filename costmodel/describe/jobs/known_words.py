"""What may be typed for a field, for a shell and a page to offer: names of models, clusters, recipes, switches …"""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.describe.jobs.fields import FIELD


def known_words(name: str) -> tuple[str, ...]:
    """Return the words that a field may be, or that it may begin with; empty where any text or number will do.

    >>> known_words("recompute"), known_words("tp")
    (('none', 'selective', 'full'), ())
    """
    return tuple(_named(name)) or FIELD[name].words


def _named(name: str) -> Iterable[str]:
    """Return what other tables name; they are loaded late, as a shell asks for one field."""
    match name:
        case "model":
            from costmodel.describe.models.model_files import list_models

            return list_models()
        case "cluster":
            from costmodel.describe.hardware.hardware import list_profiles

            return list_profiles("cluster")
        case "recipe":
            from costmodel.describe.recipe import list_recipes

            return list_recipes()
        case "precision":
            from costmodel.describe.precision import PRECISIONS

            return ("fp8", *PRECISIONS)
        case "optimizer":
            from costmodel.describe.optimizers import OPTIMIZERS

            return OPTIMIZERS
        case "switches":
            from costmodel.describe.switch_table import SWITCHES

            return [f"{each}={word}" for each, switch in SWITCHES.items() for word in ("", *switch.words)]
        case "hw":
            from costmodel.describe.hardware.changed import NUMBERS

            return tuple(f"{name}=" for name in NUMBERS)
        case _:
            return ()
