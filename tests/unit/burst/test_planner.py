"""Costs, timelines, choices and the published planner, on invented layers and published ones."""

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.burst.planner.costs import Costs, Network
from rota.burst.planner.frontier import Frontier
from rota.burst.planner.plan import Group, Plan, chained, data_parallel
from rota.burst.planner.published import published_plan
from rota.burst.planner.search import unbeaten_plans
from rota.burst.planner.timeline import BACKWARD, FORWARD, REDUCTION, TRANSFER, timeline
from rota.errors import InputError
from rota.model.layer_graph import LayerGraph, LayerTime
from support.layers import NETWORK, graph, layer

CHAIN = "ab bc cd de"
BRANCHED = "ab ac ad be ce de ef"


# -- costs -----------------------------------------------------------------------------------------


def test_a_reduction_is_a_ring_and_none_on_one_gpu():
    costs = Costs(graph("ab"), 12, 12, NETWORK)
    sent = costs.graph.layers[0].parameters * 4
    assert costs.reduce_s(0, 1) == 0.0
    assert costs.reduce_s(0, 4) == pytest.approx(2 * 3 / 4 * sent / 1e9)


@pytest.mark.parametrize(
    ("sending", "taking", "moved", "parts"),
    [
        (2, 2, False, None),  # nothing moves
        (1, 4, False, 3 / 4),  # one GPU keeps its quarter and sends the rest
        (4, 1, False, 3 / 4),
        (2, 3, False, 1 / 3),  # the third one takes a third of the batch
        (2, 2, True, 1 / 2),  # to other GPUs: all of it
        (1, 4, True, 1),
    ],
)
def test_a_transfer_moves_what_the_takers_lack(sending, taking, moved, parts):
    costs = Costs(graph("ab"), 12, 12, NETWORK)
    whole = 12 * costs.graph.layers[0].output_values * 4
    wanted = 0.0 if parts is None else 2 * (parts * whole / 1e9 + 1e-4)
    assert costs.transfer_s(0, sending, taking, moved) == pytest.approx(wanted)


def test_times_between_measured_batches_are_linear():
    one = layer("a")._replace(times=(LayerTime(2, 1.0, 2.0), LayerTime(6, 3.0, 8.0)))
    assert one.seconds(3) == (1.5, 3.5)
    with pytest.raises(
        InputError, match=r"layer a: 7 samples on a GPU were not measured; .* 2 to 6"
    ):
        one.seconds(7)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"gpus": 0}, "gpus is 0; they are 1 to 4096"),
        ({"network": Network(0.0, 1.0)}, "the network has 0 bytes/s"),
        ({"network": Network(float("nan"), 1.0)}, "the network has nan bytes/s"),
        ({"memory_bytes": -1.0}, "the memory of a GPU is -1 bytes"),
    ],
)
def test_costs_of_nothing_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        Costs(graph("ab"), **({"batch": 6, "gpus": 3} | given))


# -- timelines -------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.sampled_from([1, 2, 3]), min_size=6, max_size=6), st.integers(0, 99))
def test_without_overlap_a_timeline_takes_what_the_search_says(sizes, seed):
    costs = Costs(graph(BRANCHED, seed), 6, 3, NETWORK)
    plan = chained(costs, sizes)
    assert timeline(costs, plan, overlap=False).step_s == pytest.approx(plan.step_s)
    assert timeline(costs, plan).step_s <= plan.step_s * (1 + 1e-9)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.booleans())
def test_on_no_gpu_are_two_layers_or_transfers_at_once(seed, overlap):
    costs = Costs(graph(BRANCHED, seed), 4, 4, NETWORK)
    for plan in unbeaten_plans(costs)[::5]:
        course = timeline(costs, plan, overlap=overlap)
        assert len([s for s in course.spans if s.kind in (FORWARD, BACKWARD)]) == 12
        for gpu in range(4):
            for kinds in ({FORWARD, BACKWARD, TRANSFER}, {TRANSFER, REDUCTION}):
                mine = sorted(s[3:] for s in course.spans if s.on(gpu) and s.kind in kinds)
                if kinds == {TRANSFER, REDUCTION} and overlap:
                    mine = sorted(s[3:] for s in course.spans if s.on(gpu) and s.kind == REDUCTION)
                for (_, end), (start, _) in pairwise(mine):
                    assert start >= end - 1e-12
            idle = sum(end - start for start, end in course.gaps(gpu))
            assert 0.0 <= idle <= course.step_s
        by_kind = {(s.kind, s.layer): s for s in course.spans if s.kind in (FORWARD, BACKWARD)}
        for source, taker in costs.graph.edges:
            assert by_kind[FORWARD, source].end_s <= by_kind[FORWARD, taker].start_s + 1e-12
            assert by_kind[BACKWARD, taker].end_s <= by_kind[BACKWARD, source].start_s + 1e-12


def test_a_reduction_runs_beside_earlier_layers_and_lets_a_transfer_pass():
    """The transfer of the gradient of its input interrupts the last layer's reduction."""
    times = (LayerTime(1, 1.0, 1.0), LayerTime(2, 1.0, 1.0))
    fields = {"parameters": 0, "output_values": 250_000_000, "batch": 2}
    first = layer("a", **fields)._replace(times=times)
    last = layer("b", ["a"], **fields)._replace(times=times, parameters=750_000_000)
    costs = Costs(LayerGraph("two", [first, last]), 2, 2, Network(1e9, 0.0))
    plan = chained(costs, [1, 2])  # half of 2 GB moves each way: 1 s; the reduction takes 3 s
    spans = {(s.kind, s.layer, s.start_s, s.end_s) for s in timeline(costs, plan).spans}
    assert spans == {
        (FORWARD, 0, 0.0, 1.0),
        (TRANSFER, 0, 1.0, 2.0),
        (FORWARD, 1, 2.0, 3.0),
        (BACKWARD, 1, 3.0, 4.0),
        (TRANSFER, 0, 4.0, 5.0),
        (BACKWARD, 0, 5.0, 6.0),
        (REDUCTION, 1, 4.0, 8.0),
    }
    course = timeline(costs, plan)
    assert course.step_s == 8.0
    assert course.gaps(1) == [(0.0, 1.0)]
    assert course.gpu_time_s == 8.0 + 7.0
    assert timeline(costs, plan, overlap=False).step_s == 9.0


def test_branches_on_gpus_of_their_own_run_at_once():
    costs = Costs(graph("ab ac bd cd", seed=2), 4, 4, NETWORK)
    groups = (Group(0, 2), Group(0, 2), Group(2, 2), Group(0, 2))
    course = timeline(costs, Plan(groups, 0.0, 0.0, 0.0))
    b, c = (next(s for s in course.spans if (s.kind, s.layer) == (FORWARD, i)) for i in (1, 2))
    assert b.start_s < c.end_s
    assert c.start_s < b.end_s


# -- choices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("edges", [CHAIN, BRANCHED])
def test_the_frontier_is_a_frontier_and_data_parallelism_never_beats_it(edges, overlap):
    found = Frontier(Costs(graph(edges, 7), 12, 12, NETWORK), overlap=overlap)
    steps = [point.step_s for point in found.points]
    works = [point.gpu_time_s for point in found.points]
    assert steps == sorted(steps)
    assert works == sorted(works, reverse=True)
    for base in found.baselines:
        assert any(
            p.step_s <= base.step_s * (1 + 1e-9) and p.gpu_time_s <= base.gpu_time_s * (1 + 1e-9)
            for p in found.points
        )


@pytest.mark.parametrize(
    ("edges", "seed"), [(CHAIN, 0), (CHAIN, 10), ("ab bc cd bd de", 11), ("ab bc cd bd de", 17)]
)
def test_the_fastest_plan_with_overlap_is_that_of_all_plans(edges, seed):
    costs = Costs(graph(edges, seed=seed), 4, 4, NETWORK)
    frontier = Frontier(costs)
    every = product(costs.sizes, repeat=len(costs.graph.layers))
    least_s = min(frontier.timed(chained(costs, sizes)).step_s for sizes in every)
    assert frontier.fastest().step_s <= least_s * (1 + 1e-9)


def test_choices_are_the_best_within_their_limits():
    found = Frontier(Costs(graph(CHAIN, 7), 12, 12, NETWORK), overlap=False)
    one_s = found.costs.least_gpu_time_s
    chosen = found.fastest(gpu_time_at_most=1.5)
    assert chosen.gpu_time_s <= 1.5 * one_s
    assert [p for p in found.points if p.step_s < chosen.step_s]
    assert all(p.gpu_time_s > 1.5 * one_s for p in found.points if p.step_s < chosen.step_s)
    cheap = found.cheapest(within=1.2)
    assert cheap.step_s <= 1.2 * found.fastest().step_s
    assert all(
        p.step_s > 1.2 * found.fastest().step_s
        for p in found.points
        if p.gpu_time_s < cheap.gpu_time_s
    )
    assert found.cheapest().gpu_time_s == min(p.gpu_time_s for p in found.points)
    assert found.best_for_cluster(background=0.0, within=2.0) == found.fastest()
    shared = found.best_for_cluster(background=1.0, within=2.0)
    assert found.throughput(shared) == max(
        found.throughput(p) for p in found.points if p.step_s <= 2.0 * found.points[0].step_s
    )


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (
            lambda f: f.fastest(gpu_time_at_most=0.5),
            r"cheapest plan takes 1 times .* allow as much",
        ),
        (lambda f: f.fastest(gpu_time_at_most=-1.0), "gpu_time_at_most is -1"),
        (lambda f: f.cheapest(within=0.9), "within is 0.9; it is 1 or more"),
        (lambda f: f.best_for_cluster(background=2.0), "background is 2; it is from 0 to 1"),
        (lambda f: f.best_for_cluster(within=0.5), "within is 0.5"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(choose, message):
    found = Frontier(Costs(graph("ab", 7), 6, 3, NETWORK), overlap=False)
    with pytest.raises(InputError, match=message):
        choose(found)


# -- the published planner -------------------------------------------------------------------------


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from([1.0, 1.5, 3.0, 99.0]))
def test_the_published_planner_never_beats_the_frontier(seed, limit):
    costs = Costs(graph("ab bc bd ce de ef", seed), 8, 8, NETWORK)
    plan = published_plan(costs, limit)
    assert plan.gpus <= 8
    frontier = Frontier(costs, overlap=False)
    assert any(
        p.step_s <= plan.step_s * (1 + 1e-9) and p.gpu_time_s <= plan.gpu_time_s * (1 + 1e-9)
        for p in frontier.points
    ) or any(group.first for group in plan.groups)


def test_without_a_limit_the_published_planner_finds_the_fastest_chain():
    costs = Costs(graph(CHAIN, 4, batch=8), 8, 8, NETWORK)
    assert published_plan(costs, 1e9).step_s == pytest.approx(unbeaten_plans(costs)[0].step_s)


def test_a_tighter_limit_wastes_less():
    costs = Costs(graph(CHAIN, 4, batch=8), 8, 8, NETWORK)
    works = [published_plan(costs, limit).gpu_time_s for limit in (1.05, 1e9)]
    assert works[0] < works[1]


@pytest.mark.parametrize(
    ("edges", "fields", "limit", "message"),
    [
        ("ab bc", {}, 0.5, "the amplification limit is 0.5"),
        ("ac bc", {}, 2.0, "one first and one last layer; there are 3, 2 and 1"),
        ("ab bc", {"c": {"tied_to": "a"}}, 2.0, "knows no tied layers"),
        ("ab ac bd be ce df ef", {}, 2.0, "are not nested"),
    ],
)
def test_what_the_published_planner_cannot_plan_is_refused(edges, fields, limit, message):
    with pytest.raises(InputError, match=message):
        published_plan(Costs(graph(edges, **fields), 4, 4, NETWORK), limit)


# -- published figures -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "parallel_ms", "burst_ms", "overlapped_ms", "burst_overlapped_ms"),
    [
        (8, 12.12, 10.67, 10.3, 10.5),
        (16, 9.21, 7.65, 7.2, 7.4),
        (32, 7.54, 5.96, 5.5, 5.7),
    ],
)
def test_vgg_takes_what_the_published_layers_say(
    published, gpus, parallel_ms, burst_ms, overlapped_ms, burst_overlapped_ms
):
    costs = Costs(published("vgg"), 32, gpus)
    parallel, [fastest, *_] = data_parallel(costs, gpus), unbeaten_plans(costs)
    assert parallel.step_s * 1e3 == pytest.approx(parallel_ms, abs=0.006)
    assert fastest.step_s * 1e3 == pytest.approx(burst_ms, abs=0.006)
    assert timeline(costs, parallel).step_s * 1e3 == pytest.approx(overlapped_ms, abs=0.07)
    assert timeline(costs, fastest).step_s * 1e3 == pytest.approx(burst_overlapped_ms, abs=0.07)
    assert Frontier(costs).fastest().step_s <= timeline(costs, parallel).step_s
    if gpus == 8:
        assert parallel.gpu_time_s * 1e3 == pytest.approx(97.0, abs=0.06)
        assert fastest.gpu_time_s * 1e3 == pytest.approx(68.6, abs=0.06)


def test_wide_resnet_gains_nothing_from_sizes_of_its_own(published):
    costs = Costs(published("wrn"), 16, 8)
    assert costs.graph.parameters == pytest.approx(126.9e6, rel=0.001)
    assert unbeaten_plans(costs)[0].step_s == pytest.approx(data_parallel(costs, 8).step_s)
    assert data_parallel(costs, 8).step_s * 1e3 == pytest.approx(24.09, abs=0.006)


def test_inception_has_the_branches_that_its_shapes_tell(published):
    inception = published("inception")
    assert inception.parameters == pytest.approx(21.8e6, rel=0.01)
    joins = [layer for layer in inception.layers if layer.name.startswith("concat")]
    assert [len(layer.inputs) for layer in joins] == [4, 4, 4, 3, 4, 4, 4, 4, 3, 2, 2, 4, 2, 2, 4]
    assert inception.layers[-1].output_values == 2048 * 8 * 8


def test_the_frontier_is_faster_than_the_published_planner_at_the_same_gpu_time(published):
    """At most limits it is as fast, and nowhere slower."""
    gains = []
    for gpus in (8, 16, 32):
        costs = Costs(published("vgg"), 32, gpus)
        frontier = Frontier(costs, overlap=False)
        for limit in (1.5, 2.0, 2.5, 4.0, 5.0):
            theirs = published_plan(costs, limit)
            ours = frontier.fastest(theirs.gpu_time_s / costs.least_gpu_time_s)
            gains.append(theirs.step_s / ours.step_s)
    assert min(gains) >= 1 - 1e-9
    assert max(gains) > 1.02
