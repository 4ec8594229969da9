import pytest

from rota.experiment import tiresias_jct
from rota.experiment.tiresias_jct import (
    BOUNDS,
    INGREDIENTS,
    PREEMPTION_S,
    VARIANTS,
    judged,
    measure,
    run,
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


def test_on_a_whole_workload_the_bounds_hold_but_not_for_a_policy_that_gains_nothing():
    labels = ("YARN-CS", "FIFO", "2D-LAS", "2D-Gittins")
    runs = {label: [measure(VARIANTS[label], 5)] for label in labels}
    assert [figure for figure in judged(runs) if not figure.ok] == []
    idle = judged(runs | {"2D-LAS": runs["FIFO"]})
    wrong = [figure.name for figure in idle if not figure.ok]
    assert wrong == [figure.name for figure in idle if figure.name.endswith("over 2D-LAS")]
