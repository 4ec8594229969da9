import pytest

from rota.model.cluster import parse_cluster
from rota.model.job import Elastic
from rota.policy.registry import create
from rota.sim.machine import FREE
from rota.sim.measured import MeasuredSpeeds, played
from rota.sim.simulation import Simulation
from rota.testing.builders import job, run, trace
from rota.workload.measured import Epochs, Measured, Step

SIZES = (1, 2, 3, 4)


def measured(name, epochs, exchange_s):
    """A step of n samples takes n s to compute, and the same time to exchange at any size."""
    places = {(gpus,): exchange_s for gpus in SIZES[1:]} | {(1,): 0.0}
    steps = {
        place: {n: Step(n + sync_s, sync_s) for n in (1, 2, 4, 8, 12)}
        for place, sync_s in places.items()
    }
    ends = tuple(10.0 * epoch for epoch in range(1, epochs + 1))
    noise = (1.0,) * epochs
    return Measured(name, steps, (), {12: Epochs(ends, ends, noise, noise)})


LONG, SHORT = measured("long", 10, 0.5), measured("short", 2, 0.5)
PROFILES = {"long": LONG, "short": SHORT}


def simulation(*jobs, policy="optimus-oracle", cluster="1x4", **settings):
    return Simulation(
        played(trace(*jobs), PROFILES),
        parse_cluster(cluster),
        create(policy, settings),
        FREE,
        speeds=MeasuredSpeeds(PROFILES),
    )


def first_sizes(found):
    found.step()
    return [held.num_gpus if held is not None else 0 for held in found.state.held]


def test_gpus_go_where_most_time_is_saved():
    jobs = [job(1, model="short", batch=12), job(2, model="long", batch=12)]
    # 12 s a step on 1 GPU, 6.5 on 2, 4.5 on 3: of 100 steps the second GPU saves 550 s and the
    # third 200 s, of 20 steps 110 s.
    assert first_sizes(simulation(*jobs)) == [1, 3]


def test_every_job_gets_its_least_first_in_order_of_arrival():
    jobs = [job(i, model="long", batch=12) for i in range(6)]
    assert first_sizes(simulation(*jobs)) == [1, 1, 1, 1, 0, 0]


def test_sizes_change_while_jobs_run_and_all_end():
    jobs = [job(i, model="long", batch=12, at=100 * i) for i in range(3)]
    state = simulation(*jobs).run().state
    assert min(state.finish_s) > 0
    assert state.attempt[0] == 1  # its sizes came without a new start


def test_in_its_last_epoch_a_job_counts_as_having_one_step_left_as_published():
    jobs = [job(1, model="short", batch=12), job(2, model="long", batch=12)]
    found = simulation(*jobs, remaining="whole-epochs")
    while found.engine.now_s < 130:  # the short one's first epoch took 120 s
        found.step()
    assert [held.num_gpus for held in found.state.held] == [1, 3]


def test_a_job_gets_no_more_gpus_than_its_batch_can_be_shared_among():
    assert first_sizes(simulation(job("a", model="long", batch=2))) == [2]


def test_the_fitted_variant_starts_small_and_at_most_doubles():
    found, sizes = simulation(job("a", model="long", batch=12), policy="optimus"), []
    while found.step():
        held = found.state.held[0]
        if held is not None and sizes[-1:] != [held.num_gpus]:
            sizes.append(held.num_gpus)
    assert sizes == [1, 2, 4]


@pytest.mark.parametrize("name", ["optimus", "optimus-oracle"])
def test_jobs_that_report_nothing_run_with_their_least(name):
    elastic = Elastic((1, 2, 4), by_restart=True)
    state, _ = run(trace(job("a", lasts=60, elastic=elastic), job("b", 2)), create(name), "1x4")
    assert list(state.finish_s) == [60.0, 60.0]
    assert list(state.num_gpus) == [1, 2]
