"""What a plan tells the scheduler: steps with other numbers of ranks, and idle devices."""

from itertools import count

import pytest

from rota.burst.planner.costs import Costs
from rota.burst.planner.frontier import Frontier
from rota.burst.planner.timeline import timeline
from rota.burst.runtime import outlook
from rota.burst.runtime.outlook import Outlook
from support.layers import NETWORK, graph

CHAIN, BRANCHES = graph("ab bc cd"), graph("ab ac bd cd")


def frontier(layers, ranks, batch=12):
    return Frontier(Costs(layers, batch, ranks, NETWORK))


def told(layers, ranks, most, *, clock=None, look=None, batch=12):
    found = look or Outlook(layers, most, clock=clock or (lambda: 0.0))
    chosen = frontier(layers, ranks, batch).best_for_cluster()
    return found.of(frontier(layers, ranks, batch), chosen)


@pytest.mark.parametrize("layers", [CHAIN, BRANCHES], ids=["chain", "branches"])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_each_number_of_ranks_has_the_step_of_the_plan_that_would_run_there(layers, ranks):
    planned = told(layers, ranks, 6)
    best = [frontier(layers, each).best_for_cluster().step_s for each in range(1, 7)]
    assert planned.step_s == pytest.approx(best, rel=1e-5)
    assert planned.batch == 12


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_device_is_idle_where_the_timeline_has_gaps(ranks):
    planned = told(CHAIN, ranks, 4)
    chosen = frontier(CHAIN, ranks).best_for_cluster()
    course = timeline(frontier(CHAIN, ranks).costs, chosen.plan)
    used_s = sum((1.0 - idle) * course.step_s for idle in planned.idle)
    assert len(planned.idle) == ranks
    assert used_s == pytest.approx(course.gpu_time_s, rel=1e-4)
    assert all(0.0 <= idle <= 1.0 for idle in planned.idle)


def test_a_rank_without_a_layer_is_idle_all_the_time():
    assert told(CHAIN, 5, 5).idle[4] == 1.0  # 5 does not divide the batch


def test_what_the_profile_does_not_cover_is_not_known():
    planned = told(CHAIN, 4, 6, batch=36)  # at most 12 samples on a rank
    assert planned.step_s[:2] == (None, None)
    assert None not in planned.step_s[2:]


def test_numbers_of_ranks_for_which_no_time_is_left_are_looked_at_with_the_next_plan():
    ticks = count(0.0, outlook.LONGEST_S * 0.4)
    look = Outlook(BRANCHES, 6, clock=lambda: next(ticks))
    first, second = (told(BRANCHES, ranks, 6, look=look).step_s for ranks in (6, 2))
    assert first[:2] == second[:2]
    assert first[2:] == (None, None, None, first[5])
    assert None not in second[2:4]
    assert second[4:] == (None, first[5])


def test_more_ranks_than_are_looked_at_have_the_present_plan_alone():
    """As where the batch grows with the ranks: with others a step is of other samples."""
    planned = told(CHAIN, 3, 0)
    assert planned.step_s[:2] == (None, None)
    assert planned.step_s[2] > 0.0


def test_another_batch_is_planned_for_anew():
    look = Outlook(CHAIN, 3)
    twelve, six = (told(CHAIN, 2, 3, look=look, batch=batch) for batch in (12, 6))
    assert all(one > other for one, other in zip(twelve.step_s, six.step_s, strict=True))
