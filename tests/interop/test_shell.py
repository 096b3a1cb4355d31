"""Scripts followed as text against what bash makes of the same lines, and what only running them would tell."""

import re
import shutil
import subprocess
import time
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from costmodel.base.errors import CostModelError
from costmodel.interop.shell import follow, gpus_per_node, options_of
from costmodel.interop.shell_words import missing_in

SNIPPETS = YAML(typ="safe", pure=True).load(Path(__file__).with_name("bash_snippets.yaml").read_text())


def in_bash(script):
    """Return what bash calls `run` with: a line a call, words in brackets."""
    head = 'run() { for word in "$@"; do printf "[%s]" "$word"; done; printf "\\n"; }\n'
    done = subprocess.run(["bash", "-c", head + script], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def calls(script, **given):
    """Return the words of each certain call of `run`, what is missing as what is said of it."""
    launches = [launch for launch in follow(script, **given).launches if launch.words[0] == "run"]
    return [[missing_in(word) or word for word in launch.words[1:]] for launch in launches if launch.certain]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is the oracle")
def test_words_are_those_of_bash():
    """Beyond what is followed, words are those of bash or said not to be known."""
    for name, script in (SNIPPETS["followed"] | SNIPPETS["beyond"]).items():
        expected = in_bash(script)
        assert expected, f"bash itself calls nothing: {name}"
        ours = "\n".join("".join(f"[{word}]" for word in words) for words in calls(script)).splitlines()
        if name in SNIPPETS["followed"]:
            assert ours == expected, name
        for line in ours:
            pattern = re.sub(r"\\\[it\\ is\\ .*?line\\ \d+\\\]", r"\\[[^]]*\\]", re.escape(line))
            assert any(re.fullmatch(pattern, words) for words in expected), (name, line, expected)


def test_what_only_running_tells_is_named_with_its_line():
    """A construct, what `run $X` or the words behind it get, and nothing in place of it."""
    in_loop = "it is set in a {} loop, whose turns only running the script tells, line 1".format
    in_doubt = "it is set under a condition that only running the script tells, line {}".format
    told = {
        'X=$(nvidia-smi -L | wc -l)\nrun "$X" "$((X * 2))" "${X:-8}" "${X:+set}"': [
            *["it is the output of nvidia-smi -L wc -l, line 1"] * 3,
            "set",
        ],
        'run "$UNSET" "${UNSET}x" "$((UNSET + 1))" "${UNSET:?}"': ["$UNSET is not set"] * 4,
        "declare -A X=([8b]=32 [70b]=80)\nrun ${X[8b]}": ["it is an item of X, an array with keys, line 1"],
        "A=x\nX[2]=3\nrun ${X[2]}": ["it is an item of X, which is set by its place, line 2"],
        "run {1..4}": ["it is a brace expansion 1..4, line 1"],
        "\nrun $((010))": ["it is the arithmetic 010, line 2"],
        "X=$U\nY=$(ls)5; run $((${U}8 + 1)) $((Y + 1)) $((X + 1)) `ls 'x`": [
            "$U is not set",
            "it is the output of ls, line 2",
            "$U is not set",
            "it is the output of ls x, line 2",
        ],
        "run $((8*1inf)) $((1e400))": [
            "it is the arithmetic 8*1inf, line 1",
            "it is the arithmetic 1e400, line 1",
        ],
        "run $((1 / 0)) $((2 ** 99)) $((5 ^ 1)) $((9 // 2)) $((1 if 2 else 3)) $((16#10))": [
            *["it is the arithmetic 1 0, line 1", "it is the arithmetic 2 ** 99, line 1"],
            *["it is the arithmetic 5 ^ 1, line 1"],
            *["it is the arithmetic 9 2, line 1", "$if is not set"],
            "it is the arithmetic 16#10, line 1",
        ],
        "X=3; run $((X++)) $X": ["it is the arithmetic X++, line 1"] * 2,
        "run ${A@Q} ${!A*}": ["it is the expansion A@Q, line 1", "it is the expansion !A*, line 1"],
        "X=8; go() { X=$1; }; go 4; run $X": ["it is set in a function, which is not followed, line 1"],
        "read A <<< $(x)\nrun $A": ["it is the output of x, line 1"],
        "read -r X\nrun $X": ["it is what read -r X sets, line 1"],
        "X=($(ls) b); run ${#X[@]}": ["it is the output of ls, line 1"],
        "for i in $(ls); do X=$i; done; run $X": [in_loop("for")],
        "X=1\nfor ((i=0; i<U; i++)); do X=2; done; run $X": [in_loop("for").replace("1", "2")],
        "for ((i=0; i<2; i++)); do :; done; run $i": ["it is the count of a loop, line 1"],
        "for ((i=0; i<4; i++)); do i=2; done; run $i": [in_loop("for")],
        "N=4; for ((i=0; i<N; i++)); do N=2; done; run $N": [in_loop("for")],
        "[ a = b -o c = c ] && X=1; run $X": [in_doubt(1)],
        "i=8; for ((i=3; i>0; i--)); do X=$i; done; run $X $i": [in_loop("for")] * 2,
        "X=1; while ! nc -z host 80; do X=$((X+1)); done; run $X": [in_loop("while")],
        "for X in 8 4; do [ -d /data/$X ] && break; done; run $X": [in_loop("for")],
        "case $(uname) in Linux) X=4;; *) X=8;; esac; run $X": [
            "it is set in a case, which is not followed, line 1"
        ],
        "X=8; case u in X=4) :;; esac; run $X": ["8"],
        "X=8\nif nvidia-smi; then X=4; fi; run $X": [in_doubt(2)],
        "X=8\n[ -f /tmp/x ] && X=4\nrun $X": [in_doubt(2)],
        "X=8; [[ a =~ b ]] && X=4; run $X": [in_doubt(1)],
        "nvidia-smi && X=4\nls || X=5\nrun $X": ["4"],  # a program is taken to succeed
        "if nvidia-smi; then X=4; else X=4; Y=1; fi; run $X $Y": ["4", in_doubt(1)],
    }
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for script, words in told.items():
            assert calls(script)[-1] == words, script
    assert warned == []


def test_flags_that_a_condition_in_doubt_sets_are_noted():
    found = follow('L="--load a"\nif [ -d /data ]; then L="$L --resume"; P=/data; fi\nrun $L $P')
    assert found.launches[-1].words[:3] == ["run", "--load", "a"]
    (note,) = found.notes
    assert note == "line 2: $L: set under a condition that only running the script tells, and not read"


def test_shells_inside_are_followed():
    script = """
    export ARGS="--num-layers 4 --hidden-size 8"
    srun -N 2 bash -c 'torchrun --nnodes $SLURM_NNODES train.py $ARGS' 2>&1 | tee log
    sbatch <<EOF
    #!/bin/bash
    #SBATCH --nodes=16
    #SBATCH --gres=gpu:a100:4
    python train.py $ARGS --late
    EOF
    """.replace("\n    ", "\n")
    found = follow("#SBATCH --nodes 2\n" + script)
    words = [launch.words for launch in found.launches]

    args = ["--num-layers", "4", "--hidden-size", "8"]
    assert ["torchrun", "--nnodes", "2", "train.py", *args] in words
    assert ["python", "train.py", *args, "--late"] in words
    assert found.slurm["nodes"] == "16"


def test_files_that_here_documents_write():
    script = (
        'Z=2\ncat <<EOT > "./ds.$JOB.json"\n{"zero": {"stage": $Z}}\nEOT\ncat <<"X" >b/c.json\n$Z "q"\nX\n'
    )
    assert follow(script).files == {"ds..json": '{"zero": {"stage": 2}}', "c.json": '$Z "q"'}


def test_nothing_is_run(tmp_path):
    witness = tmp_path / "witness"
    follow(
        f"touch {witness}\nX=$(touch {witness})\n`touch {witness}`\neval touch {witness}\nbash -c 'touch {witness}'"
    )

    assert not witness.exists()


def test_sourced_neighbours(tmp_path):
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "model.sh").write_text("LAYERS=12\n[ -f deeper.sh ] && source deeper.sh")
    (folder / "deeper.sh").write_text("WIDTH=64\n")
    (tmp_path / "beside.sh").write_text("HEADS=4\n")
    script = 'source "$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"/model.sh\n. ${0%/*}/../beside.sh\n'
    found = follow(f"{script}run $LAYERS $WIDTH $HEADS", folder=folder, allowed=[str(tmp_path)])
    alone = follow(f"{script}run $LAYERS $WIDTH ${{HEADS[@]}}", folder=folder)

    assert found.launches[-1].words == ["run", "12", "64", "4"]
    assert found.notes == [f"source {name}.sh: followed" for name in ("model", "deeper", "beside")]
    # What lies above the script is not read unless its folder is given, and what it would set is not known.
    assert alone.launches[-1].words[:3] == ["run", "12", "64"]
    assert missing_in(alone.launches[-1].words[3]) == "$HEADS is not set"
    assert alone.unread == ["./../beside.sh"]
    assert follow("source model.sh", folder=None).notes == ["source model.sh: not read"]
    assert "not read" in follow("source /etc/passwd", folder=folder).notes[0]
    assert follow("source venv/bin/activate; . ~/.bashrc", folder=folder).unread == []


OWN_FOLDER = r"""
$(dirname "$0")
.
$(dirname "${BASH_SOURCE[0]}")
${BASH_SOURCE%/*}
${0%/*}
`dirname $0`
$(pwd)
$PWD
$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)
$( cd "$( dirname "${BASH_SOURCE[0]}" )" >/dev/null 2>&1 && pwd -P )
$(cd $(dirname $0); pwd)
$(cd ${0%/*}/sub && cd .. && pwd)
$(dirname $(realpath $0))
$(realpath $(dirname "${BASH_SOURCE[0]:-$0}"))
$(dirname "$(readlink -f "$0")")
$(dirname -- "$(readlink -f -- "$0"; )")
"""
"""How launch scripts name the folder that they lie in."""


def test_the_own_folder_of_a_script(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.sh").write_text("ARGS=(--num-layers 36)\n")
    (tmp_path / "m.sh").write_text("ARGS=(--num-layers 1)\n")
    for idiom in OWN_FOLDER.split("\n")[1:-1]:
        found = follow(
            f'D="{idiom}"\nsource "$D/models/m.sh"\nrun ${{ARGS[@]}}', folder=tmp_path, name="a.sh"
        )
        assert found.launches[-1].words == ["run", "--num-layers", "36"], idiom

    names = follow("run $(basename $0 .sh) ${0##*/}", name="a.sh").launches[0].words
    assert names[2] == "a.sh"


def test_refused_in_one_line(tmp_path):
    (tmp_path / "a.sh").write_text("source b.sh\n")
    (tmp_path / "b.sh").write_text("source a.sh\n")
    refused = {
        "x='eval $x'; eval $x": "line 1: the script calls itself without end",
        "for ((i=0; i<99; i++)); do\nfor ((j=0; j<499; j++)); do :; done; done": "line 2: the script is too long to follow",
        "A=aaaaaaaaaa\nfor i in 1 2 3 4 5 6 7 8 9 10; do A=$A$A$A$A; done": "line 2: the script is too long to follow",
        "run\nselect x in a; do run; done": "line 2: 'select' is not followed",
        "( " * 5000: "nested too deeply",
        "$(" * 5000 + ")" * 5000: "nested too deeply",
        "run\nrun 'abc": "line 2: nothing closes 'abc",
        "run $(echo": "line 1: nothing closes $(echo",
        "X=(1 2\n3": "nothing closes =(1 2 3",
        "run\nif true; then run": "nothing ends the 'if'",
        "run\n\ndone": "line 3: a 'done' stands where none can in a shell script",
        "case x in a) run;;": "nothing ends the 'case'",
        "run a(b)": "line 1: a ( stands where none can in a shell script",
        "source a.sh": "a.sh reads itself in a circle",
    }
    for script, words in refused.items():
        with pytest.raises(CostModelError) as caught:
            follow(script, folder=tmp_path)
        assert words in str(caught.value), script
        assert "\n" not in str(caught.value)


def test_a_script_goes_on_where_only_running_it_tells_whether_it_ends():
    """Nor does a check of the arguments end it: a reader gives none, and wants what would start with them."""
    for script in (
        "if nvidia-smi; then exit 0; fi; run on",
        '[ "$(hostname)" = login ] && exit 0; run on',
        'if [ "$(id -u)" = 0 ]; then echo root; else exit; fi; run on',
        'case $(uname) in "") exit 0;; *) exit 0;; esac; run on',
        'if [ $# -lt 2 ]; then echo "usage: $0 A B"; exit 1; fi; run on',
        "cd /data || exit 1; run on",
        "return; run on",
    ):
        assert calls(script) == [["on"]], script


def test_unfinished_lines_and_lone_commands_are_no_traceback():
    words = """source . export unset shift eval read printf echo cd let local declare set test [ trap exec wait sleep
    env time nohup true false : dirname basename cat tee mkdir mapfile readonly break continue seq sbatch srun bash"""
    for command in words.split():
        assert calls(f"{command}\nrun 1\n") == [["1"]], command
    unfinished = "[[ a == b|[ a = |for x|for ((i=0; i<2|until false|f()|function|run ${A|run $((1 +|A[1|cat <<|cat <<<|"
    unfinished += (
        "{ run 2|run `echo|run >|}|&&|run 2 &&|!|! !|$(|\\|cat <<EOF\nabc|case x in|case|select|run <(ls"
    )
    for line in unfinished.split("|"):
        for text in (line, f"run 1\n{line}", f"run 1\n{line}\nrun 3\n"):
            # One line of ours is as good as an answer.
            with suppress(CostModelError):
                follow(text)


def test_options_of_slurm():
    known = {
        "-N 4 --gpus-per-node=8": {"nodes": "4", "gpus-per-node": "8"},
        "-N4 -n8 -G2": {"nodes": "4", "ntasks": "8", "gpus": "2"},
        "--exclusive --nodes 2": {"exclusive": "", "nodes": "2"},
        "--nodes= --ntasks 2": {"nodes": "", "ntasks": "2"},
        "--nodelist a- -t 5": {"nodelist": "a-", "time": "5"},
        "-J 'mine' -p \"big\" -A me": {"job-name": "mine", "partition": "big", "account": "me"},
        "--NODES 2 word": {"nodes": "2"},
        "--nodes 2 --nodes 3": {"nodes": "3"},
    }
    assert {words: options_of(words.split()) for words in known} == known


def test_gpus_of_a_node_and_what_slurm_sets():
    known = {
        "--gpus-per-node=8": "8",
        "--gpus-per-node=gpu:h100:2": "2",
        "--gpus-per-node=none": "",
        "--gres=gpu:4": "4",
        "--gres=shard:2,gpu:8": "8",
        "--gres=shard:2": "",
        "--gres=gpu": "",
        "--gres=craynetwork:1,gpu:nvidia_a100.80gb:3": "3",
        "--gpus-per-node=2 --gres=gpu:4": "2",
        "--nodes=2": "",
    }
    for options, gpus in known.items():
        assert gpus_per_node(options_of(options.split())) == gpus
        script = f"#SBATCH {options}\nrun ${{SLURM_GPUS_ON_NODE-none}} ${{SLURM_GPUS_PER_NODE-none}}\n"
        assert calls(script) == [[gpus or "none"] * 2]
    script = "run ${SLURM_NNODES-none} ${SLURM_JOB_NUM_NODES-none} ${SLURM_NTASKS_PER_NODE-none}\n"
    known = {"": ["none"] * 3, "--nodes=2": ["2", "2", "none"], "--nodes=2-4": ["none"] * 3}
    known["--ntasks-per-node=8 -N 3"] = ["3", "3", "8"]
    for options, words in known.items():
        assert calls(f"#SBATCH {options}\n{script}") == [words]
    assert follow("#SBATCH --nodes=2\n#SBATCH --nodes=3\n").slurm["nodes"] == "2"  # the job's own come first


LONG = "a" * 99_000


def test_what_grows_without_end_is_refused_in_seconds():
    for script in [
        'A=("" "")\nfor ((i=0;i<40;i++)); do A+=("${A[@]}"); done',
        f"X={LONG}\nrun {'$X' * 30_000}",
        f"X={LONG}\nfor ((i=0;i<400;i++)); do {'run $X; ' * 40}done",
        f"for ((i=0;i<400;i++)); do echo '{LONG}'; done",
        f"X=': {LONG[:90_000]}'\nfor ((i=0;i<400;i++)); do eval \"$X\"; done",
        "".join(f"a{i}=\n" for i in range(9000)) + "if foo; then :; fi\n" * 4000,
    ]:
        with pytest.raises(CostModelError, match="too long to follow"):
            follow(script)


def test_long_words_of_the_shell_do_not_take_the_square_of_their_length():
    before = time.process_time()
    for script in (f"Y=$(({LONG}))", "function a" + " " * 900_000 + "b", "run " + "bash " * 100_000):
        assert calls(script + "\nrun x")[-1] == ["x"]
    assert time.process_time() - before < 10
