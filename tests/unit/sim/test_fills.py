"""Background jobs in simulations: their speeds, what they cost others, and what is measured."""

import pytest

from rota.errors import NeverFitsError
from rota.model.events import FillMeasured, SpeedChanged
from rota.model.job import BACKGROUND, FOREGROUND, JobSpec, Share
from rota.policy.registry import create
from rota.sim.fills import PAIRS, Beside, Gaps
from rota.testing.builders import job, simulation
from rota.testing.policy_contract import steps
from rota.workload.trace import Trace


def background(name, **more):
    return job(name, share=Share(BACKGROUND), **more)


def run(*jobs, gaps=None, cluster="1x1", policy="fifo"):
    sim = simulation(Trace(jobs), create(policy), cluster, gaps=gaps)
    sim.state.log = []
    for _ in steps(sim):
        sim.state.validate()
    return sim


def told(sim, kind):
    return [event for event in sim.state.log if isinstance(event, kind)]


def ends(sim):
    return {spec.job_id: sim.state.finish_s[row] for row, spec in enumerate(sim.state.spec)}


FREE = Gaps(cost=0.0, noise=0.0, probe_s=10.0)


def test_alone_on_a_gpu_a_background_job_has_its_full_speed():
    sim = run(background("b", lasts=50.0), gaps=FREE)
    assert ends(sim) == {"b": 50.0}
    assert told(sim, FillMeasured) == [FillMeasured(10.0, 0, -1, 1.0, 1.0)]


def test_beside_a_foreground_job_it_has_what_that_one_leaves():
    sim = run(job("a", lasts=100.0, gpu_util=0.75), background("b", lasts=50.0), gaps=FREE)
    # A quarter of its speed for 100 s, then all of it.
    assert ends(sim) == {"a": 100.0, "b": 125.0}
    assert told(sim, FillMeasured) == [
        FillMeasured(10.0, 1, 0, 1.0, 0.25, 1.0, 1.0, PAIRS),
        FillMeasured(110.0, 1, -1, 1.0, 1.0),
    ]
    assert [(e.row, e.speed) for e in told(sim, SpeedChanged)] == [(1, 0.25), (1, 1.0)]


def test_speeds_change_when_the_foreground_job_comes_and_is_suspended():
    jobs = [
        background("b", lasts=100.0),
        job("long", at=10.0, lasts=60.0, gpu_util=0.5),
        job("short", at=20.0, lasts=10.0, gpu_util=0.8),
    ]
    sim = run(*jobs, gaps=FREE, policy="srtf")
    assert ends(sim) == {"long": 80.0, "short": 30.0, "b": pytest.approx(80.0 + 100 - 10 - 32)}
    assert sim.state.preemptions[1] == 1
    speeds = [e.speed for e in told(sim, SpeedChanged) if e.row == 0 and e.speed < 1]
    assert speeds == pytest.approx([0.5, 0.2, 0.5])


def test_what_it_harvests_costs_the_foreground_job_up_to_its_limit():
    gaps = Gaps(cost=0.2, noise=0.0, probe_s=10.0)
    a = job("a", lasts=100.0, gpu_util=0.75, share=Share(FOREGROUND, 1.05))
    sim = run(a, background("b", lasts=50.0), gaps=gaps)
    assert ends(sim)["a"] == pytest.approx(105.0)
    measured = told(sim, FillMeasured)[0]
    assert (measured.slowdown, measured.harvest) == pytest.approx((1.05, 0.25))
    strict = a._replace(share=Share(FOREGROUND, 1.01))
    sim = run(strict, background("b", lasts=50.0), gaps=gaps)
    assert ends(sim)["a"] == pytest.approx(101.0)
    assert told(sim, FillMeasured)[0].harvest == pytest.approx(0.05)
    none = a._replace(share=Share(FOREGROUND, 1.0))
    sim = run(none, background("b", lasts=50.0), gaps=gaps)
    assert ends(sim)["a"] == 100.0
    assert ends(sim)["b"] > 149.0


def test_a_gang_is_as_slow_as_its_slowest_gpu():
    gaps = Gaps(cost=0.1, noise=0.0, costs={"rough": 0.3})
    jobs = [
        job("a", 2, lasts=100.0, gpu_util=0.9, share=Share(FOREGROUND, 2.0)),
        background("b", lasts=500.0),
        background("c", lasts=500.0, model="rough"),
    ]
    sim = run(*jobs, gaps=gaps, cluster="1x2")
    assert ends(sim)["a"] == pytest.approx(103.0)


def test_a_background_gang_is_as_fast_as_on_the_gpu_where_it_gets_least():
    gaps = Gaps(cost=0.1, noise=0.0, probe_s=10.0)
    jobs = [
        job("a", lasts=100.0, gpu_util=0.5, share=Share(FOREGROUND, 1.05)),
        job("c", lasts=200.0, gpu_util=0.8, share=Share(FOREGROUND, 1.5)),
        job("g", 2, lasts=60.0, share=Share(BACKGROUND)),
    ]
    sim = run(*jobs, gaps=gaps, cluster="1x2")
    # A fifth of its speed until c ends, then all of it; the jobs lose by what each GPU gives.
    assert ends(sim)["a"] == pytest.approx(105.0)
    assert ends(sim)["c"] == pytest.approx(204.0)
    assert ends(sim)["g"] == pytest.approx(204.0 + 60.0 - 0.2 * 204.0)
    first, *_ = told(sim, FillMeasured)
    assert (first.beside, first.slowdown, first.harvest) == pytest.approx((0, 1.05, 0.2))
    assert sim.machine.fills.figures()["beside_gpu_s"] == pytest.approx(105.0 + 204.0)


def test_a_background_gang_that_no_node_can_have_is_refused():
    with pytest.raises(NeverFitsError, match="of one node and the largest node has 2"):
        run(job("g", 3, lasts=1.0, share=Share(BACKGROUND)), cluster="2x2")


def test_some_jobs_cost_more_than_any_controller_can_hold_back():
    gaps = Gaps(floors={"antagonist": 0.5})
    spec = background("b", model="antagonist")
    assert gaps.beside(spec, [job("a")]).slowdown == 1.5


def test_measurements_have_the_noise_that_was_asked_for_and_are_drawn_by_its_seed():
    def figures(seed):
        gaps = Gaps(noise=0.05, seed=seed, probe_s=1.0)
        sim = run(job("a", lasts=100.0), background("b", lasts=5.0), gaps=gaps)
        return [(e.slowdown, e.harvest, e.low, e.high) for e in told(sim, FillMeasured)]

    assert figures(1) == figures(1) != figures(2)
    (slowdown, harvest, low, high), *_ = figures(1)
    assert slowdown != 1.03
    assert (low, high) == pytest.approx((slowdown / 1.103, slowdown * 1.103), rel=1e-3)
    assert harvest == pytest.approx(0.3, rel=0.25)


def test_conditions_that_end_before_the_probe_are_not_measured():
    jobs = [background("b", lasts=100.0), *(job(i, at=8.0 * i, lasts=5.0) for i in range(1, 5))]
    sim = run(*jobs, gaps=FREE)
    assert len(told(sim, FillMeasured)) == 1


def test_the_slowdown_of_a_run_counts_the_time_beside_background_jobs():
    gaps = Gaps(cost=0.2, noise=0.0)
    sim = run(job("a", lasts=200.0, gpu_util=0.75), background("b", lasts=25.0), gaps=gaps)
    figures = sim.machine.fills.figures()
    assert figures["beside_gpu_s"] == pytest.approx(100.0)
    assert figures["foreground_slowdown"] == pytest.approx(1.05)


def test_another_model_of_gaps_can_be_given():
    class Half:
        noise, seed, probe_s = 0.0, 0, 1000.0

        def beside(self, background: JobSpec, foreground: list[JobSpec]) -> Beside:
            return Beside(0.5, 2.0)

    sim = run(job("a", lasts=10.0), background("b", lasts=20.0), gaps=Half())
    assert ends(sim) == {"a": 20.0, "b": 30.0}
