"""Run a script that uses rota.train, and kill or stop this process at a named point of a vacating.

    FAULT="kill:write-after" FAULT_SLOT=1 FAULT_ARMED=/file python vacating_faults.py script.py ...

does so to slot 1, once, if the file is there: it is removed. ``full`` lets it find no room there,
and ``full-for-good`` as long as the file is there. Points are ``NAME-before`` and
``NAME-after``: offload (free the device), write (the arena), half (of its tensors), header (the
end of writing), told (the agent that it is written), end (the process), adopt (read the arena),
came (the agent is told that it is read), stay (training goes on), resumed (the agent is told).
"""

import errno
import os
import runpy
import signal
import sys
from pathlib import Path

from rota.train import arena, handover, training
from rota.train import suspension_wait as turn
from rota.train.link import Link

DEED, POINT = os.environ["FAULT"].split(":")
ARMED = Path(os.environ["FAULT_ARMED"])


def reach(point):
    if os.environ["FAULT_SLOT"] == os.environ["ROTA_SLOT"] and point == POINT and ARMED.exists():
        if DEED == "full-for-good":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        ARMED.rename(ARMED.with_name("fault"))
        if DEED == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.kill(os.getpid(), signal.SIGKILL if DEED == "kill" else signal.SIGSTOP)


def point(owner, method, name_of):
    original = getattr(owner, method)

    def wrapped(*arguments, **named):
        name = name_of(*arguments)
        reach(f"{name}-before")
        result = original(*arguments, **named)
        reach(f"{name}-after")
        return result

    setattr(owner, method, wrapped)


TELLS = {"written": "told", "resumed": "resumed"}
written = []


def tells(_, message):
    if message["type"] == "suspended":
        return "came" if "ROTA_ADOPT" in os.environ else "suspended"
    return TELLS.get(message["type"], "send")


def tensor(*_):
    written.append(1)
    return "half" if len(written) == 5 else "tensor"


for owner, method, name in [
    (training.Training, "offload", "offload"),
    (handover.Handover, "vacate", "write"),
    (arena.ArenaHeader, "pack", "header"),
    (turn, "_end_here", "end"),
    (handover.Handover, "stay", "stay"),
]:
    point(owner, method, lambda *_, name=name: name)
point(arena, "write_tensor", tensor)
point(handover.Handover, "adopt", lambda mine: "adopt" if mine.adopts else "start")
point(Link, "send", tells)

sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
