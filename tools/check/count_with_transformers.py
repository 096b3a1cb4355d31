"""Count the parameters of the tests' small HuggingFace configs with transformers on the meta device.

Run where torch and transformers are installed, which costmodel itself never needs::

    PYTHONPATH=. python tools/check/count_with_transformers.py

Prints one line for every family whose count differs from the one written down, and exits with 1 if any does.
Two families count the bias that corrects a router's scores, as their reports do; transformers has it as a buffer.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "unit"))


BIASED_ROUTERS = ("deepseek_v3", "glm4_moe")


def main() -> int:
    """Compare every family; return 1 if a count differs, 0 if none does or transformers is absent."""
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForTextEncoding
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError as error:
        print(f"skipped: {error.name} is not installed")
        return 0
    from small_configs import ENCODERS, TINY

    different = 0
    for kind, (count, config) in (TINY | ENCODERS).items():
        # Some classes look for their padding token in a table of 1,000 rows.
        shape = CONFIG_MAPPING[kind].from_dict({**config, "model_type": kind, "pad_token_id": 0})
        with torch.device("meta"):
            of_encoder = AutoModelForTextEncoding if "t5" in kind else AutoModelForMaskedLM
            model = (of_encoder if kind in ENCODERS else AutoModelForCausalLM).from_config(shape)
        counted = sum(weight.numel() for weight in model.parameters())
        if kind in BIASED_ROUTERS:
            corrections = (one for name, one in model.named_buffers() if name.endswith("correction_bias"))
            counted += sum(one.numel() for one in corrections)
        if counted != count:
            different += 1
            print(f"{kind}: transformers counts {counted}, written down is {count}")
    print(f"{len(TINY | ENCODERS)} families, {different} differ")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
