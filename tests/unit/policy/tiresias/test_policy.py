"""When jobs sink, when they are promoted, and how a queue is ordered."""

import pytest

from rota.policy.registry import create
from rota.policy.tiresias.policy import Mark, Tiresias
from rota.testing.builders import job, random_trace, run, simulation


def tiresias(**settings):
    return create("tiresias", {"promote_knob": "0"} | settings)


@pytest.mark.parametrize(("gpus", "sinks_at"), [(1, 3600.0), (4, 900.0), (8, 450.0)])
def test_a_job_sinks_exactly_when_it_has_attained_the_threshold(gpus, sinks_at):
    jobs = [job("old", gpus, lasts=5000), job("new", gpus, at=100, lasts=10)]
    state, _ = run(jobs, tiresias(), f"1x{gpus}")
    assert state.first_start_s[1] == sinks_at


def test_a_job_that_stops_short_of_the_threshold_is_never_preempted():
    jobs = [job("old", 4, lasts=900), job("new", 4, at=100, lasts=10)]
    state, _ = run(jobs, tiresias(), "1x4")
    assert state.preemptions[0] == 0
    assert state.first_start_s[1] == 900.0


def test_several_thresholds_are_several_queues():
    jobs = [job("old", lasts=1000), job("mid", at=150, lasts=1000), job("new", at=500, lasts=1000)]
    state, _ = run(jobs, tiresias(thresholds="100,300"), "1x1")
    # old sinks at 100 to the second queue and at 300 would sink to the third: mid takes over at
    # 150 until it sinks at 250 behind old, which runs on until it has had 300; then mid goes on.
    assert state.first_start_s[1] == 150.0
    assert state.first_start_s[2] == 500.0


# One GPU, threshold 100. `old` sinks at 100, and a crowd in the first queue keeps it from running.
# `late` arrives at 1000 and gets the GPU before `old` if `old` is still in the second queue then.
CROWD = [job(f"crowd{i:02}", at=50, lasts=80) for i in range(12)]
STARVING = [job("old", lasts=1000), *CROWD, job("zlate", at=1000, lasts=80)]


def starts_of_late(knob):
    state, _ = run(STARVING, create("tiresias", {"thresholds": "100", "promote_knob": knob}), "1x1")
    return state.first_start_s[len(STARVING) - 1]


def test_a_job_that_waited_knob_times_its_run_time_is_promoted_and_starts_from_nothing():
    # Promoted at 900, it runs when the crowd has gone at 1060, before the one that came at 1000;
    # its count begins anew, so that it has 100 s in the first queue.
    assert starts_of_late("8") == 1160.0


@pytest.mark.parametrize("knob", ["0", "9.1"], ids=["off", "not waited long enough"])
def test_a_job_that_is_not_promoted_stays_behind_newcomers(knob):
    assert starts_of_late(knob) == 1060.0


def test_the_promotion_comes_at_the_instant_at_which_it_is_due():
    policy = create("tiresias", {"thresholds": "100", "promote_knob": "8"})
    sim = simulation(STARVING, policy, "1x1")
    queue_of_old = {}
    while sim.step():
        if sim.state.marks[0]:
            queue_of_old.setdefault(Mark(*sim.state.marks[0]).queue, []).append(sim.engine.now_s)
    # It sank at 100 and was in the first queue again from 900 on, until it had run 100 s there.
    assert min(queue_of_old[1]) == 100.0
    assert 900.0 in queue_of_old[0]
    assert not [at for at in queue_of_old[1] if 900.0 <= at < 1160.0]


@pytest.mark.parametrize("within", ["entry", "first-start"])
def test_a_job_that_loses_its_gpus_when_its_promotion_is_due_is_promoted_at_once(within):
    # new sinks at 75, when it has waited 50 s and run 25: its promotion is due, and it keeps its
    # GPUs. At 100 it sinks again, 150 is due, 225 too; from then on it runs the last 15 s.
    jobs = [job("a-old", 2, lasts=3000), job("new", 4, lasts=90)]
    given = {"thresholds": "100", "promote_knob": "2", "within": within}
    state, _ = run(jobs, create("tiresias", given), "1x4")
    assert state.finish_s[1] == 240.0
    assert state.preemptions[1] == 2  # at 100 and at 175


def test_who_is_preempted_by_a_second_decision_at_one_instant_stands_before_those_of_the_first():
    jobs = [
        job("a", 4, at=12, lasts=36),  # sinks at 27, and goes on at 47
        job("b", 3, at=12, lasts=36),  # sinks at 47
        job("brief", 1, at=60, lasts=0),  # puts out a, whose place b takes
        job("wide", 4, at=60, lasts=12),  # and then, brief having ended, wide puts out b
    ]
    state, _ = run(jobs, tiresias(thresholds="60"), "1x4")
    assert list(state.finish_s) == [96.0, 88.0, 60.0, 72.0]


def test_jobs_that_end_when_they_begin_cost_no_look_at_everybody(monkeypatch):
    looks = []
    look = Tiresias._look_at_all
    monkeypatch.setattr(
        Tiresias, "_look_at_all", lambda self, view: looks.append(view) or look(self, view)
    )
    jobs = [job(f"{i:03}", 1 + i % 4, lasts=i % 7) for i in range(400)]
    _, decisions = run(jobs, create("tiresias"), "4x4")
    assert decisions > 100
    assert not looks


def test_a_job_that_never_ran_is_never_promoted_and_keeps_its_place():
    jobs = [job("old", lasts=3000), job("new", 2, at=1, lasts=10), job("newer", 2, at=2, lasts=10)]
    sim = simulation(jobs, create("tiresias", {"thresholds": "10000", "promote_knob": "1"}), "1x2")
    entered = set()
    while sim.step():
        if len(sim.state.marks) > 1 and sim.state.marks[1] and sim.state.first_start_s[1] < 0:
            entered.add(tuple(sim.state.marks[1]))
    assert len(entered) == 1
    assert Mark(*entered.pop()).when_s == 1.0
    assert sim.state.first_start_s[1] == 3000.0
    assert sim.state.first_start_s[2] == 3010.0


def test_a_preempted_job_goes_on_before_one_that_entered_the_queue_earlier_and_never_ran_in_it():
    jobs = [
        job("wide", 2, lasts=100),  # sinks at 50, and then never finds two GPUs
        job("p", at=50, lasts=300),  # sinks at 150, runs on beside y, is put out by z at 235
        job("x", at=50, lasts=95),
        job("y", at=140, lasts=90),
        job("z", 2, at=160, lasts=45),
    ]
    state, _ = run(jobs, tiresias(thresholds="100"), "1x2")
    finish_s = {spec.job_id: state.finish_s[row] for row, spec in enumerate(state.spec)}
    assert finish_s == {"wide": 445.0, "p": 395.0, "x": 145.0, "y": 235.0, "z": 280.0}


def test_the_order_by_first_start_is_another_one():
    differ = 0
    for seed in range(6):
        jobs = random_trace(seed)
        by_entry, _ = run(jobs, tiresias(thresholds="100,400"), "1x8")
        by_start, _ = run(jobs, tiresias(thresholds="100,400", within="first-start"), "1x8")
        differ += by_entry.finish_s != by_start.finish_s
    assert differ
