"""Starts of workers: each is forked from the host, and is a process of its client's job."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rota.flow.accelerator import Accelerator
from rota.flow.floor import Floor
from rota.flow.members import Member, Place
from rota.flow.moves import bind
from rota.flow.page import Bells, Page
from rota.flow.seats import Taken
from rota.live.wire import tags

PR_SET_PDEATHSIG = 1


class Starting:
    """See the module.

    ``on`` makes what a worker computes on; ``watch`` has a descriptor looked at, with what is
    called; ``let_go`` closes in a worker what is the host's or of other clients.
    """

    def __init__(
        self,
        floor: Floor,
        on: type[Accelerator],
        watch: Callable[[int, Callable[[], None]], None],
        let_go: Callable[[], None],
    ) -> None:
        self._floor, self._on, self._watch, self._let_go = floor, on, watch, let_go

    def start(
        self,
        member: Member,
        worker: int,
        device: int,
        opened: list[socket.socket],
        lost: Callable[[Place], None],
    ) -> None:
        """Fork a worker; ``lost`` is called once it has ended. Raises OSError."""
        slot = self._floor.free_slot(device)
        ours, theirs = socket.socketpair()
        opened.append(ours)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            for each in opened:
                each.close()
            self._work(parent, theirs, slot, member, worker)
        theirs.close()
        os.setpgid(pid, pid)
        place = self._floor.places[slot] = Place(slot, member, pid)
        member.order[worker : worker + 1] = [slot]
        member.slots[slot] = device
        if device >= 0:
            member.slot_on[device] = slot
        self._watch(place.process, lambda: lost(place))

    def _work(
        self, parent: int, client: socket.socket, slot: int, member: Member, worker: int
    ) -> NoReturn:
        """In a forked process: be a worker until client or host is gone; its error is printed."""
        from rota.flow.worker import Worker

        code = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            os.setpgid(0, 0)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
            os.set_inheritable(client.fileno(), False)
            self._let_go()
            if member.seat is not None:
                _take_seat(member.seat, worker)
            folder, devices, slots = self._floor.folder, self._floor.devices, self._floor.slots
            page, bells = Page(folder / "page", devices, slots), Bells(folder)
            Worker(client, page, bells, slot=slot, parcels=member.parcels, on=self._on()).serve()
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)


def _take_seat(seat: Taken, worker: int) -> None:
    """In a worker: be a process of the job, as its agent would have started it."""
    told = seat.told
    if told.tag is not None:
        tags.set_tag(told.tag)
    output = _output_of_program(Path(told.log))
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    for door in told.groups:
        with contextlib.suppress(OSError):  # the agent holds the job in another way
            Path(door).write_text(str(os.getpid()))
    bind(os.getpid(), seat.cores[worker])
    os.environ.clear()
    os.environ.update(told.env)
    os.chdir(told.workdir)
    paths = [told.workdir, *filter(None, told.env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:0] = [path for path in paths if path not in sys.path]


def _output_of_program(log: Path) -> int:
    """The pipe that the job's program prints to; the log itself once the program has ended."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
    try:
        shim = json.loads(log.with_suffix(".pid").read_bytes())["shim"]
        return os.open(f"/proc/{shim}/fd/1", flags)
    except (OSError, ValueError):  # the program has ended meanwhile
        return os.open(log, flags | os.O_CREAT, 0o600)
