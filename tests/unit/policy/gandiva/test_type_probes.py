"""Under Gandiva, a trial of another GPU type has to be worth what it costs."""

from itertools import pairwise

import pytest

from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.sim.machine import Costs
from rota.sim.simulation import Simulation
from rota.testing.builders import job, trace

DAY = 86400.0
SLOW, FAST = "1x1:slow", "1x1:fast"


class ByType:
    """Speed 1 on slow GPUs, and what the job's name says on fast ones."""

    def speed(self, spec, allocation, nodes):
        kinds = {nodes[node].gpu_type for node in allocation.nodes()}
        return 1.0 if kinds != {"fast"} else float(spec.name)


def gains(name, times, model="", **more):
    return job(name, **{"lasts": DAY, **more})._replace(name=str(times), model=model)


def sim_of(jobs, cluster, migrate_s=1.5, **settings):
    policy, costs = create("gandiva", settings), Costs(0.125, 0.125, migrate_s, 0.25)
    return Simulation(trace(*jobs), parse_cluster(cluster), policy, costs, speeds=ByType())


def until(sim, at_s):
    def next_s():
        times = (sim.engine.next_time_s(), sim.state.wake_at_s)
        return min((t for t in times if t is not None), default=at_s + 1)

    while next_s() <= at_s:
        sim.step()
        sim.state.validate()
    return sim


def trials(sim):
    """When trials of a type ended, of all jobs that are there."""
    told = [probe for row in sim.state.active for probe in sim.state.notes.probes.get(row, ())]
    return sorted(at_s for at_s, what, *_ in told if what.startswith("move to"))


def test_where_types_make_no_difference_few_jobs_find_out():
    """Nobody knows anything of them: there is room for all of them on both types."""
    jobs = [gains(f"j{i:02}", 1, at=i) for i in range(12)]
    assert len(trials(until(sim_of(jobs, "4x4:fast,4x4:slow"), 3600.0))) == 1


def test_after_trials_without_a_difference_there_are_none_for_longer_and_longer():
    """Jobs come and go, so that nobody is left who has tried both types."""
    jobs = [gains(f"j{i:03}", 1, at=100 * i, lasts=350) for i in range(200)]
    sim = sim_of(jobs, "4x4:fast,4x4:slow", stay_s="300")
    ended = set()
    while sim.engine.now_s < 20000.0 and sim.step():
        ended.update(trials(sim))
    times = sorted(ended)
    assert 3 <= len(times) <= 8
    pauses = [later - early for early, later in pairwise(times)]
    assert all(pause >= 300.0 * 2**n for n, pause in enumerate(pauses))


def test_of_a_kind_one_job_at_a_time_tries_a_type():
    jobs = [gains(f"j{i}", 3, model="m", at=i) for i in range(4)]
    sim = sim_of(jobs, "4x1:slow,4x1:fast")
    while not any("move" in (mark or ()) for mark in sim.state.marks):
        sim.step()
    began_s = sim.engine.now_s
    until(sim, began_s + 25.0)
    assert sum("move" in mark for mark in sim.state.marks) == 1


@pytest.mark.parametrize(("waits", "tried"), [(0, 2), (1, 0)])
def test_nobody_tries_a_type_while_a_job_is_in_the_queue(waits, tried):
    jobs = [gains("a", 1.1), gains("b", 4), *(gains(f"w{i}", 1) for i in range(waits))]
    sim = until(sim_of(jobs, f"{FAST},{SLOW}", limit="1"), 3600.0)
    assert len(trials(sim)) == tried


def test_where_others_wait_for_a_turn_only_who_has_none_goes_to_try_a_type():
    jobs = [gains(name, times) for name, times in [("a", 1.1), ("b", 4), ("c", 1.1), ("d", 4)]]
    sim = sim_of(jobs, f"{FAST},{SLOW}", pack="off")
    ran = []
    while sim.engine.now_s < 7200.0:
        before = [target is not None and target.nodes() for target in sim.state.target]
        on_trial = {row for row, mark in enumerate(sim.state.marks) if mark and "move" in mark}
        sim.step()
        for row, mark in enumerate(sim.state.marks):
            if mark and "move" in mark and row not in on_trial:
                ran.append(before[row])
    assert ran
    assert not any(ran)


def test_a_job_has_to_have_run_for_long_where_moves_are_slow():
    """The first one's move takes half a minute; when the second comes, nothing is known of it."""
    jobs = [gains("a", 3, lasts=1000), gains("b", 3, at=2000)]
    sim = until(sim_of(jobs, f"{SLOW},{FAST}", migrate_s=30.0), 10000.0)
    assert sim.state.policy_mark["types"]["moved_s"] == pytest.approx(30.25, abs=0.1)
    [at_s] = trials(sim)
    assert 2000 + 600 < at_s < 2000 + 700
