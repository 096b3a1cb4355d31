"""Scripts followed as text against what bash makes of the same lines, and scripts that end nowhere."""

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from costmodel.base.errors import CostModelError
from costmodel.interop.shell.arithmetic import evaluate, integer_of
from costmodel.interop.shell.expand import missing_in
from costmodel.interop.shell.script import follow, gpus_per_node, options_of
from costmodel.interop.shell.syntax import parse

SNIPPETS = {
    "defaults": 'A=${NONE:-7}; B=${A-x}; C=${A:+yes}; D=${NONE2:=kept}; run --n "$A" "$B" "$C" "$D" "$NONE2"',
    "arithmetic": "N=4; G=$((N*8/3)); H=$(( (N + 1) % 2 ? 10 : 20 )); I=$((2**5 - -3)); run $G $H $I $((N<5 && N!=3))",
    "truncation": "run $(( -7 / 2 )) $(( -7 % 2 )) $(( 7 / -2 ))",
    "assignment inside": "X=3; run $((X+=4)) $((X++)) $X $((--X))",
    "arrays": 'A=(--x 1 "two words"); A+=(--y 3); run "${A[@]}" ${#A[@]} ${A[1]} "${A[2]}" "${!A[@]}"',
    "splitting": 'S="  --a 1   --b  2 "; run $S; run "$S"; run x${S}y',
    "quotes": 'V=v; run \'$V\' "$V" "a\\$b" a\\ b "\'$V\'" \'"\'',
    "nested strings": 'I="--in 1"; O="$I --out 2"; O="${O} --more"; run $O',
    "continued": "run --a \\\n  1 \\\n  --b 2  # not --c 3\nrun --d 4",
    "if": 'T=4; if [ $T -gt 2 ] && [ "$T" != 8 ]; then P=big; elif [ $T = 1 ]; then P=one; else P=none; fi; run $P',
    "double brackets": 'M=8B; if [[ "$M" == 8* && ! ( $M == 70B ) ]]; then L=32; fi; [[ -z "$U" ]] && E=empty; run $L $E',
    "unset in a test": "if [ -z ${U} ]; then A=1; fi; if [ $U = x ]; then A=2; fi; run $A",
    "case": "S=7B; case $S in 1B|2B) L=16;; 7*) L=32;; *) L=0;; esac; run $L",
    "for": 'R=""; for i in 1 2 three; do R="$R,$i"; done; run $R',
    "counted for": "A=(); for ((i=0; i<5; i++)); do if (( i < 2 )); then A+=(0); else A+=(1); fi; done; run ${A[@]}",
    "endless for": "N=0; for ((;;)); do N=$((N+1)); if [ $N -gt 3 ]; then break; fi; done; run $N",
    "break in words": "for M in a b c; do V=$M; [ $M = b ] && break; done; run $V",
    "continue": 'R=""; for M in a b c; do if [ $M = b ]; then continue; fi; R="$R$M"; done; run $R',
    "continue counts": 'R=""; for ((i=0; i<4; i++)); do if ((i == 2)); then continue; fi; R="$R$i"; done; run $R',
    "break of two": "for A in 1 2; do for B in x y; do C=$A$B; [ $B = y ] && break 2; done; done; run $C",
    "continue of two": 'R=""; for A in 1 2; do for B in x y; do continue 2; R=no; done; R=no; done; run "$R" $A $B',
    "break of a while": "N=1; while true; do N=$((N*2)); case $N in 8) break;; esac; done; run $N",
    "joined": 'A=(0 0 1); printf -v F "[%s]" "$(IFS=,; echo "${A[*]}")"; run $F',
    "while": "N=1; K=0; while [ $N -lt 100 ]; do N=$((N*3)); K=$((K+1)); done; run $N $K",
    "functions": 'go() { run "$1" "${2:-none}" $#; }; function stay { run never; }; go a; go b c',
    "trimmed": "F=path/to/model.tar.gz; run ${F##*/} ${F%.*} ${F%%.*} ${F#*/} ${F/model/m} ${#F}",
    "case of letters": "V=aBc; run ${V^^} ${V,,} ${V:1:1}",
    "eval": "C='run --x 1'; eval $C; eval \"$C --y 2\"",
    "substitution": "D=$(dirname a/b/c.sh); B=`basename a/b/c.sh`; E=$(echo one two); run $D $B $E",
    "and or": "A=1; [ $A = 1 ] && B=2 || B=3; [ $A = 2 ] && C=2 || C=3; run $B $C",
    "exported": "export A=1 B='2 3'; C=$B; run $A \"$C\"",
    "here document": "N=3\ncat <<EOF > /dev/null\nignored --a $N\nEOF\nrun $N",
    "printed": 'P=$(printf "%d-%s" 3 x); run $P',
    "empty words": 'E=""; run "$E" $E end',
}
# Of each piece of the language, its forms.
SNIPPETS |= YAML(typ="safe", pure=True).load(Path(__file__).with_name("bash_snippets.yaml").read_text())


def in_bash(script):
    """Return what bash calls `run` with: a line a call, words in brackets."""
    head = 'run() { for word in "$@"; do printf "[%s]" "$word"; done; printf "\\n"; }\n'
    done = subprocess.run(["bash", "-c", head + script], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def as_text(script):
    calls = [launch.words[1:] for launch in follow(script).launches if launch.words[0] == "run"]
    return "\n".join("".join(f"[{word}]" for word in words) for words in calls).splitlines()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is the oracle")
@pytest.mark.parametrize("name", SNIPPETS)
def test_words_are_those_of_bash(name):
    expected = in_bash(SNIPPETS[name])
    assert expected, "bash itself calls nothing"

    assert as_text(SNIPPETS[name]) == expected


def test_what_is_missing_is_named_and_not_invented():
    launch = follow(
        'N=$(nvidia-smi -L | wc -l)\nrun --a $UNSET --b $N --c "$((N * 2))" --d "${UNSET}x"'
    ).launches[-1]

    missing = dict(zip(launch.words[1::2], map(missing_in, launch.words[2::2]), strict=True))
    assert missing["--a"] == "$UNSET is not set"
    assert missing["--b"].startswith("it is the output of 'nvidia-smi")
    assert missing["--c"].startswith("it is the output of")
    assert missing["--d"] == "$UNSET is not set"


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

    assert ["torchrun", "--nnodes", "2", "train.py", "--num-layers", "4", "--hidden-size", "8"] in words
    assert ["python", "train.py", "--num-layers", "4", "--hidden-size", "8", "--late"] in words
    assert found.slurm["nodes"] == "16"


def test_a_file_that_a_here_document_writes():
    found = follow('Z=2\ncat <<EOT > "./ds.$JOB.json"\n{"zero_optimization": {"stage": $Z}}\nEOT\n')

    assert list(found.files.values()) == ['{"zero_optimization": {"stage": 2}}']


def test_nothing_is_run(tmp_path):
    witness = tmp_path / "witness"
    follow(
        f"touch {witness}\nX=$(touch {witness})\n`touch {witness}`\neval touch {witness}\nbash -c 'touch {witness}'"
    )

    assert not witness.exists()


def test_sourced_neighbours(tmp_path):
    (tmp_path / "model.sh").write_text("LAYERS=12\nsource deeper.sh\n")
    (tmp_path / "deeper.sh").write_text("WIDTH=64\n")
    found = follow("source $HERE/model.sh\nrun $LAYERS $WIDTH", folder=tmp_path)

    assert found.launches[-1].words == ["run", "12", "64"]
    assert found.notes == ["source model.sh: followed", "source deeper.sh: followed"]
    assert follow("source model.sh", folder=None).notes == ["source model.sh: not read"]
    assert "not read" in follow("source /etc/passwd", folder=tmp_path).notes[0]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("f() { f; }\nf", "without end"),
        ("x=1; while [ $x = 1 ]; do while [ $x = 1 ]; do y=1; done; done", "come to an end"),
        ("A=aaaaaaaaaa\nfor i in $(echo 1 2 3 4 5 6 7 8 9 10); do A=$A$A$A$A; done", "grows beyond"),
        ("X=$((1 / 0))", "division by zero"),
        ("X=$((2 ** 999))", "exponent is out of range"),
        ("( " * 200, "nested too deeply"),
    ],
)
def test_scripts_without_an_end_are_refused(script, words):
    with pytest.raises(CostModelError, match=words):
        follow(script)


def test_a_circle_of_sources_is_refused(tmp_path):
    (tmp_path / "a.sh").write_text("source b.sh\n")
    (tmp_path / "b.sh").write_text("source a.sh\n")

    with pytest.raises(CostModelError, match=r"a\.sh reads itself in a circle"):
        follow("source a.sh", folder=tmp_path)


@pytest.mark.parametrize(
    "script",
    [
        "if nvidia-smi; then exit 0; fi; run on",
        '[ "$(hostname)" = login ] && exit 0; run on',
        "./prepare.sh && exit 0; run on",
        'if [ "$(id -u)" = 0 ]; then echo root; else exit; fi; run on',
        'case $(uname) in "") exit 0;; *) exit 0;; esac; run on',
        'if [ $# -lt 2 ]; then echo "usage: $0 A B"; exit 1; fi; run on',
        "cd /data || exit 1; run on",
        "return; run on",
    ],
)
@pytest.mark.parametrize("doubtful", [False, True])
def test_a_script_goes_on_where_only_running_it_tells_whether_it_ends(script, doubtful):
    """Nor does a check of the arguments end it: a reader gives none, and wants what would start with them."""
    assert follow(script, doubtful=doubtful).launches[-1].words == ["run", "on"]


@pytest.mark.parametrize("constant", ["08", "2#12", "1#0", "65#1", "8#", "0x"])
def test_no_constants_of_the_shell(constant):
    with pytest.raises(CostModelError, match="cannot read"):
        evaluate(constant, {}.get, {}.setdefault)


def test_arithmetic_of_something_unknown_is_unknown():
    assert evaluate("3 * N + 1", {"N": None}.get, lambda *_: None) is None
    assert evaluate("1 ? 2 : N", {"N": None}.get, lambda *_: None) == 2
    assert evaluate("0x10 + 1000", {}.get, lambda *_: None) == 1016


def test_prints_are_followed_as_often_as_they_come():
    """How deep a print is nested is counted, not how many there were."""
    found = follow("for ((i=0; i<80; i++)); do N=$(echo $i); done; run $N")
    assert found.launches[-1].words == ["run", "79"]


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        ("seq 3", ["1", "2", "3"]),
        ("seq 2 4", ["2", "3", "4"]),
        ("seq 1 3 7", ["1", "4", "7"]),
        ("seq 5 4", []),
    ],
)
def test_sequences(inside, words):
    assert follow(f"run $({inside})").launches[-1].words == ["run", *words]


@pytest.mark.parametrize("inside", ["seq 1 x", "seq x 3", "seq", "seq 1 12345678"])
def test_no_sequences(inside):
    assert missing_in(" ".join(follow(f"run $({inside})").launches[-1].words[1:]))


@pytest.mark.parametrize(
    "command",
    """source . export unset shift eval read printf echo cd let local declare set test [ trap exec wait sleep command
    builtin env time nohup true false : dirname basename cat tee mkdir readarray mapfile typeset readonly alias break
    continue return seq sbatch srun bash sh python torchrun""".split(),  # noqa: SIM905
)
def test_a_command_alone_ends_nothing(command):
    """A line that somebody forgot to finish; `return` ends no script that is not sourced."""
    launches = follow(f"{command}\nrun 1\n").launches
    assert launches[-1].words == ["run", "1"] or command == "return"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("-N 4 --gpus-per-node=8", {"nodes": "4", "gpus-per-node": "8"}),
        ("-N4 -n8 -G2", {"nodes": "4", "ntasks": "8", "gpus": "2"}),
        ("--exclusive --nodes 2", {"exclusive": "", "nodes": "2"}),
        ("--nodes= --ntasks 2", {"nodes": "", "ntasks": "2"}),
        ("--nodelist a- -t 5", {"nodelist": "a-", "time": "5"}),
        ("-J 'mine' -p \"big\" -A me", {"job-name": "mine", "partition": "big", "account": "me"}),
        ("--NODES 2 word", {"nodes": "2"}),
        ("--nodes 2 --nodes 3", {"nodes": "3"}),
        ("--wait", {"wait": ""}),
    ],
)
def test_options_of_slurm(words, found):
    assert options_of(words.split()) == found


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ("--gpus-per-node=8", "8"),
        ("--gpus-per-node=a100:4", "4"),
        ("--gpus-per-node=gpu:h100:2", "2"),
        ("--gpus-per-node=none", ""),
        ("--gres=gpu:4", "4"),
        ("--gres=gpu:a100-80:4", "4"),
        ("--gres=shard:2,gpu:8", "8"),
        ("--gres=shard:2", ""),
        ("--gres=gpu", ""),
        ("--gres=gpu:a100:4,nvme:1", "4"),
        ("--gres=craynetwork:1,gpu:nvidia_a100.80gb:3", "3"),
        ("--gpus-per-node=2 --gres=gpu:4", "2"),
        ("--nodes=2", ""),
    ],
)
def test_gpus_of_a_node_and_what_slurm_sets(options, gpus):
    assert gpus_per_node(options_of(options.split())) == gpus
    found = follow(f"#SBATCH {options}\nrun ${{SLURM_GPUS_ON_NODE-none}} ${{SLURM_GPUS_PER_NODE-none}}\n")
    assert found.launches[-1].words[1:] == [gpus or "none"] * 2


def test_what_slurm_sets_are_numbers():
    script = "run ${SLURM_NNODES-none} ${SLURM_JOB_NUM_NODES-none} ${SLURM_NTASKS_PER_NODE-none}\n"
    known = {"": ["none"] * 3, "--nodes=2": ["2", "2", "none"], "--nodes=2-4": ["none"] * 3}
    known["--ntasks-per-node=8 -N 3"] = ["3", "3", "8"]
    for options, words in known.items():
        assert follow(f"#SBATCH {options}\n{script}").launches[-1].words[1:] == words
    both = follow("#SBATCH --nodes=2\n#SBATCH --nodes=3\n" + script)
    assert both.slurm["nodes"] == "2"


@pytest.mark.parametrize("text", ["2#1#0", "1#0", "65#1", "#1", "2#", "8#9", "0x", "x", "", "0xg"])
def test_constants_that_are_none(text):
    assert integer_of(text) is None


def test_constants_of_any_base():
    known = {
        "36#z": 35,
        "36#Z": 35,
        "37#Z": None,
        "62#Z": 61,
        "64#_": 63,
        "64#@": 62,
        "0X1F": 31,
        "0": 0,
        "10": 10,
    }
    assert {text: integer_of(text) for text in known} == known


@pytest.mark.parametrize(
    "unfinished",
    [
        *(
            "[[ a == b",
            "[ a = b",
            "[ a = ",
            "if true; then run 2",
            "if",
            "if true",
            "for x in a b; do run $x",
            "for",
        ),
        *(
            "for x",
            "for ((i=0; i<2",
            "case x in a) run 2",
            "case",
            "case x",
            "while true; do",
            "while",
            "until false",
        ),
        *(
            "f() { run 2",
            "f()",
            "function",
            "function f",
            'run "abc',
            "run 'abc",
            "run $(echo",
            "run ${A",
            "run $((1 +",
        ),
        *(
            "A=(1 2",
            "A[",
            "A[1",
            "cat <<EOF\nabc",
            "cat <<",
            "cat <<<",
            "(run 2",
            "{ run 2",
            "run `echo",
            "run >",
            "run <",
        ),
        *(
            "fi",
            "done",
            "esac",
            ")",
            "}",
            ";;",
            "&&",
            "|",
            "||",
            "run 2 &&",
            "run 2 |",
            "!",
            "! !",
            "$(",
            "${",
            "$((",
            "\\",
        ),
    ],
)
def test_a_script_that_somebody_did_not_finish_is_no_traceback(unfinished):
    for text in (unfinished, f"run 1\n{unfinished}", f"run 1\n{unfinished}\nrun 3\n"):
        # One line of ours is as good as an answer.
        with suppress(CostModelError):
            launches = [launch.words for launch in follow(text).launches]
            assert text == unfinished or ["run", "1"] in launches


def test_what_is_not_known_is_not_empty():
    """The output of a program may be anything: no default stands in for it, and a test of it has no answer."""
    words = follow('X=$(nvidia-smi -L)\nrun "${X:-8}" "${X:+set}" "${Y:-8}" "${X-8}"').launches[-1].words[1:]
    assert missing_in(words[0]).startswith("it is the output of")
    assert words[1:3] == ["set", "8"]
    assert missing_in(words[3]).startswith("it is the output of")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[ a == b ]]", ("a", "==", "b")),
        ("[[ -z $A && ! -n b ]]", ("-z", "$A", "&&", "!", "-n", "b")),
        ("[[ ( a < b ) || c ]]", ("(", "a", "<", "b", ")", "||", "c")),
    ],
)
def test_words_of_a_test(text, words):
    (test,) = parse(text).statements
    assert test.words == words
