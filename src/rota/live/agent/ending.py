"""Ends attempts: interprets the exits of their processes, and reports the end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from rota.live.agent.attempt_report import Account
from rota.live.agent.launching import checkpoints
from rota.live.agent.processes import LOOK_AGAIN_S, tag_of
from rota.live.agent.rank import Rank
from rota.live.agent.setup import FAILED
from rota.live.agent.states import State
from rota.live.wire import Message
from rota.model.ending import asked_end_text, signal_name

LAST_WORDS_S = 0.5  # how long connections of processes that have ended are still read
NO_MEMORY = (b"MemoryError", b"OutOfMemoryError", b"out of memory")
MOST_LINES = 3  # of a setup that has failed, in a message
MAX_LEFT = 300  # characters of a message about what a rank has left behind
LOOK_AT_MOST_S = 0.2  # at a checkpoint folder, for the newest file: a disk may be slow
VANISHED = "its processes were killed from outside"


class Ending:
    """The end of one attempt, whose ``state`` it changes.

    ``look_again`` is called later if the end may not have come yet; ``over`` once it has.
    """

    def __init__(
        self, attempt: Account, look_again: Callable[[], object], over: Callable[[], object]
    ) -> None:
        self._attempt = attempt
        self._look_again = look_again
        self._over = over
        self._over_s: float | None = None  # time since which no process is left
        self._was_out_of_the_way = False  # at the first look

    # -- by its processes ----------------------------------------------------------------------

    def conclude(self) -> None:
        """End the attempt, or declare it lost, once no process is left."""
        attempt = self._attempt
        self._was_out_of_the_way |= self._is_out_of_the_way()
        if self._still_tells():
            if attempt.state != State.ENDING:
                attempt.become(State.ENDING)  # from here on there is nothing to suspend or resize
            attempt.world.later(LOOK_AGAIN_S, self._look_again)
            return
        if attempt.record.flow is not None and self._have_left_workers():
            attempt.after(LOOK_AGAIN_S, self._look_again)
            return
        attempt.cancel_timers()
        last = [rank for rank in attempt.ranks if not rank.survived] or attempt.ranks
        if not any(rank.gone for rank in last):
            self._end_by(last)
        elif attempt.kill_remains():  # killed is not yet gone: look until none is there
            attempt.after(LOOK_AGAIN_S, self._look_again)
        else:
            forked = all(r.shim or r.is_far or r.exit is not None for r in attempt.members)
            started = attempt.was_rebooted or forked  # else its agent died during the launch
            self._end(
                State.LOST, error=VANISHED if started else "it never started", started=started
            )

    def _have_left_workers(self) -> bool:
        """Kill what workers of the island's host have left behind. True if there was anything."""
        attempt = self._attempt
        tags = [tag_of(attempt.record.secret, rank.name) for rank in attempt.ranks]
        return attempt.world.kill_remains([], tags) > 0

    def _still_tells(self) -> bool:
        """True if messages of the ended processes may still be unread.

        Their connections end with them, unless a process that they left behind holds one.
        """
        if not any(rank.writer is not None for rank in self._attempt.ranks):
            return False
        now_s = self._attempt.world.boottime_s()
        if self._over_s is None:
            self._over_s = now_s
        return now_s < self._over_s + LAST_WORDS_S

    def _end_by(self, ranks: list[Rank]) -> None:
        """End the attempt by the exits of these ranks, each of which has one."""
        exits = [(rank, rank.exit) for rank in ranks if rank.exit is not None]
        bad = [(e["at_s"], rank.index, e["code"]) for rank, e in exits if e["code"] != 0]
        _, process, code = min(bad, default=(0.0, 0, 0))
        asked = self._attempt.stopping
        if code == -signal.SIGKILL and self._was_out_of_the_way and not asked:
            # By the kernel, when memory ran out, or by somebody else. Who is killed while it
            # trains has failed; but one that was made to wait must not lose by that.
            self._end(State.LOST, error="its processes were killed while suspended", started=True)
            return
        if bad and self._attempt.goes_on and not asked:
            self._end(State.LOST, error=self._attempt.complaint, started=True, goes_on=True)
            return
        printed = [rank.last_printed for rank in ranks if bad and rank.index == process]
        saved = saved_since_asked(self._attempt) if asked else ""
        words = [f"it saved {saved}" if saved else ""]
        words.append(asked_end_text(code, self._attempt.grace_s))
        if bad and not asked:
            words = [self._failure(process, code), self._attempt.complaint]
        setup = map(failed_setup, printed)
        left = [str(e.get("left", ""))[:MAX_LEFT] for _, e in exits]
        message = "; ".join(filter(None, (*words, *setup, *left)))
        at_s = max(e["at_s"] for _, e in exits)
        ended = {"at_s": at_s, "exit_code": code, "message": message, "stop_asked": asked}
        told = any(words in last for last in printed for words in NO_MEMORY)
        memory = bool(bad) and (code == -signal.SIGKILL or told)
        self._end(State.ENDED, out_of_memory=memory, **ended)

    def _is_out_of_the_way(self) -> bool:
        """True if the attempt is suspended at a boundary, or about to be, or resuming."""
        at_boundary = self._attempt.record.suspension == "boundary"
        return at_boundary and self._attempt.state in (
            State.SUSPENDING,
            State.SUSPENDED,
            State.RESUMING,
        )

    def _failure(self, process: int, code: int) -> str:
        """Describes the end of the process that ended the others, and names its log."""
        attempt = self._attempt
        killed = f"killed by {signal_name(-code)}" if code < 0 else ""
        members = attempt.record.members
        if attempt.record.slots == 1:
            return killed
        attempt.record.failed = process
        with contextlib.suppress(OSError):  # its output can be asked for by its number
            attempt.save(durable=False)
        is_member = process in members
        number = members.index(process) if is_member else process
        which = f"{'rank' if is_member else 'process'} {number}"
        how = f"was {killed}" if killed else "failed"
        return f"{which} {how}: see `rota logs {attempt.job_id} --{which}`"

    # -- without them --------------------------------------------------------------------------

    def without_processes(self) -> None:
        """End an attempt that was told to end and has its state in arenas alone."""
        ended = {"exit_code": -int(signal.SIGTERM), "message": ""}
        ended["stop_asked"] = self._attempt.stopping
        self._end(State.ENDED, at_s=self._attempt.world.now_s(), **ended)

    def lose(self, error: str) -> None:
        """Declare the attempt lost: its state is gone, and the job has to start anew."""
        self._attempt.kill_ranks()
        self._end(State.LOST, error=error, started=True)

    def could_not_go_on(self, error: str) -> None:
        """Report that the attempt could not continue here as asked; nothing is lost.

        An attempt that came from another node vanishes here: it still exists there.
        """
        attempt = self._attempt
        if attempt.is_guest:
            self.vanish(State.REFUSED)
            attempt.refused(attempt)
        if attempt.resume_id is not None:
            attempt.failed(attempt.resume_id, error)

    def vanish(self, state: State) -> None:
        """End without a report, and without a trace in host memory: the state is elsewhere."""
        attempt = self._attempt
        attempt.kill_ranks()
        attempt.cancel_timers()
        attempt.become(state)
        attempt.ended = attempt.about(state)
        self._over()

    def _end(self, kind: State, **fields: Any) -> None:
        attempt = self._attempt
        if attempt.is_guest and (kind == State.LOST or attempt.stopping):
            self.could_not_go_on(str(fields.get("error", "it was told to end")))
            return
        killed = attempt.record.killed
        if kind == State.ENDED and killed is not None and fields["exit_code"]:
            kind, fields = State.LOST, {"error": killed, "started": True}
        attempt.become(kind)
        self._over()
        attempt.ended = attempt.about(kind) | fields | attempt.last_done()
        if kind == State.LOST:
            attempt.ended |= self._loss()
        if attempt.progress:  # the last report says how far it has come
            attempt.ended |= {"progress": attempt.report()["progress"]}
        attempt.tell_curve()
        attempt.notify(attempt.ended)

    def _loss(self) -> Message:
        """Further facts about a lost attempt."""
        attempt = self._attempt
        told: Message = {
            "rebooted": attempt.was_rebooted,
            "checkpointed": _has_checkpointed(attempt),
        }
        if not any(rank.found_gone for rank in attempt.ranks):
            told["at_s"] = attempt.world.now_s()
        return told


def failed_setup(printed: bytes) -> str:
    """The last lines of a setup that has failed, if the end of an output tells of one; else ""."""
    text, found, code = ("\n" + printed.decode(errors="replace")).rpartition(f"\n{FAILED} ")
    if not found:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()][-MOST_LINES:]
    last = " / ".join(lines)[-MAX_LEFT:]
    said = f", and printed last: {last}" if last else ""
    return f"setup failed with exit code {code.partition(':')[0]}{said}"


def saved_since_asked(attempt: Account) -> str:
    """The newest file in the job's checkpoint folder since the attempt was asked to end; or ""."""
    newest, name, until_s = 0.0, "", time.monotonic() + LOOK_AT_MOST_S
    try:
        asked = (attempt.folder / f"{rank.name}.grace" for rank in attempt.members)
        newest = min(path.stat().st_mtime for path in asked)
    except (OSError, ValueError):
        return ""
    folder = checkpoints(attempt.folder)
    for place, _, files in os.walk(folder):
        for file in files:
            if time.monotonic() > until_s:
                return name[:MAX_LEFT]
            with contextlib.suppress(OSError):  # it was renamed or removed meanwhile
                changed_s = os.lstat(os.path.join(place, file)).st_mtime
                if changed_s >= newest:
                    newest, name = changed_s, os.path.relpath(os.path.join(place, file), folder)
    return name[:MAX_LEFT]


def _has_checkpointed(attempt: Account) -> bool:
    """True if the job's checkpoint folder has something newer than the attempt."""
    try:
        began_s = (attempt.folder / "rank0.pid").stat().st_mtime
        found = checkpoints(attempt.folder).rglob("*")
        return any(path.lstat().st_mtime > began_s for path in found)
    except OSError:
        return False


def has_failed(rank: Rank) -> bool:
    """True if the rank has ended in a way that the others can't continue from."""
    failed = rank.exit is not None and rank.exit["code"] != 0
    return not rank.survived and (rank.gone or failed)
