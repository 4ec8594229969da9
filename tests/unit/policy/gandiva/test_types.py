"""Gandiva on GPUs of several types: tried, measured, and given to whom they bring most."""

import pytest

from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.sim.machine import Costs
from rota.sim.simulation import Simulation
from rota.sim.speeds import CatalogSpeeds, with_profiles
from rota.testing.builders import job, trace

DAY = 86400.0
SWITCH = Costs(suspend_s=0.125, resume_s=0.125, migrate_s=1.5, cold_start_s=0.25)
SLOW, FAST = "1x1:slow", "1x1:fast"


class ByType:
    """Speed 1 on slow GPUs, and what the model's name says on fast ones."""

    def speed(self, spec, allocation, nodes):
        kinds = {nodes[node].gpu_type for node in allocation.nodes()}
        return 1.0 if kinds != {"fast"} else float(spec.name)


def gains(name, times, **more):
    """A job that is so many times as fast on the fast type. Its kind is nobody else's."""
    return job(name, **{"lasts": DAY, **more})._replace(name=str(times))


def sim_of(jobs, cluster, **settings):
    policy = create("gandiva", settings)
    return Simulation(trace(*jobs), parse_cluster(cluster), policy, SWITCH, speeds=ByType())


def until(sim, at_s):
    def next_s():
        times = (sim.engine.next_time_s(), sim.state.wake_at_s)
        return min((t for t in times if t is not None), default=at_s + 1)

    while next_s() <= at_s:
        sim.step()
        sim.state.validate()
    return sim


def trials(sim, row):
    return [(what, kept) for _, what, _, _, kept, *_ in sim.state.notes.probes.get(row, ())]


def types(sim):
    """The GPU type that each job lives on."""
    homes = [mark["home"] for mark in sim.state.marks if mark]
    return [sim.state.nodes[node].gpu_type for ((node, _),) in homes]


def test_two_jobs_change_places_where_the_other_gains_more_by_the_fast_type():
    sim = sim_of([gains("a", 1.1), gains("b", 4)], f"{FAST},{SLOW}")
    assert types(until(sim, 20.0)) == ["fast", "slow"]
    until(sim, 7200.0)
    assert types(sim) == ["slow", "fast"]
    assert [trials(sim, row) for row in (0, 1)] == [
        [("move to slow", True)],
        [("move to fast", True)],
    ]
    assert sim.state.notes.probes[0][0].measured == pytest.approx(1 / 1.1)
    assert sim.state.notes.probes[1][0].measured == pytest.approx(4.0)
    assert list(sim.state.migrations) == [1, 1]


def test_two_that_lose_by_it_change_back_and_do_not_try_again():
    sim = until(sim_of([gains("a", 4), gains("b", 1.1)], f"{FAST},{SLOW}"), DAY / 4)
    assert types(sim) == ["fast", "slow"]
    assert [trials(sim, row) for row in (0, 1)] == [
        [("move to slow", False)],
        [("move to fast", False)],
    ]
    assert list(sim.state.migrations) == [2, 2]
    # A trial costs a job at most its length, and the time of two moves.
    assert sim.state.work(0, DAY / 4) > 4 * (DAY / 4 - 30 - 2 * 2 - 1)


def test_two_that_gain_alike_stay_where_they_were():
    sim = until(sim_of([gains("a", 2), gains("b", 2)], f"{FAST},{SLOW}"), DAY / 4)
    assert types(sim) == ["fast", "slow"]
    assert max(sim.state.migrations) == 2


def test_a_job_tries_free_gpus_of_another_type_and_stays_if_it_is_faster():
    sim = until(sim_of([gains("a", 3)], f"{SLOW},{FAST}"), 3600.0)
    assert types(sim) == ["fast"]
    assert trials(sim, 0) == [("move to fast", True)]


def test_a_job_that_gains_hardly_enough_is_not_moved_to_and_fro():
    """It goes to the fast type by itself, and would lose little beside others on the slow one."""
    jobs = [gains("a", 1.051), gains("b", 1, gpus=2, at=1.0)]
    sim = until(sim_of(jobs, "1x4:slow,1x4:fast"), DAY / 4)
    assert sum(sim.state.migrations) <= 4


def test_a_job_that_is_slower_on_free_gpus_goes_back_for_good():
    sim = until(sim_of([gains("a", 0.5)], f"{SLOW},{FAST}"), DAY / 4)
    assert types(sim) == ["slow"]
    assert trials(sim, 0) == [("move to fast", False)]


def test_what_the_others_are_on_average_is_expected_of_who_was_never_measured():
    """The second finds the fast type taken, and comes to it when it is free: no trial is needed."""
    jobs = [gains("a", 3, lasts=9000), gains("b", 2, at=2000)]
    sim = until(sim_of(jobs, "1x1:slow,1x1:fast"), 2001.0)
    assert types(sim) == ["fast", "slow"]
    third = sim_of([gains("a", 3), gains("b", 2, at=2000)], "1x1:slow,1x2:fast")
    assert types(until(third, 2001.0)) == ["fast", "fast"]


def test_jobs_of_one_kind_need_no_trial_each():
    jobs = [*(gains(f"a{i}", 1.1) for i in range(4)), *(gains(f"b{i}", 4) for i in range(4))]
    jobs = [each._replace(model=each.job_id[0]) for each in jobs]
    sim = until(sim_of(jobs, "2x2:fast,2x2:slow"), 7200.0)
    assert types(sim) == ["slow"] * 4 + ["fast"] * 4
    assert sum(sim.state.migrations) == 8


@pytest.mark.parametrize(
    ("cluster", "settings"),
    [
        (f"{FAST},{SLOW}", {"types": "off"}),
        (f"{FAST},{SLOW}", {"migrate": "off"}),
        ("1x1:fast,1x1", {}),
        ("2x1:fast", {}),
    ],
)
def test_nothing_is_tried_unless_all_types_are_known_and_differ(cluster, settings):
    sim = until(sim_of([gains("a", 1.1), gains("b", 4)], cluster, **settings), DAY / 4)
    assert sum(sim.state.migrations) == 0


def test_jobs_that_can_not_move_take_no_part():
    sim = until(sim_of([gains("a", 1.1), gains("b", 4)], f"{FAST},{SLOW}"), 20.0)
    sim.state.portable[1] = False
    until(sim, DAY / 4)
    assert sum(sim.state.migrations) == 0


def test_a_job_whose_partner_ends_during_the_trial_goes_back_if_it_is_slower():
    jobs = [gains("a", 4), gains("b", 1.1, lasts=60)]
    sim = until(sim_of(jobs, f"{FAST},{SLOW}"), 3600.0)
    assert sim.state.finish_s[1] > 0
    assert types(sim) == ["fast"]
    assert trials(sim, 0) == [("move to slow", False)]


def test_gangs_change_places_with_gangs_of_their_size():
    jobs = [gains("a", 1.1, gpus=2), gains("b", 4, gpus=2), gains("c", 9)]
    sim = until(sim_of(jobs, "1x2:fast,1x2:slow,1x1:slow"), 3600.0)
    assert types(sim) == ["slow", "fast", "slow"]


def test_where_all_that_were_measured_gain_alike_the_others_are_left_alone():
    jobs = [gains(f"j{i:02}", 2) for i in range(40)]
    sim = until(sim_of(jobs, "5x4:fast,5x4:slow"), DAY / 4)
    assert sum(sim.state.migrations) <= 2 * (8 + 10)  # that many, and those on trial by then
    assert sum(each > 0 for each in sim.state.migrations) < 20


@pytest.mark.parametrize("count", [16])
def test_nobody_is_moved_to_and_fro(count):
    """Every job tries every type at most once, and goes where it should be: that has an end."""
    jobs = [gains(f"j{i:02}", 1 + i % 7, at=300.0 * i, lasts=100 * DAY) for i in range(count)]
    sim = until(sim_of(jobs, "2x4:fast,2x4:slow"), DAY)
    moved = list(sim.state.migrations)
    assert sum(moved) <= 3 * count
    until(sim, 2 * DAY)
    assert list(sim.state.migrations) == moved


@pytest.mark.parametrize(("times", "where"), [(10, ["fast", "fast"]), (1.5, ["fast", "slow"])])
def test_who_waits_goes_to_a_free_gpu_of_a_slower_type_only_if_it_does_more_there(times, where):
    """The first has tried both types; when the second ends its GPU is free, and two take turns."""
    jobs = [gains("a", times), gains("b", times, at=1000, lasts=2000), gains("c", times, at=1500)]
    jobs = [each._replace(model="m") for each in jobs]
    sim = until(sim_of(jobs, f"{FAST},{SLOW}"), 6000.0)
    assert sim.state.finish_s[1] > 0
    assert sorted(types(sim)) == where


MODELS = ["lm", "recommendation", "a3c", "resnet50", "cifar10", "transformer", "cyclegan", "lm"]


@pytest.mark.parametrize("order", [1, -1])
def test_more_work_is_done_on_two_types_of_the_catalogue_than_without_knowing_them(order):
    """Work in seconds on a V100; the jobs that come first get those, whatever they gain by them."""

    def work(types):
        models = sorted(MODELS * 2)[::order]
        jobs = [job(f"{i:02}", lasts=10 * DAY)._replace(model=m) for i, m in enumerate(models)]
        nodes = parse_cluster("2x4:v100,2x4:k80")
        policy = create("gandiva", {"types": types})
        speeds = CatalogSpeeds(nodes, "v100")
        told = with_profiles(trace(*jobs), nodes, "v100")
        sim = Simulation(told, nodes, policy, SWITCH, speeds=speeds)
        until(sim, DAY)
        return sum(sim.state.work(row, DAY) for row in range(len(jobs)))

    assert work("on") > 1.05 * work("off")
