"""A program that Rota knows nothing of: it counts, and goes on from its own checkpoint.

It adds up 0..N-1, a number every few milliseconds, and writes the sum to the file RESULT. The last
number waits for the file ``finish``, so that the program can be suspended until then. On SIGTERM it
saves, and exits with the status EXIT; or saves and goes on (EXIT=stay); or ignores the
signal (EXIT=ignore). Each start, and each end that it sees, is a line in the file TOLD; also that
another process of this rank was there at the same time.
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

COUNT, OUT = int(sys.argv[1]), Path(sys.argv[2])
EXIT = sys.argv[3] if len(sys.argv) > 3 else "0"
RANK = os.environ["RANK"]
SAVED = Path(os.environ["ROTA_CHECKPOINT_DIR"], f"rank{RANK}.json")
TOLD = OUT / f"told{RANK}"
asked = []


def tell(what):
    names = ("ROTA_ATTEMPT", "ROTA_NODE", "ROTA_CHECKPOINT_DIR")
    line = {"what": what, "pid": os.getpid(), "at": at, "cores": sorted(os.sched_getaffinity(0))}
    with open(TOLD, "a") as file:
        file.write(json.dumps(line | {name: os.environ[name] for name in names}) + "\n")


def save():
    draft = SAVED.with_suffix(".new")
    draft.write_text(json.dumps({"at": at, "total": total}))
    os.replace(draft, SAVED)


state = json.loads(SAVED.read_text()) if SAVED.exists() else {"at": 0, "total": 0}
at, total = state["at"], state["total"]
if EXIT == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
tell("start")
lock = os.open(OUT / f"lock{RANK}", os.O_WRONLY | os.O_CREAT)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    tell("double")
while at < COUNT:
    if at < COUNT - 1 or (OUT / "finish").exists():
        total += at
        at += 1
        if EXIT == "ignore" and at % 10 == 0:
            save()
    time.sleep(0.005)
    (OUT / f"at{RANK}").write_text(str(at))
    if asked and EXIT != "stay":
        while (OUT / "hold").exists():
            (OUT / f"held{RANK}").touch()
            time.sleep(0.005)
        save()
        tell("saved")
        sys.exit(int(EXIT))
    elif asked:
        save()
        tell("stays")
        asked.clear()
(OUT / f"result{RANK}").write_text(str(total))
tell("end")
