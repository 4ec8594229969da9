from collections import Counter

import pytest

from rota.model.events import JobSubmitted
from rota.model.job import JobSpec
from rota.model.view import View
from rota.policy.placement.best_fit import BestFit, share_too_small


def test_shares_count_the_jobs_whose_gangs_do_not_fit():
    shares = share_too_small(Counter({1: 2, 4: 1, 16: 1}), 4)
    assert shares == pytest.approx([1.0, 0.5, 0.5, 0.5, 0.0])


def test_of_no_jobs_nothing_is_too_small():
    assert share_too_small(Counter(), 2) == [0.0, 0.0, 0.0]


def test_it_spares_the_hole_that_another_gang_can_use(make_view, free_of, shape):
    # Three jobs of 2 GPUs and one of 1: the tightest hole for one GPU is one that two could use.
    view = make_view("2x4", [1, 2, 2, 2])
    assert shape(BestFit()(view, free_of(2, 3), 0)) == {1: 1}


def test_where_only_single_gpus_are_asked_for_the_tightest_hole_is_best(make_view, free_of, shape):
    assert shape(BestFit()(make_view("3x4", [1, 1]), free_of(4, 2, 3), 0)) == {1: 1}


def test_it_counts_the_jobs_anew_for_each_decision(make_view, free_of, shape):
    view = make_view("2x4", [1, 1, 1])
    place = BestFit()
    assert shape(place(view, free_of(2, 3), 0)) == {0: 1}
    for i in range(5):
        view._state.apply(JobSubmitted(0.0, JobSpec(f"late{i}", 2, 0.0, 60.0)))
    later = View(view._state, 0.0, None)
    assert shape(place(later, free_of(2, 3), 0)) == {1: 1}


def test_a_gang_that_fits_on_no_node_takes_as_few_as_can_be(make_view, free_of, shape):
    assert shape(BestFit()(make_view("3x4", [6]), free_of(4, 3, 2), 0)) == {0: 4, 2: 2}


def test_too_few_free_gpus_are_none(make_view, free_of):
    assert BestFit()(make_view("2x4", [4]), free_of(1, 1), 0) is None
