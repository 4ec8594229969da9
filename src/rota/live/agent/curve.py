"""Reads a trial's reports of its metric, which its processes write to a file."""

import json
import logging
import os
from pathlib import Path
from typing import Any

from rota.live.wire import MOST_METRIC_REPORTS, clock
from rota.live.wire.messages import is_metric_report

FILE = "curve.jsonl"  # in the attempt's folder; it moves with the attempt
PIECE_BYTES = 1 << 20  # are read at a time,
MOST_BYTES = 200 * MOST_METRIC_REPORTS  # and so many in all

log = logging.getLogger("rota.agent")


class Curve:
    """The reports of one attempt so far; :meth:`read` looks for new ones."""

    def __init__(self, folder: Path) -> None:
        self.reports: list[list[Any]] = []  # step, time, value or null, whether a process's first
        self._path = folder / FILE
        self._offset = 0
        self._complained = False

    def read(self) -> int:
        """Read the whole lines that have come. Returns the number of reports so far.

        Any program can write there: a line that is no report is skipped, which is logged once.
        """
        while (data := self._piece()) and (end := data.rfind(b"\n") + 1):
            self._offset += end
            for line in data[:end].splitlines():
                self._take(line)
        return len(self.reports)

    def add(self, text: str) -> None:
        """Add lines that belong at the end of the file, for which the disk has no room."""
        self.read()
        begun = self._piece()  # of a line
        self._offset += len(begun)
        for line in (begun + text.encode(errors="replace")).splitlines():
            self._take(line)

    def _piece(self) -> bytes:
        try:
            if not self._offset < min(self._path.stat().st_size, MOST_BYTES):
                return b""
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.pread(descriptor, PIECE_BYTES, self._offset)
        except OSError:
            return b""
        finally:
            os.close(descriptor)

    def _take(self, line: bytes) -> None:
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            report = None
        if len(self.reports) < MOST_METRIC_REPORTS and is_metric_report(report):
            step, at_s, value, first = report
            self.reports.append([step, min(at_s, clock.now_s()), value, first])
        elif line and not self._complained:
            self._complained = True
            log.warning("%s: a line is left out: %r", self._path, line[:80])
