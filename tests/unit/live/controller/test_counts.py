"""Counts of events agree with what the state itself has, and with those of the log's replay."""

import pytest

from rota.live.controller.counts import (
    CUT_OFF,
    FAILED,
    LONG_S,
    MOST_QUEUES,
    MOVED,
    NO_QUEUE,
    OTHER_QUEUES,
    STARTED,
    Counts,
    Histogram,
)
from rota.model.allocation import on_node
from rota.model.commands import Launch, Park, Suspend
from rota.model.events import (
    AttemptLost,
    CommandFailed,
    CommandSent,
    DecisionTaken,
    JobLaunched,
    JobParked,
    JobSubmitted,
    JobSuspended,
    NodeJoined,
    NodeLost,
    StopRequested,
    joined,
)
from rota.model.job import JobState
from rota.model.state.state import ClusterState
from rota.policy.registry import create
from rota.sim.machine import Costs
from rota.testing.builders import job, random_trace, simulation, with_background


def counted(events):
    """The state after these events, and their counts."""
    state = ClusterState()
    counts = Counts(state)
    state.observers.append(counts.note)
    for event in events:
        state.apply(event)
    return state, counts


def plan(at_s, seq, allocations, reasons=None):
    return DecisionTaken(at_s, seq, "p", allocations, reasons or {}, {}, None, None)


def told(value):
    """A count, or all of them, in a form that can be compared."""
    if isinstance(value, Histogram):
        return value.bounds, value.counts, value.total
    if isinstance(value, Counts):
        return {k: told(each) for k, each in vars(value).items() if not k.startswith("_")}
    return {k: told(each) for k, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("policy", ["gandiva", "tiresias"])
def test_counts_agree_with_the_state_and_with_those_of_a_replay(policy):
    jobs = with_background(random_trace(3, num_jobs=60), 3)
    costs = Costs(cold_start_s=2.0, suspend_s=1.0, resume_s=3.0, migrate_s=5.0)
    sim = simulation(jobs, create(policy), "2x4", costs)
    state, log = sim.state, []
    counts = Counts(state)
    state.observers += [counts.note, log.append]
    sim.run()
    rows = range(len(state.spec))
    of_background = {row for row in rows if state.spec[row].is_background}
    ends = [(state.spec[row].vc or NO_QUEUE, JobState(state.state[row]).name) for row in rows]
    assert counts.ended == {end: ends.count(end) for end in ends}
    assert not counts.open
    assert sum(counts.submitted.values()) == len(jobs)
    assert sum(counts.preemptions.values()) == sum(state.preemptions) > len(of_background)
    assert counts.migrations[(MOVED,)] == sum(state.migrations)
    assert counts.launches[(STARTED,)] == sum(isinstance(each, JobLaunched) for each in log)
    waits_s = sum(state.first_start_s[row] - state.submit_s[row] for row in rows)
    assert sum(each.total for each in counts.queue_wait_s.values()) == pytest.approx(waits_s)
    assert sum(sum(each.counts) for each in counts.queue_wait_s.values()) == len(jobs)
    took_s = sum(state.finish_s[row] - state.submit_s[row] for row in rows)
    assert sum(each.total for each in counts.completion_s.values()) == pytest.approx(took_s)
    assert set(counts.suspend_s.counts[:6]) == {0}  # all took a second
    assert counts.suspend_s.total == sum(counts.suspend_s.counts) > 0
    nodes = [joined(0.0, node) for node in state.nodes]  # before anybody observed
    assert told(counted([*nodes, *log])[1]) == told(counts)


def test_starts_that_fail_or_are_lost_are_told_apart_and_work_lost_counts_by_gpu():
    gpus = on_node(0, 0b11)
    state, counts = counted(
        [
            NodeJoined(0.0, "n", 2),
            JobSubmitted(0.0, job(1, 2, vc="team")),
            plan(0.0, 1, {0: gpus}),
            CommandSent(1.0, Launch(1, 0, 1, 1, gpus)),
            CommandFailed(2.0, 0, 1, "no room", 2.0),
        ]
    )
    assert counts.launches == {(FAILED,): 1}
    for event in (
        plan(3.0, 2, {}),
        plan(3.0, 3, {0: gpus}),
    ):
        state.apply(event)
    state.backoff.clear()
    state.enter_open(0)
    for event in (
        plan(4.0, 4, {0: gpus}),
        CommandSent(4.0, Launch(2, 0, 2, 1, gpus)),
        JobLaunched(10.0, 0, 2),
        AttemptLost(30.0, 0, 2, "gone", 20.0),
        StopRequested(31.0, 0),
        NodeLost(40.0, "n"),
    ):
        state.apply(event)
    assert counts.launches == {(FAILED,): 1, (STARTED,): 1}
    assert (counts.launch_s.total, counts.lost_work_gpu_s, counts.attempts_lost) == (6.0, 40.0, 1)
    assert counts.ended == {("team", "CANCELLED"): 1}
    assert counts.nodes_lost == 1


def test_a_move_to_a_node_that_is_lost_is_cut_off_and_the_next_one_counts_as_well():
    here, there = on_node(0, 0b1), on_node(1, 0b1)
    _, counts = counted(
        [
            NodeJoined(0.0, "n", 1),
            NodeJoined(0.0, "m", 1),
            JobSubmitted(0.0, job(1)),
            plan(0.0, 1, {0: here}),
            CommandSent(1.0, Launch(1, 0, 1, 1, here)),
            JobLaunched(2.0, 0, 1),
            plan(3.0, 2, {0: None}),
            CommandSent(3.0, Suspend(2, 0, 1, 1)),
            JobSuspended(4.0, 0, 3.0),
            CommandSent(5.0, Park(3, 0, 1, 1, there)),
            NodeLost(6.0, "m"),
            NodeJoined(7.0, "m", 1),
            CommandSent(7.0, Park(4, 0, 1, 1, there)),
            JobParked(8.0, 0),
        ]
    )
    assert counts.migrations == {(CUT_OFF,): 1, (MOVED,): 1}


def test_a_queue_beyond_those_that_are_counted_apart_is_one_of_the_others():
    jobs = [job(i, vc=f"q{i}") for i in range(MOST_QUEUES + 2)] + [job(1000, vc="q0")]
    _, counts = counted(JobSubmitted(0.0, spec) for spec in jobs)
    assert len(counts.submitted) == MOST_QUEUES + 1
    assert counts.submitted[(OTHER_QUEUES,)] == 2
    assert counts.submitted[("q0",)] == 2


def test_a_copy_stays_as_it_is():
    state, counts = counted([JobSubmitted(0.0, job(1))])
    copy, before = counts.copy(), told(counts)
    state.apply(JobSubmitted(1.0, job(2, vc="other")))
    state.apply(StopRequested(5.0, 0))
    assert told(copy) != told(counts)
    assert {**told(copy), "open": None} == {**before, "open": None}


def test_a_value_counts_for_the_first_bound_that_is_not_less():
    histogram = Histogram(LONG_S)
    for value in (-1.0, 1.0, 1.5, 1e9):
        histogram.add(value)
    assert (histogram.counts[:2], histogram.counts[-1]) == ([2, 1], 1)
    assert histogram.total == 1e9 + 2.5
