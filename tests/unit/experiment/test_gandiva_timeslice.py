import pytest

from rota.experiment import gandiva_timeslice
from rota.experiment.gandiva_timeslice import (
    COSTS,
    FIRST_S,
    QUANTUM_S,
    WINDOW_S,
    first_mini_batches,
    run,
    shares,
)


def test_the_published_result_holds():
    outcome = run()
    assert outcome.holds, [figure for figure in outcome.figures if not figure.ok]
    assert outcome.experiment == "gandiva-timeslice"


def test_it_is_the_same_each_time():
    assert run() == run()


def test_the_bounds_would_catch_unequal_shares(monkeypatch):
    monkeypatch.setattr(gandiva_timeslice, "WINDOW_S", WINDOW_S + QUANTUM_S / 2)
    assert not run().holds


def test_the_bounds_would_catch_slow_switching(monkeypatch):
    slow = COSTS._replace(suspend_s=1.0, resume_s=3.0)
    monkeypatch.setattr(gandiva_timeslice, "COSTS", slow)
    assert not run().holds


def test_fifo_gives_some_jobs_all_and_others_nothing():
    per_job = sorted(shares("fifo"))
    assert per_job[:2] == [0.0, 0.0]
    assert per_job[2:] == pytest.approx([1.0] * 4, rel=0.001)


def test_first_mini_batches_come_when_that_much_service_is_attained():
    fifo = sorted(first_mini_batches("fifo"))
    start_s = COSTS.cold_start_s
    assert fifo[:4] == pytest.approx([start_s + FIRST_S] * 4)
    assert fifo[4:] == pytest.approx([28800.0 + 2 * start_s + FIRST_S] * 4)
