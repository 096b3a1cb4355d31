"""Launch scripts as people write them: what is computed, started several times, or stands around the command."""

from textwrap import dedent

import pytest

from costmodel.base.errors import CostModelError
from costmodel.interop.reading import read as read_file

SHAPE = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32"
BATCH = "--micro-batch-size 2 --vocab-size 1000 --bf16"
TRAIN = f"pretrain_gpt.py {SHAPE} {BATCH} --global-batch-size 256"


def read(tmp_path, text):
    file = tmp_path / "train.sh"
    file.write_text(dedent(text))
    return read_file(file)


BATCH_OF = "torchrun --nproc_per_node 8 t.py {} {} --global-batch-size $GBS\n".format


def test_numbers_that_the_shell_computes(tmp_path):
    for lines in (
        "GBS=$((8 * (30 + 2)))",
        "GBS=$(expr 8 \\* 32)",
        "for GBS in 64 128 256; do :; done",
    ):
        assert read(tmp_path, f"{lines}\n{BATCH_OF(SHAPE, BATCH)}").job["global_batch"] == 256, lines


def test_words_that_may_hold_flags_are_said(tmp_path):
    found = read(tmp_path, f"torchrun --nproc_per_node 8 {TRAIN} $(cat more.txt) --save $(pwd)/$(date)\n")
    (said,) = [text for text in found.warnings if "may hold flags" in text]
    assert said == (
        "a word behind 256, which may hold flags, is the output of cat more.txt, line 1: it is not read"
    )


def test_words_of_a_file_that_was_not_read_are_refused(tmp_path):
    script = f"source ../conf/model.sh\ntorchrun --nproc_per_node 8 {TRAIN} $MODEL_ARGS\n"
    with pytest.raises(CostModelError) as caught:
        read(tmp_path, script)
    assert str(caught.value).endswith(
        "$MODEL_ARGS may hold flags and is not set; ../conf/model.sh, which is sourced, was not read: it is not there "
        "or outside of the script's folder; give --allow-source DIR, or --env MODEL_ARGS=…"
    )
    # What sets up a shell sets no flags, and a value is no word of its own.
    read(tmp_path, script.replace("../conf/model.sh", "venv/bin/activate"))
    read(tmp_path, script.replace("$MODEL_ARGS", "--save $MODEL_ARGS"))


def test_several_trainings_are_said(tmp_path):
    found = read(
        tmp_path,
        f"for TP in 1 2 4; do torchrun --nproc_per_node 8 {TRAIN} --tensor-model-parallel-size $TP; done\n",
    )
    assert found.job["tp"] == 1
    said = "3 trainings are started, which differ by --tensor-model-parallel-size: all but the first are not read"
    assert said in found.warnings
    once = read(tmp_path, f"for N in 1 2; do torchrun --nproc_per_node 8 {TRAIN}; done\n")
    assert not [text for text in once.warnings if "trainings" in text]


def test_gpus_by_launcher(tmp_path):
    for script, gpus in (
        (f"deepspeed --num_gpus 8 {TRAIN}", 8),
        (f"deepspeed --num_gpus 8 --num_nodes 2 {TRAIN}", 16),
        (f"mpirun -np 64 -x NCCL_DEBUG=INFO python -u {TRAIN}", 64),
        (f"srun -N 4 --ntasks-per-node=8 --gpus-per-node=8 python {TRAIN}", 32),
        (f"#SBATCH -N 8\n#SBATCH --gres=gpu:a100:4\nsrun python {TRAIN}", 32),
        # -n is the number of tasks, not of nodes.
        (f"#SBATCH -N 2\n#SBATCH -n 16\n#SBATCH --gres=gpu:8\nsrun python {TRAIN}", 16),
        (f"docker run --gpus all --ipc=host --rm img torchrun --nnodes 2 --nproc-per-node 8 {TRAIN}", 16),
        (f"nsys profile --trace=cuda -o out torchrun --nproc-per-node 8 {TRAIN}", 8),
        # What the script cannot tell, Slurm does.
        (
            f"#SBATCH -N 4\n#SBATCH --gres=gpu:8\ntorchrun --nnodes $HOSTS --nproc-per-node $(nvidia-smi -L | wc -l) {TRAIN}",
            32,
        ),
    ):
        found = read(tmp_path, script + "\n")
        assert found.job["gpus"] == gpus, script
        # What stands before the command is no flag of the training.
        assert found.ignored == (), script
