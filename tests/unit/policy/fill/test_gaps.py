"""The part of a GPU that foreground jobs leave, by their plans and by what was measured of them."""

import pytest

from rota.model.events import BurstPlanned
from rota.model.plan import Plan
from rota.model.view import View
from rota.policy.cpus.stage import Residents
from rota.policy.fill.gaps import PRIOR, Gaps, share_left
from rota.testing.builders import job
from support.driven import DrivenCluster

LEFT = {
    "an idle GPU is left whole": ([], (1.0, True)),
    "what a job does not use is left": ([0.37], (0.63, True)),
    "jobs that share a GPU use it together": ([0.25, 0.5], (0.25, True)),
    "more than all is nothing left": ([0.9, 0.8], (0.0, True)),
    "an unknown job leaves what is assumed": ([None], (PRIOR, False)),
    "an unknown job leaves no more than the others": ([0.9, None], (0.1, False)),
    "a use below nothing counts for nothing": ([-0.1], (1.0, True)),
}


@pytest.mark.parametrize("case", LEFT)
def test_share_left(case):
    used, expected = LEFT[case]
    assert share_left(used) == expected


def gaps_of(*jobs, nodes="1x4", planned=()):
    """The gaps beside jobs that run, of which some have told a plan by layer."""
    cluster = DrivenCluster(*jobs, cluster=nodes)
    cluster.settle()
    for row, *idle in planned:
        step_s = (0.5,) * 8
        cluster.happens(BurstPlanned, row, 32, step_s, tuple(idle))
    view, residents = View(cluster.state, cluster.now_s, None), Residents()
    residents.follow(view, Plan({}, {}, {}), goes_on=False)
    return {(gap.node, *gap.gpus): (gap.share, gap.is_known) for gap in Gaps(view, residents).all()}


def test_a_plan_by_layer_tells_the_gap_of_each_gpu():
    gaps = gaps_of(job("a", 1), job("b", 3), planned=[(1, 0.0, 0.25, 0.625)])
    assert gaps == {
        (0, 0): (PRIOR, False),
        (0, 1): (0.0, True),
        (0, 2): (0.25, True),
        (0, 3): (0.62, True),
    }


def test_a_plan_comes_before_what_was_measured_of_all_of_the_jobs_gpus():
    measured = job("a", 2, gpu_util=0.9)
    assert gaps_of(measured, nodes="1x2") == {(0, 0): (0.1, True), (0, 1): (0.1, True)}
    planned = gaps_of(measured, nodes="1x2", planned=[(0, 0.0, 0.5)])
    assert planned == {(0, 0): (0.0, True), (0, 1): (0.5, True)}


def test_a_plan_for_another_number_of_gpus_tells_nothing():
    gaps = gaps_of(job("a", 2, gpu_util=0.9), nodes="1x2", planned=[(0, 0.0, 0.5, 0.5)])
    assert set(gaps.values()) == {(0.1, True)}


def test_ranks_are_on_the_gpus_in_order_on_several_nodes_too():
    gaps = gaps_of(job("a", 3), nodes="1x2,1x1", planned=[(0, 0.1, 0.2, 0.3)])
    assert [share for _, (share, _) in sorted(gaps.items())] == [0.1, 0.2, 0.3]


def test_a_live_gang_over_several_nodes_leaves_no_gap():
    cluster = DrivenCluster(job("a", 6), job("b", 1), cluster="2x4")
    cluster.settle()

    def shares(*, is_live):
        cluster.state.is_live = is_live
        view, residents = View(cluster.state, cluster.now_s, None), Residents()
        residents.follow(view, Plan({}, {}, {}), goes_on=False)
        return [gap.share for gap in Gaps(view, residents).all()]

    assert shares(is_live=False) == [1.0] + [PRIOR] * 7
    assert shares(is_live=True) == [1.0, PRIOR] + [0.0] * 6
