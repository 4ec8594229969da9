"""``rota notify``: webhooks and commands that are told of events."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from rota.cli.commandgroup import CommandGroup
from rota.cli.connection import connected, json_option, output_option
from rota.cli.present import csv_text, structure_text
from rota.cli.table import render
from rota.cli.text import clock
from rota.errors import NotFoundError
from rota.report.text import printable

COLUMNS = ("HOOK", "KIND", "TARGET", "ON", "WAITING", "DELIVERED", "GIVEN_UP", "ERROR")
DELIVERY_COLUMNS = ("NUMBER", "HOOK", "EVENT", "JOB", "STATE", "TRIES", "AT", "NEXT", "ANSWER")
STATES = ("waiting", "delivered", "given_up")
MOST_CELL = 60  # characters of an error in a table


@click.group(cls=CommandGroup)
def notify() -> None:
    """Tell webhooks and commands of events.

    A hook is a webhook or a command. It is told of the news that it was added with, whatever job
    they are about, and of those of jobs whose job files name it. What it is sent, and how often, is
    in docs/reference/notify.md.
    """


@notify.command()
@click.argument("name")
@click.option("--webhook", metavar="URL", help="Where to send what it is told.")
@click.option("--command", metavar="FILE", help="A program in the folder notify of ROTA_HOME.")
@click.option(
    "--on",
    metavar="NEWS",
    help="News that it is told of, with commas between them, such as failed,node_lost.",
)
@click.option(
    "--allow-private",
    is_flag=True,
    help="The URL may lead to a loopback, private or link-local address.",
)
@click.option(
    "--secret-file",
    type=click.File("r"),
    metavar="FILE",
    help="Take the secret from there: whsec_ and the base64 of 24 to 64 bytes.",
)
def add(
    name: str,
    webhook: str | None,
    command: str | None,
    on: str | None,
    allow_private: bool,
    secret_file: Any,
) -> None:
    """Add a hook, and print the secret that signs what a webhook is sent.

    News of jobs are started, suspended, resumed, attempt_lost, succeeded, failed (also as TIMEOUT
    or LOST), cancelled and ended (in any way); others are node_joined, node_lost, sweep_ended
    and policy_failed.
    The secret is printed now and never again. What happened before is not told.
    """
    if (webhook is None) == (command is None):
        raise click.UsageError("give one of --webhook and --command")
    if command is not None and (allow_private or secret_file is not None):
        raise click.UsageError("--allow-private and --secret-file are for a --webhook")
    words = [word.strip() for word in (on or "").split(",") if word.strip()]
    secret = None if secret_file is None else secret_file.read().strip()
    with connected() as client:
        told = client.add_hook(
            name,
            webhook=webhook,
            command=command,
            on=words,
            allow_private=allow_private,
            secret=secret,
        )
    if command is None and secret_file is None:
        click.echo(told["secret"])
    about = f"hook {printable(told['name'])}: {told['kind']} {printable(told['target'])}"
    click.echo(f"{about}; try it with: rota notify test {printable(name)}", err=True)


@notify.command("list")
@output_option
@json_option
def list_(output: str, as_json: bool) -> None:
    """List hooks, with how many deliveries wait, have arrived, and were given up after a day.

    ERROR is how the last try ended of a delivery that has not arrived.
    """
    with connected() as client:
        found = client.hooks()
    rows = [
        [
            hook["name"],
            hook["kind"],
            hook["target"],
            ",".join(hook["on"]) or "-",
            *(str(hook[state]) for state in STATES),
            hook["error"] or "-",
        ]
        for hook in found
    ]
    click.echo(_text(found, "json" if as_json else output, COLUMNS, rows))


@notify.command()
@click.argument("names", nargs=-1, required=True, metavar="HOOK...")
def remove(names: Sequence[str]) -> int:
    """Remove hooks. What they have yet to be told is not delivered.

    The exit code is 1 if there is no such hook.
    """
    code = 0
    with connected() as client:
        for name in names:
            try:
                told = client.remove_hook(name)
            except NotFoundError as error:
                click.echo(f"error: {printable(error)}", err=True)
                code = 1
                continue
            left = f"; {told['waiting']} deliveries were waiting" if told["waiting"] else ""
            click.echo(f"hook {printable(name)}: removed{left}")
    return code


@notify.command()
@click.argument("name", metavar="HOOK")
def test(name: str) -> int:
    """Send a hook something now, once, and tell how that ended.

    The exit code is 1 if it did not arrive.
    """
    with connected() as client:
        told = client.test_hook(name)
    verdict = "it has arrived" if told["arrived"] else "it has not arrived"
    click.echo(f"hook {printable(name)}: {verdict} ({printable(told['answer'])})")
    return 0 if told["arrived"] else 1


@notify.command()
@click.argument("name", required=False, metavar="[HOOK]")
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="So many at most: the newest.",
)
@output_option
@json_option
def show(name: str | None, state: str | None, limit: int, output: str, as_json: bool) -> None:
    """Show what hooks were told and are to be told, the newest last.

    NUMBER is the event's number in the log, AT when it happened, NEXT when a waiting delivery is
    tried again, ANSWER how the last try ended.
    """
    with connected() as client:
        found = client.deliveries(hook=name, state=state, limit=limit)
    rows = [
        [
            str(each["number"]),
            each["hook"],
            each["event"],
            each["job"] or "-",
            each["state"],
            str(each["tries"]),
            clock(each["at_s"]),
            clock(each["next_at_s"]) if each["state"] == STATES[0] else "-",
            each["answer"] or "-",
        ]
        for each in found
    ]
    click.echo(_text(found, "json" if as_json else output, DELIVERY_COLUMNS, rows))


def _text(
    found: Sequence[Mapping[str, Any]],
    output: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> str:
    if output in ("json", "yaml"):
        return structure_text(list(found), output)
    cells = [[printable(cell) for cell in row] for row in rows]
    if output == "csv":
        return csv_text(header, cells)
    if output == "table":
        cells = [[*row[:-1], row[-1][:MOST_CELL]] for row in cells]
    return render(header, cells, text_columns=len(header))
