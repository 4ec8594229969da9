"""Pollux on a cluster of several GPU types."""

import pytest

from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.sim.faults import Fault, Faults, What
from rota.sim.machine import restarts
from rota.sim.measured import MeasuredSpeeds, played
from rota.sim.simulation import Simulation
from rota.testing.builders import job, trace
from rota.workload.measured import Epochs, Measured, Step

BATCHES = (8, 16, 32, 64, 128, 256)
MIXED = "1x4:slow,1x4:fast"
GAINS = {"gains": (("slow", 1.0), ("fast", 6.0)), "alike": (("slow", 1.0), ("fast", 1.05))}


def measured(name):
    """A step of n samples takes n/8 s, and 0.05 s more on several GPUs."""
    steps = {
        place: {n: Step(n / 8 + sync_s, sync_s) for n in (2, 4, 8, 16, 32)}
        for place in ((1,), (2,), (3,), (4,), (4, 4))
        for sync_s in [0.05 if sum(place) > 1 else 0.0]
    }
    scaled = [
        ((nodes, gpus, n), Step(n / 8 + 0.05, 0.05))
        for nodes, gpus in ((2, 5), (2, 8))
        for n in (2, 32)
    ]
    ends = tuple(800.0 * epoch for epoch in range(1, 5))
    by_batch = {b: Epochs(ends, ends, (1.0,) * 4, (5.0,) * 4) for b in BATCHES}
    return Measured(name, steps, scaled, by_batch)


PROFILES = {name: measured(name) for name in GAINS}


def simulation(*jobs, cluster=MIXED, faults=None, **settings):
    return Simulation(
        played(trace(*jobs), PROFILES),
        parse_cluster(cluster),
        create("pollux", settings),
        restarts(10.0),
        speeds=MeasuredSpeeds(PROFILES),
        faults=faults,
    )


def two_kinds(number=6):
    models = ("alike", "gains")
    return [
        job(i, model=models[i % 2], batch=8, speeds=GAINS[models[i % 2]], at=5.0 * i)
        for i in range(number)
    ]


def types_of(sim, row):
    held = sim.state.held[row]
    return {sim.state.nodes[node].gpu_type for node in held.nodes()} if held else set()


def time_on(sim, kind):
    """GPU-seconds of each model on GPUs of that type, after a minute, while there are both."""
    found = {"alike": 0.0, "gains": 0.0}
    while True:
        before_s, held = sim.engine.now_s, list(sim.state.held)
        both = len({sim.state.spec[row].model for row in sim.state.active}) == 2
        if not sim.step():
            return found
        for row, each in enumerate(held):
            if each is not None and both and before_s > 60.0:
                for node, mask in each.parts:
                    if sim.state.nodes[node].gpu_type == kind:
                        seconds = sim.engine.now_s - before_s
                        found[sim.state.spec[row].model] += seconds * mask.bit_count()


def test_those_who_gain_most_by_the_fast_gpus_get_them():
    fast = time_on(simulation(*two_kinds()), "fast")
    slow = time_on(simulation(*two_kinds()), "slow")
    assert fast["gains"] / (fast["gains"] + fast["alike"]) > 0.8
    assert slow["alike"] > slow["gains"]


def test_jobs_end_sooner_than_if_nobody_looks_at_types():
    def mean_jct_s(types):
        state = simulation(*two_kinds(10), types=types).run().state
        return sum(end - at for end, at in zip(state.finish_s, state.submit_s, strict=True)) / 10

    assert mean_jct_s("on") < 0.95 * mean_jct_s("off")


@pytest.mark.parametrize("types", ["on", "off"])
@pytest.mark.parametrize("objective", ["service", "length", "pollux"])
def test_no_job_is_on_two_types_at_once_and_all_end(types, objective):
    sim = simulation(*two_kinds(), types=types, objective=objective, fits="job")
    while sim.step():
        sim.state.validate()
        assert all(len(types_of(sim, row)) <= 1 for row in range(len(sim.state.held)))
    assert min(sim.state.finish_s) > 0


def test_a_gang_that_no_type_alone_can_hold_gets_gpus_of_several():
    plain = Simulation(
        trace(job(1, gpus=6), job(2, gpus=2)), parse_cluster(MIXED), create("pollux", {})
    )
    plain.step()
    assert types_of(plain, 0) == {"slow", "fast"}
    assert [held.num_gpus for held in plain.state.held] == [6, 2]


def test_gangs_of_a_fixed_size_are_put_on_one_type():
    plain = Simulation(
        trace(job(1, gpus=3), job(2, gpus=3)), parse_cluster(MIXED), create("pollux", {})
    )
    plain.step()
    assert types_of(plain, 0) != types_of(plain, 1)
    assert len(types_of(plain, 0)) == len(types_of(plain, 1)) == 1


def test_jobs_of_a_type_whose_node_is_lost_go_on_on_the_other():
    fault = Fault(at_s=100.0, what=What.FAIL, node="node1", for_s=200.0)
    sim = simulation(*two_kinds(4), faults=Faults(script=(fault,)))
    while sim.step():
        sim.state.validate()
        if 100.0 < sim.engine.now_s < 300.0:
            assert all(types_of(sim, row) <= {"slow"} for row in range(4))
    assert min(sim.state.finish_s) > 0


def test_its_user_is_told_what_a_job_learns_where_it_is():
    sim = simulation(*two_kinds())
    while sim.engine.now_s < 60.0 and sim.step():
        pass
    assert "useful samples a second" in sim.state.notes.why[1]


@pytest.mark.parametrize("column", ["portable", "movable"])
def test_jobs_that_can_go_on_nowhere_else_stay_on_their_type(column):
    def types_afterwards(sim, stay):
        while sim.engine.now_s < 30.0 and sim.step():
            pass
        for row in sim.state.active if stay else ():
            getattr(sim.state, column)[row] = False
        rows = [row for row in sim.state.active if sim.state.held[row] is not None]
        seen = {row: types_of(sim, row) for row in rows}
        while sim.engine.now_s < 600.0 and sim.step():
            for row in rows:
                seen[row] |= types_of(sim, row)
        return [len(types) for types in seen.values()]

    assert max(types_afterwards(simulation(*two_kinds()), stay=False)) == 2
    assert max(types_afterwards(simulation(*two_kinds()), stay=True)) == 1
