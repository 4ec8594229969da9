"""Suspends attempts that continue from their own checkpoint: their processes end.

Their programs get SIGTERM, and all that is left SIGKILL after the job's grace. From before the
SIGTERM on the attempt counts as vacated, with no arenas: whatever becomes of its processes or of
this agent, it is started again with the same number, and
:class:`~rota.live.agent.spill_to_arena.Vacating` does that.

How they end says nothing: a program that saves and then exits with 0 has not finished. One that
ended before the SIGTERM has.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from rota.live.agent.attempt_report import Account
from rota.live.agent.ending import Ending, saved_since_asked
from rota.live.agent.grace import LOOK_S, Grace
from rota.live.agent.method import grace_of
from rota.live.agent.processes import LOOK_AGAIN_S
from rota.live.agent.record import Vacated
from rota.live.agent.states import State


class Restarting:
    """Ends one attempt's processes for a suspension, and changes its ``state``.

    ``left`` is called with the time at which they were asked to end, once all have ended;
    ``check_end`` is called if they had ended before that.
    """

    def __init__(
        self,
        attempt: Account,
        ending: Ending,
        check_end: Callable[[], object],
        left: Callable[[float], object],
    ) -> None:
        self._attempt = attempt
        self._ending = ending
        self._check_end = check_end
        self._left = left

    @property
    def leaving(self) -> bool:
        """True if processes that have been asked to end may still be there."""
        vacated = self._attempt.record.vacated
        return vacated is not None and vacated.grace_ends_s is not None

    def leave(self) -> None:
        """End every process of an attempt that is to be suspended. Raises OSError."""
        attempt, now_s = self._attempt, self._attempt.world.now_s()
        record = attempt.record
        grace_s = grace_of(record.program)
        asked_s = attempt.world.boottime_s()
        record.vacated = Vacated(
            {}, None, now_s, grace_ends_s=now_s + grace_s, asked_boottime_s=asked_s
        )
        sessions, record.suspension = record.suspension == "boundary", "process"
        try:
            for rank in attempt.members:
                rank.give_grace()
            attempt.save()
        except OSError:
            record.vacated = None
            record.suspension = "boundary" if sessions else "process"
            for rank in attempt.members:
                rank.take_grace_back()
            raise
        if sessions:  # sessions end with their processes
            attempt.tell_registration()
        self._ask()

    def adopt(self) -> None:
        """An earlier agent has asked the processes to end, or was about to."""
        self._attempt.become(State.SUSPENDING)
        self._ask()

    def _ask(self) -> None:
        attempt = self._attempt
        vacated = attempt.record.vacated
        assert vacated is not None and vacated.grace_ends_s is not None
        grace_s = vacated.grace_ends_s - vacated.at_s
        if vacated.asked_boottime_s is None:  # an older agent's
            left_s = vacated.grace_ends_s - attempt.world.now_s()
        else:
            left_s = grace_s + vacated.asked_boottime_s - attempt.world.boottime_s()
        for rank in attempt.ranks:
            rank.ask_to_end(grace_s, left_s)
        self._kill_after(Grace(left_s, attempt.world.monotonic_s()))

    def _kill_after(self, grace: Grace) -> None:
        """Kill what is left of the processes once their grace is over."""
        attempt = self._attempt
        left_s = grace.left_s(attempt.world.monotonic_s())
        if left_s > 0:
            attempt.after(min(left_s, LOOK_S), self._kill_after, grace)
        elif self.leaving:
            attempt.kill_ranks()

    def ended(self) -> None:
        """A process has ended. When all have, the attempt is suspended, unless it had ended."""
        attempt = self._attempt
        if any(rank.alive for rank in attempt.ranks):
            return
        if any(rank.gone for rank in attempt.ranks) and attempt.kill_remains():
            attempt.after(LOOK_AGAIN_S, self.ended)
            return
        if attempt.stopping:
            self._ending.without_processes()
            return
        vacated = attempt.record.vacated
        assert vacated is not None
        exits = [rank.exit for rank in attempt.members]
        early = [each for each in exits if each is not None and _came_before(each, vacated)]
        if len(early) == len(exits) or any(each["code"] for each in early):
            attempt.record.vacated = None
            self._check_end()
            return
        attempt.record.vacated = replace(vacated, grace_ends_s=None, asked_boottime_s=None)
        codes = (each["code"] for each in exits if each is not None)
        code = next((code for code in codes if code not in (0, -signal.SIGTERM)), None)
        attempt.asked_end = {"exit_code": code, "saved": saved_since_asked(attempt)}
        self._left(vacated.at_s)


def _came_before(told: dict[str, Any], vacated: Vacated) -> bool:
    """True if a process had ended before it was asked to: by a clock that nobody sets."""
    if vacated.asked_boottime_s is None or "boottime_s" not in told:  # an older agent or shim
        return bool(told["at_s"] < vacated.at_s)
    return bool(told["boottime_s"] < vacated.asked_boottime_s)
