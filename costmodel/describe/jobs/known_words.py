"""What may be typed for a field, for a shell and a page to offer: names of models, clusters, recipes, switches …"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from costmodel.describe.jobs.fields import FIELD


def _models() -> Iterable[str]:
    from costmodel.describe.models.model_files import list_models

    return list_models()


def _clusters() -> Iterable[str]:
    from costmodel.describe.hardware.hardware import list_profiles

    return list_profiles("cluster")


def _recipes() -> Iterable[str]:
    from costmodel.describe.recipe import list_recipes

    return list_recipes()


def _precisions() -> Iterable[str]:
    from costmodel.describe.precision import PRECISIONS

    return ("fp8", *PRECISIONS)


def _optimizers() -> Iterable[str]:
    from costmodel.describe.optimizers import OPTIMIZERS

    return OPTIMIZERS


def _switches() -> Iterable[str]:
    from costmodel.describe.jobs.switches import HOME, switch_choices

    return (
        text for name in HOME for text in (f"{name}=", *(f"{name}={word}" for word in switch_choices(name)))
    )


_KNOWN: dict[str, Callable[[], Iterable[str]]] = {
    "model": _models,
    "cluster": _clusters,
    "recipe": _recipes,
    "precision": _precisions,
    "optimizer": _optimizers,
    "switches": _switches,
}


def known_words(name: str) -> tuple[str, ...]:
    """Return the words that a field may be, or that it may begin with; empty where any text or number will do.

    >>> known_words("recompute"), known_words("tp")
    (('none', 'selective', 'full'), ())
    """
    return tuple(_KNOWN[name]()) if name in _KNOWN else FIELD[name].words
