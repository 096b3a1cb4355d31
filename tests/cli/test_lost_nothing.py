"""Nothing is lost or half-written, and no stream is a traceback."""

import os
import subprocess
import sys

import pytest

import costmodel.base.files as files
from costmodel.base.errors import CostModelError

JOB = ["-m", "llama3-8b", "-n", "8", "--global-batch", "8", "--seq-len", "2048"]


def test_a_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "out.txt"
    files.write_whole(path, "before")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CostModelError, match="cannot be written \\(No space left on device\\)"):
        files.write_whole(path, "after")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        files.write_whole(path, "after")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_a_file_is_as_public_as_others(tmp_path):
    path = tmp_path / "out.txt"
    files.write_whole(path, b"x")
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def costmodel(*arguments, shell="", **environment):
    line = f"'{sys.executable}' -m costmodel " + " ".join(f"'{word}'" for word in arguments)
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line} {shell}"],
        capture_output=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_every_encoding_takes_the_output_and_what_it_lacks_is_spelt():
    for encoding, command in (
        ("cp1252", ["run", *JOB, "--tokens", "1T"]),
        ("ascii", ["budget", "--budget", "1e6"]),
    ):
        done = costmodel(*command, PYTHONIOENCODING=encoding)
        assert (done.returncode, done.stderr) == (0, b"")
        text = done.stdout.decode(encoding)
        assert "?" not in text
        assert len(text) > 500
    assert "---" in text


def test_closed_and_full_streams():
    for shell, code, said in [
        (">&-", 2, "cannot write the output: Bad file descriptor"),
        ("2>&-", 0, ""),
        (">&- 2>&-", 2, ""),
        (">/dev/full", 2, "cannot write the output: No space left on device"),
        ("| true", 141, ""),
    ]:
        done = costmodel("estimate", *JOB, shell=shell)
        assert (done.returncode, said in done.stderr.decode()) == (code, True), done.stderr
        assert b"Traceback" not in done.stderr
        assert said or not done.stderr


def test_wrong_input_that_nobody_can_be_told_of():
    assert costmodel("estimate", "--nope", shell="2>/dev/full").returncode == 2


def test_results_go_to_files_where_stdout_is_closed(tmp_path):
    out = tmp_path / "est.json"
    done = costmodel("estimate", *JOB, "--out", str(out), shell=">&-")
    assert done.returncode == 0, done.stderr
    assert out.read_text().startswith("{")
