"""One trial of an Optuna study that runs as a job: the study hears its reports, and its end."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rota.errors import RotaError, SweepError, UnreachableError
from rota.model.job import JobState
from rota.model.presence import Presence

if TYPE_CHECKING:
    import optuna

    from rota.client.client import Client

POLL_S = 0.25
MAX_POLL_S = 2.0  # limits the requests of many threads with long trials
POLL_PART = 0.02  # part of a trial's age
PATIENCE_S = 60.0  # waits for an absent controller: its restart must not end a study

Answer = TypeVar("Answer")


def patiently(call: Callable[[], Answer], interrupted: threading.Event) -> Answer:
    """The call's result; the call is repeated while the controller restarts.

    Raises UnreachableError if it stays away, KeyboardInterrupt if ``interrupted`` is set meanwhile.
    """
    presence = Presence(POLL_S)  # a process that was stopped asks once more at least
    deadline = presence.at(time.monotonic()) + PATIENCE_S
    while True:
        try:
            return call()
        except UnreachableError:
            if presence.at(time.monotonic(), PATIENCE_S) > deadline:
                raise
        if interrupted.wait(POLL_S):
            raise KeyboardInterrupt
        presence.at(time.monotonic())


class Run:
    """A trial's job. :meth:`Objective.start` makes it; use it in one thread.

    ``trial`` is the study's, and ``number`` its number there and on the cluster, in the search
    ``sweep``; ``job_id`` is its job. ``value`` is there once :meth:`wait` has returned it.
    """

    def __init__(
        self,
        trial: optuna.Trial,
        sweep: str,
        metric: str,
        job_id: str,
        client: Client,
        interrupted: threading.Event,
    ) -> None:
        self.trial, self.number = trial, trial.number
        self.sweep, self.metric, self.job_id = sweep, metric, job_id
        self.value: float | None = None
        self._client, self._interrupted = client, interrupted
        self._curve: list[list[Any]] = []
        self._seen = 0  # number of its reports
        self._cursor: str | None = None
        self._over = False
        self._since_s = time.monotonic()

    def wait(self) -> float:
        """The trial's value once its job has ended: the best that it reported, NaN after a NaN.

        Raises optuna.TrialPruned if the study's pruner ends it; SweepError, which names the job, if
        that failed, was stopped or reported nothing. If this is interrupted, the job is stopped.
        """
        try:
            while not self.poll():
                age_s = time.monotonic() - self._since_s
                if self._interrupted.wait(min(MAX_POLL_S, max(POLL_S, POLL_PART * age_s))):
                    raise KeyboardInterrupt
        except BaseException:
            if not self._over:
                self._abandon()
            raise
        if self.value is None:
            raise SweepError(f"trial {self.number} (job {self.job_id}) was ended without a value")
        return self.value

    def poll(self) -> bool:
        """Look once, and tell the study what is new. Returns whether the trial is over.

        Raises what :meth:`wait` raises.
        """
        if not self._over:
            told = self._patiently(
                lambda: self._client.trial(self.sweep, self.number, since=self._cursor)
            )
            self._curve[told["known"] :] = told["curve"]
            self._cursor = told["cursor"]
            ended = JobState[told["state"]].is_final
            self._report(self._curve, ended)
            if ended and not self._over:
                self._end(told)
        return self._over

    def stop(self, why: str) -> None:
        """End the job, and say why the search does so."""
        self._patiently(lambda: self._client.stop_trial(self.sweep, self.number, why))
        self._close()

    def _abandon(self) -> None:
        with contextlib.suppress(RotaError):  # the error that ends the program matters more
            why = "the program with the study was interrupted"
            self._client.stop_trial(self.sweep, self.number, why)
        self._close()

    def _patiently(self, call: Callable[[], Answer]) -> Answer:
        return patiently(call, self._interrupted)

    def _report(self, curve: list[list[Any]], ended: bool) -> None:
        """Give the study the reports that it has not heard; it may prune the trial."""
        import optuna

        for index in range(self._seen, len(curve)):
            self._seen = index + 1
            value = curve[index][2]
            if value is None:
                continue
            self.trial.report(value, index)
            if not ended and self.trial.should_prune():
                why = f"the study's pruner ended it after {self.metric} {value:g}, report {index}"
                self.stop(why)
                raise optuna.TrialPruned(f"trial {self.number} (job {self.job_id}): {why}")
        if curve and curve[-1][2] is None:
            if not ended:
                self.stop(f"its last {self.metric} is not a number")
            self._finish(math.nan)

    def _end(self, told: dict[str, Any]) -> None:
        if told["state"] == "SUCCEEDED" and told["value"] is not None:
            self._finish(told["value"])
            return
        self._close()
        who = f"trial {self.number} (job {self.job_id})"
        if told["state"] == "SUCCEEDED":
            raise SweepError(
                f"{who} ended and never reported {self.metric}; its program has to call "
                f"s.report({self.metric}=...) in a session of rota.train"
            )
        why = told["why"] or told["message"]
        raise SweepError(
            f"{who} is {told['state']}{f': {why}' if why else ''}; see: rota logs {self.job_id}"
        )

    def _finish(self, value: float) -> None:
        self.value = value
        self._close()

    def _close(self) -> None:
        self._over = True
        self._client.close()
