"""Common parts of the verbs that talk to the controller."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from rota.cli.text import follow
from rota.report.text import printable

if TYPE_CHECKING:
    from rota.client.client import Client

FORMATS = ("table", "wide", "json", "yaml", "csv")
JOB_HELP = "JOB is an id, a name that only one job has, or @last for the newest."


@contextmanager
def connected() -> "Iterator[Client]":
    """A client of the controller that the environment names."""
    from rota.client.client import Client  # here: httpx would slow down every --help

    with Client() as client:
        follow(lambda: client.ahead_s)
        client.notice(lambda words: click.echo(words, err=True))
        yield client


def echo_warnings(told: Mapping[str, Any]) -> None:
    """Print the warnings of an answer on stderr. Answers of older controllers may have none."""
    for warning in told.get("warnings", ()):
        click.echo(f"warning: {printable(warning)}", err=True)


def output_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a listing the option ``-o``, as ``output``."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="How to print them.",
    )(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option ``--json``, as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
