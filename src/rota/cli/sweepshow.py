"""``rota sweep show``: how a search stands, as text, as pictures, and as a page."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path

import click

from rota.cli.connection import connected, json_option
from rota.cli.outfile import require_writable, whole_file
from rota.cli.present import structure_text
from rota.cli.sweepdrawing import curves_lines, turns_lines
from rota.cli.table import render, wide, width_of_terminal
from rota.cli.text import folded
from rota.report.sweep import SweepStory, TrialStory, ranked, read_sweep
from rota.report.sweepaxes import shortened
from rota.report.sweepfacts import AFTER, BEFORE, facts, trials_table
from rota.report.text import printable

MOST_ROWS = 20
NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")
SWEEP_HELP = "SWEEP is the name of a search, or @last for the newest."


@click.command(epilog=SWEEP_HELP)
@click.argument("sweep")
@click.option("--all", "everything", is_flag=True, help="All trials, not only the best 20.")
@click.option(
    "--html", "html_file", metavar="FILE", help="Write a page with pictures, which needs no net."
)
@json_option
def show(sweep: str, everything: bool, html_file: str | None, as_json: bool) -> None:
    """Show a search: its best value, its curves, its timeline, and its trials, best first.

    A trial's VALUE is its best value of the metric, REPORTS the number of its reports; WHY is the
    reason for which the search or a failure ended it. Its job is named SWEEP.TRIAL, for `rota logs`
    and the like. The pictures are for terminals only; there, parameters without room are left out,
    and WHY without room is printed below the table.
    """
    if html_file is not None:
        from rota.cli.simoptions import require_drawing

        require_drawing(html_file, None)
        require_writable(Path(html_file), "--html")
    with connected() as client:
        document = client.sweep(sweep)
        now_s = client.now_s()
    story = read_sweep(document, now_s)
    if as_json:
        click.echo(structure_text(document))
    else:
        click.echo("\n".join(sweep_lines(story, width_of_terminal(), everything)))
    if html_file is not None:
        from rota.report.sweeppage import sweep_page

        text = sweep_page(story)
        with whole_file(Path(html_file), "--html", text=True) as file:
            file.write(text)
        click.echo(f"wrote {html_file}", err=True)


def sweep_lines(story: SweepStory, width: float, everything: bool) -> list[str]:
    """Lines about a search for a terminal of ``width`` columns; pictures only on a terminal."""
    what, parts = ("array", "task") if story.is_array else ("sweep", "trial")
    lines = [f"{what} {printable(story.name)}"]
    for name, text in facts(story):
        lines.append(folded(f"  {name:<9}{printable(text)}", width, indent=11))
    order = ranked(story)
    trials = order if everything else order[:MOST_ROWS]
    if width < inf:
        plain = not _shows_braille()
        for picture in (
            curves_lines(story, width, plain=plain),
            turns_lines(story, trials, width, plain=plain),
        ):
            lines += ["", *picture] if picture else []
    if trials:
        lines += ["", *_table_lines(story, trials, width)]
    if len(trials) < len(order):
        lines.append(f"and {len(order) - len(trials)} more {parts}s: --all lists them")
    return lines


def _shows_braille() -> bool:
    """True if the terminal's letters are more than those of ASCII."""
    return (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")


def _table_lines(story: SweepStory, trials: Sequence[TrialStory], width: float) -> list[str]:
    """The table of these trials, and what of it has no room. Without a terminal, all has."""
    header, rows = trials_table(story, trials)
    table = [[printable(cell) for cell in row] for row in (header, *rows)]
    if width == inf or wide(table[0], table[1:]) <= width:
        longest = max(len(row[-1]) for row in table)  # sentences begin at the left
        return [_rendered([[*row[:-1], row[-1].ljust(longest)] for row in table])]
    table, left_out = _fitted([row[:-1] for row in table], width)
    lines = [_rendered(table)]
    if left_out:
        lines.append(folded(f"not shown for want of room: {', '.join(left_out)}", width, indent=2))
    return lines + _why_lines(story, trials, width)


def _rendered(table: Sequence[Sequence[str]]) -> str:
    return render(table[0], table[1:])


def _fitted(table: Sequence[Sequence[str]], width: float) -> tuple[list[list[str]], list[str]]:
    """The rows without what is too wide, and the names of the columns that are left out.

    These are parameters, from the last one on.
    """
    fitted = [[shortened(cell) for cell in row] for row in table]
    names = list(table[0])
    left_out: list[str] = []
    last = len(names) - len(AFTER)
    while wide(fitted[0], fitted[1:]) > width and last >= len(BEFORE):
        left_out.insert(0, names[last])
        for row in fitted:
            del row[last]
        last -= 1
    return fitted, left_out


def _why_lines(story: SweepStory, trials: Sequence[TrialStory], width: float) -> list[str]:
    """Reasons why trials ended, each once; reasons that differ only in numbers are one."""
    alike: dict[str, list[TrialStory]] = {}
    for trial in trials:
        if trial.why:
            alike.setdefault(NUMBER.sub("0", trial.why), []).append(trial)
    lines = ["why they ended:"] if alike else []
    for first, *others in alike.values():
        part = "task" if story.is_array else "trial"
        text = f"  {part} {first.number}: {printable(first.why)}"
        if others:
            text += f"; likewise {', '.join(str(trial.number) for trial in others)}"
        lines.append(folded(text, width, indent=4))
    return lines
