"""``rota top``: the cluster on a terminal, live."""

import sys
from importlib.util import find_spec

import click

from rota.cli.connection import connected
from rota.errors import InputError, pip_install


@click.command()
def top() -> int:
    """Show GPUs, jobs, turns and decisions live, with keys to steer jobs.

    It reads the event stream: nothing is polled, and an outage of the controller is told until it
    answers again. Arrow keys choose a job. s suspends it, r resumes it, c cancels it after a
    question, l follows its output, w tells why it waits and when it starts or ends, i everything
    about it; d lists what has happened, q leaves. It needs 80 columns and 24 lines, and no colours
    with NO_COLOR. It needs the extra tui.
    """
    if find_spec("textual") is None:
        what = "rota top needs Textual, which is not installed"
        raise InputError(f"{what}; install it with: {pip_install('tui')}")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("it needs a terminal; `rota ps --watch` prints a list of jobs")
    from rota.cli.topapp import Top
    from rota.cli.topfeed import read

    with connected() as client:
        first = read(client)
        app = Top(client, first)
        app.run()
        if app.failure is not None:
            raise app.failure
    return 0
