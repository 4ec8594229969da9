"""When work is complete."""

from math import inf

from rota.policy.registry import create
from rota.sim.machine import FREE
from rota.testing.builders import job, run, simulation

TRIPLE = [
    job("A", 3, at=0.5, lasts=6),
    job("B", 2, at=0.6, lasts=0.1),
    job("C", 2, at=6.6, lasts=20),
]


def test_a_job_that_ends_when_another_arrives_is_not_preempted_for_the_last_bit_of_its_work():
    # B interrupts A for 0.1 s, so that A ends at 6.6 s: in binary fractions a little after that.
    state, _ = run(TRIPLE, create("smallest-first"), "1x3")
    assert list(state.finish_s) == [6.6, 0.7, 26.6]
    assert state.preemptions[0] == 1


def test_a_job_does_not_end_before_it_began():
    at_s = 1.000000009  # all but the second before
    state, _ = run([job(at=at_s, lasts=0)], create("fifo"), "1x1")
    assert state.first_start_s[0] == state.finish_s[0] == at_s


def test_work_without_an_end_never_ends():
    sim = simulation([job(lasts=inf)], create("fifo"), "1x1", FREE)
    sim.step()
    assert sim.machine.finish_s(0) == inf
