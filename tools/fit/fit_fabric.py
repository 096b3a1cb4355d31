"""Fit the constants of every measured link to a table of published nccl-tests sweeps.

``python tools/fit/fit_fabric.py collectives.csv [--write LINKS_FOLDER]`` prints the mean
relative error of each run, by size decade, beside a plain ring alpha-beta fitted to that very run;
with ``--write`` it puts the constants into the ``fabric:`` block of the link profiles. With
``--held-out`` it prints what `costmodel observed calibrate fabric` would make of each run alone: fitted to every
other of its sizes, from constants that were fitted to nothing, scored on the sizes between.

The inner link of a node is fitted first, to one-node runs; a network is fitted with it held fixed.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from costmodel.base.errors import DataError
from costmodel.base.yaml_files import document, document_text, node
from costmodel.describe.hardware.cluster import Tier
from costmodel.describe.hardware.hardware import load_link
from costmodel.physics.network.fabric import Fabric
from costmodel.physics.network.mesh import Group
from costmodel.trust.calibration.cluster_fit import score_held_out
from costmodel.trust.calibration.fabric_fit import (
    BASE_FIELDS,
    INNER_START,
    LARGE_BYTES,
    NVLS,
    RATES,
    START,
    FabricRun,
    Fitted,
    fabric_block,
    fit_constants,
    free_names,
    predict,
    predict_inner,
    quantity_text,
    score,
)

Array = NDArray[np.float64]

PRIMITIVE = {"alltoall": "all_to_all", "sendrecv": "send_recv"}
INNER = {
    "a100": "nvlink3",
    "h100": "nvlink4",
    "h200": "nvlink4",
    "gh200": "nvlink4",
    "b200": "nvlink5",
    "b300": "nvlink5",
    "gb200": "nvlink5-nvl72",
    "gb300": "nvlink5-nvl72",
}
# First match wins; a run that matches none is priced by no link of ours and left out.
NETWORK = (
    (r"SHARP|MNNVL|unknown|not stated; ~200|DGX\) \+ inter", None),
    (r"IB NDR", "ib-ndr"),
    (r"TCPXO", "gpudirect-tcpxo"),
    (r"TCPX ", "gpudirect-tcpx"),
    (r"RoCE 16x100Gb", "roce-200"),
    (r"RoCE", "roce-400"),
    (r"EFA v3", "efa-v3"),
    (r"EFA v2", "efa-v2"),
    (r"4x100G", "efa-v1"),
    (r"Slingshot", "slingshot-11"),
    (r"NVLink3 \+ RDMA", "ib-hdr"),
)
# Launched from one process or from Python: tens of microseconds of host time in every call, which a
# training step does not wait for. Only their large messages are used, and scored, as is.
HOST_BOUND = r"^(sb-a100|mle-|azure-h200|vidur-h100_dgx-[48])"

NVLS_MIN_RANKS = {"nvlink4": 5.0, "nvlink4-h800": 5.0, "nvlink5": 6.0, "nvlink5-nvl72": 6.0}
# H100, two nodes: 469 GB/s of bus bandwidth is 250 GB/s of vector where one node does 276.
NVLS_TREE = 0.9
HALF_POINTS = 4
# Links with large messages or one sweep only: the rest as on a link of the same family.
FEW_RUNS = {"roce-200": "roce-400", "gpudirect-tcpx": "gpudirect-tcpxo", "ib-hdr": "ib-ndr"}
# Constants of a link that nobody measured, taken from the one most like it.
SIMILAR = {
    "nvlink2": "nvlink3",
    "nvlink3-a800": "nvlink3",
    "nvlink4-h800": "nvlink4",
    "ib-edr": "ib-hdr",
    "ib-xdr": "ib-ndr",
    "roce-100": "roce-200",
    "omnipath-100": "ib-hdr",
}
# Sweeps of which only a fitted curve T0 + c sqrt(W) + W/B is at hand (us, us/sqrt(MB), GB/s of bus
# bandwidth): AWS p4de and p5, two nodes, and p6-b200, four nodes, all-reduce.
CURVES = (
    ("p4de-2n-ar-curve", "nvlink3", "efa-v1", 16.0, 165.0, 106.0, 99.0),
    ("p5-2n-ar-curve", "nvlink4", "efa-v2", 16.0, 78.9, 29.8, 584.0),
    ("p6-b200-4n-ar-curve", "nvlink5", "efa-v3", 32.0, 389.0, 12.6, 402.0),
)


def read_runs(path: Path) -> list[FabricRun]:
    """Read the sweeps that our links describe; host-bound ones keep their large messages only."""
    table = pd.read_csv(path)
    missing = {"id", "gpu", "gpus", "nodes", "interconnect", "collective", "size_bytes", "time_us"} - {*table}
    if missing:
        raise DataError(f"{path.name}: columns {', '.join(sorted(missing))} are missing")
    runs = []
    for name, rows in table.groupby("id"):
        first = rows.iloc[0]
        inner = INNER.get(str(first.gpu).split("-")[0])
        # Trays of a rack-scale NVLink domain are nodes by name only.
        nodes = 1 if "NVL72" in first.interconnect and "x20" not in first.interconnect else int(first.nodes)
        network = _network(first.interconnect) if nodes > 1 else None
        if "contended" in first.interconnect and first.nodes >= 8:  # a spine's fault, not a link's
            continue
        if "SKU baseline" in str(first.notes):  # what an operator expects, not a measurement
            continue
        if inner is None or (nodes > 1 and network is None) or str(first.collective).startswith("moe"):
            continue
        if re.search(HOST_BOUND, str(name)):
            rows = rows[rows.size_bytes >= LARGE_BYTES]
        notes = str(first.notes)
        forced = "ring" if str(name).endswith("ring") else "nvls-tree" if "nvlstree" in notes else "auto"
        forced = "ring" if "NVLS_ENABLE=0" in notes else forced
        ranks, members = float(first.gpus), float(first.gpus) / nodes
        group = Group(np.asarray(ranks), (np.asarray(members), np.asarray(ranks)))
        runs.append(
            FabricRun(
                str(name),
                PRIMITIVE.get(first.collective, first.collective),
                group,
                inner,
                network,
                forced,
                rows.size_bytes.to_numpy(np.float64),
                rows.time_us.to_numpy(np.float64) * 1e-6,
            )
        )
    return runs


def curve_runs() -> list[FabricRun]:
    """Sample the published curves at a size per factor of four."""
    runs = []
    for name, inner, network, ranks, base_us, root, rate in CURVES:
        size: Array = np.array([65536.0 * 4.0**k for k in range(9)])
        wire = size * 2 * (ranks - 1) / ranks
        time = (base_us * 1e-6 + root * 1e-9 * np.sqrt(wire) + wire / (rate * 1e9)).astype(np.float64)
        group = Group(np.asarray(ranks), (np.asarray(8.0), np.asarray(ranks)))
        # The library that AWS ships with p6 takes the ring throughout.
        algorithm = "ring" if network == "efa-v3" else "auto"
        runs.append(FabricRun(name, "all_reduce", group, inner, network, algorithm, size, time))
    return runs


def _network(interconnect: str) -> str | None:
    """Return the profile of the network a run used."""
    return next((link for pattern, link in NETWORK if re.search(pattern, interconnect)), None)


def fit_link(
    link: str, runs: list[FabricRun], inner: Mapping[str, Fitted], like: Fitted | None = None
) -> Fitted:
    """Fit one link to its runs: an inner one by one-node runs, a network with the inner one fixed.

    What the runs do not tell stays at the constants of the link that this one is `like`.
    """
    network = bool(inner)
    tier = load_link(link, size=1024)
    names = free_names(runs, network=network)
    start = dict(START)
    if like is not None:
        told = like.fabric._asdict() | {key: getattr(like.tier, key) for key in BASE_FIELDS}
        start |= {key: told[key] for key in start if key not in RATES and told[key] > 0}
    dispatch = 0.91 if network else 0.82
    # Of DeepEP on H800 (NVLink, InfiniBand); the time per peer of a direct all-to-all is assumed.
    known = Fabric(
        all_to_all_message_s=1e-6 if network else 0.0,
        dispatch_rate_factor=dispatch,
        nvls_min_ranks=NVLS_MIN_RANKS.get(link, 5.0),
        nvls_tree_rate_factor=NVLS_TREE,
    )
    if not network:
        start |= INNER_START
        if tier.reduction_bandwidth_bytes_per_s:
            names += NVLS

    price = partial(_price_network, inner=inner) if network else predict_inner
    return fit_constants(runs, price, tier, names, start, known, network=network)


def _price_network(run: FabricRun, network: Tier, inner: Mapping[str, Fitted]) -> Array:
    """Price a run over a network whose nodes are joined by a fitted link."""
    return predict(run, inner[run.inner].tier, network)


def fit_all(runs: list[FabricRun]) -> dict[str, Fitted]:
    """Fit every link that has runs."""
    fitted: dict[str, Fitted] = {}
    for link in sorted({run.inner for run in runs if run.network is None}):
        fitted[link] = fit_link(link, [r for r in runs if r.inner == link and r.network is None], {})
    inner = dict(fitted)
    networks = {run.network for run in runs if run.network}
    for link in sorted(networks, key=lambda name: (name in FEW_RUNS, name)):
        like = fitted.get(FEW_RUNS.get(link, ""))
        fitted[link] = fit_link(link, [r for r in runs if r.network == link], inner, like)
    return fitted


def report(points: pd.DataFrame) -> str:
    """Lay out the errors by run and by size decade, in percent."""
    points = points.assign(decade=10.0 ** np.floor(np.log10(points["size"])), several=points["nodes"] > 1)
    columns = ["error", "plain", "signed"]
    by_run = points.groupby(["several", "network", "run"])[columns].mean().mul(100).round(1)
    by_run["points"] = points.groupby(["several", "network", "run"]).size()
    by_decade = points.groupby(["several", "decade"])[columns].mean().mul(100).round(1)
    return f"{by_run.to_string()}\n\n{by_decade.to_string()}"


def write_block(path: Path, tier: Tier, block: Mapping[str, Any]) -> None:
    """Replace the block and the two base latencies of a link file; the rest stays as it is."""
    content = document(path.read_text(encoding="utf-8"))
    content["latency"]["value"] = quantity_text("_s", tier.latency_s)
    content["base_latency"]["value"] = quantity_text("_s", tier.base_latency_s)
    if "fabric" not in content:
        content.insert(list(content).index("sources"), "fabric", None)
    content["fabric"] = node(block)
    text = document_text(content, {"fabric": "written by tools/fit/fit_fabric.py"})
    path.write_text(text, encoding="utf-8")


def write_links(fitted: Mapping[str, Fitted], folder: Path) -> list[str]:
    """Write the block of every fitted link and of those that are like one; return which are left as they are, and why."""
    for link, found in fitted.items():
        block = fabric_block(
            found.fabric,
            basis="measured",
            source="published nccl-tests sweeps, least squares",
            points=found.points,
            residual=found.residual,
        )
        write_block(folder / f"{link}.yaml", found.tier, block)
    left = []
    for link, other in SIMILAR.items():
        if other not in fitted:
            left.append(f"{link}: left as it is, because {other} has no rows")
            continue
        fabric = fitted[other].fabric._replace(nvls_min_ranks=NVLS_MIN_RANKS.get(link, 5.0))
        block = fabric_block(fabric, basis="similar-link", source=f"as {other}")
        write_block(folder / f"{link}.yaml", fitted[other].tier, block)
    return left


def shipped(csv: Path, *, held_out: bool = False, left_out: str = "", folder: Path | None = None) -> str:
    """Fit, write the blocks where a folder is given, and return the errors as text.

    Parameters
    ----------
    csv : path
        Sweeps, one row a point.
    held_out : bool
        Fit each run alone and score the sizes left out, instead.
    left_out : str
        ``sweep`` or ``source``: what each fit does not see and is scored on, instead.
    folder : path, optional
        Of the link profiles to update.
    """
    if held_out:
        return report(held_out_alone(read_runs(csv)))
    runs = read_runs(csv) + curve_runs()
    if left_out:
        points, alone = score_left_out(runs, left_out)
        only = [f"only {left_out} of its link, not scored: {', '.join(alone)}"] if alone else []
        return "\n".join([report(points), "", summary(points), *only])
    fitted = fit_all(runs)
    left = write_links(fitted, folder) if folder else []
    return "\n".join([report(score(runs, lambda run: _price(run, fitted))), *left])


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print the errors and, if asked, write the blocks."""
    parser = argparse.ArgumentParser(description="Fit link constants to published nccl-tests sweeps.")
    parser.add_argument("csv", type=Path, help="sweeps, one row a point")
    parser.add_argument("--held-out", action="store_true", help="fit each run alone, score sizes left out")
    parser.add_argument("--left-out", choices=LEFT_OUT, default="", help="fit without each, score it")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="folder of the link profiles to update")
    options = parser.parse_args(arguments)
    said = shipped(options.csv, held_out=options.held_out, left_out=options.left_out, folder=options.write)
    print(said)
    return 0


def held_out_alone(runs: list[FabricRun]) -> pd.DataFrame:
    """Score each run of eight sizes or more, fitted alone to every other of them."""
    frames = []
    for run in runs:
        if len(run.size_bytes) < 2 * HALF_POINTS:
            continue
        links = [run.inner, *([run.network] if run.network else [])]
        tiers = [load_link(link, size=1024) for link in links]
        points = score_held_out([run], tiers, blank=True)
        frames.append(points)
    return pd.concat(frames, ignore_index=True)


LEFT_OUT = ("sweep", "source")
"""What `score_left_out` leaves out of a fit at a time."""


def source_of(name: str) -> str:
    """Return who measured a sweep and on what, which its name begins with.

    >>> source_of("aic-h100_sxm-8-all_reduce-nccl2.29.2"), source_of("cscs-gh200-2n-ar"), source_of("cw-gb200-72-ar")
    ('aic-h100_sxm', 'cscs-gh200', 'cw-gb200')
    """
    return re.split(r"-\d", name, maxsplit=1)[0]


def score_left_out(runs: list[FabricRun], what: str) -> tuple[pd.DataFrame, list[str]]:
    """Score every sweep by constants of its link that were fitted without it, or without its source.

    The link inside the nodes of a sweep over a network is fitted to sweeps of one node, so does not see it either.

    Parameters
    ----------
    runs : list of FabricRun
        All sweeps.
    what : str
        One of `LEFT_OUT`.

    Returns
    -------
    points : DataFrame
        As of `score`.
    alone : list of str
        What cannot be scored, because its link has no other rows.
    """
    fitted = fit_all(runs)
    frames, alone = [], []
    parts: dict[tuple[str, str | None, str], list[FabricRun]] = {}
    for run in runs:
        name = run.name if what == "sweep" else source_of(run.name)
        parts.setdefault((run.network or run.inner, run.network, name), []).append(run)
    for (link, network, name), part in sorted(parts.items(), key=lambda item: (item[0][0], item[0][2])):
        seen = {id(run) for run in part}
        others = [run for run in runs if (run.network or run.inner, run.network) == (link, network)]
        others = [run for run in others if id(run) not in seen]
        if not others:
            alone.append(name)
            continue
        like = fitted.get(FEW_RUNS.get(link, "")) if network else None
        unseen = {**fitted, link: fit_link(link, others, fitted if network else {}, like)}
        frames.append(score(part, partial(_price, fitted=unseen)))
    return pd.concat(frames, ignore_index=True), alone


def summary(points: pd.DataFrame) -> str:
    """Return the mean error by points, and the mean and the median over sweeps, inside a node and between nodes."""
    lines = []
    for several, part in points.groupby(points["nodes"] > 1):
        sweeps = part.groupby(["network", "run"]).error.mean()
        where = "several nodes" if several else "one node"
        lines.append(
            f"{where}: {len(sweeps)} sweeps, {len(part)} points; mean of points {part.error.mean():.1%}, "
            f"of sweeps {sweeps.mean():.1%}, median of sweeps {sweeps.median():.1%}"
        )
    return "\n".join(lines)


def _price(run: FabricRun, fitted: Mapping[str, Fitted]) -> Array:
    """Price a run with fitted links."""
    inner = fitted[run.inner].tier
    return predict(run, inner, fitted[run.network].tier if run.network else inner)


if __name__ == "__main__":
    sys.exit(main())
