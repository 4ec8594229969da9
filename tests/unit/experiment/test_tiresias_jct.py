import pytest

from rota.experiment import tiresias_jct
from rota.experiment.tiresias_jct import (
    BOUNDS,
    INGREDIENTS,
    PREEMPTION_S,
    VARIANTS,
    measure,
    run,
    speed_ups,
)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(tiresias_jct, "SEEDS", [0, 1])
    monkeypatch.setattr(tiresias_jct, "NUM_JOBS", 60)


def test_every_figure_is_there_with_its_spread(small):
    outcome = run()
    assert outcome.seeds == [0, 1]
    judged = [figure for figure in outcome.figures if figure.judged]
    assert len(judged) == 2 * len(BOUNDS)
    assert [figure.published for figure in judged] == [None, None, 5.5, 27.0] * 2
    assert all(figure.least <= figure.ours <= figure.most for figure in outcome.figures)
    names = [figure.name for figure in outcome.figures]
    assert len(names) == len(set(names))
    assert {f"{name}: average JCT" for name in INGREDIENTS} <= set(names)


def test_the_bounds_would_catch_a_policy_that_gains_nothing(small, monkeypatch):
    monkeypatch.setitem(VARIANTS, "2D-LAS", VARIANTS["FIFO"])
    assert not run().holds


def test_a_preemption_costs_what_the_paper_measured():
    summary = measure(VARIANTS["2D-LAS"], 0)
    free = measure(VARIANTS["2D-LAS free of cost"], 0)
    assert round(221 * PREEMPTION_S) == 13_724
    assert summary["preemptions"] > 100
    assert summary["overhead_gpu_s"] >= summary["preemptions"] * PREEMPTION_S
    assert free["overhead_gpu_s"] == 0


def test_with_two_queues_the_gittins_index_decides_nothing():
    las, gittins = (measure(VARIANTS[label], 3) for label in ("2D-LAS", "2D-Gittins"))
    assert las | {"policy": ""} == gittins | {"policy": ""}


def test_tiresias_is_ahead_of_first_in_first_out_on_the_whole_workload():
    labels = ("YARN-CS", "FIFO", "2D-LAS")
    runs = {label: [measure(VARIANTS[label], 5)] for label in labels}
    assert speed_ups(runs, "FIFO", "2D-LAS", "average")[0] > 1.3
    assert speed_ups(runs, "FIFO", "2D-LAS", "median")[0] > 8
    assert speed_ups(runs, "YARN-CS", "FIFO", "average")[0] > 1
