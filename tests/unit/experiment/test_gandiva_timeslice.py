import pytest

from rota.errors import InputError
from rota.experiment import gandiva_timeslice
from rota.experiment.gandiva_timeslice import (
    COSTS,
    FIRST_S,
    QUANTUM_S,
    WINDOW_S,
    first_mini_batches,
    live_figures,
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


def turns(num_jobs, slots, rounds, step_s=0.02, lost_s=0.0):
    """When jobs that take turns of a second have done their steps, each turn ``lost_s`` late."""
    times = [[] for _ in range(num_jobs)]
    for turn in range(rounds * num_jobs // slots):
        for slot in range(slots):
            done = times[(turn * slots + slot) % num_jobs]
            per_turn = round((1 - lost_s) / step_s)
            done += [turn + lost_s + (step + 1) * step_s for step in range(per_turn)]
    return times


FIFO = [[0.02 * step for step in range(900)]] * 6


def test_live_turns_are_judged_by_the_steps_that_were_done():
    figures = live_figures(turns(6, 2, 18), FIFO)
    assert all(figure.ok for figure in figures), figures
    assert figures[2].ours == pytest.approx(2.0, rel=0.02)


def test_live_turns_that_cost_too_much_or_are_unequal_do_not_hold():
    assert not live_figures(turns(6, 2, 18, lost_s=0.1), FIFO)[2].ok
    starved = turns(6, 2, 18)
    starved[3] = starved[3][:10] + starved[3][-1:]
    assert not live_figures(starved, FIFO)[0].ok


def test_several_hosts_have_a_slot_each_for_two_trainings(monkeypatch):
    seen = {"gandiva": turns(6, 3, 18), "fifo": FIFO}
    monkeypatch.setattr(gandiva_timeslice, "check_hosts", lambda: None)
    monkeypatch.setattr(gandiva_timeslice, "_live", lambda policy, hosts: seen[policy])
    outcome = run(live=True, hosts=3)
    assert outcome.holds, outcome.figures
    assert outcome.figures[-1].ours == pytest.approx(3.0, rel=0.02)
    assert (
        outcome.settings["live"] | {"hosts": 3, "jobs": 6, "slots": 3} == outcome.settings["live"]
    )


def test_why_there_are_no_hosts_is_told_before_anything_runs(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(InputError, match="--hosts: only root makes hosts out of namespaces"):
        run(live=True, hosts=3)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match=r"there is no ip, nsenter, .*: install iproute2"):
        run(live=True, hosts=3)


def test_only_a_live_run_starts_a_cluster(monkeypatch):
    seen = {"gandiva": turns(6, 2, 18), "fifo": FIFO}
    monkeypatch.setattr(gandiva_timeslice, "_live", lambda policy, hosts: seen[policy])
    assert run(live=True).figures[-1].name == "live: total throughput"
    monkeypatch.delattr(gandiva_timeslice, "_live")
    assert not any("live" in figure.name for figure in run().figures)
