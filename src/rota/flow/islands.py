"""Ways to an island: that of a program's job, of a new job, of a folder, or one of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from rota.errors import FlowError, InputError
from rota.flow.client import Client
from rota.flow.forks import keep_from_forks
from rota.flow.page import SOCKET
from rota.live.wire.island import FOLDER, KEY

STARTS_S = 60.0  # within which a host of this program's own serves
DEFAULT_MEMORY_BYTES = 1 << 30
KINDS = ("cpu", "cuda")  # of devices


def connect(
    folder: str | os.PathLike[str] | None = None,
    *,
    gpus: int | str | None = None,
    name: str = "",
    devices: Sequence[int] | int = 1,
    weight: float = 1.0,
    memory_bytes: int | None = None,
    op_timeout_s: float | None = None,
    idle_s: float | None = None,
) -> Client:
    """A client of the job which this program is of, of a new job, or of the island in ``folder``.

    With ``gpus``, a number or a range such as "1..4", a flow job is submitted to the cluster, and
    ends with the client: this waits for its start. The job has the weight, and the memory of each
    GPU; after ``idle_s`` without an operation it gives its GPUs up until the next one. In an
    island's folder, ``devices`` are numbers of its devices, or how many of the least loaded. An
    operation that runs longer than ``op_timeout_s`` ends the workers that run it.

    Raises FlowError, InputError, and what submitting a job raises.
    """
    job = {"gpus": gpus, "idle_s": idle_s}
    limits = {"weight": weight if weight != 1.0 else None, "memory_bytes": memory_bytes}
    of_folder = {"devices": devices if devices != 1 else None}
    if folder is not None:
        _refuse(job, "are of a job; leave them out, or the folder")
    elif KEY in os.environ:
        _refuse(of_folder | limits | job, "are the job's: set them in its file")
    elif gpus is not None:
        _refuse(of_folder, "are of an island's folder; say how many gpus=")
    if folder is not None:
        place, name = Path(folder).absolute(), name or f"pid {os.getpid()}"
        return Client(place, name, devices, weight, memory_bytes, op_timeout_s)
    if gpus is None:
        if KEY not in os.environ:
            raise InputError(
                "connect: this program does not run in a flow job; submit it by rota run --flow, "
                "write flow.connect(gpus=...) for a job of its own, or take flow.local(devices)"
            )
        place = Path(os.environ[FOLDER])
        return Client(place, name, 1, 1.0, None, op_timeout_s, key=os.environ[KEY])
    from rota.flow.notebook import Hold

    fields: dict[str, Any] = {"resources": {"gpus": gpus}, "share": {"weight": weight}}
    if memory_bytes is not None:
        fields["resources"]["gpu_memory"] = f"{memory_bytes / 1e9:.9f} GB"
    if idle_s is not None:
        fields["idle"] = idle_s
    if name:
        fields["name"] = name
    hold = Hold(fields)
    keep_from_forks(hold)
    try:
        wanted = (hold.island, name, 1, 1.0, None, op_timeout_s, hold.close)
        return Client(*wanted, key=hold.key)
    except BaseException:
        hold.close()
        raise


def _refuse(options: dict[str, Any], why: str) -> None:
    """Raise InputError for options that have no effect."""
    given = {name: value for name, value in options.items() if value is not None}
    if given:
        words = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise InputError(f"connect: {words} {why}")


class LocalIsland:
    """An island of a host process of its own, for as long as this object is open."""

    def __init__(
        self, devices: int, memory_bytes: int = DEFAULT_MEMORY_BYTES, kind: str = "cpu"
    ) -> None:
        """Devices are cores, or GPUs with the kind ``cuda``. Raises FlowError, InputError."""
        if not isinstance(devices, int) or devices < 1:
            raise InputError(f"devices: {devices!r}; write how many the island has, 1 or more")
        if type(memory_bytes) is not int or memory_bytes < 1:
            raise InputError(f"memory_bytes is {memory_bytes!r}; give bytes, 1 or more")
        if kind not in KINDS:
            raise InputError(f"kind: {kind!r}; write one of {', '.join(KINDS)}")
        memory = Path("/dev/shm")  # noqa: S108  # a folder of its own is made there
        top = str(memory) if os.access(memory, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="rota-flow-", dir=top))
        command = [sys.executable, "-m", "rota.flow.host", str(self.folder)]
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [*command, str(devices), str(memory_bytes), kind],
            env={"OMP_NUM_THREADS": "1"} | os.environ,  # it forks, and should have one thread
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the program, which ends it
        )
        keep_from_forks(self)
        until_s = time.monotonic() + STARTS_S
        while not (self.folder / SOCKET).exists():
            if self._process.poll() is not None or time.monotonic() > until_s:
                self.close()
                raise FlowError("the island's host did not start; see what it printed")
            time.sleep(0.01)

    def connect(self, **options: Any) -> Client:
        """As :func:`connect`, here."""
        return connect(self.folder, **options)

    def close(self) -> None:
        """End the host and all workers."""
        self._hang_up()
        if os.getpid() != self._owner:  # a process that the program has forked
            return
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def forked(self) -> None:
        """In a process that the program has forked: it is not this one's."""
        self._hang_up()

    def _hang_up(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def local(
    devices: int,
    *,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    op_timeout_s: float | None = None,
    kind: str = "cpu",
) -> Client:
    """A client of an island of its own, of so many devices: a core each, or with ``cuda`` a GPU.

    ``op_timeout_s`` is as for :func:`connect`. Raises FlowError, InputError.
    """
    island = LocalIsland(devices, memory_bytes, kind)
    name = f"pid {os.getpid()}"
    try:
        return Client(island.folder, name, devices, 1.0, memory_bytes, op_timeout_s, island.close)
    except BaseException:
        island.close()
        raise
