"""Trials of a search that leave their GPU mostly idle share it; one verdict counts for all."""

import pytest

from rota.model.cluster import parse_cluster
from rota.model.sweep import Sweep, SweepTrial
from rota.policy.registry import create
from rota.predict.interference import Interference
from rota.sim.machine import FREE
from rota.sim.simulation import Simulation
from rota.testing.builders import job
from rota.workload.trace import Trace

SWEEP = Sweep("search", "val_acc")
REPORTS, TRIAL_S = 20, 7200.0
MEMORY = {"gpu_memory_gb": "16"}


def trials(number, model="small", util=0.12, memory_gb=6.0):
    """Trials of a search, of which two fit a GPU's memory."""
    return [
        job(i, lasts=TRIAL_S, trial=SweepTrial(SWEEP, i))._replace(
            model=model, gpu_util=util, memory_gb=memory_gb
        )
        for i in range(number)
    ]


def sim_of(jobs, speed, cluster="1x2", **settings):
    model = jobs[0].model
    curves = {
        str(i): [0.1 + 0.02 * i * n / REPORTS for n in range(REPORTS)] for i in range(len(jobs))
    }
    return Simulation(
        Trace(jobs),
        parse_cluster(cluster),
        create("gandiva", MEMORY | settings),
        FREE,
        interference=Interference({(model, model): (speed, speed)}),
        curves=curves,
    )


def until(sim, at_s):
    while min(t for t in (sim.engine.next_time_s(), sim.state.wake_at_s) if t is not None) <= at_s:
        sim.step()
        sim.state.validate()
    return sim


def verdicts(sim):
    """When packs were judged, and whether they were kept."""
    told = (probe for probes in sim.state.notes.probes.values() for probe in probes)
    return sorted({(probe.at_s, probe.kept) for probe in told})


def sharing(sim):
    return sum(held is not None and held.shared for held in sim.state.held)


def test_after_one_verdict_that_was_kept_all_are_packed_without_another_trial():
    sim = until(sim_of(trials(12), 0.95), TRIAL_S / 2)
    assert [kept for _, kept in verdicts(sim)] == [True]
    assert sharing(sim) == 4
    before = [sim.state.work(row, sim.engine.now_s) for row in range(12)]
    began_s = sim.engine.now_s
    until(sim, TRIAL_S)
    done_s = sum(sim.state.work(row, sim.engine.now_s) for row in range(12)) - sum(before)
    assert done_s == pytest.approx(4 * 0.95 * (sim.engine.now_s - began_s), rel=0.02)


def test_larger_packs_are_tried_one_after_another_until_memory_ends_it():
    sim = until(sim_of(trials(20, memory_gb=3.0), 0.98), TRIAL_S / 2)
    assert [kept for _, kept in verdicts(sim)] == [True] * 3  # of two, three and four
    assert sharing(sim) == 8


def test_one_verdict_that_was_undone_counts_for_all_trials_to_come():
    sim = until(sim_of(trials(12), 0.45), 3 * TRIAL_S)
    assert [kept for _, kept in verdicts(sim)] == [False]
    assert sharing(sim) == 0


def test_a_third_that_adds_no_work_has_to_wait_though_in_turns_it_would_be_kept():
    """Two at 0.65 do 1.3, three at 0.65 squared 1.27; a pair and one in turns would do 1.15."""
    sim = until(sim_of(trials(12, memory_gb=3.0), 0.65), TRIAL_S / 2)
    assert [kept for _, kept in verdicts(sim)] == [True, False]
    assert sharing(sim) == 4


@pytest.mark.parametrize("util", [None, 0.6, 1.0])
def test_trials_that_are_not_small_or_not_known_to_be_go_on_as_without_packing(util):
    on, off = (sim_of(trials(8, util=util), 0.95, pack=pack).run().state for pack in ("on", "off"))
    assert list(on.finish_s) == list(off.finish_s)
    assert list(on.preemptions) == list(off.preemptions)


def test_trials_without_a_model_are_one_kind_as_they_are_of_one_search():
    sim = until(sim_of(trials(12, model=""), 0.95), TRIAL_S / 2)
    assert [kept for _, kept in verdicts(sim)] == [True]
    assert sharing(sim) == 4


def test_packed_trials_have_a_gpu_of_their_own_again_when_there_are_enough():
    sim = until(sim_of(trials(3), 0.95, "1x2"), TRIAL_S / 2)
    assert sharing(sim) == 2
    while sum(at_s >= 0 for at_s in sim.state.finish_s) < 1:
        sim.step()
    assert sharing(sim) == 0


def test_a_search_of_packed_trials_takes_no_more_than_its_share():
    others = [job(f"other-{i}", lasts=1e6) for i in range(4)]
    sim = until(sim_of([*trials(40), *others], 0.95, "1x4"), 600 * 60.0)
    rows = {spec.job_id: row for row, spec in enumerate(sim.state.spec)}
    theirs = [sim.state.service(rows[each.job_id], 600 * 60.0) for each in others]
    assert sharing(sim) in (0, 2)
    # Four of five shares of four GPUs, and what parts are rounded down by.
    assert sum(theirs) / (4 * 600 * 60.0) == pytest.approx(0.8, abs=0.1)
    assert min(theirs) == pytest.approx(max(theirs), rel=0.1)
