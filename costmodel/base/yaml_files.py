"""YAML as this package reads and writes it: mappings, with one set of errors; comments survive a rewrite.

Every file of a user and every shipped one comes in through `read_mapping`. What is written goes
through a round-trip document, so that a profile keeps its comments, its quotes and its layout.

Shipped files are parsed when the package is built (`.ci/compile_yaml.py`), as reading them as text takes ten times
as long. What a text holds is looked up by the digest of the whole text, so that a file that somebody edits is read
as it is now, and a stale copy cannot be served.
"""

from __future__ import annotations

import functools
import pickle
import warnings
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.base.errors import CostModelError
from costmodel.base.files import refuse_endless

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

MOST_CHARACTERS = 250_000
"""Longer files are no job, profile or model, and take the reader more than a few seconds."""
COMPILED = Path(__file__).with_name("compiled")
SHIPPED = ("hardware_profiles", "costmodel/describe/data", "costmodel/interop/keys")


MOST_LEVELS = 50
MOST_COPIES = 100_000
"""Parts that aliases and merges may add to those that are written."""


def read_mapping(
    path: Path | Traversable,
    *,
    example: str,
    error: type[CostModelError] = CostModelError,
    name: str = "",
) -> dict[str, Any]:
    """Return the keys and values that a YAML file holds.

    Parameters
    ----------
    path : Path or Traversable
        The file.
    example : str
        A line such a file may have, for the message of a file that holds something else.
    error : type of CostModelError
        What to raise.
    name : str
        What messages call the file; its path if empty.

    Raises
    ------
    CostModelError
        Of the type `error`, one line, if the file cannot be read, is not YAML or holds no mapping.
    """
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
    known = _compiled(text)
    if known is not None:
        return known
    if len(text) > MOST_CHARACTERS:
        raise error(f"{name}: expected at most {MOST_CHARACTERS:,} characters")
    packed, problem = _loaded(text)
    if problem:
        raise error(f"{name}: {problem}")
    found = pickle.loads(packed)
    if not isinstance(found, dict):
        got = "nothing" if found is None else type(found).__name__
        raise error(f"{name}: expected keys with values such as '{example}'; got {got}")
    strange = [key for key in found if not isinstance(key, str)]
    if strange:
        raise error(f"{name}: expected keys that are words such as '{example}'; got {strange[0]!r}")
    return found


@functools.lru_cache(maxsize=8)
def _loaded(text: str) -> tuple[bytes, str]:
    """Return what a text holds, pickled, and what is wrong with it; several readers may look at one file."""
    from ruamel.yaml.error import MarkedYAMLError

    try:
        # An anchor that is named twice is legal; what the reader says of it is for programmers.
        with warnings.catch_warnings(action="ignore"):
            return pickle.dumps(_reader().load(text), protocol=5), ""
    except _ManifoldError:
        return b"", "expected values that do not hold themselves, or each other over and over (&, *)"
    except MarkedYAMLError as problem:
        what = " ".join(str(problem.problem or problem.context).split()).partition(" with value")[0]
        if what.startswith("maximum depth"):
            return b"", _TOO_DEEP
        line = f"line {problem.problem_mark.line + 1}: " if problem.problem_mark else ""
        return b"", f"{line}expected valid YAML; {what}"
    except RecursionError:
        return b"", _TOO_DEEP
    except Exception as problem:  # the reader's own: of dates, numbers, tags and keys that cannot be
        what = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        return b"", f"expected valid YAML; {what}"


_TOO_DEEP = "expected valid YAML; it is nested too deeply"


def _compiled(text: str) -> dict[str, Any] | None:
    """Return what a text holds if it was parsed at build time, else None."""
    try:
        return dict(pickle.loads(_compiled_file(text, COMPILED).read_bytes()))
    except FileNotFoundError:
        return None


def compile_shipped(root: Path, folder: Path = COMPILED) -> list[Path]:
    """Parse every YAML file that is shipped, and write what it holds.

    Parameters
    ----------
    root : Path
        The repository, or an unpacked source distribution.
    folder : Path
        Where to write; what lies there from an earlier build is removed.
    """
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.pickle"):
        old.unlink()
    written = []
    for path in sorted(path for place in SHIPPED for path in (root / place).rglob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        file = _compiled_file(text, folder)
        file.write_bytes(pickle.dumps(parse_mapping(text, path.name, example=""), protocol=5))
        written.append(file)
    return written


def _compiled_file(text: str, folder: Path) -> Path:
    return folder / f"{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}.pickle"


class _ManifoldError(Exception):
    """What a text stands for is far more than what it says."""


def _reader() -> Any:
    """Return a reader of plain values that looks at the nodes before it makes values of them.

    Aliases and merges (``<<``) cost nothing as nodes, and may take for ever as values.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import SafeConstructor

    class Constructor(SafeConstructor):
        def construct_document(self, node: Any) -> Any:
            sizes: dict[int, tuple[int, int]] = {}
            size, depth = _written_out(node, sizes)
            if size > len(sizes) + MOST_COPIES or depth > MOST_LEVELS:
                raise _ManifoldError
            return super().construct_document(node)

    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth = MOST_LEVELS  # stops what nests before it costs the square of its depth
    yaml.Constructor = Constructor
    return yaml


_OPEN = (0, 0)


def _written_out(node: Any, sizes: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return how many nodes one holds, all aliases written out, and how deep; note it for every node below."""
    known = sizes.get(id(node))
    if known is not None:
        if known is _OPEN:
            raise _ManifoldError
        return known
    sizes[id(node)] = _OPEN
    size, depth = 1, 0
    if not isinstance(node.value, str):
        for part in node.value:
            for each in part if isinstance(part, tuple) else (part,):
                more, below = _written_out(each, sizes)
                size, depth = size + more, max(depth, below)
    sizes[id(node)] = size, depth + 1
    return sizes[id(node)]


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
    """Return a value as a part of a document, in one line if `inline`.

    Whole numbers lose their point and others are written in six digits; lists of numbers, and
    mappings with `value` or by number, stand in one line as in the shipped profiles.
    """
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


def put_block(text: str, key: str, block: Mapping[str, Any], *, comment: str, before: str) -> str:
    """Return a YAML text with one top-level block replaced, or added before the key `before`."""
    content = document(text)
    if key in content:
        content[key] = node(block)
    else:
        place = list(content).index(before) if before in content else len(content)
        content.insert(place, key, node(block))
    return document_text(content, {key: comment})
