"""Drives searches: asks the controller for their state, and sends it the next actions.

A driver keeps nothing: a killed one is replaced by another, which continues from what the
controller knows. Two at once do no harm, as a trial's number is assigned once.
"""

import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rota.client.client import Client
from rota.errors import (
    JobFileError,
    NotFoundError,
    RotaError,
    TransitionError,
    UnreachableError,
)
from rota.sweep.decide import FAILED, End, Start, Stop, decide
from rota.sweep.known import Known
from rota.sweep.propose import Proposals

POLL_S = 0.3  # least time between looks
IDLE_S = 10.0  # most time between looks, even without news
SHARE = 0.25  # largest part of the time for looks that find nothing to do
LOOK_PAUSE_S = 5.0  # longest pause for the sake of that part
MOST_PAUSE_S = 30.0  # after errors
MOST_TIMES = 12  # consecutive failures of a search, over minutes, before it is left alone
MOST_CHARACTERS = 2000  # of a message that the controller takes

log = logging.getLogger(__name__)


class Wait(NamedTuple):
    """A search failed so many times in a row, and is left alone for a while."""

    times: int
    until_s: float


class Driver:
    """Drives all searches of one controller."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[str, Known] = {}
        self._waits: dict[str, Wait] = {}
        self._reported: dict[str, list[str]] = {}

    def run(self, until: Callable[[float, float], bool]) -> None:
        """Continue until ``until`` returns True.

        It waits for its first argument in seconds, and then until there is news, or until as many
        seconds have passed as its second argument says.
        """
        pause_s = most_s = 0.0
        while not until(pause_s, most_s):
            began_s = self._clock()
            try:
                looked_s = 0.0 if self.look() else self._clock() - began_s
                pause_s = min(max(POLL_S, looked_s / SHARE), LOOK_PAUSE_S)
                most_s = max(pause_s, self._idle_s())
            except UnreachableError as error:  # it is on its way back, or this process's end near
                log.info("no answer: %s", error)
                pause_s = most_s = POLL_S
            except Exception:
                log.exception("the list of sweeps could not be asked for")
                pause_s = most_s = min(max(2 * pause_s, POLL_S), MOST_PAUSE_S)

    def _idle_s(self) -> float:
        """Longest time between looks at a search without news."""
        times = [known.next_s for known in self._known.values()]
        times += [wait.until_s for wait in self._waits.values()]
        return min([IDLE_S, *(at_s - self._clock() for at_s in times)])

    def look(self) -> bool:
        """Look at each search that is not over. True if there was anything to do.

        Raises ServerError if the controller does not answer.
        """
        told = self._client.sweeps()
        running = {each["name"]: each for each in told if each["state"] == "RUNNING"}
        self._known = {name: self._known[name] for name in self._known if name in running}
        self._waits = {name: self._waits[name] for name in self._waits if name in running}
        names = list(running)
        random.shuffle(names)  # if one kills this process each time, the others get their turn
        acted = False
        for name in names:
            if name not in self._waits or self._clock() >= self._waits[name].until_s:
                acted |= self._carry_on(name, running[name])
        return acted

    def _carry_on(self, name: str, brief: Mapping[str, Any]) -> bool:
        """Drive one search; its failures do not affect the others."""
        try:
            acted = self._step_or_end(name, brief)
        except UnreachableError:
            raise
        except (NotFoundError, TransitionError) as error:  # the search was ended by another caller
            log.info("sweep %s: %s", name, error)
            return False
        except Exception:
            times = self._waits[name].times + 1 if name in self._waits else 1
            pause_s = min(POLL_S * 2 ** min(times, 10), MOST_PAUSE_S)
            self._waits[name] = Wait(times, self._clock() + pause_s)
            log.exception("sweep %s: again in %.1f s", name, pause_s)
            return False
        self._waits.pop(name, None)
        return acted

    def _step_or_end(self, name: str, brief: Mapping[str, Any]) -> bool:
        """Make one step; a search that can make none, and never will, is ended."""
        try:
            return self._step(name, brief)
        except JobFileError as error:
            message = str(error)
        except RotaError:  # the controller's trouble, such as a full disk
            raise
        except Exception as error:
            if name not in self._waits or self._waits[name].times < MOST_TIMES:
                raise
            log.exception("sweep %s is given up", name)
            message = f"its driver failed again and again: {error!r}"
        log.warning("sweep %s can't go on: %s", name, message)
        self._end(name, FAILED, message)
        return True

    def _step(self, name: str, brief: Mapping[str, Any]) -> bool:
        """Take the due actions, if there is news or it is time. True if there were any.

        ``brief`` is the search without its trials. Its state stays known if all has been done.
        """
        known = self._known.get(name)
        if known is not None and known.cursor == brief["cursor"] and self._clock() < known.next_s:
            return False
        known = self._known.pop(name, None) or Known(brief)
        told = brief
        if known.cursor != brief["cursor"]:
            told = self._client.sweep(name, since=known.cursor)
            for trial in told["trials"]:
                if trial["state"] == "SUCCEEDED" and not trial["known"] and not trial["curve"]:
                    trial["metrics"] = self._metrics(trial["job_id"])
            known.take(told)
        request, trials = known.request, known.trials()
        actions = decide(request, told, trials)
        proposals: Proposals | None = None
        for action in actions:
            match action:
                case Stop(number, why):
                    self._stop(name, number, why)
                case Start(number):
                    if proposals is None:
                        proposals = Proposals(request, trials)
                    self._start(name, number, proposals.next(number))
                case End(outcome, message):
                    self._end(name, outcome, message)
        known.next_s = self._clock() + known.budget_s(told)
        self._known[name] = known
        return bool(actions)

    def _metrics(self, job_id: str) -> list[str]:
        """Names of an ended job's reported metrics: the search's metric may be misspelt."""
        if job_id not in self._reported:
            progress = self._client.job(job_id)["progress"]
            self._reported[job_id] = list(progress.get("metrics") or ())
        return self._reported[job_id]

    # What the controller is told. Each of these is on its disk when the call returns, and may be
    # repeated. (Tests stop a driver before and after.)

    def _start(self, name: str, number: int, params: Mapping[str, Any]) -> None:
        log.info("sweep %s: trial %d with %s", name, number, params)
        self._client.submit_trial(name, params, number=number)

    def _stop(self, name: str, number: int, why: str) -> None:
        log.info("sweep %s: trial %d stops: %s", name, number, why)
        self._client.stop_trial(name, number, why)

    def _end(self, name: str, outcome: str, message: str) -> None:
        log.info("sweep %s ends, %s: %s", name, outcome, message)
        self._client.end_sweep(name, outcome, message[:MOST_CHARACTERS])
