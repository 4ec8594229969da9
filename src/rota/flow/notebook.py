"""Brings a program that was started by hand, such as a notebook, onto the GPUs of a cluster.

    python -m rota.flow.notebook SOCKET

is the program of the flow job that is submitted for it: it tells the notebook, which listens there,
where the job's seat is, and ends when the notebook lets go of it or is gone.

    python -m rota.flow.notebook --watch FOLDER

is a process beside the notebook for as long as the job waits: it takes the job out of the queue if
the notebook is gone before that, and clears its folder away.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from rota.client.client import Client
from rota.errors import FlowError, RotaError
from rota.live.wire.island import FOLDER, KEY
from rota.live.wire.peer import peer_of
from rota.model.job import JobState

LOOK_EVERY_S = 0.5  # at a job that has not started
NAME = "notebook"
MOST_BYTES = 1 << 12  # of what the job tells
WATCH = "--watch"
RELEASED = "released"  # to the process that watches: the job is looked after


class Watch:
    """A process that cancels a job if this one ends before it has released it."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is cleared away then, too. Raises OSError."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rota.flow.notebook", WATCH, str(folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # what ends the notebook is not to end it
            text=True,
        )

    def watch(self, fields: dict[str, Any], key: str) -> None:
        """Have it watch the job that will be submitted with these fields, under this key."""
        self._say(json.dumps({"fields": fields, "key": key}))

    def release(self) -> None:
        """End it, and let the job be."""
        self._say(f"\n{RELEASED}")
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # somebody has killed it
            self._process.stdin.write(word)
            self._process.stdin.flush()


class Hold:
    """A flow job that lasts as long as this object is open, in this process."""

    def __init__(self, fields: dict[str, Any]) -> None:
        """Submits the job and waits for its start. ``fields`` are those of a job file but ``run``.

        A job that does not start at once is told of on stderr. Raises RotaError for a job that is
        refused, or ends before it has started.
        """
        self._owner = os.getpid()
        self._folder = Path(tempfile.mkdtemp(prefix="rota-notebook-"))
        self._link: socket.socket | None = None
        place = self._folder / "job.sock"
        run = f"python -m rota.flow.notebook {place}"
        try:
            with socket.socket(socket.AF_UNIX) as door, Client() as client:
                _listen(door, place)
                door.settimeout(LOOK_EVERY_S)
                whole = {"name": NAME, "processes": "flow", "workdir": os.getcwd(), "run": run}
                whole, key = whole | fields, uuid.uuid4().hex
                watch = Watch(self._folder)
                try:
                    watch.watch(whole, key)
                    self.job_id = str(client.submit(whole, key=key)["id"])
                    self._start(door, client)
                finally:
                    watch.release()
        except BaseException:
            self.close()
            raise
        self._clear_away()  # not at the end alone: a process that is killed clears nothing away

    def _start(self, door: socket.socket, client: Client) -> None:
        """Wait for the job to start; it is cancelled if that fails."""
        try:
            self.island, self.key = self._await(door, client)
            if not self.island.exists():
                raise FlowError(f"job {self.job_id} was given GPUs of another machine")
        except BaseException:
            with contextlib.suppress(RotaError):  # it is over already
                client.cancel(self.job_id)
            raise

    def _await(self, door: socket.socket, client: Client) -> tuple[Path, str]:
        """Wait for the job to start: its island's folder, and its key there."""
        is_told = False
        while True:
            with contextlib.suppress(TimeoutError):
                link, _ = door.accept()
                if peer_of(link).user != os.getuid():
                    link.close()
                    continue
                self._link = link
                told = json.loads(link.recv(MOST_BYTES))
                return Path(told[FOLDER]), str(told[KEY])
            job = client.job(self.job_id)
            if JobState[job["state"]].is_final:
                raise FlowError(
                    f"job {self.job_id} is {job['state']} before it has started: "
                    f"{job.get('message') or f'see rota logs {self.job_id}'}"
                )
            if job["state"] == JobState.PENDING.name and not is_told:
                is_told = True
                told = f"job {self.job_id} waits for its GPUs; `rota why {self.job_id}` says why"
                print(told, file=sys.stderr, flush=True)

    def forked(self) -> None:
        """In a process that the program has forked: the job is its parent's alone."""
        self.close()

    def close(self) -> None:
        """End the job."""
        if self._link is not None:
            self._link.close()
        if os.getpid() == self._owner:
            self._clear_away()

    def _clear_away(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _listen(door: socket.socket, place: Path) -> None:
    """Raises FlowError where there can be no socket."""
    try:
        door.bind(str(place))
    except OSError as error:
        raise FlowError(
            f"connect: a socket can't be made at {place}: {error}; set TMPDIR to a folder that is "
            "yours, and whose path is short"
        ) from None
    door.listen()


def watch(folder: Path) -> None:
    """Wait until the notebook releases its job, or is gone: then cancel the job.

    Nobody knows whether the notebook has submitted it by then: to submit it again under the same
    key gives the same job.
    """
    told, _, released = sys.stdin.read().partition("\n")
    if released == RELEASED:
        return
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(ValueError, RotaError):  # killed at once; the cluster is gone
        asked = json.loads(told)
        with Client() as client:
            client.cancel(str(client.submit(asked["fields"], key=asked["key"])["id"]))


def main() -> None:
    """See the module."""
    if sys.argv[1] == WATCH:
        watch(Path(sys.argv[2]))
        return
    place, door = {name: os.environ[name] for name in (FOLDER, KEY)}, Path(sys.argv[1])
    with socket.socket(socket.AF_UNIX) as link:
        try:
            link.connect(str(door))
            link.sendall(json.dumps(place).encode())
        except OSError as error:
            with contextlib.suppress(OSError):  # a notebook that was killed has left them
                door.unlink()
                door.parent.rmdir()
            sys.exit(
                f"the notebook does not listen at {door}: {error}; it has ended, or runs on "
                "another machine than this node"
            )
        with contextlib.suppress(ConnectionResetError):  # a kill before the notebook has read it
            while link.recv(1):
                pass


if __name__ == "__main__":
    main()
