"""Shows a job's speed by its CPU cores in a terminal."""

from collections.abc import Mapping
from typing import Any

from rota.cli.table import render, wide, width_of_terminal
from rota.cli.text import folded
from rota.report.text import printable

BAR = 30  # columns of the longest
LEAST_BAR = 5
HEADER = ("", "CORES", "SPEED", "", "STEP, PREDICTED", "MEASURED", "WAITS")


def core_lines(job: Mapping[str, Any]) -> list[str]:
    """The curve of each phase of a job whose CPU cores are controlled, and its point on it."""
    told = job.get("core_curve")
    if told is None:
        return []
    width = width_of_terminal()
    lines = [] if told["phases"] else ["by CPU cores  no step time has been measured yet"]
    for phase in told["phases"]:
        in_phase = f" in phase {phase['phase']}{', its present one' if phase['now'] else ''}"
        lines.append(f"by CPU cores{in_phase}  speed relative to now")
        if phase["missing"]:
            lines[-1] = f"by CPU cores{in_phase}  no curve: {printable(phase['missing'])}"
        lines += [f"  {line}" for line in _curve_lines(phase["curve"], told["now"], width - 4)]
        lines += [f"  doubtful: {printable(warning)}" for warning in phase["warnings"]]
    return [f"  {line}" for each in lines for line in folded(each, width - 2, indent=4).split("\n")]


def _curve_lines(curve: list[Mapping[str, Any]], now: float, width: float) -> list[str]:
    cells = [
        [
            "*" if row["cores"] == now else "",
            f"{row['cores']:g}",
            "-" if row["speed"] is None else f"{row['speed']:.2f}",
            _seconds(row["predicted_s"]),
            _seconds(row["measured_s"]),
            _waits(row),
        ]
        for row in curve
    ]
    bare = wide(HEADER, [[*row[:3], "", *row[3:]] for row in cells])
    longest = int(max(min(width - bare, BAR), LEAST_BAR))
    most = max((row["speed"] or 0.0 for row in curve), default=0.0) or 1.0
    bars = ["#" * round(longest * (row["speed"] or 0.0) / most) for row in curve]
    rows = [[*row[:3], bar, *row[3:]] for row, bar in zip(cells, bars, strict=True)]
    return render(HEADER, rows, text_columns=len(HEADER)).split("\n")


def _waits(row: Mapping[str, Any]) -> str:
    """The measured part of a step spent waiting for data, such as ``38 %``; ``~38 %`` predicted."""
    measured, predicted = row["wait_share"], row["predicted_wait_share"]
    if measured is not None:
        return f"{100 * measured:.0f} %"
    return "-" if predicted is None else f"~{100 * predicted:.0f} %"


def _seconds(step_s: float | None) -> str:
    if step_s is None:
        return "-"
    return f"{1000 * step_s:.3g} ms" if step_s < 0.9995 else f"{step_s:.3g} s"
