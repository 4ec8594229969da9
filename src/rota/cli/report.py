"""``rota report``: how jobs have fared on the live cluster."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rota.cli import present
from rota.cli.connection import connected, json_option
from rota.cli.table import render
from rota.cli.text import clock
from rota.report.text import printable
from rota.request.values import seconds_of

EMPTY = "no job has been submitted to this cluster yet; `rota run` submits one"


@click.command()
@click.option("--since", metavar="T", help="Only jobs of the last 7d, 12h, 30m; all by default.")
@click.option(
    "--html", "html_file", metavar="FILE", help="Write a page with pictures, which needs no net."
)
@json_option
def report(since: str | None, html_file: str | None, as_json: bool) -> int:
    """Tell how jobs have fared: the figures of `rota sim run`, from the cluster's event log.

    With --since it is about the jobs that still went on that long ago, or came later. Times are
    those of jobs that succeeded, whose number stands first; jobs that have not ended are counted
    apart, and have a part in preemptions and GPU hours alone. The use of GPUs is that of all GPUs
    that were there; GPUs that jobs share count once for each.
    """
    if html_file is not None:
        from rota.cli.outfile import require_writable
        from rota.cli.simoptions import require_drawing

        require_drawing(html_file, None)
        require_writable(Path(html_file), "--html")
    last_s = None if since is None else seconds_of("--since", since)
    with connected() as client:
        told = client.report(last_s=last_s)
        if as_json:
            click.echo(present.structure_text(told))
        elif told["jobs"]:
            click.echo(report_text(told))
        else:
            click.echo(EMPTY if since is None else f"no job went on in the last {since}")
        if html_file is not None:
            _write(told, html_file)
    return 0


def report_text(told: Mapping[str, Any]) -> str:
    """A report for people: what it is about, a table by user, and one by queue if there are any."""
    from rota.report.comparison import spread_table
    from rota.report.gauges import NOBODY
    from rota.report.lately import entries_of

    lines = [_facts(told)]
    for by in ("users", "queues"):
        if by == "queues" and list(told["queues"]) == [NOBODY]:
            continue
        header, rows = spread_table(entries_of(dict(told), by))
        cells = [[printable(cell) for cell in row] for row in rows]
        lines += ["", render([f"by {by[:-1]}", *map(printable, header[1:])], cells)]
    return "\n".join(lines)


def _facts(told: Mapping[str, Any]) -> str:
    """One sentence: from when to when, how many jobs, how they ended, how many go on."""
    ended = _counts(told["ended"]) or "none has ended"
    going = _counts(told["going"])
    rest = f"; not ended: {going}" if going else ""
    period = f"{clock(told['since_s'])} to {clock(told['until_s'])}"
    return f"{period}, policy {printable(told['policy'])}; jobs: {ended}{rest}"


def _counts(by_state: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in by_state.items())


def _write(told: dict[str, Any], html_file: str) -> None:
    from rota.cli.outfile import whole_file
    from rota.report.latelypage import lately_page

    with whole_file(Path(html_file), "--html", text=True) as file:
        file.write(lately_page(told, _facts(told)))
    click.echo(f"wrote {html_file}", err=True)
