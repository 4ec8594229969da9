"""Fair shares are shares, are fair, and hold on clusters of several GPU types."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.model.cluster import parse_cluster
from rota.policy.gavel.policy import FinishTimeFairness, MaxMinFairness
from rota.policy.gavel.rounds import GpuTypes
from rota.policy.gavel.shares import (
    Clock,
    Gang,
    equal_split,
    fastest_shares,
    least_shares,
    timely_shares,
)
from rota.sim.machine import FREE
from rota.sim.simulation import Simulation
from rota.sim.speeds import CatalogSpeeds
from rota.testing.builders import job, trace
from rota.testing.policy_contract import steps

CLOSE = 1e-6
SPEED = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0, 3.0])


@st.composite
def loads(draw):
    """Gangs and the GPUs of each type; each gang can run on one of the types at least."""
    gpus = draw(st.lists(st.integers(1, 8), min_size=1, max_size=3))
    gangs = []
    for _ in range(draw(st.integers(1, 8))):
        size = draw(st.integers(1, max(gpus)))
        speeds = [draw(SPEED) if size <= count else 0.0 for count in gpus]
        if not any(speeds):
            speeds[gpus.index(max(gpus))] = 1.0
        gangs.append(Gang(size, draw(st.sampled_from([1.0, 2.0, 5.0])), tuple(speeds)))
    return gangs, gpus


def check(gangs, gpus, shares):
    """The shares can be had: of each job's time, and of each type's GPUs."""
    for gang, share in zip(gangs, shares, strict=True):
        assert min(share) >= 0
        assert sum(share) <= 1 + CLOSE
        assert all(not part for part, speed in zip(share, gang.speeds, strict=True) if not speed)
    for t, count in enumerate(gpus):
        used = sum(gang.gpus * share[t] for gang, share in zip(gangs, shares, strict=True))
        assert used <= count * (1 + CLOSE)


def level(gang, gpus, share):
    even = sum(s * n for s, n in zip(gang.speeds, gpus, strict=True)) / sum(gpus)
    speed = sum(s * x for s, x in zip(gang.speeds, share, strict=True))
    return gang.gpus * speed / even / gang.weight


@given(load=loads())
@settings(max_examples=60, deadline=None)
def test_shares_of_every_kind_can_be_had(load):
    gangs, gpus = load
    check(gangs, gpus, least_shares(gangs, gpus))
    check(gangs, gpus, fastest_shares(gangs, gpus))
    clocks = [
        Clock(10.0 * i, 100.0 + i, 100.0 * i + (100.0 + i) / speed)
        for i, speed in enumerate(equal_split(gangs, gpus))
    ]
    check(gangs, gpus, timely_shares(gangs, clocks, gpus))


@given(load=loads())
@settings(max_examples=60, deadline=None)
def test_nobody_gets_less_under_max_min_than_the_worst_off_of_an_equal_split(load):
    gangs, gpus = load
    found = [
        level(gang, gpus, share)
        for gang, share in zip(gangs, fastest_shares(gangs, gpus), strict=True)
    ]
    even = [
        level(gang._replace(speeds=(1.0,)), [1], (speed / _even_speed(gang, gpus),))
        for gang, speed in zip(gangs, equal_split(gangs, gpus), strict=True)
    ]
    assert min(found) >= min(even) * (1 - 1e-5)


def _even_speed(gang, gpus):
    return sum(s * n for s, n in zip(gang.speeds, gpus, strict=True)) / sum(gpus)


@given(load=loads())
@settings(max_examples=60, deadline=None)
def test_jobs_that_are_not_satisfied_have_gpu_time_in_proportion_to_their_weights(load):
    gangs = [gang._replace(speeds=(1.0,)) for gang in load[0]]
    total = sum(load[1])
    shares = [share for (share,) in least_shares(gangs, [total])]
    hungry = [
        gang.gpus * share / gang.weight
        for gang, share in zip(gangs, shares, strict=True)
        if share < 1 - CLOSE
    ]
    assert hungry == pytest.approx(hungry[:1] * len(hungry), abs=CLOSE)
    used = sum(gang.gpus * share for gang, share in zip(gangs, shares, strict=True))
    assert used == pytest.approx(min(total, sum(gang.gpus for gang in gangs)), abs=1e-4)


@given(load=loads())
@settings(max_examples=40, deadline=None)
def test_the_order_of_equal_jobs_does_not_matter(load):
    gangs, gpus = load
    for find in (least_shares, fastest_shares):
        shares = find([*gangs, *gangs], gpus)
        half = len(gangs)
        for one, other in zip(shares[:half], shares[half:], strict=True):
            assert one == pytest.approx(other, abs=CLOSE)


def mixed_load(seed):
    """Jobs with profiles, some of which can't run on a type."""
    chance = random.Random(seed)
    jobs = []
    for i in range(14):
        gpus = chance.choice([1, 1, 2, 3])
        kinds = {"v100": 1.0, "k80": chance.choice([0.0, 0.1, 0.5, 1.0])}
        speeds = tuple(kinds.items()) if chance.random() < 0.8 else ()
        at, lasts = chance.choice([0, 0, 15, 40, 95]), chance.choice([1, 30, 77.5, 200])
        jobs.append(job(i, gpus, at=at, lasts=lasts, speeds=speeds, priority=50 + 50 * (i % 2)))
    return trace(*jobs)


def policies():
    return st.sampled_from(
        [
            (kind, heterogeneity, fill)
            for kind in (MaxMinFairness, FinishTimeFairness)
            for heterogeneity in ("aware", "agnostic")
            for fill in ("yes", "no")
        ]
    )


def finish_times(seed, which, rebuild=None):
    kind, heterogeneity, fill = which

    def make():
        return kind(heterogeneity, round_s=25.0, solve_every_s=40.0, fill_idle=fill)

    nodes = parse_cluster("1x3:v100,2x2:k80")
    sim = Simulation(mixed_load(seed), nodes, make(), FREE, speeds=CatalogSpeeds(nodes, "v100"))
    state = sim.state
    for _ in steps(sim):
        state.validate()
        types = GpuTypes(state.nodes)
        assert all(types.of(target) for target in state.target if target is not None)
        if rebuild is not None and rebuild.random() < 0.3:
            sim.policy = make()
            state.plan = None
            state.marks = [json.loads(json.dumps(mark)) for mark in state.marks]
            state.policy_mark = json.loads(json.dumps(state.policy_mark))
    return list(state.finish_s)


@given(seed=st.integers(0, 10_000), which=policies())
@settings(max_examples=12, deadline=None)
def test_gangs_stay_on_one_type_all_jobs_end_and_a_rebuilt_policy_decides_alike(seed, which):
    finished = finish_times(seed, which)
    assert min(finished) > 0
    assert finish_times(seed, which, random.Random(seed)) == finished
