"""Shows a job's goodput over its GPUs in a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rota.cli.table import render, wide, width_of_terminal
from rota.cli.text import folded
from rota.report.text import printable

BAR = 30  # columns of the longest
LEAST_BAR = 5
MOST_ROWS = 16
HEADER = ("", "GPUS", "GOODPUT", "", "BATCH", "STEPS")


def goodput_lines(job: Mapping[str, Any]) -> list[str]:
    """The curve of a job of which the API tells one, and where on it the job is."""
    told = job["goodput"]
    if told is None:
        return []
    width = width_of_terminal()
    lines = [_headline(told)]
    if told["curve"]:
        lines += [f"  {line}" for line in _curve_lines(told, width - 4)]
    return [f"  {line}" for each in lines for line in folded(each, width - 2, indent=4).split("\n")]


def _headline(told: Mapping[str, Any]) -> str:
    if told["missing"]:
        return f"goodput      no curve: {printable(told['missing'])}"
    noise = "gradient noise is not known yet, so every sample counts in full"
    if told["noise_known"]:
        scale = told["noise_scale"]
        much = "without end" if scale is None else f"{scale:.4g} samples"
        noise = f"the gradient noise scale is {much}"
    return f"goodput      useful samples a second; {noise}"


def _curve_lines(told: Mapping[str, Any], width: float) -> list[str]:
    """A row for each number of GPUs, with a bar as wide as fits, and a line on the present."""
    now, curve = told["now"], _chosen(told["curve"], told["now"])
    most = max(row["goodput"] for row in curve) or 1.0
    cells = [_cells(row, now) for row in curve]
    bare = wide(HEADER, [[*row[:3], "", *row[3:]] for row in cells])
    longest = int(max(min(width - bare, BAR), LEAST_BAR))
    bars = ["#" * max(round(longest * row["goodput"] / most), 1) for row in curve]
    rows = [[*row[:3], bar, *row[3:]] for row, bar in zip(cells, bars, strict=True)]
    lines = render(HEADER, rows, text_columns=len(HEADER)).split("\n")
    if now is not None:
        batch = _batch_text(now["gpus"], now["per_gpu"], now["accumulation"])
        does = f"{now['goodput']:.4g} useful samples a second"
        lines.append(f"* now: batches of {batch}, {does}, {now['efficiency']:.0%} efficient")
    return lines


def _cells(row: Mapping[str, Any], now: Mapping[str, Any] | None) -> list[str]:
    here = now is not None and (now["gpus"], now["nodes"]) == (row["gpus"], row["nodes"])
    nodes = f" of {row['nodes']} nodes" if row["nodes"] > 1 else ""
    batch = _batch_text(row["gpus"], row["per_gpu"], row["accumulation"])
    known = f"{row['known']}, ±{row['error']:.0%}"
    if not row["goodput"]:
        batch, known = "none", "no batch is within its limits"
    return ["*" if here else "", f"{row['gpus']}{nodes}", f"{row['goodput']:.4g}", batch, known]


def _batch_text(gpus: int, per_gpu: int, accumulation: int) -> str:
    """``48 = 2 x 12 x 2``: on each GPU 12, two times."""
    factors = f"{gpus} x {per_gpu}" + (f" x {accumulation + 1}" if accumulation else "")
    return f"{gpus * per_gpu * (accumulation + 1)} = {factors}"


def _chosen(
    curve: Sequence[Mapping[str, Any]], now: Mapping[str, Any] | None
) -> Sequence[Mapping[str, Any]]:
    """Points to show; of a long curve its ends, powers of two, the present, and measured ones."""
    if len(curve) <= MOST_ROWS:
        return curve
    ends, here = (curve[0], curve[-1]), now and now["gpus"]
    return [
        row
        for row in curve
        if row in ends
        or row["gpus"] in (here, 1 << (row["gpus"].bit_length() - 1))
        or row["known"] == "measured"
    ]
