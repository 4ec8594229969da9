"""Run a script that uses rota.train, and end this process at a named point of a resize.

    FAULT="kill:vote2-after" FAULT_SLOT=1 FAULT_ARMED=/file python faults.py script.py ...

kills slot 1 with SIGKILL (``stop`` stops it) where it has voted for the second time, as soon as the
file is there. Points are ``NAME-before`` and ``NAME-after``: hold (at a boundary), vote1, vote2,
host (open the meeting place), meet (wait for all there), form (the process group), exchange (the
state), vote3, tell (the agent that all is well), join (a newcomer, when it has warmed up), standby
(who is to go, with the state until the others have met), park (without it, to come back one day).
"""

import os
import runpy
import signal
import sys
from pathlib import Path

from rota.train.link import Link
from rota.train.member import Member
from rota.train.world import World

DEED, POINT = os.environ["FAULT"].split(":")
ARMED = Path(os.environ["FAULT_ARMED"])


def reach(point):
    mine = os.environ["FAULT_SLOT"] == os.environ["ROTA_SLOT"]
    if mine and point == POINT and ARMED.exists():
        ARMED.with_name("fault").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL if DEED == "kill" else signal.SIGSTOP)


def point(owner, method, name_of):
    original = getattr(owner, method)

    def wrapped(self, *arguments, **named):
        name = name_of(self, *arguments, **named)
        reach(f"{name}-before")
        result = original(self, *arguments, **named)
        reach(f"{name}-after")
        return result

    setattr(owner, method, wrapped)


votes = []


def vote(world, _, *, at_once):
    votes.append(
        "vote3" if not at_once else f"vote{1 + votes.count('vote1') - votes.count('vote2')}"
    )
    return votes[-1]


for owner, method, name in [
    (Member, "agree", "hold"),
    (World, "host", "host"),
    (World, "_meet", "meet"),
    (World, "form", "form"),
    (Member, "_exchange", "exchange"),
    (Member, "join", "join"),
    (Member, "_stand_by", "standby"),
    (World, "stand_alone", "park"),
]:
    point(owner, method, lambda *_, name=name, **__: name)
point(World, "agree", vote)
point(Link, "send", lambda link, message: "tell" if message["type"] == "formed" else "send")

sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
