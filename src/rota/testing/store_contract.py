"""Tests that every event store must pass. Subclass :class:`StoreContract` with one fixture."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from rota.errors import StoreError
from rota.model.allocation import Allocation, background_on_node, on_node
from rota.model.commands import (
    Command,
    Launch,
    Migrate,
    Park,
    Resize,
    Resume,
    Retune,
    SetCpus,
    Stop,
    Suspend,
)
from rota.model.events import (
    AttemptLost,
    BatchRefused,
    BurstPlanned,
    CommandFailed,
    CommandSent,
    CpusSet,
    DecisionTaken,
    Event,
    FillMeasured,
    JobCleaned,
    JobFinished,
    JobLaunched,
    JobParked,
    JobResized,
    JobResumed,
    JobRetuned,
    JobSubmitted,
    JobSuspended,
    MetricReported,
    ModelReported,
    NodeAddressChanged,
    NodeClosed,
    NodeCpusChanged,
    NodeDeadlineChanged,
    NodeJoined,
    NodeLost,
    NodeOpened,
    NodeReachable,
    NodeUnreachable,
    PolicyFailed,
    ResumeRequested,
    RetryDue,
    SpeedChanged,
    StopRequested,
    SuspendRequested,
    SweepEnded,
    SweepSubmitted,
    TrialStopped,
    WorkerRegistered,
    WorkerReported,
)
from rota.model.job import (
    Adapt,
    Dependency,
    Elastic,
    JobSpec,
    JobState,
    Notice,
    Program,
    Retries,
    Share,
    Suspension,
)
from rota.model.notes import DesiredNodes, Notes, Packed, Reserved
from rota.model.probe import Probe
from rota.model.sweep import Report, Sweep, SweepTrial
from rota.store.events import Submission

TWO_NODES = Allocation(((0, 0b11), (3, 1 << 200)))
NOTES = Notes(
    {0: "it scales to 2 GPUs"},
    {0: ("its loss is no number",), 1: ()},
    {1: (Probe(5.0, "pack", 1.5, None, False, (0,), ((0, 1),), ((3, 0),)),)},
    {0: Packed((0, 1), 1.25), 1: None},
    DesiredNodes(4, 0.5, 2.5),
)


def every_event() -> list[Event]:
    """At least one event of each kind, with values that a careless store would lose."""
    program = Program("python 'a b.py'\n", "/tmp/ä", (("A", ""), ("B", "x=y")), "node")  # noqa: S108
    spec = JobSpec(
        "1", 2, 0.1, priority=7, name="\u202ename", time_limit_s=60.0, program=program, skew=0.7
    )
    prepared = Program("true", "/", setup="pip list", cpus=4, host_memory_gb=0.1)
    flow = Program("python drive.py", "/", processes="flow", idle_s=600.0)
    sweep = Sweep("lr", "val_acc", False, 0.9, 60)
    trial = SweepTrial(sweep, 7, (("lr", 0.1), ("act", "relu"), ("bias", True), ("width", 64)))
    log: list[Event] = [
        NodeJoined(0.1, "here", 4, "cpu"),
        NodeLost(0.2, "here"),
        NodeJoined(
            0.25,
            "there",
            8,
            "gpu",
            "a100",
            "rack1",
            4,
            80.0,
            23_500,
            512.5,
            "10.0.0.7",
            "rota 1.2",
            "10.0.0.7",
            "0123456789abcdef",
            "5d1e2c6a-0000-4000-8000-000000000001",
        ),
        NodeCpusChanged(0.255, "there", 12_000),
        NodeAddressChanged(0.256, "there", "10.0.0.8", "10.0.0.8"),
        NodeDeadlineChanged(0.257, "there", 1e9 + 0.2),
        NodeDeadlineChanged(0.258, "there"),
        NodeClosed(0.26, "there"),
        NodeClosed(0.27, "there", True, 1e9 + 0.1, "ann"),
        NodeOpened(0.28, "there"),
        NodeUnreachable(0.285, "there", 1e9 + 0.1),
        NodeReachable(0.286, "there"),
        JobSubmitted(0.30000000000000004, spec),
        JobSubmitted(0.3, JobSpec("2", 1, 0.3, duration_s=5, speeds=(("a100", 1.0), ("t4", 0.3)))),
        JobSubmitted(0.4, JobSpec("3", 1, 0.4, elastic=Elastic((1, 2, 4), 7200.0, 100.0, 1.5))),
        JobSubmitted(0.45, JobSpec("4", 1, 0.45, adapt=Adapt(4096, 256))),
        JobSubmitted(0.46, JobSpec("5", 1, 0.46, trial=trial)),
        JobSubmitted(0.47, JobSpec("6", 1, 0.47, trial=trial._replace(sweep=Sweep("s", "loss")))),
        JobSubmitted(0.48, JobSpec("7", 1, 0.48, retries=Retries(3, ("failed", "exit-3"), 0.1))),
        JobSubmitted(
            0.49, JobSpec("8", 1, 0.49, depends_on=(Dependency("7", "ended"),), tags=("a:b",))
        ),
        JobSubmitted(0.5, JobSpec("9", 1, 0.5, gpu_types=("a100",), program=prepared)),
        JobSubmitted(0.51, JobSpec("10", 1, 0.51, cpus_per_gpu=(2, 8))),
        JobSubmitted(0.52, JobSpec("11", 1, 0.52, share=Share("background"))),
        JobSubmitted(0.53, JobSpec("12", 2, 0.53, share=Share("foreground", 1.05))),
        JobSubmitted(
            0.54, JobSpec("13", 2, 0.54, share=Share("foreground", 1.1, 4.0), program=flow)
        ),
        JobSubmitted(0.55, JobSpec("14", 1, 0.55, notices=(Notice("team", ("failed",)),))),
        SuspendRequested(1.0, 0, "ann"),
        ResumeRequested(2.0, 0),
        SuspendRequested(2.1, 0, by_itself=True),
        ResumeRequested(2.2, 0, by_itself=True),
        StopRequested(3.0, 0, JobState.TIMEOUT),
        RetryDue(4.0, 0),
        DecisionTaken(
            5.0,
            1,
            "tiresias promote_knob=8.0",
            {1: on_node(0, 1), 0: None, 7: TWO_NODES},
            {1: 0, 0: 14},
            {0: None, 1: [0, 2.5, "x"], 2: {"a": {"b": []}}, 3: 1e-300},
            12.5,
            None,
        ),
        DecisionTaken(5.5, 2, "pollux", {}, {}, {}, None, 65.5, NOTES),
        DecisionTaken(5.75, 3, "pollux", {}, {}, {}, None, None, Notes()),
        DecisionTaken(
            5.8, 4, "easy", {}, {}, {}, None, None, Notes(reserved=Reserved(2, 9.5, (0, 1)))
        ),
        DecisionTaken(
            5.9,
            5,
            "gandiva cpus=equal",
            {},
            {},
            {},
            None,
            None,
            Notes(why_cpus={0: "it waits for data"}),
            {0: 2500, 1: None},
            {"cpus": {"0": [1, 2.5], "period": None}},
        ),
        DecisionTaken(
            5.95,
            6,
            "fifo",
            {10: background_on_node(0, 1)},
            {},
            {},
            None,
            None,
            None,
            None,
            {"fill": {"10": [0, 1.5]}},
            25.5,
        ),
        CommandFailed(6.0, 0, 1, "no such file", 7.5),
        JobLaunched(7.0, 0, 1, 0.25),
        SpeedChanged(7.5, 0, 0.1),
        FillMeasured(7.6, 10, 11, 1.03, 0.62),
        FillMeasured(7.7, 10, -1, 1.0, 1.0),
        FillMeasured(7.8, 10, 11, 1.03, 0.62, 1.01, 1.05, 12),
        JobSuspended(8.0, 0, 7.9),
        JobSuspended(8.5, 0, 8.4, 3, "step-7.pt"),
        JobResumed(9.0, 0),
        JobParked(9.2, 0),
        JobRetuned(9.4, 0, (32, 1), 1.25),
        CpusSet(9.43, 0, 2500, 0.75),
        CpusSet(9.44, 0, None),
        BatchRefused(9.45, 0, (64, 1), "kein Platz für 64", False),
        JobResized(9.5, 0, on_node(2, 3), 1.75, 0.125, "rank 1 hung and was killed", 1),
        WorkerRegistered(10.0, 0, Suspension.BOUNDARY, True, True, 8, False),
        ModelReported(10.5, 0, 4 << 40, 1 << 30),
        BurstPlanned(10.75, 0, 32, (0.5, 0.25, None, 0.125), (0.0, 0.625)),
        WorkerReported(11.0, 0, {"step": 3, "loss": float("inf"), "metrics": {"acc": 0.5}}),
        AttemptLost(12.0, 0, 1, "", 3.5),
        AttemptLost(12.5, 0, 2, "exit code 3", 0.5, True, 22.5, 3),
        JobFinished(13.0, 0, JobState.FAILED, -9, "killed"),
        JobFinished(14.0, 1, JobState.SUCCEEDED),
        JobCleaned(14.5, 1, "ann", True),
        SweepSubmitted(
            15.0, "s", "me", {"sweep": {"space": {"lr": {"log": [1e-4, 0.1]}}}}, "k", "h"
        ),
        MetricReported(16.0, 5, (Report(3, 15.5, 0.1 + 0.2, True), Report(4, 15.75, None))),
        TrialStopped(17.0, 5, "it is not among the best third"),
        PolicyFailed(17.5, "p a=1", "KeyError: 3 (p.py, line 7)", "decision-9.json"),
        SweepEnded(18.0, "s", "TARGET", "trial 3 reached 0.95"),
    ]
    commands: list[Command] = [
        Launch(1, 0, 1, 1, on_node(0, 3), 7500),
        Suspend(2, 0, 1, 1),
        Resume(3, 0, 1, 1, on_node(2, 1)),
        Migrate(4, 0, 1, 2, TWO_NODES),
        Park(8, 0, 1, 2, on_node(1, 3)),
        Resize(5, 0, 1, 2, on_node(2, 3)),
        Retune(6, 0, 1, 2, (32, 0)),
        SetCpus(7, 0, 1, 2, 2500),
        Stop(6, 0, 1, 2),
    ]
    return log + [CommandSent(20.0, command) for command in commands]


class StoreContract:
    """Subclass with a fixture ``open_store``: a callable that opens one and the same store."""

    @pytest.fixture
    def open_store(self) -> Callable[[], Any]:
        """Open the store of this test, empty the first time. Subclasses provide it."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a fixture open_store that returns a callable; it opens "
            "the store under test"
        )

    @pytest.fixture
    def store(self, open_store: Callable[[], Any]) -> Iterator[Any]:
        with closing(open_store()) as store:
            yield store

    def test_a_new_store_is_empty(self, store: Any) -> None:
        assert list(store.load()) == []

    def test_every_event_comes_back_in_order(self, store: Any) -> None:
        store.append(every_event())
        store.append([RetryDue(30.0, 1)])
        loaded = list(store.load())
        assert loaded == [*every_event(), RetryDue(30.0, 1)]
        assert [type(event) for event in loaded[:-1]] == [type(e) for e in every_event()]

    @pytest.mark.parametrize("durable", [False, True])
    def test_events_are_there_after_a_restart(
        self, open_store: Callable[[], Any], durable: bool
    ) -> None:
        with closing(open_store()) as store:
            store.append(every_event(), durable=durable)
            store.append([], durable=durable)
        with closing(open_store()) as store:
            assert list(store.load()) == every_event()

    def test_one_node_allocations_are_shared_after_loading(self, store: Any) -> None:
        store.append([DecisionTaken(1.0, 1, "", {0: on_node(1, 2)}, {}, {}, None, None)])
        (event,) = store.load()
        assert event.allocations[0] is on_node(1, 2)

    def test_an_event_that_cannot_be_written_takes_the_others_with_it(self, store: Any) -> None:
        for bad in (object(), (1, 2), {1: "a"}, [{2}]):
            with pytest.raises(StoreError):
                store.append([RetryDue(1.0, 0), WorkerReported(1.0, 0, {"loss": bad})])
        assert list(store.load()) == []

    def test_epochs_count_lives(self, open_store: Callable[[], Any]) -> None:
        for life in (1, 2, 3):
            with closing(open_store()) as store:
                assert store.next_epoch() == life

    def test_a_submission_is_found_again(self, open_store: Callable[[], Any]) -> None:
        submission = Submission("me", "key-1", "abc", 0)
        with closing(open_store()) as store:
            assert store.find_submission("me", "key-1") is None
            store.append([_submitted("1")], submissions=[submission], durable=True)
        with closing(open_store()) as store:
            assert store.find_submission("me", "key-1") == submission
            assert store.find_submission("you", "key-1") is None
            assert store.find_submission("me", "key-2") is None

    def test_a_key_is_taken_once_and_the_second_job_is_not_half_accepted(self, store: Any) -> None:
        store.append([_submitted("1")], submissions=[Submission("me", "k", "abc", 0)])
        with pytest.raises(StoreError):
            store.append([_submitted("2")], submissions=[Submission("me", "k", "xyz", 1)])
        assert list(store.load()) == [_submitted("1")]
        assert store.find_submission("me", "k") == Submission("me", "k", "abc", 0)
        store.append([_submitted("2")], submissions=[Submission("you", "k", "xyz", 1)])
        assert len(list(store.load())) == 2

    def test_a_submission_needs_its_job(self, store: Any) -> None:
        with pytest.raises(StoreError, match="JobSubmitted"):
            store.append([RetryDue(1.0, 0)], submissions=[Submission("me", "k", "abc", 0)])
        assert list(store.load()) == []
        assert store.find_submission("me", "k") is None

    def test_a_store_that_was_closed_may_be_closed_again(self, open_store: Any) -> None:
        store = open_store()
        store.close()
        store.close()


def _submitted(job_id: str) -> JobSubmitted:
    return JobSubmitted(1.0, JobSpec(job_id, 1, 1.0))
