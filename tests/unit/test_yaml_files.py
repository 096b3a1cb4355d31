"""One reader for every YAML file, with one set of errors; rewriting a profile keeps what it does not mean."""

from datetime import date
from pathlib import Path

import pytest

from costmodel.base.errors import CostModelError, ProfileError
from costmodel.base.yaml_files import (
    MOST_CHARACTERS,
    document,
    document_text,
    parse_mapping,
    read_mapping,
    top_level_lines,
)

PROFILES = sorted((Path(__file__).parents[2] / "hardware_profiles").glob("*/*.yaml"))

# Nine mappings that each merge the one before nine times: 9**9 keys for a reader that writes them out.
MERGES = "b0: &b0 {x: 1}\n" + "".join(
    f"b{i}: &b{i}\n  <<: [{', '.join([f'*b{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
ALIASES = "b0: &b0 [x]\n" + "".join(f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 9)}]\n" for i in range(1, 10))

WRONG = {
    "open list": ("a: 1\nb: [1, 2", "line 2: expected valid YAML"),
    "key twice": ("a: 1\na: 2", "line 2: expected valid YAML; found duplicate key"),
    "tag of another language": ("a: !!python/object:os.system {}", "expected valid YAML"),
    "day that does not exist": ("a: 2026-02-31", "expected valid YAML; day"),
    "number that is none": ("a: !!int eight", "expected valid YAML"),
    "key that is a list": ("? [1]\n: 2", "line 1: expected valid YAML; found unhashable key"),
    "key twice beside a merge": (
        "b: &b {x: 1}\nc: {<<: *b, y: 1, y: 2}",
        "line 2: expected valid YAML; found duplicate",
    ),
    "nested": ("[" * 200_000, "expected valid YAML; it is nested too deeply"),
    "nested in lines": ("- " * 100_000, "expected valid YAML; it is nested too deeply"),
    "nothing": ("", "expected keys with values such as 'gpus: 8'; got nothing"),
    "a list": ("- a", "got list"),
    "a word": ("word", "got str"),
    "numbers for keys": ("1: a", "got 1"),
    "control character": ("a: \x07", "expected valid YAML"),
    "merges that double": (MERGES, "values that do not hold themselves, or each other over and over"),
    "aliases that double": (ALIASES, "values that do not hold themselves, or each other over and over"),
    "deep by aliases": (
        "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 60)),
        "values that do not hold themselves, or each other over and over",
    ),
    "too long": ("# " + "x" * MOST_CHARACTERS, "expected at most 250,000 characters"),
}


@pytest.mark.parametrize(("text", "expected"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_is_one_line_of_the_error_asked_for(text, expected, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        read_mapping(path, example="gpus: 8", error=ProfileError, name="x.yaml")
    message = str(caught.value)
    assert message.startswith("x.yaml: ")
    assert expected in message
    assert len(message.splitlines()) == 1
    assert len(message) < 300


def test_merges_and_aliases_of_people_are_read(tmp_path):
    text = "base: &base {tp: 2, pp: 4}\njob:\n  <<: *base\n  tp: 8\nother: *base\n"
    found = parse_mapping(text, "f", example="")
    assert found["job"] == {"tp": 8, "pp": 4}
    assert found["other"] == {"tp": 2, "pp": 4}
    found["other"]["tp"] = 1  # what one reader changes, the next does not see
    assert parse_mapping(text, "f", example="")["other"] == {"tp": 2, "pp": 4}


def test_the_mark_of_windows_is_no_part_of_the_first_key(tmp_path):
    (tmp_path / "f.yaml").write_bytes(b"\xef\xbb\xbfgpus: 8\r\n")
    assert read_mapping(tmp_path / "f.yaml", example="") == {"gpus": 8}


def test_a_file_that_is_not_there_or_not_text_is_one_line_too(tmp_path):
    with pytest.raises(ProfileError, match=r"gone\.yaml: cannot be read \(No such file"):
        read_mapping(tmp_path / "gone.yaml", example="", error=ProfileError)
    with pytest.raises(ProfileError, match=r"cannot be read \(Is a directory"):
        read_mapping(tmp_path, example="", error=ProfileError)
    (tmp_path / "latin.yaml").write_bytes("title: Köln".encode("latin-1"))
    with pytest.raises(ProfileError, match="expected text in UTF-8"):
        read_mapping(tmp_path / "latin.yaml", example="", error=ProfileError)


def test_numbers_are_those_of_yaml_1_2(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "a: [1e9, 010, 0o10, 0x1F, 1_000, -3]\nb: [on, No, y, 190:20:30, '1', =]\nc: [TRUE, ~, 2026-02-01]\n"
    )
    found = read_mapping(path, example="")
    assert repr(found["a"]) == "[1000000000.0, 10, 8, 31, 1000, -3]"
    assert found["b"] == ["on", "No", "y", "190:20:30", "1", "="]
    assert found["c"] == [True, None, date(2026, 2, 1)]


def test_lines_of_a_key_are_found_however_they_are_written():
    text = "name: x\n'aliases' : # others\n- a\n- b\n\n  # more\nnotes: >-\n  aliases: [c]\ntitle: 'it''s'\n"
    assert top_level_lines(text, ("aliases",)) == "'aliases' : # others\n- a\n- b\n\n  # more"
    assert top_level_lines(text, ("title",)) == "title: 'it''s'"
    assert top_level_lines(text, ("kind",)) == ""


def test_a_shipped_profile_is_written_as_it_was_read():
    for path in PROFILES[::6]:
        text = path.read_text(encoding="utf-8")
        assert document_text(document(text)) == text, path


def test_a_device_is_no_file():
    with pytest.raises(CostModelError, match=r"^/dev/null: is a pipe or a device, expected a file$"):
        read_mapping(Path("/dev/null"), example="a: 1")


def test_lines_before_the_first_key_are_of_none():
    assert top_level_lines("# head\n- x\na: 1\nb: 2\n", ("a",)) == "a: 1"
