"""``rota experiment``: reproduce published results, with bounds that were fixed beforehand."""

import json
from pathlib import Path

import click

from rota.cli.commandgroup import CommandGroup
from rota.cli.progress import many_runs
from rota.cli.table import render, wide, width_of_terminal
from rota.experiment.base import Outcome, names, summary, taken
from rota.experiment.base import run as run_experiment

# What goes where there is too little room.
LEAST_FIRST = ("over seeds", "extremes", "baseline", "unit")


@click.group(cls=CommandGroup)
def experiment() -> None:
    """Reproduce published results."""


@experiment.command("list")
def list_() -> None:
    """List the experiments, each with the options that it takes.

    With --live one also runs on real jobs; those that say so themselves always do.
    """
    width = max(map(len, names()))
    for name in names():
        options = ", ".join(f"--{option}" for option in taken(name))
        click.echo(f"{name.ljust(width)}  {summary(name)}" + (f" [{options}]" if options else ""))


@experiment.command()
@click.argument("name")
@click.option(
    "--data", metavar="DIR", type=Path, help="A folder with public data, if it needs any."
)
@click.option("--live", is_flag=True, help="Run its live part, if it has one, on real jobs.")
@click.option(
    "--hosts",
    type=click.IntRange(min=2),
    metavar="N",
    help="Run its live part on so many machines made of namespaces; needs root.",
)
@click.option(
    "--partition", metavar="NAME", help="The partition to ask, if it runs on a real Slurm."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.pass_context
def run(
    ctx: click.Context,
    name: str,
    data: Path | None,
    live: bool,
    hosts: int | None,
    partition: str | None,
    as_json: bool,
) -> None:
    """Run one experiment and hold its figures against their bounds.

    The exit code is 0 if all figures are within their bounds, 1 if one is not, and 3 if data that
    the experiment needs is absent.
    """
    from rota.cli.simoutput import print_json

    with many_runs():
        outcome = run_experiment(name, data, live=live, hosts=hosts, partition=partition)
    if as_json:
        print_json(outcome.as_dict())
    else:
        click.echo(describe(outcome))
    ctx.exit(0 if outcome.holds else 1)


def describe(outcome: Outcome) -> str:
    """The figures as a table, under the settings that they were measured with."""
    spread = "over seeds" if outcome.seeds else "extremes"
    header = ["figure", "unit", "published", "baseline", "ours", spread, "bounds", "ok"]
    rows = [
        [
            figure.name,
            figure.unit,
            _number(figure.published),
            _number(figure.baseline),
            _number(figure.ours),
            _range(figure.least, figure.most),
            _range(figure.low, figure.high) + (" each" if figure.every else ""),
            ("yes" if figure.ok else "NO") if figure.judged else "-",
        ]
        for figure in outcome.figures
    ]
    if all(figure.least is None for figure in outcome.figures):
        header, *rows = ([*row[:5], *row[6:]] for row in (header, *rows))
    settings = [f"  {key}: {json.dumps(value)}" for key, value in outcome.settings.items()]
    seeds = ", ".join(map(str, outcome.seeds)) or "none, nothing is drawn by chance"
    verdict = "holds" if outcome.holds else "does not hold"
    header, rows, left_out = _fitting(header, rows, width_of_terminal())
    table = render(header, rows, text_columns=1 + ("unit" in header))
    note = [f"not enough room for: {', '.join(left_out)}; --json has all"] if left_out else []
    head = [outcome.experiment, *settings, f"  seeds: {seeds}"]
    return "\n".join([*head, "", table, *note, "", f"{outcome.experiment} {verdict}"])


def _fitting(
    header: list[str], rows: list[list[str]], width: float
) -> tuple[list[str], list[list[str]], list[str]]:
    """The columns of a table that there is room for, and the headings of the others."""
    left_out = []
    for heading in LEAST_FIRST:
        if wide(header, rows) <= width:
            break
        if heading in header:
            index = header.index(heading)
            left_out.append(heading)
            header, *rows = ([*row[:index], *row[index + 1 :]] for row in (header, *rows))
    return header, rows, left_out


def _range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{_number(low)} .. {_number(high)}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"
