"""The exact search against enumeration, and against HiGHS where there is too much to enumerate."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from rota.burst.planner import search
from rota.burst.planner.costs import Costs, Network
from rota.burst.planner.front import WEIGHTS, unbeaten
from rota.burst.planner.frontier import Timed
from rota.burst.planner.frontier import unbeaten as timed_unbeaten
from rota.burst.planner.plan import chained
from rota.burst.planner.search import unbeaten_plans
from rota.burst.planner.structure import Structure
from rota.errors import InputError
from support.layers import NETWORK, exhausted, front, graph

GRAPHS = {
    "one layer": "",
    "a chain": "ab bc cd de",
    "a residual": "ab bc cd bd de",
    "two branches": "ab ac bd cd de",
    "three branches and a skip": "ab ac ad be ce de ae",
    "nested branches": "ab ac bd be df ef cf fg",
    "blocks in turn": "ab ac bd cd de df eg fg",
    "branches that cross": "ab ac bd cd be de ce",
    "two inputs": "ac bc cd",
    "two outputs": "ab bc bd de",
    "two parts": "ab cd",
}


def figures(plans):
    return [(plan.step_s, plan.gpu_time_s) for plan in plans]


def same(points):
    return [pytest.approx(point, rel=1e-9) for point in points]


@pytest.mark.parametrize("edges", GRAPHS.values(), ids=GRAPHS)
def test_the_frontier_is_that_of_all_plans(edges):
    costs = Costs(graph(edges), 6, 3, NETWORK)  # sizes 1, 2, 3
    found = unbeaten_plans(costs, side_by_side=False)
    assert figures(found) == same(exhausted(costs))
    again = [chained(costs, [group.size for group in plan.groups]) for plan in found]
    assert figures(again) == same(figures(found))


def test_the_frontier_of_nine_layers_is_that_of_all_their_plans():
    costs = Costs(graph("ab bc cd ce df ef fg gh hi"), 4, 4, NETWORK)
    assert figures(unbeaten_plans(costs, side_by_side=False)) == same(exhausted(costs))


@settings(max_examples=40)
@given(data=st.data(), seed=st.integers(0, 10_000), layers=st.integers(2, 6))
def test_the_frontier_of_any_graph_is_that_of_all_its_plans(data, seed, layers):
    names = "abcdef"[:layers]
    pairs = [a + b for a in names for b in names if a < b]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True, min_size=1, max_size=9))
    invented = graph(" ".join(edges), seed)
    costs = Costs(invented, 6, 3, Network(10 ** (8 + seed % 3), 1e-5 * (seed % 7)))
    structure = Structure(invented)
    if not structure.tangled:
        assert figures(unbeaten_plans(costs, structure, side_by_side=False)) == same(
            exhausted(costs)
        )


def test_of_plans_that_differ_by_rounding_alone_the_cheaper_one_stays():
    seconds, gpu_seconds = [1.0, 1.0 + 1e-15, 2.0], [3.0, 2.0, 1.0]
    figures = np.array([seconds, gpu_seconds, [0.0] * 3, [0.0] * 3])
    assert unbeaten(figures, memory=False, width=False).tolist() == [1, 2]
    points = [Timed(None, *point) for point in zip(seconds, gpu_seconds, strict=True)]
    assert timed_unbeaten(points) == tuple(points[1:])


def test_of_large_graphs_some_plans_are_kept_the_best_by_any_weight_among_them(monkeypatch):
    chain = " ".join(a + b for a, b in pairwise("abcdefghijklmnopqrst"))
    costs = Costs(graph(chain, seed=5), 12, 12, NETWORK)
    exact = figures(unbeaten_plans(costs))
    monkeypatch.setattr(search, "LEAST_POINTS", 20)
    monkeypatch.setattr(search, "MOST_POINTS", 0)
    found = figures(unbeaten_plans(costs))
    assert len(found) < len(exact) / 2
    assert found[:1] + found[-1:] == same(exact[:1] + exact[-1:])
    for weight in WEIGHTS:
        best = min(seconds + weight * gpu_seconds for seconds, gpu_seconds in exact)
        kept = min(seconds + weight * gpu_seconds for seconds, gpu_seconds in found)
        assert kept == pytest.approx(best, rel=1e-9)


def test_sizes_are_all_divisors_of_the_batch():
    costs = Costs(graph("ab bc"), 12, 12, NETWORK)
    assert costs.sizes == (1, 2, 3, 4, 6, 12)
    used = {group.size for plan in unbeaten_plans(costs) for group in plan.groups}
    assert used & {3, 6}, used


def test_a_size_of_which_the_profile_has_no_batch_is_none():
    assert Costs(graph("ab", batch=4), 12, 12, NETWORK).sizes == (3, 4, 6, 12)
    with pytest.raises(InputError, match="no number of GPUs divides it into the 1 to 4 samples"):
        Costs(graph("ab", batch=4), 12, 2, NETWORK)


@pytest.mark.parametrize("edges", ["ab ac bd cd", "ab ac ad be ce de", "ab ac bd be df ef cf"])
def test_branches_run_side_by_side_or_in_turn_whichever_is_better(edges):
    """Against every size of every layer, and every way to begin a branch beside those before it."""
    costs = Costs(graph(edges, seed=3), 4, 4, NETWORK)
    found = unbeaten_plans(costs)
    assert figures(found) == same(front(list(_all_ways(costs, edges))))
    for plan in found:
        assert all(group.end <= 4 for group in plan.groups)
    assert any(group.first for plan in found for group in plan.groups)


def _all_ways(costs, edges):
    """(seconds, GPU-seconds) of a fork a, branches of one layer or one nested block, and a join."""
    names = sorted({name for edge in edges.split() for name in edge})
    at = {name: i for i, name in enumerate(names)}
    join = names[-1]
    branches = {
        "ab ac bd cd": [("b",), ("c",)],
        "ab ac ad be ce de": [("b",), ("c",), ("d",)],
        "ab ac bd be df ef cf": [("b", "d", "e"), ("c",)],
    }[edges]
    for values in product(costs.sizes, repeat=len(names)):
        size = dict(zip(names, values, strict=True))

        def alone(name, size=size):
            seconds = costs.alone_s(at[name], size[name])
            return seconds, seconds * size[name], size[name]

        def move(edge, moved, size=size):
            a, b = edge
            seconds = costs.transfer_s(at[a], size[a], size[b], moved)
            return seconds, seconds * size[b], 0

        def branch(inside, moved):
            """All ways to run one branch: (seconds, GPU-seconds, GPUs)."""
            begin = move("a" + inside[0], moved)
            if len(inside) == 1:
                yield turn(begin, alone(inside[0]), move(inside[0] + join, moved))
                return
            # b forks into d and e, which both go to the join
            for beside in (False, True):
                d = turn(move("bd", False), alone("d"), move("d" + join, moved))
                e = turn(move("be", beside), alone("e"), move("e" + join, moved or beside))
                both = side(d, e) if beside else turn(d, e)
                yield turn(begin, alone("b"), both)

        for ways in product((False, True), repeat=len(branches) - 1):
            options = [list(branch(branches[0], False))]
            options += [
                list(branch(inside, beside))
                for inside, beside in zip(branches[1:], ways, strict=True)
            ]
            for chosen in product(*options):
                made = chosen[0]
                for each, beside in zip(chosen[1:], ways, strict=True):
                    made = side(made, each) if beside else turn(made, each)
                total = turn(alone("a"), made, alone(join))
                if total[2] <= costs.gpus:
                    yield total[:2]


def turn(*parts):
    return sum(p[0] for p in parts), sum(p[1] for p in parts), max(p[2] for p in parts)


def side(one, other):
    return max(one[0], other[0]), one[1] + other[1], one[2] + other[2]


@pytest.mark.parametrize("edges", ["ab bc cd", "ab ac bd cd de"])
def test_memory_leaves_only_plans_that_fit(edges):
    invented = graph(edges, seed=1)
    free = Costs(invented, 6, 3, NETWORK)
    held = sorted(plan.memory_bytes for plan in unbeaten_plans(free, side_by_side=False))
    limit = (held[0] + held[-1]) / 2
    costs = Costs(invented, 6, 3, NETWORK, memory_bytes=limit)
    found = unbeaten_plans(costs, side_by_side=False)
    assert figures(found) == same(exhausted(costs))
    assert all(plan.memory_bytes <= limit for plan in found)
    assert figures(found) != figures(unbeaten_plans(free, side_by_side=False))
    with pytest.raises(InputError, match=r"does not fit: .* allow more memory"):
        unbeaten_plans(Costs(invented, 6, 3, NETWORK, memory_bytes=1000.0))


def test_tied_parameters_share_one_size_and_are_reduced_once():
    invented = graph("ab bc cd de", e={"tied_to": "a"})
    costs = Costs(invented, 6, 3, NETWORK)
    found = unbeaten_plans(costs)
    assert {plan.groups[0] == plan.groups[4] for plan in found} == {True}
    assert figures(found) == same(exhausted(costs, same=[(0, 4)]))
    assert costs.reduce_bytes(0) == invented.layers[0].parameters * 4
    assert costs.reduce_bytes(4) == 0
    assert invented.parameters == sum(layer.parameters for layer in invented.layers[:4])


def test_an_activation_keeps_the_size_of_its_input():
    invented = graph("ab bc cd", b={"keeps_size": True})
    costs = Costs(invented, 6, 3, NETWORK)
    assert figures(unbeaten_plans(costs)) == same(exhausted(costs, same=[(0, 1)]))


def test_layers_that_are_too_entangled_share_a_size_and_are_named():
    everything = " ".join(a + b for a in "abcdefg" for b in "abcdefg" if a < b)
    structure = Structure(graph(everything))
    assert structure.tangled
    costs = Costs(graph(everything), 6, 3, NETWORK)
    for plan in unbeaten_plans(costs, structure):
        assert len({plan.groups[i] for i in structure.tangled}) == 1


def fastest_by_highs(costs, limit_s):
    """Seconds of the fastest plan within a limit of GPU-seconds, as a flow with one side limit."""
    layers, sizes = len(costs.graph.layers), costs.sizes
    nodes = [(i, g) for i in range(layers) for g in sizes]
    arcs = [(i, a, g) for i in range(layers - 1) for a in sizes for g in sizes]
    column = {key: at for at, key in enumerate([*nodes, *arcs])}
    seconds, gpu_seconds = np.zeros(len(column)), np.zeros(len(column))
    for i, g in nodes:
        seconds[column[i, g]] = costs.alone_s(i, g)
        gpu_seconds[column[i, g]] = costs.alone_s(i, g) * g
    for i, a, g in arcs:
        seconds[column[i, a, g]] = costs.transfer_s(i, a, g, False)
        gpu_seconds[column[i, a, g]] = costs.transfer_s(i, a, g, False) * g
    rows = 1 + 2 * (layers - 1) * len(sizes)
    flow, wanted = lil_array((rows, len(column))), np.zeros(rows)
    flow[0, [column[0, g] for g in sizes]], wanted[0] = 1, 1
    at = 1
    for i in range(layers - 1):
        for g in sizes:
            flow[at, [column[i, g, h] for h in sizes]], flow[at, column[i, g]] = 1, -1
            flow[at + 1, [column[i, a, g] for a in sizes]] = 1
            flow[at + 1, column[i + 1, g]] = -1
            at += 2
    found = milp(
        seconds * 1e3,
        integrality=np.ones(len(column)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(flow.tocsr(), wanted, wanted),
            LinearConstraint(gpu_seconds[None, :] * 1e3, -np.inf, limit_s * 1e3),
        ],
        options={"mip_rel_gap": 0.0},
    )
    assert found.success
    return found.fun / 1e3


def test_the_frontier_of_a_long_chain_is_that_of_highs():
    names = "abcdefghijklmnopqrst"
    chain = " ".join(a + b for a, b in pairwise(names))
    costs = Costs(graph(chain, seed=5), 12, 12, NETWORK)
    found = unbeaten_plans(costs)
    assert len(found) > 50
    for plan in found[:: len(found) // 6]:
        limit_s = plan.gpu_time_s * (1 + 1e-9)
        assert fastest_by_highs(costs, limit_s) == pytest.approx(plan.step_s, rel=1e-6)
        # A little less GPU time costs time: the next point's, not something between.
    for plan, after in list(pairwise(found))[:: len(found) // 4]:
        limit_s = (plan.gpu_time_s + after.gpu_time_s) / 2
        assert fastest_by_highs(costs, limit_s) == pytest.approx(after.step_s, rel=1e-6)
