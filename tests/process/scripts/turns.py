"""Run a script of a training whose GPU, a file, is another's while that has its turn there.

    python turns.py FOLDER SCRIPT WORDS...

A turn that begins while another one is under way on the GPU, of a process that is not stopped, ends
the process. A line in FOLDER/turns tells of each that is over: the job, the rank's process, and the
GPU, or "none" for a step that had no turn.
"""

import fcntl
import os
import runpy
import sys
from pathlib import Path
from typing import ClassVar

from rota.train import turns


class Turns(turns.Turns):
    held: ClassVar[list] = []  # the GPU's descriptor

    def begin(self):
        super().begin()
        if self._has_turn and not self.held:
            gpu = self._seat.ring
            lock = os.open(FOLDER / f"gpu{gpu}", os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.pwrite(lock, f"{os.getpid():9}".encode(), 0)
            except BlockingIOError:
                holder = int(os.pread(lock, 9, 0))
                if Path(f"/proc/{holder}/stat").read_text().rpartition(") ")[2][0] != "T":
                    raise
            self.held.append(lock)

    def end(self):
        gpu = "none"
        if self.held:
            gpu = self._seat.ring
            os.close(self.held.pop())
        with open(FOLDER / "turns", "a") as told:
            told.write(f"{os.environ['ROTA_JOB_ID']} {os.getpid()} {gpu}\n")
        super().end()

    def _leave(self):
        if self.held:
            os.close(self.held.pop())
        super()._leave()


FOLDER = Path(sys.argv[1])
sys.modules["rota.train.session"].Turns = Turns
sys.argv = sys.argv[2:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
