"""The client's calls about searches over hyper-parameters, and about their trials."""

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from rota.client.connection import FOLLOW_PATIENCE_S, PATIENCE_S, POLL_S, Connection
from rota.model.sweep import Value
from rota.request.sweepfile import SweepRequest


class SweepCalls(Connection):
    """Calls about sweeps. A sweep is its name, or ``@last`` for the newest.

    They raise what other calls do, see :class:`rota.client.client.Client`; NotFoundError for a
    sweep or a trial that is not there.
    """

    def submit_sweep(
        self, sweep: SweepRequest | Mapping[str, Any], *, key: str | None = None
    ) -> dict[str, Any]:
        """Hand in a search; the same key again gives the same one.

        A mapping holds the fields of a job file with a ``sweep``, with an absolute workdir. The
        answer's ``name`` may have a number behind it, if the name was taken.
        """
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self._call("POST", "/sweeps", json_body=_fields(sweep), headers=headers)

    def check_sweep(self, sweep: SweepRequest | Mapping[str, Any]) -> dict[str, Any]:
        """What submit_sweep would take, without handing it in. Raises what that would raise."""
        return self._call("POST", "/sweeps", params={"dry_run": "true"}, json_body=_fields(sweep))

    def sweeps(self, *, everything: bool = False) -> list[dict[str, Any]]:
        """Searches that go on and those that ended within the hour, oldest first; or all.

        Of their trials it has the numbers by state.
        """
        params = {"all": "true"} if everything else {}
        return list(self._call("GET", "/sweeps", params=params)["sweeps"])

    def sweep(self, name: str, *, brief: bool = False, since: str | None = None) -> dict[str, Any]:
        """One search with all its trials; ``brief`` with their numbers by state alone.

        ``since``, the ``cursor`` of an answer of before: with the trials alone that have changed
        since, and of their curves what comes after the first ``known`` reports.
        """
        params = {"brief": "true"} if brief else {}
        return self._sweep(name, params | _since(since), PATIENCE_S)

    def cancel_sweep(self, name: str) -> dict[str, Any]:
        """End a search and its trials; doing it twice does no harm."""
        return self._call("POST", _path(name, "cancel"))

    def end_sweep(self, name: str, outcome: str, message: str = "") -> dict[str, Any]:
        """Say how a search has ended; its trials that still go on are stopped.

        ``outcome`` is TARGET, DONE, BUDGET, FAILED or CANCELLED. One that has ended stays as it is.
        """
        body = {"outcome": outcome, "message": message}
        return self._call("POST", _path(name, "end"), json_body=body)

    def submit_trial(
        self,
        name: str,
        params: Mapping[str, Value],
        *,
        number: int | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Start a trial with these parameters; its job.

        A ``number`` that the search has gives the trial that there is; without one it is the next,
        and the same key again gives the same trial. Raises TransitionError if the search is over.
        """
        body = {"number": number, "params": dict(params)}
        headers = {"Idempotency-Key": key or uuid.uuid4().hex} if number is None else {}
        return self._call("POST", _path(name, "trials"), json_body=body, headers=headers)

    def trial(self, name: str, number: int, *, since: str | None = None) -> dict[str, Any]:
        """One trial of a search, as :meth:`sweep` has it, with its curve or what is new of it."""
        path, params = _path(name, f"trials/{number}"), _since(since)
        return self._call("GET", path, params=params, patience_s=FOLLOW_PATIENCE_S)

    def stop_trial(self, name: str, number: int, why: str) -> dict[str, Any]:
        """End a trial, and say why the search does so; one that has ended stays as it is."""
        return self._call("POST", _path(name, f"trials/{number}/stop"), json_body={"why": why})

    def follow_sweep(
        self, name: str, *, timeout_s: float | None = None
    ) -> Iterator[dict[str, Any]]:
        """The search in brief, again and again until it has ended; the last one is how it ended.

        Raises TimeoutError if it has not ended after ``timeout_s``.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        told = self.sweep(name, brief=True)
        yield told
        name = told["name"]  # @last means the same sweep to the end
        while told["state"] != "ENDED":
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"sweep {name} has not ended after {timeout_s} s")
            time.sleep(POLL_S)
            told = self._sweep(name, {"brief": "true"}, FOLLOW_PATIENCE_S)
            yield told

    def wait_sweep(self, name: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        """The search with all its trials once it has ended.

        Raises TimeoutError if it has not after ``timeout_s``.
        """
        for told in self.follow_sweep(name, timeout_s=timeout_s):
            name = told["name"]
        return self._sweep(name, {}, FOLLOW_PATIENCE_S)

    def _sweep(self, name: str, params: dict[str, str], patience_s: float) -> dict[str, Any]:
        return self._call("GET", _path(name), params=params, patience_s=patience_s)


def _fields(sweep: SweepRequest | Mapping[str, Any]) -> dict[str, Any]:
    return sweep.to_fields() if isinstance(sweep, SweepRequest) else dict(sweep)


def _since(cursor: str | None) -> dict[str, str]:
    return {} if cursor is None else {"since": cursor}


def _path(name: str, action: str = "") -> str:
    path = f"/sweeps/{quote(name, safe='')}"
    return f"{path}/{action}" if action else path
