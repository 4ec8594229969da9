"""Traces of jobs' lives and of decisions, in the SDK's own memory."""

import builtins
import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from rota.errors import pip_install
from rota.live.controller.loop import Controller
from rota.model.allocation import on_node
from rota.model.commands import Launch, Resume, Suspend
from rota.model.events import (
    AttemptLost,
    CommandFailed,
    CommandSent,
    DecisionTaken,
    JobFinished,
    JobLaunched,
    JobResumed,
    JobSubmitted,
    JobSuspended,
    NodeJoined,
    RetryDue,
    StopRequested,
    WorkerReported,
)
from rota.model.job import JobState, Program
from rota.policy.registry import create
from rota.server.traces import MOST_SPANS, Traces
from rota.server.up import TRACED_BY, _traces
from rota.store.events import EventStore
from rota.testing.builders import job
from support.served import NoAgents

GPU = on_node(0, 1)


class Traced:
    """A controller whose traces stay in memory."""

    def __init__(self, folder, events=(), sampler=ALWAYS_ON):
        self.memory = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler)
        provider.add_span_processor(SimpleSpanProcessor(self.memory))
        self.traces = Traces(provider)
        store = EventStore(folder.database)
        if events:
            store.append(events)
        policy = create("fifo-backfill")
        watchers = [self.traces.watch]
        self.controller = Controller(
            store, folder, policy, "fifo-backfill", NoAgents(), watchers=watchers
        )
        self.traces.begin(self.controller)

    def note(self, *events):
        for event in events:
            self.controller.journal.note(event)
        self.controller.journal.write_down()

    def close(self):
        self.controller.record.store.close()

    def spans(self, name):
        return [span for span in self.memory.get_finished_spans() if span.name == name]

    def life(self):
        """The only trace of a job: its root, and (name, from, until) of the others, in order."""
        (root,) = self.spans("job")
        others = [
            (span.name, span.start_time / 1e9, span.end_time / 1e9)
            for span in self.memory.get_finished_spans()
            if span.parent is not None and span.parent.span_id == root.context.span_id
        ]
        return root, sorted(others, key=lambda each: (each[1], each[2]))


@pytest.fixture
def traced(folder):
    it = Traced(folder)
    yield it
    it.close()


def decided(at_s, seq, allocations):
    return DecisionTaken(at_s, seq, "p", allocations, {}, {}, None, None)


def begun():
    """The events until a job on one GPU runs, since 10."""
    return [
        NodeJoined(0.0, "n", 1),
        JobSubmitted(1.0, job(1, at=1.0, vc="team")),
        decided(4.0, 1, {0: GPU}),
        CommandSent(5.0, Launch(1, 0, 1, 1, GPU)),
        JobLaunched(10.0, 0, 1),
    ]


def paused(at_s, number):
    return [
        decided(at_s, number, {0: None}),
        CommandSent(at_s, Suspend(number, 0, 1, 1)),
        JobSuspended(at_s + 2, 0, at_s + 1),
        decided(at_s + 3, number + 1, {0: GPU}),
        CommandSent(at_s + 3, Resume(number + 1, 0, 1, 1, GPU)),
        JobResumed(at_s + 4, 0),
    ]


def test_a_life_has_its_wait_start_first_step_runs_and_suspensions(traced):
    report = WorkerReported(14.0, 0, {"step": 1, "at_s": 13.0, "metrics": {}})
    traced.note(*begun(), report, *paused(20.0, 2))
    assert not traced.spans("job")
    traced.note(JobFinished(30.0, 0, JobState.SUCCEEDED, 0))
    root, others = traced.life()
    assert others == [
        ("wait", 1.0, 5.0),
        ("start", 5.0, 10.0),
        ("first step", 10.0, 13.0),
        ("run", 10.0, 21.0),
        ("suspension", 21.0, 24.0),
        ("run", 24.0, 30.0),
    ]
    assert (root.start_time, root.end_time) == (10**9, 30 * 10**9)
    assert [event.name for event in root.events] == ["submitted", "ended"]
    assert root.attributes["rota.queue"] == "team"
    assert root.attributes["rota.job.state"] == "SUCCEEDED"
    traceparent = traced.traces.environment(0)["TRACEPARENT"]
    ids = root.context
    assert traceparent == f"00-{ids.trace_id:032x}-{ids.span_id:016x}-01"


def test_another_controller_tells_the_same_trace_and_only_of_jobs_that_end_then(folder):
    ended = [JobSubmitted(1.0, job(2, at=1.0)), StopRequested(2.0, 0)]
    events = begun()
    first = Traced(folder, [events[0], *ended])
    assert not first.spans("job")
    (before,) = first.traces.environment(0).values()
    first.close()
    second = Traced(folder)
    assert second.traces.environment(0)["TRACEPARENT"] == before
    second.note(JobSubmitted(3.0, job(3, at=3.0)), StopRequested(4.0, 1))
    root, others = second.life()
    assert root.attributes["rota.job.id"] == second.controller.state.spec[1].job_id
    assert others == [("wait", 3.0, 4.0)]
    second.close()


def test_a_start_that_fails_and_a_lost_attempt_are_waits_with_their_error(traced):
    traced.note(
        *begun()[:4],
        CommandFailed(6.0, 0, 1, "no room", 7.0),
        RetryDue(7.0, 0),
        decided(7.0, 2, {0: GPU}),
        CommandSent(8.0, Launch(2, 0, 2, 1, GPU)),
        JobLaunched(9.0, 0, 2),
        AttemptLost(12.0, 0, 2, "gone"),
        StopRequested(15.0, 0),
    )
    _, others = traced.life()
    assert [name for name, *_ in others] == ["wait", "start", "wait", "start", "run", "wait"]
    errors = [span.attributes.get("error") for span in traced.memory.get_finished_spans()]
    assert {"no room", "gone"} <= set(errors)


def test_a_life_of_many_suspensions_has_the_first_ones_and_their_number(traced):
    traced.note(*begun())
    for number in range(MOST_SPANS):
        traced.note(*paused(100.0 + 10 * number, 2 + 2 * number))
    traced.note(JobFinished(1e6, 0, JobState.FAILED, 1))
    root, others = traced.life()
    assert len(others) == MOST_SPANS
    assert root.attributes["rota.spans_left_out"] == 3 + 2 * MOST_SPANS - MOST_SPANS


def test_a_decision_is_a_trace_of_its_parts(traced):
    live = job(1, at=1.0)._replace(program=Program("true", "/"))
    traced.note(NodeJoined(1.0, "n", 1), JobSubmitted(1.0, live))
    traced.controller.turn()
    (decision,) = traced.spans("decision")
    parts = [traced.spans(name)[0] for name in ("snapshot", "policy", "commit")]
    assert all(part.parent.span_id == decision.context.span_id for part in parts)
    times = [decision.start_time, *(part.end_time for part in parts)]
    assert times == sorted(times)
    assert times[-1] == decision.end_time
    assert decision.attributes["rota.jobs_changed"] == 1
    assert decision.parent is None


def test_a_trace_that_is_not_sampled_is_not_for_jobs_either(folder):
    traced = Traced(folder, begun(), ALWAYS_OFF)
    assert traced.traces.environment(0)["TRACEPARENT"].endswith("-00")
    traced.close()


@pytest.fixture
def no_variables(monkeypatch):
    for name in (*TRACED_BY, "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"OTEL_SERVICE_NAME": "x"},
        {TRACED_BY[0]: "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "True"},
        {TRACED_BY[1]: "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_nothing_is_traced_that_the_variables_do_not_ask_for(no_variables, monkeypatch, given):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert _traces(logging.getLogger("rota.notice")) is None


def test_who_asks_for_traces_without_the_extra_is_told_how_to_get_it(
    no_variables, monkeypatch, caplog
):
    load = builtins.__import__

    def without(name, *more):
        if name == "rota.server.traces":
            raise ModuleNotFoundError("No module named 'opentelemetry'")
        return load(name, *more)

    monkeypatch.setenv(TRACED_BY[1], "http://127.0.0.1:1")
    monkeypatch.setattr(builtins, "__import__", without)
    assert _traces(logging.getLogger("rota.notice")) is None
    assert pip_install("otel") in caplog.text
