"""The one constant that may be fitted to whole runs: the share of the passes that nothing explains.

    python tools/fit/fit_overheads.py RUNS.csv            # report
    python tools/fit/fit_overheads.py RUNS.csv --write    # and write tables of describe/data
    python tools/fit/fit_overheads.py RUNS.csv --bands    # and write the bands alone, of the constants as they are

`costmodel.trust.shares` says how. The report scores every source and every family of sources with the shares of the
others, and by class what is fitted and what is left out.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from bands import bands_text, classes, error_bands

from costmodel.describe.hardware.hardware import load_accelerator
from costmodel.describe.recipe import list_recipes
from costmodel.trust.shares import (
    FRAMEWORK_OF_RECIPE,
    Shares,
    errors_of,
    fit_shares,
    fitted_runs,
    left_out_errors,
)
from costmodel.trust.validation import validate


def shares_text(shares: Shares) -> str:
    """Return the table of shares as CSV: kinds of devices, then every recipe with one of its own."""
    rows = ["recipe,on,share,runs,sources,spread"]
    names = ["any", *list_recipes()]
    for name in names:
        for (family, on), one in sorted(shares.items()):
            if family == FRAMEWORK_OF_RECIPE.get(name, name):
                spread = "" if np.isnan(one.spread) else f"{one.spread:.3f}"
                share = "" if one.share is None else f"{one.share:.3f}"
                rows.append(f"{name},{on},{share},{one.runs},{one.sources},{spread}")
    return "\n".join(rows) + "\n"


def figures(errors: pd.Series[float]) -> str:
    """Return median, mean, p90 and bias as text."""
    size = errors.abs()
    return f"{size.median():6.1%} {size.mean():6.1%} {size.quantile(0.9):6.1%} bias {errors.mean():+6.1%}"


def main(arguments: list[str]) -> int:
    """Fit, report, and write where asked to."""
    checked = validate(arguments[0])
    runs = fitted_runs(checked.judged)
    shares = fit_shares(runs)
    out = sys.stdout.write
    out(shares_text(shares))
    fitted = errors_of(runs, shares)
    left = {by: left_out_errors(runs, by) for by in ("source", "source_family", "family")}
    of_class = classes(runs)
    groups: dict[str, pd.Series[bool]] = {
        **{str(name): runs.source == name for name in sorted(set(runs.source))},
        **{str(name): of_class == name for name in sorted(set(of_class))},
        "CUDA": runs.is_gpu & ~runs.own_stack,
        "GPUs": runs.is_gpu,
        "all": runs.is_gpu | ~runs.is_gpu,
    }
    for name, of in groups.items():
        out(f"{name:28s} {of.sum():5d} runs  fitted {figures(fitted[of])}  ")
        out(f"family of sources left out {figures(left['source_family'][of])}\n")
    for by, errors in left.items():
        out(f"leaving each {by} out: {figures(errors)}\n")
    presets = Path(__file__).parents[2] / "costmodel" / "describe" / "data"
    if "--write" in arguments:
        (presets / "overheads.csv").write_text(shares_text(shares))
    if "--write" in arguments or "--bands" in arguments:
        priced = checked.runs[checked.runs.skipped_reason == ""]
        # Without its only family a class is priced as other machines are, which nobody is who has the constants.
        several = runs.source_family.groupby(of_class).transform("nunique") > 1
        text = bands_text(
            error_bands(priced, left["source_family"].where(several & runs.is_gpu, fitted), left["family"]),
            sorted({load_accelerator(name).name for name in runs.accelerator}),
        )
        (presets / "error_bands.yaml").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
