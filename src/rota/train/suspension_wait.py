"""Waits in a suspended rank for its turn: in this process, or in one that replaces it."""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn

from rota.live.wire import VACATED, Message, clock
from rota.train.link import Link
from rota.train.progress import Progress
from rota.train.reports import Reports
from rota.train.training import Training


class SuspensionWait:
    """The waits of one session that has an agent."""

    def __init__(
        self, link: Link, training: Training, reports: Reports, progress: Progress
    ) -> None:
        self._link = link
        self._training = training
        self._reports = reports
        self._progress = progress

    def wait(self, stopped_s: float) -> None:
        """Say that this rank is suspended, and go on when it is told to."""
        suspended = {"stopped_s": stopped_s, "keeps": self._training.handover.keeps()}
        self._reports.introduce(suspended=True, **suspended)
        suspended |= {"type": "suspended", "step": self._progress.step}
        self._link.send(suspended | {"at_s": clock.now_s()})
        self._training.restore(self._await_resume())
        self._training.handover.stay()
        self._reports.introduce()
        self._link.send({"type": "resumed", "at_s": clock.now_s()})

    def _await_resume(self) -> int | None:
        while True:
            message = self._link.wait()
            if message is None:
                continue
            if message["type"] == "resume":
                return message["device"]
            if message["type"] == "vacate":
                self._vacate(message)
            elif message["type"] == "end":
                _end_here()

    def _vacate(self, message: Message) -> None:
        """Write the state down, for a process that is to take this one's place."""
        answer: Message = {"type": "kept", "round": message["round"]}
        try:
            num_bytes = self._training.handover.vacate(message["path"])
        except Exception as error:  # any error: the state is safe where it is
            answer["error"] = f"{type(error).__name__}: {error}"[:500]
            answer["full"] = isinstance(error, OSError) and error.errno == errno.ENOSPC
        else:
            answer |= {"type": "written", "bytes": num_bytes}
        self._link.send(answer)


def _end_here() -> NoReturn:
    """End this process, in the middle of the program: another one goes on from here."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(VACATED)
