"""Prints why starts of jobs fail, while a command waits for their end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from rota.report.text import printable

if TYPE_CHECKING:
    from rota.client.client import Client
    from rota.client.events import Told

STARTS = ("Launch", "Resume", "Migrate")  # commands that give a job its GPUs


class FailedStarts:
    """Prints why starts of a job, or of all jobs of a sweep or array, fail, as events tell it."""

    def __init__(self, *job_ids: str, sweep: str | None = None) -> None:
        self._job_ids, self._sweep = set(job_ids), sweep
        self._others: set[int] = set()  # commands on their way that start nothing

    def __call__(self, event: "Told") -> bool:
        """Print the failure that an event tells of, if it tells of one. Returns False."""
        from rota.client.events import Logged

        if not isinstance(event, Logged) or event.job_id is None:
            return False
        data: dict[str, Any] = event.data
        sweep = data["sweep"] or {} if event.kind == "JobSubmitted" else {}
        if sweep.get("name", "") == self._sweep:
            self._job_ids.add(event.job_id)
        if event.job_id not in self._job_ids:
            return False
        if event.kind == "CommandSent" and data["command"] not in STARTS:
            self._others.add(data["command_id"])
        is_failure = event.kind in ("CommandFailed", "AttemptLost")
        if is_failure and data.get("command_id") not in self._others and event.sentence:
            line = f"job {event.job_id}: {printable(event.sentence)}"
            if event.kind == "CommandFailed":
                pause_s = max(0.0, data["retry_at_s"] - event.at_s)
                line += f"; it is tried again in {pause_s:.0f} s"
            click.echo(line, err=True)
        return False


@contextmanager
def failed_starts_printed(
    client: "Client", after: str | None, starts: FailedStarts
) -> Iterator[None]:
    """Print failed starts from a thread meanwhile, those after the cursor ``after`` if given."""
    from rota.client.changes import Changes

    with Changes(client.events(after, busy=True), starts):
        yield


def last_failure(job: dict[str, Any]) -> str:
    """The reason why the last try to start a job has failed, in a line."""
    lines = (each["line"] for each in reversed(job["story"]) if " failed: " in each["line"])
    return f"job {job['id']}: {printable(next(lines, 'the last try failed'))}"
