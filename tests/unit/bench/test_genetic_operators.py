"""The published search's fitness and operators, on cases that can be worked out by hand."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

from _genetic_operators import MOST_NODES, Allocations, apart, crossed, cut

SPEEDUPS = np.zeros((2, 3, 5))  # of two jobs on up to two nodes of two GPUs
SPEEDUPS[0, 1, 1:3], SPEEDUPS[0, 2, 2:5] = (0.25, 0.5), (0.4, 0.6, 0.8)
SPEEDUPS[1, 1, 1:3], SPEEDUPS[1, 2, 2:5] = (0.2, 0.3), (0.1, 0.2, 0.25)


def allocations(base=((0, 0), (0, 0)), *, most=(4, 4), restart=(1.0, 1.0), node_gpus=2):
    return Allocations(SPEEDUPS, np.array(most), np.array(base), node_gpus, np.array(restart))


def many(state, times=1):
    return np.repeat(np.array(state)[None], times, axis=0)


class Drawn:
    """Random numbers that are written down beforehand; whole ones are always the largest."""

    def __init__(self, *draws):
        self.draws = list(draws)

    def random(self, shape):
        return np.broadcast_to(self.draws.pop(0), shape)

    def integers(self, low, high):
        return np.full_like(low, high - 1)


# -- what a solution is worth ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "speedups"),
    [
        ([[2, 0], [0, 1]], (0.5, 0.2)),
        ([[1, 1], [1, 1]], (0.4, 0.1)),
        ([[2, 2], [0, 0]], (0.8, 0.0)),
    ],
    ids=["a node each", "both on both", "one has none"],
)
def test_fitness_is_the_harmonic_mean_of_speedups(state, speedups):
    (found,) = allocations(state).fitness(many(state))
    assert found == pytest.approx(2 / sum(1 / (speedup + 0.001) for speedup in speedups))


def test_other_gpus_count_by_the_factor_of_the_restart_and_the_same_ones_in_full():
    problem = allocations([[2, 0], [0, 1]], restart=(0.5, 0.5))
    kept, moved = problem.fitness(np.array([[[2, 0], [0, 1]], [[0, 2], [0, 1]]]))
    assert kept == pytest.approx(2 / (1 / 0.501 + 1 / 0.201))
    assert moved == pytest.approx(2 / (1 / 0.251 + 1 / 0.201))


@pytest.mark.parametrize(
    ("state", "utility"),
    [
        ([[2, 0], [0, 1]], (0.5 + 0.2) / 4),
        ([[2, 0], [0, 0]], 0.5 / 2),  # the other node is not in use
        ([[0, 0], [0, 0]], 0.0),
    ],
)
def test_utility_is_of_the_nodes_in_use(state, utility):
    (found,) = allocations().utility(many(state))
    assert found == pytest.approx(utility)


# -- crossover -------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [0, 1, 2])
def test_children_swap_the_jobs_before_the_point(point):
    ones, twos = np.full((1, 3, 2), 1), np.full((1, 3, 2), 2)
    first, second = crossed(ones, twos, [point])
    assert first[0, :, 0].tolist() == [2] * point + [1] * (3 - point)
    assert second[0, :, 0].tolist() == [1] * point + [2] * (3 - point)


def test_each_pair_has_its_own_point():
    children = crossed(np.full((2, 3, 1), 1), np.full((2, 3, 1), 2), [1, 2])
    assert children[0, :, :, 0].tolist() == [[2, 1, 1], [2, 2, 1]]


# -- mutation --------------------------------------------------------------------------------------


def test_a_job_goes_back_to_what_it_had_with_a_tenth_of_chance():
    problem = allocations([[2, 0], [0, 2]])
    state = many([[0, 1], [1, 0]])
    draws = Drawn(np.array([[0.09, 0.11]]), 1.0, 1.0, 1.0)
    assert problem.mutated(state, draws).tolist() == [[[2, 0], [1, 0]]]


def test_a_tenth_of_the_jobs_loses_a_tenth_of_its_nodes():
    state = many([[1, 1], [1, 1]])
    thinned, cells = np.array([[0.09, 0.11]]), np.array([[[0.09, 0.11], [0.09, 0.09]]])
    found = allocations().mutated(state, Drawn(1.0, thinned, cells, 1.0))
    assert found.tolist() == [[[0, 1], [1, 1]]]


def test_every_node_with_room_gives_to_a_job_in_the_mean_and_to_one_that_is_there():
    state = many(
        [[1, 0], [0, 0]]
    )  # a chance of a half for either; on the first node job 0 is there
    cells = np.array([[[0.99, 0.51], [0.49, 0.49]]])
    assert allocations().grown(state, Drawn(cells)).tolist() == [[[2, 0], [2, 2]]]
    cells = np.array([[[0.99, 0.49], [0.51, 0.51]]])
    assert allocations().grown(state, Drawn(cells)).tolist() == [[[2, 2], [0, 0]]]


def test_a_full_node_gives_to_nobody_and_no_job_loses_by_growing():
    state = many([[1, 1], [1, 0]], times=2000)
    found = allocations().grown(state, np.random.default_rng(1))
    assert (found[:, :, 0] == state[:, :, 0]).all()
    assert (found >= state).all()
    # Job 0 has one of two and is there: it is always drawn, and then gets 1 or 2; job 1 every other
    # time, and gets 0, 1 or 2.
    means = found[:, :, 1].mean(axis=0)
    assert means == pytest.approx([1.5, 0.5], abs=0.06)


# -- repair ----------------------------------------------------------------------------------------


def test_the_later_of_two_jobs_on_several_nodes_loses_those_that_they_share():
    state = [[1, 1, 0, 0], [0, 1, 1, 0], [0, 2, 0, 0], [0, 0, 1, 1]]
    assert apart(many(state)).tolist() == [[[1, 1, 0, 0], [0, 0, 1, 0], [0, 2, 0, 0], [0, 0, 0, 1]]]


def test_what_is_too_much_is_cut_from_those_that_come_later():
    assert cut(many([[3, 1], [3, 1]]), 4, axis=1).tolist() == [[[3, 1], [1, 1]]]
    assert cut(many([[3, 1], [3, 1]]), np.array([[2], [4]]), axis=2).tolist() == [[[2, 0], [3, 1]]]


def test_a_job_keeps_to_its_most_gpus_on_nodes_in_random_order():
    problem = allocations(most=(2, 4))
    state = many([[1, 2], [0, 0]])
    forth, back = np.array([[[0.1, 0.9]] * 2]), np.array([[[0.9, 0.1]] * 2])
    assert problem.repaired(state, Drawn(forth)).tolist() == [[[1, 1], [0, 0]]]
    assert problem.repaired(state, Drawn(back)).tolist() == [[[0, 2], [0, 0]]]


def test_nobody_is_on_more_nodes_than_sixteen():
    problem = Allocations(None, np.array([64]), np.zeros((1, 20), dtype=int), 4, np.ones(1))
    found = problem.repaired(many(np.ones((1, 20), dtype=int), 5), np.random.default_rng(2))
    assert (np.count_nonzero(found, axis=2) == MOST_NODES).all()
    assert len({tuple(state.ravel()) for state in found}) > 1  # which ones is left to chance


def test_whatever_is_repaired_fits():
    random = np.random.default_rng(3)
    most = np.array([1, 3, 6, 8, 8])
    problem = Allocations(None, most, np.zeros((5, 4), dtype=int), 4, np.ones(5))
    found = problem.repaired(random.integers(0, 5, size=(500, 5, 4)), random)
    assert (found >= 0).all()
    assert (found.sum(axis=1) <= 4).all()
    assert (found.sum(axis=2) <= most).all()
    assert (found.sum(axis=(1, 2)) > 0).all()


def test_what_fits_is_left_as_it_is():
    state = many([[2, 0], [0, 1]], 20)
    assert (allocations().repaired(state, np.random.default_rng(4)) == state).all()
