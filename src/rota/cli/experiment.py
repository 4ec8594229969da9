"""``rota experiment``: reproduce published results, with bounds that were fixed beforehand."""

import json
from pathlib import Path

import click

from rota.cli.table import render
from rota.experiment.base import Outcome, load, names, summary


@click.group()
def experiment() -> None:
    """Reproduce published results."""


@experiment.command("list")
def list_() -> None:
    """List the experiments."""
    width = max(map(len, names()))
    for name in names():
        click.echo(f"{name.ljust(width)}  {summary(name)}")


@experiment.command()
@click.argument("name")
@click.option("--data", metavar="DIR", type=Path, help="A folder with the public data it needs.")
@click.option("--live", is_flag=True, help="Run its live part, on real jobs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.pass_context
def run(ctx: click.Context, name: str, data: Path | None, live: bool, as_json: bool) -> None:
    """Run one experiment and hold its figures against their bounds.

    The exit code is 0 if all figures are within their bounds, 1 if one is not, and 3 if data that
    the experiment needs is absent.
    """
    outcome = load(name).run(data, live=live)
    click.echo(json.dumps(outcome.as_dict(), indent=2) if as_json else describe(outcome))
    ctx.exit(0 if outcome.holds else 1)


def describe(outcome: Outcome) -> str:
    """The figures as a table, under the settings that they were measured with."""
    header = ["figure", "unit", "published", "baseline", "ours", "over seeds", "bounds", "ok"]
    rows = [
        [
            figure.name,
            figure.unit,
            _number(figure.published),
            _number(figure.baseline),
            _number(figure.ours),
            _range(figure.least, figure.most),
            _range(figure.low, figure.high),
            ("yes" if figure.ok else "NO") if figure.judged else "-",
        ]
        for figure in outcome.figures
    ]
    if all(figure.least is None for figure in outcome.figures):
        header, *rows = ([*row[:5], *row[6:]] for row in (header, *rows))
    settings = [f"  {key}: {json.dumps(value)}" for key, value in outcome.settings.items()]
    seeds = ", ".join(map(str, outcome.seeds)) or "none, nothing is drawn by chance"
    verdict = "holds" if outcome.holds else "does not hold"
    table = render(header, rows, text_columns=2)
    head = [outcome.experiment, *settings, f"  seeds: {seeds}"]
    return "\n".join([*head, "", table, "", f"{outcome.experiment} {verdict}"])


def _range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{_number(low)} .. {_number(high)}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"
