"""What a shell may offer where a word of a job is typed."""

from collections.abc import Callable


def complete(name: str, incomplete: str) -> list[str]:
    """Return the words that a field takes and that begin as typed; the last one of several with commas.

    >>> complete("recompute", "s"), complete("recompute", "none,f")
    (['selective'], ['none,full'])
    """
    from costmodel.describe.jobs.known_words import known_words

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in known_words(name) if word.startswith(last)]


def completion_of(name: str) -> Callable[[str], list[str]]:
    """Return `complete` for one field, as the parser of the command line wants it: a function of what is typed."""

    def found(incomplete: str) -> list[str]:
        return complete(name, incomplete)

    return found
