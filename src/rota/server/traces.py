"""Traces by OpenTelemetry: one of each decision, and one of each job's life.

Where they go, and how many of them, is for the standard OTEL_* environment variables to say.
"""

import hashlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import RandomIdGenerator, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, set_span_in_context

from rota import __version__
from rota.live.controller.loop import Controller, Cycle
from rota.model.commands import Launch
from rota.model.events import (
    AttemptLost,
    CommandFailed,
    CommandSent,
    Event,
    JobFinished,
    JobLaunched,
    JobResumed,
    JobSubmitted,
    JobSuspended,
    StopRequested,
    WorkerReported,
)
from rota.model.job import JobState
from rota.model.state.ledger import FIRST_FINAL
from rota.model.state.state import ClusterState

MOST_SPANS = 1000  # of one job: the first ones
WAIT, START, RUN, SUSPENSION, FIRST_STEP = "wait", "start", "run", "suspension", "first step"
NS = 1e9


class _Ids(RandomIdGenerator):
    """Random ids, but for the next span if ``given`` has a trace's id and a span's."""

    given: tuple[int, int] | None = None

    def generate_trace_id(self) -> int:
        return self.given[0] if self.given is not None else super().generate_trace_id()

    def generate_span_id(self) -> int:
        return self.given[1] if self.given is not None else super().generate_span_id()


class _Life:
    """The spans of a job that has not ended: (name, from, until, attributes)."""

    def __init__(self, submitted_s: float) -> None:
        self.spans: list[tuple[str, float, float, dict[str, Any]]] = []
        self.left_out = 0
        self.phase, self.since_s = WAIT, submitted_s
        self.stepless_since_s: float | None = None  # while it runs and has told of no step

    def add(self, name: str, since_s: float, until_s: float, **attributes: Any) -> None:
        """Add a span, if there is room for one more."""
        if len(self.spans) < MOST_SPANS:
            self.spans.append((name, since_s, max(since_s, until_s), attributes))
        else:
            self.left_out += 1

    def enter(self, phase: str, at_s: float, **attributes: Any) -> None:
        """Begin another phase; the present one ends, with these attributes."""
        self.add(self.phase, self.since_s, at_s, **attributes)
        self.phase, self.since_s = phase, at_s


class Traces:
    """Makes traces with ``provider``, by default one that exports over OTLP.

    The trace of a job's life is made when the job has ended, of what the event log has: its ids
    follow from the job, so that the job's own spans can be its children before, and after another
    controller has taken over. :meth:`watch` is a watcher of the log, :meth:`begin` is to be called
    once the controller is there: jobs that ended earlier are not told again.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider or _exporting()
        self._ids = _Ids()
        self._provider.id_generator = self._ids
        self._tracer = self._provider.get_tracer("rota", __version__)
        self._lives: dict[int, _Life] = {}
        self._state: ClusterState | None = None
        self._controller: Controller | None = None

    def watch(self, state: ClusterState) -> Callable[[Event], None]:
        """Follow the jobs of ``state``; returns its observer."""
        self._state = state
        return self._note

    def begin(self, controller: Controller) -> None:
        """Trace the controller's decisions, and the jobs that end from now on."""
        self._controller = controller
        controller.on_cycle = self._trace_cycle
        controller.record.environment = self.environment

    def close(self) -> None:
        """Export what has not been exported; gives up where nobody takes it."""
        self._provider.shutdown()

    def environment(self, row: int) -> dict[str, str]:
        """``TRACEPARENT`` of a job, by which its own spans become part of the trace of its life."""
        trace_id, span_id = self._ids_of(row)
        sampled = self._provider.sampler.should_sample(None, trace_id, "job").decision.is_sampled()
        return {"TRACEPARENT": f"00-{trace_id:032x}-{span_id:016x}-{int(sampled):02x}"}

    def _ids_of(self, row: int) -> tuple[int, int]:
        assert self._controller is not None
        record = self._controller.record
        job = f"{record.origin(row)} {record.state.spec[row].job_id}"
        digest = hashlib.sha256(job.encode("utf-8", "replace")).digest()
        return int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1

    # -- the life of a job -------------------------------------------------------------------------

    def _note(self, event: Any) -> None:
        state = self._state
        assert state is not None
        if isinstance(event, JobSubmitted):
            self._lives[len(state.spec) - 1] = _Life(event.at_s)
            return
        row = event.command.row if isinstance(event, CommandSent) else getattr(event, "row", None)
        life = self._lives.get(row) if row is not None else None
        if life is None:
            return
        if isinstance(event, CommandSent):
            if isinstance(event.command, Launch):
                life.enter(START, event.at_s)
        elif isinstance(event, JobLaunched):
            life.enter(RUN, event.at_s, attempt=event.attempt)
            life.stepless_since_s = event.at_s
        elif isinstance(event, JobSuspended):
            life.enter(SUSPENSION, event.stopped_s)
        elif isinstance(event, JobResumed):
            life.enter(RUN, event.at_s)
        elif isinstance(event, WorkerReported):
            since_s = life.stepless_since_s
            if since_s is not None and (event.progress.get("step") or 0) > 0:
                life.add(FIRST_STEP, since_s, event.progress.get("at_s") or event.at_s)
                life.stepless_since_s = None
        elif isinstance(event, AttemptLost):
            life.enter(WAIT, event.at_s, error=event.error)
            life.stepless_since_s = None
        elif isinstance(event, CommandFailed) and life.phase == START:
            life.enter(WAIT, event.at_s, error=event.error)
        may_end = isinstance(event, JobFinished | StopRequested | AttemptLost | CommandFailed)
        if may_end and state.state[event.row] >= FIRST_FINAL:
            del self._lives[event.row]
            if self._controller is not None:
                told = partial(self._trace_life, event.row, life)
                self._controller.journal.once_written.append(told)

    def _trace_life(self, row: int, life: _Life) -> None:
        state = self._state
        assert state is not None
        spec, end_s = state.spec[row], state.finish_s[row]
        life.enter("", end_s)
        about: dict[str, Any] = {
            "rota.job.id": spec.job_id,
            "rota.job.name": spec.name,
            "rota.user": spec.user,
        }
        about |= {"rota.queue": spec.vc, "rota.job.state": JobState(state.state[row]).name}
        counts = {"rota.gpus": state.num_gpus[row], "rota.spans_left_out": life.left_out}
        self._ids.given = self._ids_of(row)
        try:
            job = self._tracer.start_span(
                "job", Context(), attributes=about | counts, start_time=_ns(spec.submit_s)
            )
        finally:
            self._ids.given = None
        job.add_event("submitted", timestamp=_ns(spec.submit_s))
        job.add_event("ended", timestamp=_ns(end_s))
        for name, since_s, until_s, attributes in life.spans:
            self._child(job, name, _ns(since_s), _ns(until_s), attributes)
        job.end(_ns(end_s))

    # -- decisions ---------------------------------------------------------------------------------

    def _trace_cycle(self, cycle: Cycle) -> None:
        assert self._controller is not None
        origin_ns = time.time_ns() - round(cycle.commit_s * NS)
        laps = (cycle.began_s, cycle.snapshot_s, cycle.policy_s, cycle.commit_s)
        times = [origin_ns + round(each * NS) for each in laps]
        about: dict[str, Any] = {
            "rota.policy": self._controller.policy_name,
            "rota.decision": cycle.seq,
        }
        attributes = about | {"rota.jobs_changed": cycle.changed}
        decision = self._tracer.start_span(
            "decision", Context(), attributes=attributes, start_time=times[0]
        )
        for name, since, until in zip(
            ("snapshot", "policy", "commit"), times, times[1:], strict=False
        ):
            self._child(decision, name, since, until, {})
        decision.end(times[-1])

    def _child(
        self, parent: Span, name: str, since: int, until: int, attributes: dict[str, Any]
    ) -> None:
        context = set_span_in_context(parent, Context())
        span = self._tracer.start_span(name, context, attributes=attributes, start_time=since)
        span.end(until)


def _exporting() -> TracerProvider:
    provider = TracerProvider(resource=Resource.create({"service.version": __version__}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _ns(at_s: float) -> int:
    return round(at_s * NS)
