"""Cores of a node, apportioned and predicted: whatever the curves and whatever is reported."""

import json
import random
from itertools import product
from math import inf, isfinite

from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

from rota.model.cluster import parse_cluster
from rota.model.events import DecisionTaken
from rota.policy.cpus.apportion import CORE, CoreClaim, apportion, quantum_of, worth
from rota.policy.cpus.even import level
from rota.policy.cpus.stage import Resident
from rota.policy.registry import create
from rota.predict.core_design import next_cores
from rota.predict.core_points import CorePoint
from rota.predict.cpu_demand import CpuDemand, fit
from rota.sim.cores import CatalogCores, Validating
from rota.sim.machine import Costs
from rota.sim.simulation import Simulation
from rota.testing.builders import job
from rota.workload.trace import Trace

SLOW = Costs(suspend_s=1.0, resume_s=2.0, migrate_s=3.0, cold_start_s=4.0)

SPEEDS = st.lists(st.integers(1, 40), min_size=1, max_size=6).map(
    lambda all: tuple(map(float, all))
)
RISING = SPEEDS.map(lambda speeds: tuple(sorted(speeds)))
GAINS = st.lists(st.integers(0, 9), min_size=1, max_size=8)


def concave(gains):
    """Speeds that rise by less and less with each core."""
    speeds = [1.0]
    for gain in sorted(gains, reverse=True):
        speeds.append(speeds[-1] + gain)
    return tuple(speeds)


@st.composite
def nodes(draw, curves):
    """(claims, thousandths of all cores): jobs whose shares fit into the cores, one GPU each."""
    share = draw(st.integers(1, 3))
    spare = draw(st.integers(0, 2))
    claims = [
        CoreClaim(share * CORE, curve, draw(st.sampled_from([0.5, 1.0, 2.0])))
        for curve in draw(st.lists(curves, min_size=1, max_size=4))
    ]
    return claims, (len(claims) + spare) * share * CORE


@st.composite
def any_node(draw):
    """Claims with any share and bounds, known speeds or none; cores for all of them or not."""
    claims = []
    for _ in range(draw(st.integers(1, 5))):
        least = draw(st.integers(0, 9000))
        most = draw(st.none() | st.integers(max(least, 1), 20000))
        share = draw(st.integers(1, 12000))
        claims.append(CoreClaim(share, draw(st.just(()) | SPEEDS), 1.0, least, most))
    return claims, draw(st.integers(len(claims), 24000))


def fast_enough(claim, cores, slack=0.0):
    share = worth([claim], [claim.share])
    return worth([claim], [cores]) >= share * (1 - slack - 1e-9)


def best_sum(claims, cores, floor):
    """The largest sum of all ways to deal out whole cores."""
    counts = range(1, cores // CORE + 1)
    return max(
        worth(claims, [count * CORE for count in held])
        for held in product(counts, repeat=len(claims))
        if sum(held) * CORE <= cores
        and (
            floor == "none"
            or all(fast_enough(claim, n * CORE) for claim, n in zip(claims, held, strict=True))
        )
    )


def even(claims, cores, most=inf):
    """The cores dealt out by shares alone, up to ``most`` times these."""
    residents = [Resident(row, each.share, 0.0, inf) for row, each in enumerate(claims)]
    return [int(cores) for _, cores in sorted(level(residents, cores, most).items())]


def greedy(claims, cores, quantum=CORE):
    """One quantum after another from the shares on, to the job that gains most by it."""
    held = [claim.share // quantum * quantum for claim in claims]
    for _ in range((cores - sum(held)) // quantum):
        gains = []
        for row, claim in enumerate(claims):
            now, more = (
                worth([claim], [has], quantum=quantum) for has in (held[row], held[row] + quantum)
            )
            gains.append((more - now, -row))
        held[-max(gains)[1]] += quantum
    return held


@given(nodes(SPEEDS), st.sampled_from(["proportional", "none"]))
@settings(max_examples=60)
def test_no_way_to_deal_out_cores_is_worth_more(node, floor):
    claims, cores = node
    held = apportion(claims, cores, floor=floor)
    assert sum(held) <= cores
    assert worth(claims, held) == approx(best_sum(claims, cores, floor))


@given(nodes(RISING))
@settings(max_examples=60)
def test_it_is_worth_as_much_as_every_simpler_rule_and_more_than_static_shares(node):
    claims, cores = node
    ways = apportion(claims, cores), even(claims, cores), even(claims, cores, 1.0)
    sad, equal, static = (worth(claims, held) for held in ways)
    assert sad >= worth(claims, greedy(claims, cores)) - 1e-9
    assert sad >= equal - 1e-9
    assert equal >= static - 1e-9


@given(st.lists(RISING, min_size=1, max_size=5), st.integers(0, 3), st.integers(125, 1999))
@settings(max_examples=100)
def test_it_is_worth_as_much_as_every_simpler_rule_where_a_gpu_has_part_of_a_core(
    curves, spare, each_gpu
):
    quantum, cores = quantum_of(each_gpu), (len(curves) + spare) * each_gpu
    claims = [CoreClaim(each_gpu, curve) for curve in curves]
    held = apportion(claims, cores, quantum=quantum)
    assert sum(held) <= cores
    best = worth(claims, held, quantum=quantum)
    for other in (
        greedy(claims, cores, quantum),
        even(claims, cores),
        even(claims, cores, 1.0),
    ):
        assert best >= worth(claims, other, quantum=quantum) - 1e-9
    for claim, has in zip(claims, held, strict=True):
        assert has >= quantum
        assert worth([claim], [has], quantum=quantum) >= 1 - 1e-9


@given(nodes(GAINS.map(concave)))
@settings(max_examples=100)
def test_on_concave_curves_greedy_from_the_shares_is_worth_as_much_as_equal_parts(node):
    claims, cores = node
    equal = worth(claims, even(claims, cores))
    assert worth(claims, greedy(claims, cores)) >= equal - 1e-9


@given(nodes(SPEEDS), st.sampled_from([0.0, 0.03, 0.2]))
@settings(max_examples=60)
def test_nobody_is_slower_than_with_its_proportional_share_by_more_than_the_slack(node, slack):
    claims, cores = node
    held = apportion(claims, cores, slack=slack)
    assert all(fast_enough(claim, each, slack) for claim, each in zip(claims, held, strict=True))


@given(
    any_node(),
    st.sampled_from(["proportional", "none"]),
    st.sampled_from([1000, 250, 100]),
)
@settings(max_examples=100)
def test_a_node_never_gives_more_cores_than_it_has_and_nobody_has_none(node, floor, quantum):
    claims, cores = node
    held = apportion(claims, cores, floor=floor, quantum=quantum)
    assert sum(held) <= cores
    assert min(held) > 0
    if cores // quantum >= len(claims):
        assert not any(each % quantum for each in held)
        for claim, each in zip(claims, held, strict=True):
            assert claim.most is None or each <= max(claim.most, quantum)
        least = [min(max(1, -(-c.least // quantum)), _most(c, quantum, cores)) for c in claims]
        if sum(least) <= cores // quantum:
            assert all(each >= low * quantum for each, low in zip(held, least, strict=True))
    assert apportion(claims, cores, floor=floor, quantum=quantum) == held


def _most(claim, quantum, cores):
    most = cores // quantum
    return most if claim.most is None else min(most, max(1, claim.most // quantum))


@given(nodes(RISING))
@settings(max_examples=100)
def test_no_core_is_idle_that_slows_nobody_down(node):
    claims, cores = node
    assert sum(apportion(claims, cores)) == cores


# -- predictions -----------------------------------------------------------------------------------

REPORTS = st.lists(
    st.builds(
        CorePoint,
        st.sampled_from([0.25, 1, 3, 6, 24, 128, 4096, 0, -1, float("nan")]),
        st.floats() | st.floats(1e-6, 86_400) | st.floats(0.1, 1.0),
        st.sampled_from(["v100", "a100"]),
    ),
    max_size=6,
)


@given(REPORTS)
@settings(max_examples=60)
def test_whatever_is_reported_predictions_are_finite_and_above_zero(points):
    found, warnings = fit(points)
    assert all(isinstance(warning, str) for warning in warnings)
    if found is None:
        return
    for gpu_type in found.demand.gpu_s:
        steps = [found.demand.step_s(cores, gpu_type) for cores in (0.25, 1, 5, 24, 4096)]
        assert all(isfinite(step_s) and step_s > 0 for step_s in steps)
        assert found.demand.knee(gpu_type) >= 0
        assert all(error >= 0 for error in found.errors([0.25, 5, 4096], gpu_type))


@given(
    st.floats(0.01, 10),
    st.floats(0.01, 100),
    st.floats(1, 10),
    st.integers(1, 8),
    st.integers(1, 4),
)
@settings(max_examples=60)
def test_the_sequential_design_ends_within_four_probes_that_tell_the_curve(
    gpu_s, by_core_s, gamma, share, jobs
):
    true, points = CpuDemand({"": gpu_s}, by_core_s, gamma=gamma), []
    candidates = range(1, share * jobs + 1)
    while (cores := next_cores(points, candidates, share)) is not None:
        assert cores in candidates
        points.append(CorePoint(cores, true.step_s(cores)))
    assert len({point.cores for point in points}) == len(points) <= 4
    found, _ = fit(points)
    if found is not None:
        for cores in range(share, candidates[-1] + 1):
            assert found.demand.step_s(cores) == approx(true.step_s(cores), rel=0.15)


# -- the stage of a policy -------------------------------------------------------------------------

MODELS = ("alexnet", "resnet18_imagenet", "gnmt", "nmt", "deepspeech2", "")


@st.composite
def queues(draw):
    """Jobs of 1 to 3 GPUs that come at random, with and without bounds on their cores."""
    jobs, at_s = [], 0.0
    for row in range(draw(st.integers(2, 8))):
        at_s += draw(st.sampled_from([0.0, 7.0, 120.0]))
        bounds = draw(st.sampled_from([None, None, None, (1, 2), (4, 9)]))
        lasts_s = draw(st.sampled_from([5.0, 90.0, 1500.0]))
        gpus, model = draw(st.integers(1, 3)), draw(st.sampled_from(MODELS))
        jobs.append(job(row, gpus, at=at_s, lasts=lasts_s, model=model, cpus_per_gpu=bounds))
    return Trace(jobs)


def simulated(jobs, policy, floor, rebuild=None):
    """Every decision of a simulation on two unequal nodes, with checks after each step."""
    given = {"cpus": "sad", "cpu_floor": floor, "cpu_period_s": "60"}
    cluster = parse_cluster("1x2:cpus=8,1x3:cpus=4")
    cpus = CatalogCores(noise=0.05, seed=3)
    sim = Simulation(jobs, cluster, create(policy, given), SLOW, cpus=cpus, speeds=Validating(None))
    state = sim.state
    state.log = []
    while sim.step():
        for node, given_cores in cores_given(state).items():
            assert given_cores <= state.nodes[node].millicores
        for row, millicores in state.target_cpus.items():
            assert millicores > 0
            gpus, bounds = state.target[row].num_gpus, state.spec[row].cpus_per_gpu
            assert bounds is None or millicores <= 1000 * gpus * bounds[1]
        if rebuild is not None and rebuild.random() < 0.3:
            sim.policy, state.plan = create(policy, given), None
            state.stage_marks = json.loads(json.dumps(state.stage_marks))
            state.marks = json.loads(json.dumps(state.marks))
            state.policy_mark = json.loads(json.dumps(state.policy_mark))
    assert not state.target_cpus
    return [event for event in state.log if isinstance(event, DecisionTaken)]


def cores_given(state):
    given = dict.fromkeys(range(len(state.nodes)), 0)
    for row, millicores in state.target_cpus.items():
        for node, share in state.target[row].shares(millicores):
            given[node] += share
    return given


@given(
    queues(),
    st.sampled_from(["fifo-backfill", "round-robin"]),
    st.sampled_from(["proportional", "none"]),
)
@settings(max_examples=25)
def test_under_any_queue_nodes_give_no_more_than_they_have_and_a_rebuilt_stage_decides_alike(
    jobs, policy, floor
):
    decided = simulated(jobs, policy, floor)
    again = simulated(jobs, policy, floor, random.Random(1))
    assert json.dumps(decided, default=repr) == json.dumps(again, default=repr)


@given(queues())
@settings(max_examples=25)
def test_a_job_of_which_nothing_is_known_has_its_share(jobs):
    given = {"cpus": "sad", "cpu_period_s": "60"}
    cluster = parse_cluster("2x4:cpus=8")
    blind = Trace(spec._replace(cpus_per_gpu=None) for spec in jobs)
    sim = Simulation(blind, cluster, create("fifo-backfill", given), SLOW)
    while sim.step():
        for row, millicores in sim.state.target_cpus.items():
            assert millicores >= 2000 * sim.state.target[row].num_gpus
