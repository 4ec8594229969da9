"""Loaded at the start of every Python below a cluster under test: stops it at named points.

A process that comes to a point for which a file ``$STOPS/POINT`` is there, and whose node that file
names (or that is the controller, for ``controller``, or what drives its searches, for ``sweep``),
renames it to ``POINT.at`` with its pid in it and stops itself. Whoever made the file kills it then,
or lets it go on. Pieces of files are small here, so that there are many. A controller writes
reports down every ``$REPORTS_EVERY_S`` seconds, so that policies know of speeds soon, where that is
set, and an agent waits for the boundary of a step for ``$BOUNDARY_S`` seconds; these need no
``$STOPS``. An agent writes a byte to the file ``asked`` of an attempt when it has asked its ranks
to suspend, and lets ranks lag behind, as any may on a busy machine. To all of them the wall clock
is ``$WALL_AHEAD_S`` seconds ahead. Zygotes load torch for the first job that may need it: many
clusters have nodes, or agents started anew, that never run one.
"""

import os
import signal
import sys
import time
import traceback
from pathlib import Path

WORDS = sys.orig_argv
STOPS = Path(os.environ.get("STOPS", "/nowhere"))
WHO = "controller"
if "rota.live.agent" in WORDS:
    WHO = WORDS[WORDS.index("--node") + 1]
elif "rota.sweep" in WORDS:
    WHO = "sweep"


def reach(point):
    file = STOPS / point
    try:
        if file.read_text() != WHO:
            return
        (STOPS / f"{point}.new").write_text(str(os.getpid()))
        file.unlink()
        os.replace(STOPS / f"{point}.new", STOPS / f"{point}.at")
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGSTOP)


def point(owner, function, name):
    """Make ``NAME-before`` and ``NAME-after`` points of a function, plain or asynchronous."""
    import inspect

    original = getattr(owner, function)

    def plain(*arguments, **named):
        reach(f"{name}-before")
        result = original(*arguments, **named)
        reach(f"{name}-after")
        return result

    async def waiting(*arguments, **named):
        reach(f"{name}-before")
        result = await original(*arguments, **named)
        reach(f"{name}-after")
        return result

    setattr(owner, function, waiting if inspect.iscoroutinefunction(original) else plain)


def patch_agent():
    from rota.live.agent import memory, moves, pausing, tuning
    from rota.live.agent import migrate_in as arrival
    from rota.live.agent import migrate_out as departure
    from rota.live.agent import restore_from_arena as returning
    from rota.live.agent import spill_to_arena as vacating

    point(departure.Departure, "_vacate", "vacate")
    point(departure.Departure, "_describe", "describe")
    point(vacating.Vacating, "_leave", "leave_processes")
    point(departure, "_read", "read")
    point(arrival.Arrival, "_fetch_state", "fetch_state")
    point(arrival, "_write", "write")
    point(arrival.Arrival, "_put_in_place", "put_in_place")
    point(moves.Moves, "_settle", "settle")
    point(returning.Returning, "_fork_ranks", "fork")
    point(returning.Returning, "came", "came")
    point(moves.Moves, "leave", "drop")
    point(pausing.Pausing, "suspend", "suspend")
    point(pausing.Pausing, "_suspended", "suspended")
    point(pausing.Pausing, "resume", "resume")
    point(pausing.Pausing, "check_resumed", "resumed")
    point(pausing.Pausing, "stay", "stay")
    point(tuning.Tuning, "tune", "tune")
    point(tuning.Tuning, "heard", "tuned")
    point(memory, "spill", "spill")
    point(memory, "copy_file", "copy")
    point(memory, "_write_draft", "draft")
    point(vacating.Vacating, "moved", "moved")
    point(returning, "verify", "verify")


def tell_who_was_asked():
    """Have the agent write down when it has asked an attempt's ranks to suspend."""
    from rota.live.agent.pausing import Pausing

    suspend = Pausing.suspend

    def told(self, *arguments, **named):
        suspend(self, *arguments, **named)
        with open(self._attempt.folder / "asked", "ab") as file:
            file.write(b".")

    Pausing.suspend = told


def patch_controller():
    from rota.live.controller import agent_sessions, journal, outboxes, sweep_api
    from rota.live.provider import kubernetes, kubernetes_pods, ray

    point(kubernetes.Pods, "_create", "ask_kubernetes")
    point(kubernetes_pods.Agents, "secret", "secret_kubernetes")
    point(ray.Groups, "_ask", "ask_ray")
    point(agent_sessions, "pass_on", "pass_on")
    point(agent_sessions, "pass_piece_on", "pass_piece_on")
    point(agent_sessions.AgentSessions, "_command_answered", "answered")
    point(journal.Journal, "write_down", "write_down")
    point(agent_sessions.AgentSessions, "dispatch", "dispatch")
    for call in ("submit_sweep", "submit_trial", "stop_trial", "end_sweep"):
        point(sweep_api.SweepApi, call, call)
    tell = outboxes.Outboxes.tell

    def told(self, node, message):
        if isinstance(message, bytes) or message["type"] != "drop":
            return tell(self, node, message)
        reach("tell_drop-before")
        found = tell(self, node, message)
        reach("tell_drop-after")
        return found

    outboxes.Outboxes.tell = told


def patch_sweep():
    from rota.sweep import driver

    point(driver.Driver, "_start", "start")
    point(driver.Driver, "_stop", "stop")
    point(driver.Driver, "_end", "end")


if "WALL_AHEAD_S" in os.environ:

    def wall_s(shown=time.time, ahead_s=float(os.environ["WALL_AHEAD_S"])):
        return shown() + ahead_s

    time.time = wall_s

if "REPORTS_EVERY_S" in os.environ and "rota.cli.main" in WORDS:
    import rota.live.controller.telemetry

    rota.live.controller.telemetry.LOG_PROGRESS_EVERY_S = float(os.environ["REPORTS_EVERY_S"])

if "rota.live.agent" in WORDS:
    from rota.live.agent import pulses

    pulses.LAGS_BELOW = 0.0
    tell_who_was_asked()

if "rota.live.agent" in WORDS:
    import rota.live.agent.pausing

    # Nobody is stopped in the middle of a step for being slow unless a test means that.
    rota.live.agent.pausing.BOUNDARY_TIMEOUT_S = float(os.environ.get("BOUNDARY_S", "60"))

if STOPS.exists() and "rota.cli.main" in WORDS:
    import rota.policy.gandiva.types

    rota.policy.gandiva.types.WORTH = 0  # a move that was stopped looks dearer than it is

if STOPS.exists() and ("rota.live.agent" in WORDS or "rota.cli.main" in WORDS or WHO == "sweep"):
    import rota.live.wire

    rota.live.wire.PIECE_BYTES = int(os.environ.get("STOPS_PIECE", "1024"))
    try:
        {"controller": patch_controller, "sweep": patch_sweep}.get(WHO, patch_agent)()
    except (AttributeError, ImportError):  # Python goes on without this file, and without points
        traceback.print_exc()
        os._exit(1)
