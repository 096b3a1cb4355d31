"""Which files of other programs can be read, and reading one: the registry of readers.

A reader says how to tell its files and turns a text into an `Imported`. A new kind of file is a record here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from costmodel.base.errors import CostModelError, choices_hint
from costmodel.describe.jobs.fields import JOB_FIELDS
from costmodel.describe.jobs.keywords import ReadKeywords
from costmodel.describe.jobs.reading import keywords
from costmodel.interop.framework import FrameworkConfigError, Imported
from costmodel.interop.sniff import Look, look_at
from costmodel.interop.text_file import TextFile, read_text, shown


class Reader(NamedTuple):
    """A kind of file.

    Attributes
    ----------
    kind : str
        Name for ``--from``.
    framework : str
        The program whose files these are.
    home : str
        Module and function that read one: ``(TextFile, given) -> Imported``.
    tells : callable
        Whether a text is of this kind.
    source : str
        Where the names of its keys are from.
    """

    kind: str
    framework: str
    home: tuple[str, str]
    tells: Callable[[Look], bool]
    source: str

    def read(self, file: TextFile, given: Mapping[str, Any]) -> Imported:
        """Read a file of this kind."""
        module, function = self.home
        found: Imported = getattr(import_module(module), function)(file, given)
        return dataclasses.replace(found, kind=self.kind, framework=found.framework or self.framework)


READERS: dict[str, Reader] = {
    reader.kind: reader
    for reader in (
        Reader(
            "job",
            "costmodel",
            ("costmodel.interop.read_job", "read"),
            lambda look: (
                (
                    look.has_any("layout", "cluster", "switches", "recipe", within="yaml")
                    and look.has_any("model", "gpus", "global_batch", "seq_len", within="yaml")
                )
                # What has no default is enough.
                or look.has_all("model", "gpus", "global_batch", "seq_len", within="yaml")
            ),
            "costmodel.describe.jobs.fields",
        ),
        Reader(
            "hf",
            "transformers",
            ("costmodel.interop.read_huggingface", "read"),
            lambda look: (
                look.has_any("model_type", within="json")
                or look.has_all("architectures", "hidden_size", within="json")
                # Meta's and Mistral's params.json.
                or look.has_all("dim", "n_layers", "n_heads", within="json")
            ),
            "transformers 5.23, models/*/configuration_*.py",
        ),
        Reader(
            "nccl-tests",
            "nccl-tests",
            ("costmodel.interop.read_nccl", "read"),
            lambda look: look.is_log or (look.has_all("results", "args", within="json")),
            "NVIDIA/nccl-tests 0fdb00a3, src/util.cu",
        ),
        Reader(
            "deepspeed",
            "DeepSpeed",
            ("costmodel.interop.deepspeed", "read"),
            lambda look: (
                look.has_any(
                    "zero_optimization",
                    "train_batch_size",
                    "train_micro_batch_size_per_gpu",
                    "zero_allow_untested_optimizer",
                    within="json",
                )
                or (look.has_any("fp16", "bf16", within="json") and "optimizer" in look.raw)
            ),
            "deepspeedai/DeepSpeed edaa7221, runtime/config.py and runtime/zero/config.py",
        ),
        Reader(
            "torchtitan",
            "torchtitan",
            ("costmodel.interop.torchtitan", "read"),
            lambda look: (
                (look.form == "toml" and look.has_any("training", "parallelism"))
                or (look.form == "json" and look.has_all("training", "parallelism"))
                or "# settings of torchtitan" in look.start
            ),
            "pytorch/torchtitan 9810191bb, config/job_config.py",
        ),
        Reader(
            "trainer",
            "transformers",
            ("costmodel.interop.trainers", "read"),
            lambda look: (
                look.form == "yaml"
                and look.has_any("model_name_or_path", "base_model", "model", "model_id_or_path")
                and look.has_any(
                    "per_device_train_batch_size", "micro_batch_size", "finetuning_type", "sequence_len"
                )
                and not look.has_any("num_layers", "layout", "gpus")
            ),
            "LLaMA-Factory src/llamafactory/hparams, ms-swift swift/arguments, axolotl src/axolotl/utils/schemas",
        ),
        Reader(
            "accelerate",
            "Accelerate",
            ("costmodel.interop.accelerate", "read"),
            lambda look: look.has_any("distributed_type", within="yaml"),
            "huggingface/accelerate, src/accelerate/utils/dataclasses.py",
        ),
        Reader(
            "maxtext",
            "MaxText",
            ("costmodel.interop.maxtext", "read"),
            lambda look: (
                look.has_any("base_emb_dim", "max_target_length", "base_config", within="yaml")
                and look.has_any(
                    "base_num_decoder_layers", "per_device_batch_size", "model_name", "base_config"
                )
            ),
            "AI-Hypercomputer/maxtext, src/MaxText/configs/base.yml",
        ),
        Reader(
            "megatron-yaml",
            "Megatron-LM",
            ("costmodel.interop.read_megatron_yaml", "read_arguments"),
            lambda look: (
                look.form == "yaml"
                and (
                    bool(look.table("MODEL_ARGS"))
                    or bool(look.table("language_model"))
                    or look.has_all("num_layers", "hidden_size", "tensor_model_parallel_size")
                )
            ),
            "NVIDIA/Megatron-LM d98e8a64, megatron/training/yaml_arguments.py and tests/functional_tests",
        ),
        Reader(
            "nemo",
            "NeMo",
            ("costmodel.interop.read_megatron_yaml", "read_nemo"),
            lambda look: (
                look.form == "yaml"
                and bool(look.table("trainer"))
                and bool(look.table("model").keys() & {"tensor_model_parallel_size", "encoder_seq_length"})
            ),
            "NVIDIA/NeMo r1.23, examples/nlp/language_modeling/conf/megatron_gpt_config.yaml",
        ),
        Reader(
            "megatron-bridge",
            "Megatron-Bridge",
            ("costmodel.interop.read_megatron_yaml", "read_bridge"),
            lambda look: (
                look.form == "yaml"
                and bool(look.table("train").keys() & {"micro_batch_size", "global_batch_size"})
                and bool(look.table("model").keys() & {"num_layers", "tensor_model_parallel_size"})
            ),
            "NVIDIA-NeMo/Megatron-Bridge 3961fa1c, src/megatron/bridge/training/config.py",
        ),
        Reader(
            "megatron-bridge-overrides",
            "Megatron-Bridge",
            ("costmodel.interop.nemo", "read"),
            lambda look: look.start.startswith("# Megatron-Bridge overrides:"),
            "NVIDIA-NeMo/Megatron-Bridge, megatron-bridge 0.3.1, training/config.py",
        ),
        Reader(
            "primus",
            "Primus",
            ("costmodel.interop.read_megatron_yaml", "read_primus"),
            lambda look: (
                look.form == "yaml"
                and any(
                    isinstance(part, dict) and "framework" in part for part in look.table("modules").values()
                )
            ),
            "AMD-AGI/Primus, primus/core/launcher/parser.py",
        ),
        Reader(
            "gpt-neox",
            "GPT-NeoX",
            ("costmodel.interop.read_megatron_yaml", "read_neox"),
            lambda look: look.form == "yaml" and look.has_any("pipe_parallel_size", "pipe-parallel-size"),
            "EleutherAI/gpt-neox, megatron/neox_arguments/neox_args.py",
        ),
        Reader(
            "megatron",
            "Megatron-LM",
            ("costmodel.interop.read_megatron", "read"),
            lambda look: look.is_script or look.has_flags,
            "NVIDIA/Megatron-LM d98e8a64, megatron/training/arguments.py and core/transformer/transformer_config.py",
        ),
    )
}
"""Every kind of file, in the order in which a text is tried."""


_BESIDE = ("env", "vocab_size", "collective", "ranks", "nodes")
"""What a file may leave to its surroundings that is no field of a job."""


def read(path: str | Path, kind: str = "", **given: Unpack[ReadKeywords]) -> Imported:
    """Read a file of another program: a launch script, a configuration, a model, a log.

    Parameters
    ----------
    path : path
        The file, or a folder with a ``config.json``.
    kind : str, optional
        What it is; by default its content tells.
    **given
        What the file leaves to its surroundings: ``gpus``, ``vocab_size``, any keyword of
        `costmodel.estimate`, ``env`` (variables of a script). It goes on top of the file.

    Returns
    -------
    Imported
        Job, model and measurements in our names, with what was not understood.

    Raises
    ------
    CostModelError
        One line: what is wrong with the file, without control characters of it.
    """
    return read_file(read_text(path), kind, **given)


def read_file(file: TextFile, kind: str = "", **given: Unpack[ReadKeywords]) -> Imported:
    """Read a file of another program whose text is at hand; see `read`.

    Raises
    ------
    CostModelError
        One line: what is wrong with the file, without control characters of it.
    """
    beside = {name: value for name, value in given.items() if name in _BESIDE}
    asked = keywords({k: v for k, v in given.items() if k not in _BESIDE}, JOB_FIELDS, who="read")
    try:
        reader = READERS[kind] if kind in READERS else _reader_for(file, kind)
        return _clean(
            reader.read(file, {**asked, **{key: value for key, value in beside.items() if value is not None}})
        )
    except CostModelError as error:
        message = shown(str(error), most=600)
        called = shown(file.name)
        raise type(error)(message if called in message else f"{called}: {message}") from None
    except RecursionError:
        raise FrameworkConfigError(f"{shown(file.name)}: is nested too deeply") from None


def kind_of(file: str | Path | TextFile) -> str:
    """Return the kind of a file, or of its text, ``job`` where it is of no other.

    Raises
    ------
    CostModelError
        If it cannot be read.
    """
    look = look_at(file if isinstance(file, TextFile) else read_text(file))
    return next((reader.kind for reader in READERS.values() if reader.tells(look)), "job")


def _reader_for(file: TextFile, kind: str) -> Reader:
    """Return the reader that a text is for."""
    if kind:
        raise FrameworkConfigError(f"--from: {kind!r} is unknown; {choices_hint(kind, READERS)}")
    look = look_at(file)
    for reader in READERS.values():
        if reader.tells(look):
            return reader
    said = f"; {look.problem}" if look.problem else ""
    raise FrameworkConfigError(
        f"is no file of a known kind{said}; --from names one of {', '.join(sorted(READERS))}"
    )


def _clean(found: Imported) -> Imported:
    """Return an answer whose texts may be printed."""

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return shown(value)
        if isinstance(value, Mapping):
            return {shown(str(key)): plain(item) for key, item in value.items()}
        return tuple(plain(item) for item in value) if isinstance(value, (list, tuple)) else value

    job = {
        key: value if key == "model" and not isinstance(value, str) else plain(value)
        for key, value in found.job.items()
    }
    texts = {
        name: plain(getattr(found, name))
        for name in ("missing", "ignored", "notes", "warnings", "facts", "shape", "unpriced", "sweeps")
    }
    return dataclasses.replace(found, job=job, **texts)
