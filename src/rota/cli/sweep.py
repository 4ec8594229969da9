"""``rota sweep``: look at searches over hyper-parameters, wait for them, and end them."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from rota.cli.commandgroup import CommandGroup
from rota.cli.connection import connected, json_option, output_option
from rota.cli.present import listing_text
from rota.cli.sweepshow import SWEEP_HELP, show
from rota.cli.sweepsubmit import detach, follow
from rota.cli.table import in_parts, width_of_terminal
from rota.cli.text import number_text
from rota.errors import NotFoundError
from rota.report.text import duration, printable

COUNTS = ("done", "running", "waiting", "failed", "stopped")
COLUMNS = ("NAME", "STATE", *map(str.upper, COUNTS), "BEST", "METRIC", "GPU_H", "AGE")


@click.group(cls=CommandGroup)
def sweep() -> None:
    """Look at searches over hyper-parameters, wait for them, and end them.

    `rota submit` begins one, from a job file with a block `sweep`.
    """


sweep.add_command(show)


@sweep.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that ended over an hour ago.")
@output_option
@json_option
def list_(everything: bool, output: str, as_json: bool) -> None:
    """List searches, newest last: those that go on, and those that ended within the hour.

    Trials are counted by how they stand: done, running, waiting (suspended ones too), failed (also
    those that told nothing, or ended on no number), and stopped, by the search or by hand. BEST is
    the best that one has reported of METRIC, GPU_H the GPU hours of all trials together, AGE the
    time since the search was submitted, until its end.
    """
    with connected() as client:
        found, now_s = client.sweeps(everything=everything), client.now_s()
    output, rows = "json" if as_json else output, [_cells(each, now_s) for each in found]
    if output != "table":
        click.echo(listing_text(found, output, COLUMNS, rows))
    else:
        click.echo(in_parts(COLUMNS, rows, width_of_terminal()))
        for each in found:
            if each["driver_error"] is not None:
                click.echo(f"{each['name']}: {printable(each['driver_error'])}", err=True)


@sweep.command(epilog=SWEEP_HELP)
@click.argument("sweeps", nargs=-1, required=True, metavar="SWEEP...")
def cancel(sweeps: Sequence[str]) -> int:
    """End searches, and all their trials. Twice does no harm.

    The exit code is 1 if there is no such search; the others are cancelled.
    """
    code = 0
    with connected() as client:
        for name in sweeps:
            try:
                found = client.cancel_sweep(name)
            except NotFoundError as error:
                click.echo(f"error: {printable(error)}", err=True)
                code = 1
                continue
            before = "" if found["changed"] else "; it had ended before"
            click.echo(f"sweep {found['name']}: {found['outcome']}{before}")
    return code


@sweep.command(epilog=SWEEP_HELP)
@click.argument("sweep")
@click.option("--timeout", type=click.FloatRange(0), metavar="S", help="Give up after S seconds.")
def wait(sweep: str, timeout: float | None) -> int:
    """Wait for a search to end, and tell each new best meanwhile.

    The exit code is 0 if it has found something and was not cancelled, 4 if not, 1 if time ran out.
    """
    with connected() as client:
        name = client.sweep(sweep, brief=True)["name"]
        try:
            return follow(client, name, timeout)
        except TimeoutError as error:
            click.echo(f"error: {error}", err=True)
            return 1
        except KeyboardInterrupt:
            return detach(name)


def _cells(told: Mapping[str, Any], now_s: float) -> list[str]:
    best, request = told["best"], told["request"]["sweep"]
    cells = [
        told["name"],
        told["outcome"] or told["state"],
        *(told["trials"][count] for count in COUNTS),
        "-" if best is None else number_text(best["value"]),
        request.get("metric", "-"),
        f"{told['gpu_s'] / 3600:.2f}",
        duration((told["finish_s"] or now_s) - told["submit_s"]),
    ]
    return [printable(cell) for cell in cells]
