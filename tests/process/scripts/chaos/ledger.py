"""The ledger: a file to which every process of every job appends what it does, a line each.

What a process has written is there whatever is killed next, and the order of the lines is that in
which they were written, by whichever process.
"""

import json
import os
import time


def born():
    """When this process started, in ticks since the boot: with its pid, what tells it apart."""
    with open("/proc/self/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def who_am_i():
    """The job, its attempt and the rank that this process is, by its environment.

    Of several programs that a rank starts each counts for a rank: ``PART`` tells them apart.
    """
    environment = os.environ
    name = environment["NAME"]
    if "ROTA_TRIAL" in environment:
        name += "." + environment["ROTA_TRIAL"]
    return {
        "job": name,
        "id": environment.get("ROTA_JOB_ID", ""),
        "attempt": int(environment.get("ROTA_ATTEMPT", "0")),
        "rank": int(environment.get("ROTA_SLOT", "0")) + 100 * int(environment.get("PART", "0")),
        "life": f"{os.getpid()}-{born()}",
    }


class Ledger:
    """Lines of one process. ``who`` is what :func:`who_am_i` told the rank's own process."""

    def __init__(self, path=None, who=None):
        self.path = path or os.environ["LEDGER"]
        self.who = who or who_am_i()
        self._self = {"pid": os.getpid(), "born": born()}
        self._file = os.open(
            self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )

    def write(self, what, n=None, **more):
        """Append a line. One that a kill cuts short ends where the next one begins."""
        line = self.who | self._self | {"at_s": time.time(), "what": what, "n": n} | more
        os.write(self._file, b"\n" + json.dumps(line).encode() + b"\n")
