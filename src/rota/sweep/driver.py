"""Carries searches on: asks the controller how each stands, and tells it what is to happen next.

A driver keeps nothing: one that is killed is replaced by another, which goes on from what the
controller knows. Two at once do no harm, as a trial's number is given once.
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
from rota.model.sweepfile import SweepRequest, parse_sweep
from rota.sweep.decide import FAILED, End, Start, Stop, decide
from rota.sweep.propose import Proposals
from rota.sweep.trial import trials_of

POLL_S = 0.3
SHARE = 0.25  # of its time, at most, that goes by looking where nothing is to be done
LOOK_PAUSE_S = 5.0  # at most, for the sake of that share
MOST_PAUSE_S = 30.0  # after errors
MOST_TIMES = 12  # in a row, which takes minutes, that a search fails here and is tried again
MOST_CHARACTERS = 2000  # of a message that the controller takes

log = logging.getLogger(__name__)


class Wait(NamedTuple):
    """A search could not be carried on, so many times in a row, and is left alone for a while."""

    times: int
    until_s: float


class Driver:
    """Carries on all searches of one controller."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._requests: dict[str, SweepRequest] = {}
        self._waits: dict[str, Wait] = {}
        self._reported: dict[str, list[str]] = {}

    def run(self, until: Callable[[float], bool]) -> None:
        """Go on until ``until``, which waits for so many seconds, says that it is enough."""
        pause_s = 0.0
        while not until(pause_s):
            began_s = self._clock()
            try:
                looked_s = 0.0 if self.look() else self._clock() - began_s
                pause_s = min(max(POLL_S, looked_s / SHARE), LOOK_PAUSE_S)
            except UnreachableError as error:  # it is on its way back, or this process's end near
                log.info("no answer: %s", error)
                pause_s = POLL_S
            except Exception:
                log.exception("the list of sweeps could not be asked for")
                pause_s = min(max(2 * pause_s, POLL_S), MOST_PAUSE_S)

    def look(self) -> bool:
        """See to each search that is not over; whether anything was to be done.

        Raises ServerError if the controller does not tell of them.
        """
        running = [each["name"] for each in self._client.sweeps() if each["state"] == "RUNNING"]
        self._requests = {name: self._requests[name] for name in self._requests if name in running}
        self._waits = {name: self._waits[name] for name in self._waits if name in running}
        random.shuffle(running)  # if one kills this process each time, the others get their turn
        acted = False
        for name in running:
            if name not in self._waits or self._clock() >= self._waits[name].until_s:
                acted |= self._carry_on(name)
        return acted

    def _carry_on(self, name: str) -> bool:
        """One search; what goes wrong with it is no matter of the others'."""
        try:
            acted = self._step_or_end(name)
        except UnreachableError:
            raise
        except (NotFoundError, TransitionError) as error:  # somebody else has ended it meanwhile
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

    def _step_or_end(self, name: str) -> bool:
        """One step; a search that can take none, and never will, is ended."""
        try:
            return self._step(name)
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

    def _step(self, name: str) -> bool:
        told = self._client.sweep(name)
        request = self._request(told)
        for trial in told["trials"]:
            if trial["state"] == "SUCCEEDED" and not trial["curve"]:
                trial["metrics"] = self._metrics(trial["job_id"])
        actions = decide(request, told)
        proposals: Proposals | None = None
        for action in actions:
            match action:
                case Stop(number, why):
                    self._stop(name, number, why)
                case Start(number):
                    if proposals is None:
                        proposals = Proposals(request, trials_of(request, told))
                    self._start(name, number, proposals.next(number))
                case End(outcome, message):
                    self._end(name, outcome, message)
        return bool(actions)

    def _request(self, told: Mapping[str, Any]) -> SweepRequest:
        name = told["name"]
        if name not in self._requests:
            self._requests[name] = parse_sweep(told["request"], workdir="")
        return self._requests[name]

    def _metrics(self, job_id: str) -> list[str]:
        """The names of what a job that has ended has reported: maybe its metric was misspelt."""
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
