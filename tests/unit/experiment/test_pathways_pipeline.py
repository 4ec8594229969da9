"""The verdict on steps of a pipeline beside torch's."""

import pytest

from rota.experiment.pathways_pipeline import AGAIN, FLOW, GPIPE, PLAIN, SPMD, TORCH, figures_of

EQUAL = {FLOW: 0.0, TORCH: 0.0}


def outcome(off=EQUAL, flow=(1.0, 1.0, 1.0)):
    times_s = {way: [1.0, 1.0, 1.0] for way in (FLOW, PLAIN, TORCH, GPIPE, AGAIN, SPMD)}
    times_s[FLOW] = flow
    return {figure.name: figure for figure in figures_of(4, off, times_s)}


def missed(found):
    return [name for name, figure in found.items() if not figure.ok]


def test_a_pipeline_as_fast_as_torch_holds():
    assert not missed(outcome(flow=[1.05, 1.1, 3.0]))


def test_a_slower_pipeline_misses_both_schedules():
    found = outcome(flow=[1.2, 1.2, 1.0])
    assert missed(found) == [f"4 stages, a step over that of {way}" for way in (TORCH, GPIPE)]


@pytest.mark.parametrize("way", [FLOW, TORCH])
@pytest.mark.parametrize("off", [1e-9, float("nan")])
def test_other_gradients_miss(way, off):
    found = outcome(EQUAL | {way: off})
    assert missed(found) == [f"4 stages, {way}: gradients off those of one process"]


def test_published_parity_stands_beside_four_stages():
    rate = outcome(flow=[2.0, 2.0, 2.0])["4 stages: tokens a second over those of data parallelism"]
    assert (rate.published, rate.ours) == (pytest.approx(1.064, abs=1e-3), 0.5)
