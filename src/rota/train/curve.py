"""Writes a trial's reports of its metric to a file that outlives the process.

The agent reads it (:mod:`rota.live.agent.curve`). Whatever happens to this process, to the agent or
to the controller, what was reported is there.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

from rota.errors import InputError
from rota.live.wire import MAX_NUMBER, MOST_METRIC_REPORTS, clock


class Curve:
    """Reports of one process, appended to those of the attempt's earlier processes."""

    def __init__(self) -> None:
        self._path = os.environ.get("ROTA_CURVE")
        self._metric = os.environ.get("ROTA_SWEEP_METRIC")
        self._file: int | None = None
        self._room = MOST_METRIC_REPORTS
        self._unwritten = b""
        self._first = True

    def note(self, step: int, figures: Mapping[str, float | None]) -> None:
        """Write down a report after so many steps, if it has the metric."""
        if self._path is None or self._metric is None or self._metric not in figures:
            return
        if self._room <= 0:
            return
        value = figures[self._metric]
        if value is not None and abs(value) >= MAX_NUMBER:
            value = None
        self._unwritten += json.dumps([step, clock.now_s(), value, self._first]).encode() + b"\n"
        self._first = False
        self._room -= 1
        self._write(self._path)
        if self._room <= 0:
            print(
                f"rota: {self._metric} was reported {MOST_METRIC_REPORTS} times; its search "
                "takes no more of this attempt",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> str:
        """Write what could not be written before, and accept no more.

        Returns the text for which there is still no room: it continues where the file ends, and
        fits into a message.
        """
        if self._path is not None and self._unwritten:
            self._write(self._path)
        if self._file is not None:
            os.close(self._file)
        self._file, self._path = None, None
        unwritten, self._unwritten = self._unwritten, b""
        return unwritten.decode()

    def _write(self, path: str) -> None:
        """Write in one piece if the disk has room; else keep the rest and try again later."""
        try:
            if self._file is None:
                self._file = self._open(path)
            self._unwritten = self._unwritten[os.write(self._file, self._unwritten) :]
        except OSError:
            return

    def _open(self, path: str) -> int:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(path, "rb") as before:
            known = before.read()
        self._room -= known.count(b"\n")
        if known and not known.endswith(b"\n"):  # a process was killed in the middle of a line
            self._unwritten = b"\n" + self._unwritten
        return file


def read_params() -> dict[str, str | int | float | bool]:
    """The parameters of this trial, by name; empty outside of a search. Raises InputError."""
    text = os.environ.get("ROTA_PARAMS")
    if not text:
        return {}
    try:
        params = json.loads(text)
    except ValueError:
        params = None
    if not isinstance(params, dict):
        raise InputError(
            f"ROTA_PARAMS: {text!r:.80} is no JSON object; set it to one, for example "
            '{"lr": 0.1}, or leave it out'
        )
    return params
