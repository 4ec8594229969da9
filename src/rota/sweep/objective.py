"""An objective for an Optuna study whose trials run as jobs on the cluster."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import threading
import uuid
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from rota.client.client import Client
from rota.errors import InputError, RotaError
from rota.request.sweepfile import MAX_NAME, SweepRequest, parse_sweep, shown
from rota.sweep.run import Run, patiently

if TYPE_CHECKING:
    import optuna

SWEEP, JOB = "rota_sweep", "rota_job"  # attributes of the study, and of its trials


class Objective:
    """The objective for ``study.optimize``: runs ``run`` as a job and returns its value.

    ``suggest`` takes the trial and returns its parameters, by name: text, numbers, true or false.
    Without it they are those that the trial has (``study.ask(distributions)``). ``{lr}`` in ``run``
    becomes the parameter ``lr``; the program has all of them as ``s.params``. ``metric`` is the
    name under which the program reports the value, with ``s.report``. ``job`` are fields of a job
    file: ``resources``, ``env``, ``time_limit`` and so on; ``name`` is by default that of the
    study. ``connect`` makes the client for a thread.

    All trials of a study are one search on the cluster, with one share of it. It begins with the
    first trial and ends with :meth:`close`, which leaving ``with Objective(...) as objective``
    calls. Inside, Ctrl-C stops the trials of all threads.

    Raises JobFileError if the job would not be taken.
    """

    def __init__(
        self,
        run: str,
        suggest: Callable[[optuna.Trial], Mapping[str, Any]] | None = None,
        *,
        metric: str,
        connect: Callable[[], Client] = Client,
        **job: Any,
    ) -> None:
        block = {"metric": metric, "goal": "maximize", "algorithm": "manual"}
        self._request = parse_sweep({"run": run, "sweep": block, **job}, workdir=os.getcwd())
        self._named = "name" in job
        self._suggest, self._connect = suggest, connect
        self._lock = threading.Lock()
        self._sweeps: dict[str, str] = {}  # by the study's name
        self._interrupted = threading.Event()
        self._handler: Any = None

    def __call__(self, trial: optuna.Trial) -> float:
        """Run a trial to its end. Returns its value. Raises what :meth:`Run.wait` raises."""
        return self.start(trial).wait()

    def start(self, trial: optuna.Trial) -> Run:
        """Start a trial's job, for loops of ``study.ask`` and ``study.tell``.

        Raises JobFileError for impossible parameters, TransitionError if the search is over.
        """
        params = dict(trial.params if self._suggest is None else self._suggest(trial))
        client = self._connect()
        try:
            sweep = self._sweep(trial.study, client)
            job_id = self._submit(client, sweep, trial.number, params)
            trial.set_user_attr(JOB, job_id)
        except BaseException:
            client.close()
            raise
        return Run(trial, sweep, self._request.metric, job_id, client, self._interrupted)

    def close(self, outcome: str = "DONE", message: str = "") -> None:
        """End the search on the cluster, with its running trials."""
        with self._lock:
            names, self._sweeps = list(self._sweeps.values()), {}
        if names:
            with self._connect() as client:
                for name in names:
                    end = functools.partial(client.end_sweep, name, outcome, message)
                    patiently(end, self._interrupted)

    def __enter__(self) -> Self:
        """Let Ctrl-C reach the trials of all threads: Optuna waits for them before it goes on."""
        self._interrupted.clear()
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.getsignal(signal.SIGINT)
            if self._handler is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handler)
        if kind is None:
            self.close()
            return
        with contextlib.suppress(RotaError):  # the error that is on its way says more
            self.close("CANCELLED", f"the program with the study was ended by {kind.__name__}")

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupted.set()
        signal.default_int_handler(number, frame)

    def _submit(self, client: Client, sweep: str, number: int, params: dict[str, Any]) -> str:
        def submit() -> str:
            return str(client.submit_trial(sweep, params, number=number)["id"])

        try:
            return patiently(submit, self._interrupted)
        except KeyboardInterrupt:  # the request may have arrived
            with contextlib.suppress(RotaError):
                client.stop_trial(sweep, number, "the program with the study was interrupted")
            raise

    def _sweep(self, study: optuna.Study, client: Client) -> str:
        """The name of the search that has the study's trials, started if there is none.

        Programs that run the same job for one study, through its storage, share one search.
        """
        with self._lock:
            name = study.study_name
            if name not in self._sweeps:
                sweep, request = str(study.user_attrs.get(SWEEP, "")), self._request_for(study)
                if sweep not in _going(client, request):
                    sweep = client.submit_sweep(request, key=_key(study, sweep))["name"]
                    study.set_user_attr(SWEEP, sweep)
                self._sweeps[name] = sweep
            return self._sweeps[name]

    def _request_for(self, study: optuna.Study) -> SweepRequest:
        import optuna

        if len(study.directions) > 1:
            raise InputError(
                f"study {study.study_name} has {len(study.directions)} objectives, and a search of "
                "Rota has one metric; create the study with one direction"
            )
        request = self._request
        maximize = study.direction == optuna.study.StudyDirection.MAXIMIZE
        if not self._named:
            request = request._replace(job=request.job._replace(name=_name(study.study_name)))
        return request._replace(maximize=maximize)


def _going(client: Client, request: SweepRequest) -> list[str]:
    """Names of the searches for this very request that are not over."""
    fields = json.loads(json.dumps(shown(request.to_fields())))  # as the controller has them
    sweeps = (told for told in client.sweeps() if told["state"] == "RUNNING")
    return [told["name"] for told in sweeps if told["request"] == fields]


def _key(study: optuna.Study, last: str) -> str:
    """A key that is the same for all programs that start a search after the ``last`` one."""
    starts = [trial.datetime_start for trial in study.get_trials(deepcopy=False)]
    began = min(start for start in starts if start is not None)  # one trial is about to run
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{study.study_name} {began} {last}").hex


def _name(study: str) -> str:
    """A study's name, in the form that searches may have."""
    if study.startswith("no-name-"):  # Optuna's name for a study without a name
        return "study"
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", study).strip("._-")[:MAX_NAME]
    return f"study-{name}".strip("-")[:MAX_NAME] if not name or name.isdigit() else name
