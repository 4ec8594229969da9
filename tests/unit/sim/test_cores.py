"""Speeds by the catalogue's curves of cores, and what simulated jobs tell of them."""

from random import Random
from statistics import mean

import pytest

from rota.model.allocation import on_node
from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.report.metrics import summarise
from rota.sim.cores import (
    EVALUATE_S,
    SETTLED_STEPS,
    STEP_S,
    TRAIN_S,
    CatalogCores,
    NoisyCoreTimes,
    Validating,
    phase_at,
    validates,
)
from rota.sim.machine import FREE, Phase
from rota.sim.simulation import Simulation
from rota.sim.speeds import CatalogSpeeds
from rota.testing.builders import job
from rota.workload.trace import Trace

SETTLED_S = SETTLED_STEPS * STEP_S


def factor(model, cores, cluster="1x8:v100:cpus=24", *, gpus=1, node=0, speeds=True, work_s=0.0):
    nodes = parse_cluster(cluster)
    known = CatalogSpeeds(nodes) if speeds else None
    place = on_node(node, (1 << gpus) - 1)
    spec = job(0, gpus, model=model)
    return CatalogCores(speeds=known).factor(spec, place, nodes, round(1000 * cores), work_s)


@pytest.mark.parametrize("speeds", [False, True])
@pytest.mark.parametrize(
    ("model", "cores", "expected"),
    [
        ("alexnet", 3, 1.0),
        ("alexnet", 5, 1.53),
        ("alexnet", 24, 2.0),
        ("resnet18_imagenet", 0.5, 0.185),
        ("gnmt", 1, 1.0),
        ("gnmt", 24, 1.0),
        ("of no curve", 0.25, 1.0),
        ("", 0.25, 1.0),
    ],
)
def test_on_the_gpus_of_the_curves_speed_is_that_of_the_catalogue(model, cores, expected, speeds):
    assert factor(model, cores, speeds=speeds) == pytest.approx(expected)


def test_cores_count_by_the_gpus_of_the_job():
    assert factor("alexnet", 10, gpus=2) == pytest.approx(1.53)


def test_a_node_with_more_cores_for_a_gpu_has_durations_with_these():
    assert factor("alexnet", 3, "1x8:v100:cpus=48") == pytest.approx(1 / 1.75)


def speed(model, cores, node):
    """The whole speed on a V100 (node 0) or on a K80 (node 1) of one cluster."""
    nodes = parse_cluster("1x8:v100:cpus=24,1x8:k80:cpus=24")
    place = CatalogSpeeds(nodes).speed(job(model=model), on_node(node, 1), nodes)
    return place * factor(model, cores, "1x8:v100:cpus=24,1x8:k80:cpus=24", node=node)


def test_a_slower_gpu_saturates_with_fewer_cores_and_prepares_no_slower():
    assert speed("resnet50", 1, 0) == pytest.approx(0.4)
    most = speed("resnet50", 24, 1)
    nodes = parse_cluster("1x8:v100:cpus=24,1x8:k80:cpus=24")
    slower = CatalogSpeeds(nodes).on_type(job(model="resnet50"), "k80")
    assert most == pytest.approx(1.15 * slower)
    assert slower < 0.4 < 1.15, "one core is enough for a K80, and not for a V100"
    assert speed("resnet50", 1, 1) == pytest.approx(most)


def test_a_faster_gpu_is_no_faster_with_few_cores_and_has_a_use_for_more():
    cluster = "1x8:k80:cpus=24,1x8:v100:cpus=24"  # durations are for the K80
    nodes = parse_cluster(cluster)
    place = CatalogSpeeds(nodes).speed(job(model="resnet50"), on_node(1, 1), nodes)
    whole = [place * factor("resnet50", cores, cluster, node=1) for cores in (1, 2, 3, 4, 24)]
    assert place > 2
    assert whole[1] == pytest.approx(whole[0] * 0.74 / 0.40)
    assert whole[-1] == whole[-2] == pytest.approx(place)
    few = [factor("resnet50", cores, cluster) for cores in (1, 24)]
    assert few == pytest.approx([1.0, 1.0])


def test_validation_has_a_curve_of_its_own_and_comes_by_turns():
    cores = CatalogCores()
    spec = job(model="nmt")
    phases = [cores.phase(spec, at_s) for at_s in (0, TRAIN_S - 1, TRAIN_S, TRAIN_S + EVALUATE_S)]
    assert phases == ["train", "train", "evaluate", "train"]
    assert cores.phase(job(model="gnmt"), TRAIN_S) == "train"
    four, all = (factor("nmt", each, work_s=TRAIN_S) for each in (4, 24))
    assert all / four == pytest.approx(4.0)  # 75 % shorter
    assert factor("nmt", 24) == pytest.approx(1.0)


def test_a_phase_ends_where_the_next_one_begins():
    assert phase_at(0.0) == ("train", TRAIN_S)
    assert phase_at(TRAIN_S) == ("evaluate", TRAIN_S + EVALUATE_S)
    assert phase_at(TRAIN_S + EVALUATE_S) == ("train", 2 * TRAIN_S + EVALUATE_S)


class Slow:
    """Half the speed everywhere, and steps of 2 s."""

    def speed(self, spec, allocation, nodes):
        return 0.5

    def step_s(self, spec):
        return 2.0


def test_validating_changes_phases_and_no_speed():
    spec, place, nodes = job(model="nmt"), on_node(0, 1), parse_cluster("1x1:cpus=3")
    model = Validating(Slow())
    assert model.phase(spec, place, nodes, 0.0) == Phase(0.5, TRAIN_S)
    assert model.phase(spec, place, nodes, TRAIN_S) == Phase(0.5, TRAIN_S + EVALUATE_S)
    assert model.phase(job(model="gnmt"), place, nodes, 0.0) == Phase(0.5, float("inf"))
    assert model.step_s(spec) == 2.0
    assert Validating(None).speed(spec, place, nodes) == 1.0
    assert Validating(None).step_s(spec) is None
    assert validates(Trace([spec]))
    assert not validates(Trace([job(model="alexnet")]))


def run(jobs, *, noise=0.0, until_s=float("inf"), seed=0, cluster="1x8:cpus=24", speeds=None):
    """A simulation under ``cpus=sad`` and what its jobs have told by then."""
    given = {"cpus": "sad", "cpu_period_s": "60"}
    more = {"cpus": CatalogCores(noise, seed), "speeds": speeds}
    sim = Simulation(Trace(jobs), parse_cluster(cluster), create("fifo", given), FREE, **more)
    while sim.engine.now_s < until_s and sim.step():
        pass
    told = sim.state.cores
    assert isinstance(told, NoisyCoreTimes)
    told.catch_up(sim.engine.now_s)
    return told


def times(told, row=0, phase="train"):
    return told.core_times(row, on_node(0, 1 << row), phase, 0.0)


def test_a_job_tells_its_step_time_when_it_has_lasted_long_enough():
    assert times(run([job(model="alexnet", lasts=SETTLED_S / 4)])) == ()
    told = times(run([job(model="alexnet", lasts=600)]))
    assert told[0].gpu_type == ""
    by_cores = {each.millicores: each.step_s for each in told}
    for millicores, step_s in by_cores.items():
        curve = factor("alexnet", millicores / 1000, "1x8:cpus=24", speeds=False)
        assert step_s == pytest.approx(STEP_S / curve)


def test_step_times_are_those_of_the_speed_model():
    told = times(run([job(model="gnmt", lasts=600)], speeds=Slow()))
    assert {each.step_s for each in told} == {4.0}


def test_jobs_of_a_model_are_one_kind_and_others_are_each_their_own():
    jobs = [job(0, model="gnmt", lasts=100), job(1, model="gnmt", lasts=5), job(2), job(3, lasts=5)]
    told = run(jobs)
    assert times(told, 1) == times(told, 0) != ()
    assert times(told, 2) != ()
    assert times(told, 3) == ()


def test_noise_is_drawn_by_the_seed_and_has_the_size_that_is_asked_for():
    jobs = [job(row, lasts=100, at=0) for row in range(8)]

    def told(**more):
        found = run(jobs, noise=0.05, **more)
        return [each.step_s for row in range(8) for each in times(found, row)]

    assert told() == told() != told(seed=1)
    errors = [step_s / STEP_S - 1 for seed in range(10) for step_s in told(seed=seed)]
    assert mean(errors) == pytest.approx(0.0, abs=0.02)
    assert mean(error**2 for error in errors) ** 0.5 == pytest.approx(0.05, rel=0.3)


def test_the_mean_of_a_kind_is_nearer_to_the_truth_than_one_report():
    told = run([job(row, model="gnmt", lasts=100) for row in range(8)], noise=0.2)
    (found,) = times(told)
    assert found.step_s == pytest.approx(STEP_S, rel=0.2)
    assert len(times(told, 5)) == 1


def test_a_validation_is_told_apart_and_phases_follow_the_work():
    jobs = [job(model="nmt", lasts=1300)]
    told = run(jobs, speeds=Validating(None))
    assert times(told) != ()
    for each in times(told, phase="evaluate"):
        curve = factor("nmt", each.millicores / 1000, "1x8:cpus=24", speeds=False, work_s=TRAIN_S)
        assert each.step_s == pytest.approx(EVALUATE_S / curve)
    assert times(told, phase="evaluate") != ()
    under_way = run(jobs, speeds=Validating(None), until_s=TRAIN_S)
    assert under_way.phase(0) == "evaluate"
    assert under_way.phase(7) == "train"  # nothing of it yet


def average_jct_s(jobs, cpus):
    cluster, policy = parse_cluster("1x8:v100:cpus=24"), create("fifo", {"cpus": cpus})
    sim = Simulation(jobs, cluster, policy, cpus=CatalogCores(seed=1))
    state, decisions = sim.run()
    found = summarise(state, decisions=decisions, policy="fifo")
    assert found["finished"] == len(jobs)
    return found["avg_jct_s"]


def test_an_overloaded_server_ends_its_jobs_a_third_sooner_than_with_a_static_share():
    chance, at_s, jobs = Random(1), 0.0, []
    for number in range(200):
        at_s += chance.expovariate(1 / 300)  # with the share, the server can do one in 412 s
        model = chance.choice(("alexnet", "resnet18_imagenet", "gnmt", "transformer"))
        jobs.append(job(number, at=at_s, lasts=chance.uniform(600, 6000), model=model))
    ours, share = (average_jct_s(Trace(jobs), cpus) for cpus in ("sad", "proportional"))
    assert ours <= (1 - 0.34) * share
