"""What a shell may offer where a word of a job is typed: names of models, clusters, recipes, switches …"""

from collections.abc import Callable, Iterable

from costmodel.describe.jobs.fields import FIELD


def _models() -> Iterable[str]:
    import costmodel as cm

    return cm.list_models()


def _clusters() -> Iterable[str]:
    import costmodel as cm

    return cm.list_profiles("cluster")


def _recipes() -> Iterable[str]:
    import costmodel as cm

    return cm.list_recipes()


def _precisions() -> Iterable[str]:
    import costmodel as cm

    return ("fp8", *cm.PRECISIONS)


def _optimizers() -> Iterable[str]:
    import costmodel as cm

    return cm.OPTIMIZERS


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


def complete(name: str, incomplete: str) -> list[str]:
    """Return the words that a field takes and that begin as typed; the last one of several with commas.

    >>> complete("recompute", "s"), complete("recompute", "none,f")
    (['selective'], ['none,full'])
    """
    before, comma, last = incomplete.rpartition(",")
    known = _KNOWN[name]() if name in _KNOWN else FIELD[name].words
    return [f"{before}{comma}{word}" for word in known if word.startswith(last)]


def completion_of(name: str) -> Callable[[str], list[str]]:
    """Return `complete` for one field, as the parser of the command line wants it: a function of what is typed."""

    def found(incomplete: str) -> list[str]:
        return complete(name, incomplete)

    return found
