"""``rota ui``: the dashboard, in a process of its own."""

from __future__ import annotations

import json
import webbrowser
from importlib.util import find_spec

import click

from rota.errors import DataMissingError, UnreachableError, pip_install
from rota.folder import Folder, is_locked


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="P",
    help="The dashboard's port on 127.0.0.1; a free one by default.",
)
@click.option("--open/--no-open", "opens", default=True, help="Open the link in a browser, or not.")
def ui(port: int, opens: bool) -> None:
    """Show the cluster in a browser: GPUs, queue, jobs, timeline, decisions, searches.

    It prints a link that signs one browser in; the link is good once, and for five minutes. Whoever
    is signed in may do all that the cluster's token may. Run it again, while it runs, for another
    link. It listens on 127.0.0.1 only, and runs until Ctrl-C; the cluster goes on without it.
    """
    require_toolkit()
    from rota.client.client import Client
    from rota.client.connection import Connection

    folder = Folder()
    connection = Connection(folder=folder)
    try:
        token = connection.headers()["Authorization"].removeprefix("Bearer ")
    finally:
        connection.close()
    if folder.ui_lock.exists() and is_locked(folder.ui_lock):
        _tell(_link_of_running(folder, token), opens)
        return
    from rota.live.wire.title import title_role
    from rota.ui.app import run

    title_role("dashboard")

    run(
        folder,
        lambda: Client(folder=folder),
        token,
        port,
        lambda link: _tell(link, opens, runs=True),
    )


def require_toolkit() -> None:
    """Raise DataMissingError, with what installs it, if the dashboard's toolkit is not there."""
    if find_spec("nicegui") is None or find_spec("plotly") is None:
        what = "the dashboard's toolkit is not installed"
        raise DataMissingError(f"{what}; install it with: {pip_install('ui')}")


def _link_of_running(folder: Folder, token: str) -> str:
    """A new link of the dashboard that runs on this folder. Raises UnreachableError."""
    import httpx

    try:
        url = json.loads(folder.ui.read_text())["url"]
        answer = httpx.post(
            f"{url}/link", headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=5
        )
        return f"{url}/sign-in?link={answer.raise_for_status().json()['link']}"
    except (OSError, ValueError, KeyError, httpx.HTTPError) as error:
        raise UnreachableError(
            f"a dashboard runs on {folder.path}, but gives no link ({error}); end it, and run "
            "rota ui again"
        ) from None


def _tell(link: str, opens: bool, *, runs: bool = False) -> None:
    click.echo(f"the dashboard: {link}", err=True)
    click.echo("The link is good once, and for five minutes; rota ui prints another.", err=True)
    if runs:
        click.echo("Ctrl-C ends the dashboard.", err=True)
    if opens:
        webbrowser.open(link)
