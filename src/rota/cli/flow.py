"""Draws in a terminal what a flow job does on its GPUs."""

from collections.abc import Mapping
from typing import Any

from rota.cli.table import render, width_of_terminal
from rota.cli.text import folded, size_text
from rota.model.figure import rounded
from rota.report.text import printable

MOST_SLICES = 40  # columns of the drawing


def flow_text(flow: Mapping[str, Any] | None) -> str | None:
    """``its next operation waits for a turn on GPU 1 behind job 7``; None if nothing is told."""
    return None if flow is None else str(flow["sentence"])


def flow_lines(verdict: Mapping[str, Any]) -> list[str]:
    """The job's operations, and a row for each of its workers with the slices that it is in.

    A slice is a column of the last cell, marked in the rows of its workers. No lines for a job that
    tells of no operations.
    """
    flow = verdict.get("flow")
    if flow is None:
        return []
    width = width_of_terminal()
    waits = f"{flow['outstanding']} outstanding; {printable(flow['sentence'])}"
    rate = f"{rounded(flow['tickets_per_s'])} a second"
    start = f"  operations   {rate}, {waits}; weight {flow['weight']:g}"
    header = ("GPU", "SHARE", f"STORE OF {size_text(flow['memory_bytes'])}", "SLICES")
    shown = flow["slices"][:MOST_SLICES]
    more = len(flow["slices"]) - len(shown)
    rows = [
        (
            "-" if device < 0 else str(device),
            f"{flow['share'][worker]:.0%}",
            size_text(flow["held_bytes"][worker]),
            "".join("#" if worker in each else "." for each in shown)
            + (f" and {more} more" if more else ""),
        )
        for worker, device in enumerate(flow["devices"])
    ]
    table = render(header, rows, text_columns=len(header)).split("\n")
    return [folded(start, width, indent=15), *(f"    {line}" for line in table)]
