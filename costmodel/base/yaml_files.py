"""YAML as this package reads and writes it: mappings, with one set of errors; comments survive a rewrite.

Every file of a user and every shipped one comes in through `read_mapping`, parsed by libyaml and understood as
YAML 1.2: ``no`` and ``on`` are words, ``010`` is ten. What is written goes through a round-trip document, so that a
profile keeps its comments, its quotes and its layout.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.base.errors import CostModelError
from costmodel.base.files import refuse_endless

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

MOST_CHARACTERS = 250_000
"""Longer files are no job, profile or model, and take the reader more than a few seconds."""
MOST_LEVELS = 50
MOST_COPIES = 100_000  # Parts that aliases and merges may add to those that are written
_TOO_DEEP = "expected valid YAML; it is nested too deeply"
_ENDLESS = "expected values that do not hold themselves, or each other over and over (&, *)"


def read_mapping(
    path: Path | Traversable, *, example: str, error: type[CostModelError] = CostModelError, name: str = ""
) -> dict[str, Any]:
    """Return the keys and values that a YAML file holds; refusals call it `name`, or its path, and show a line like `example`."""
    called = name or str(path)
    refuse_endless(path, error)
    try:
        with path.open("r", encoding="utf-8-sig") as stream:
            text = stream.read(MOST_CHARACTERS + 1)
    except OSError as problem:
        raise error(f"{called}: cannot be read ({problem.strerror})") from None
    except UnicodeDecodeError:
        raise error(f"{called}: expected text in UTF-8") from None
    return parse_mapping(text, called, example=example, error=error)


def parse_mapping(
    text: str, name: str, *, example: str, error: type[CostModelError] = CostModelError
) -> dict[str, Any]:
    """Return the keys and values of a YAML text; see `read_mapping`."""
    if len(text) > MOST_CHARACTERS:
        raise error(f"{name}: expected at most {MOST_CHARACTERS:,} characters")
    try:
        kept = _loaded(text)
    except _UnreadableError as problem:
        raise error(f"{name}: {problem}") from None
    if not isinstance(kept, dict):
        got = "nothing" if kept is None else type(kept).__name__
        raise error(f"{name}: expected keys with values such as '{example}'; got {got}")
    strange = [key for key in kept if not isinstance(key, str)]
    if strange:
        raise error(f"{name}: expected keys that are words such as '{example}'; got {strange[0]!r}")
    # What one reader changes, the next does not see.
    return copy.deepcopy(kept)


class _UnreadableError(Exception):
    """What is wrong with a text."""


@functools.lru_cache(maxsize=8)
def _loaded(text: str) -> Any:
    """Return what a text holds; several readers may look at one file."""
    from yaml.error import MarkedYAMLError

    try:
        loader = _loader()(text)
        node = loader.get_single_node()
        if node is None:
            return None
        sizes: dict[int, tuple[int, int]] = {}
        size, depth = _written_out(node, sizes)
        if size > len(sizes) + MOST_COPIES or depth > MOST_LEVELS:
            raise _UnreadableError(_ENDLESS)
        return loader.construct_document(node)
    except MarkedYAMLError as problem:
        what = " ".join(str(problem.problem or problem.context).split())
        if "nesting depth" in what:  # a limit that libyaml has of its own from 0.2.6 on
            raise _UnreadableError(_TOO_DEEP) from None
        # What is still open at the end is the last line's, not that of the line behind it.
        number = min(problem.problem_mark.line + 1, len(text.splitlines())) if problem.problem_mark else 0
        line = f"line {number}: " if number else ""
        raise _UnreadableError(f"{line}expected valid YAML; {what}") from None
    except _UnreadableError:
        raise
    except Exception as problem:  # the reader's own: of dates, numbers, tags and characters that cannot be
        what = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise _UnreadableError(f"expected valid YAML; {what}") from None


_OPEN = (0, 0)


def _written_out(node: Any, sizes: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return how many nodes one holds, all aliases and merges written out, and how deep; note it for every node below."""
    known = sizes.get(id(node))
    if known is not None:
        if known is _OPEN:
            raise _UnreadableError(_ENDLESS)
        return known
    sizes[id(node)] = _OPEN
    size, depth = 1, 0
    _refuse_twice(node)
    if not isinstance(node.value, str):
        for part in node.value:
            for each in part if isinstance(part, tuple) else (part,):
                more, below = _written_out(each, sizes)
                size, depth = size + more, max(depth, below)
    sizes[id(node)] = size, depth + 1
    return sizes[id(node)]


def _refuse_twice(node: Any) -> None:
    """Refuse a mapping in which a key stands twice; PyYAML would take the last."""
    import yaml

    seen = set()
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                problem = f"found duplicate key {key.value!r}"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add((key.tag, key.value))


@functools.cache
def _loader() -> Any:
    """Return libyaml's safe loader with the plain words of YAML 1.2."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012
        depth = 0

        def descend_resolver(self, *_: Any) -> None:
            # Called before each node is composed, by recursion; libyaml before 0.2.6 has no limit of its own.
            self.depth += 1
            if self.depth > MOST_LEVELS:
                raise _UnreadableError(_TOO_DEEP)

        def ascend_resolver(self) -> None:
            self.depth -= 1

        def construct_yaml_int(self, node: Any) -> int:
            text = self.construct_scalar(node).replace("_", "")
            return int(text, {"0x": 16, "0o": 8, "0b": 2}.get(text.lstrip("+-")[:2], 10))

    for tag, pattern, first in _PLAIN_WORDS:
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first))
    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    return Loader


_PLAIN_WORDS = (
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    (
        "float",
        r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|[-+]?\.[0-9_]+(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("int", "[-+]?0b[0-1_]+|[-+]?0o?[0-7_]+|[-+]?[0-9_]+|[-+]?0x[0-9a-fA-F_]+", "-+0123456789"),
    ("merge", "<<", "<"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    (
        "timestamp",
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt]|[ \t]+)[0-9]{1,2}"
        r":[0-9]{2}:[0-9]{2}(?:\.[0-9]*)?(?:[ \t]*(?:Z|[-+][0-9]{1,2}(?::[0-9]{2})?))?",
        "0123456789",
    ),
)
"""Tags of plain scalars in YAML 1.2, what they look like and how they begin (https://yaml.org/spec/1.2.2, section 10.3)."""


def top_level_lines(text: str, keys: Collection[str]) -> str:
    """Return the lines of some top-level keys and of what they hold, as a YAML text of their own."""
    taken, wanted = [], False
    for line in text.splitlines():
        if line[:1].isalpha() or line[:1] in ("'", '"', "_"):
            wanted = line.partition(":")[0].strip(" '\"") in keys
        if wanted:
            taken.append(line)
    return "\n".join(taken)


def _writer() -> Any:
    """Return a reader and writer that keeps comments, quotes, long lines and the profiles' indents."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 1_000_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def document(text: str) -> Any:
    """Return a YAML text as a mapping that remembers its comments and its layout."""
    return _writer().load(text)


def document_text(content: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """Write a mapping, or what `document` returned, as YAML, with comments behind some of its keys."""
    written: Any = content if hasattr(content, "ca") else node(content)
    for key, comment in (comments or {}).items():
        written.yaml_add_eol_comment(comment, key, column=len(key) + 3)
    stream = StringIO()
    _writer().dump(written, stream)
    return stream.getvalue()


def node(value: Any, *, inline: bool = False) -> Any:
    """Return a value as a part of a document, in one line if `inline`; numbers in six digits, as shipped profiles."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    if isinstance(value, Mapping):
        made = CommentedMap((key, node(item)) for key, item in value.items())
        if inline or "value" in value or (value and all(isinstance(key, int) for key in value)):
            made.fa.set_flow_style()
        return made
    if isinstance(value, Sequence) and not isinstance(value, str):
        listed = CommentedSeq([node(item) for item in value])
        if inline or all(isinstance(item, (int, float)) for item in value):
            listed.fa.set_flow_style()
        return listed
    if isinstance(value, float):
        return int(value) if value.is_integer() else float(f"{value:g}")
    return value
