"""Jobs that play measured profiles: small ones made here, with times that can be told by hand."""

from typing import Any

import pytest

from rota.errors import PlanError, SimulationError
from rota.model.allocation import Allocation, on_node
from rota.model.cluster import parse_cluster
from rota.model.events import JobRetuned, SpeedChanged
from rota.model.measured.reports import BatchRange, GradientNoise, Learned, StepPoint
from rota.policy.base import Policy
from rota.policy.registry import create
from rota.sim.faults import Fault, Faults, What
from rota.sim.machine import FREE, restarts
from rota.sim.measured import MeasuredSpeeds, played
from rota.sim.simulation import Simulation
from rota.testing.builders import job, trace
from rota.workload.measured import Epochs, Measured, Step

# A step of 4 samples a GPU takes 1 s on one GPU, and 2 s of which 1 s is exchange on more; of 8
# samples 2 s, and 3 s. Two epochs of 10 steps of batch 8 each. A batch of 16 gains 2 a step in the
# first epoch, and 1 in the second.
ALONE = {4: Step(1.0, 0.0), 8: Step(2.0, 0.0)}
TOGETHER = {4: Step(2.0, 1.0), 8: Step(3.0, 1.0)}
TOY = Measured(
    "toy",
    {(1,): ALONE, (2,): TOGETHER, (4,): TOGETHER, (1, 1): TOGETHER},
    (),
    {
        8: Epochs((10.0, 20.0), (10.0, 20.0), (0.0, 1.0), (1.0, 0.0)),
        32: Epochs((10.0, 20.0), (2.5, 12.5), (0.0, 1.0), (1.0, 0.0)),
    },
)


class Script(Policy):
    """A policy that gives the one job what is written down, time by time."""

    needs_duration = False

    def __init__(self, *steps: tuple[float, Allocation | None]) -> None:
        self.steps = list(steps)
        self.seen: list[Any] = []

    def decide(self, view):
        self.seen.append(self.look(view))
        now = [place for at_s, place in self.steps if at_s <= view.now_s][-1:]
        later = [at_s for at_s, _ in self.steps if at_s > view.now_s]
        what_if = view.what_if()
        if 0 in view.active and now and what_if.target(0) != now[0]:
            if what_if.target(0) is not None:
                what_if.release(0, 0)
            if now[0] is not None:
                what_if.give(0, now[0])
        return what_if.plan(wake_at_s=min(later, default=None))

    def look(self, view):
        return view.now_s


def simulation(policy, *, gpus=1, batch=8, costs=FREE, faults=None, **more):
    profiles = {"toy": TOY}
    jobs = played(trace(job("a", gpus, model="toy", batch=batch)), profiles)
    speeds = MeasuredSpeeds(profiles)
    found = Simulation(jobs, parse_cluster("2x4"), policy, costs, speeds=speeds, **more)
    if faults is not None:
        faults.attach(found)
    found.state.log = []
    return found


def finish_s(policy, **more):
    return simulation(policy, **more).run().state.finish_s[0]


ONE, TWO, APART = on_node(0, 1), on_node(0, 3), Allocation(((0, 1), (1, 1)))


def test_a_job_takes_as_long_as_its_own_gpus_and_batch_do():
    assert finish_s(Script((0, ONE))) == 40.0  # 2 x 10 steps of 2 s
    assert finish_s(Script((0, TWO)), gpus=2, batch=16) == pytest.approx(5 * 3.0 + 10 * 3.0)


def test_another_size_gains_by_its_step_time():
    assert finish_s(Script((0, TWO))) == pytest.approx(20 * 2.0)  # 4 samples on each
    assert finish_s(Script((0, on_node(0, 1).with_batch((4, 0))))) == pytest.approx(
        # half the batch gains half a step in the first epoch, a whole one in the second
        20 * 1.0 + 10 * 1.0
    )


def test_the_speed_changes_with_the_epoch_without_a_decision():
    policy = Script((0, TWO.with_batch((8, 0))))
    found = simulation(policy)
    state = found.run().state
    assert state.finish_s[0] == pytest.approx(5 * 3.0 + 10 * 3.0)
    changes = [event for event in state.log if isinstance(event, SpeedChanged)]
    assert [(event.at_s, event.by_itself) for event in changes] == [(pytest.approx(15.0), True)]
    assert policy.seen == [0.0, pytest.approx(45.0)]  # its submission and its end


def test_a_batch_is_retuned_while_the_job_runs():
    policy = Script((0, TWO), (10, TWO.with_batch((8, 0))))
    found = simulation(policy)
    state = found.run().state
    # 5 steps of 2 s, then 2.5 of 3 s for the rest of the epoch, and 10 of 3 s.
    assert state.finish_s[0] == pytest.approx(10 + 7.5 + 30)
    assert [e.batch for e in state.log if isinstance(e, JobRetuned)] == [(8, 0)]
    assert (state.preemptions[0], state.restarts[0], state.attempt[0]) == (0, 0, 1)


def test_a_restart_holds_the_gpus_without_progress():
    costs = restarts(30.0)
    assert finish_s(Script((0, ONE)), costs=costs) == 70.0
    # 20 s of work are half of it; then 30 s, and the other half on two GPUs.
    policy = Script((0, ONE), (50, TWO))
    found = simulation(policy, costs=costs)
    assert found.run().state.finish_s[0] == pytest.approx(50 + 30 + 20)
    assert (found.state.overhead_s[0], found.state.restarts[0]) == (60.0, 1)


def test_a_job_changes_its_size_by_a_suspension_and_goes_on_anywhere():
    policy = Script((0, ONE), (10, APART), (20, None), (30, on_node(1, 0b1111)))
    found = simulation(policy)
    state = found.run().state
    assert state.num_gpus[0] == 4
    # Work 10 s on one GPU, 10 s on two nodes at speed 1; four GPUs take two samples each: 4.
    assert state.service_s[0] * 4 + state.extra_gpu_s[0] == pytest.approx(
        10 + 20 + 4 * (state.finish_s[0] - 30)
    )
    state.validate()


def test_decisions_wait_for_the_interval():
    policy = Script((0, ONE))
    profiles = {"toy": TOY}
    jobs = [job("a", 1, at=61, model="toy", batch=8), job("b", 1, at=190, model="toy", batch=8)]
    fifo = create("fifo")
    state = (
        Simulation(
            played(trace(*jobs), profiles),
            parse_cluster("1x1"),
            fifo,
            FREE,
            speeds=MeasuredSpeeds(profiles),
            interval_s=60.0,
        )
        .run()
        .state
    )
    assert list(state.first_start_s) == [120.0, 240.0]
    assert list(state.finish_s) == [160.0, 280.0]
    assert policy.seen == []


def test_what_comes_at_a_multiple_of_the_interval_is_decided_there():
    state = Simulation(
        trace(job("a", at=60, lasts=60), job("b", at=60, lasts=5)),
        parse_cluster("1x1"),
        create("fifo"),
        FREE,
        interval_s=60.0,
    )
    assert list(state.run().state.first_start_s) == [60.0, 120.0]


def test_slow_nodes_slow_every_phase():
    slow = Faults(script=(Fault(10.0, What.SLOW, "node0", 20.0, speed=0.5),))
    policy = Script((0, TWO.with_batch((8, 0))))
    assert finish_s(policy, faults=slow) == pytest.approx(45 + 10)


def test_a_model_without_a_profile_is_told():
    with pytest.raises(SimulationError, match="job a trains 'other', of which there is no profile"):
        played(trace(job("a", model="other")), {"toy": TOY})


# -- what policies see -----------------------------------------------------------------------------


class Reader(Script):
    """Writes down what the view tells of the job."""

    def look(self, view):
        if not view.active:
            return None
        return view.measured(0), view.noise(0), view.learned(0)


def test_a_job_reports_where_it_has_run_and_how_far_it_is():
    policy = Reader((0, ONE), (10, TWO), (15, None), (25, TWO))
    simulation(policy).run()
    first = StepPoint(1, 1, 8, 2.0, 2.0)
    second = StepPoint(1, 2, 4, 1.0, 2.0)
    before, after, paused, again = policy.seen[:4]
    assert before == ((), None, Learned(0.0, 10.0, 20.0))
    assert after == ((first,), GradientNoise(0.0, 1.0), Learned(5.0, 10.0, 20.0))
    assert paused[0] == (first, second)
    assert paused[2] == again[2] == Learned(7.5, 10.0, 20.0)


def test_the_range_of_batches_is_as_measured():
    class Ranges(Script):
        def look(self, view):
            return view.batch_range(0) if view.active else None

    policy = Ranges((0, ONE))
    simulation(policy).run()
    assert policy.seen[0] == BatchRange(8, 32, 4, 8)


def test_only_oracles_see_the_truth():
    class Looks(Script):
        def look(self, view):
            return (view.true_step_s(0, 2), view.true_steps_left(0)) if view.active else None

    class Oracle(Looks):
        needs_duration = True

        def look(self, view):
            whole = view.true_steps_left(0, whole_epochs=True) if view.active else None
            return (*(super().look(view) or ()), whole)

    with pytest.raises(PlanError, match="needs_duration"):
        simulation(Looks((0, ONE))).run()
    policy = Oracle((0, ONE), (10, ONE), (30, ONE))
    simulation(policy).run()
    assert policy.seen[:3] == [(2.0, 20.0, 10.0), (2.0, 15.0, 10.0), (2.0, 5.0, 1.0)]


def test_jobs_without_profiles_report_nothing():
    class Looks(Script):
        def look(self, view):
            return view.measured(0), view.noise(0), view.learned(0), view.batch_range(0)

    policy = Looks((0, ONE))
    Simulation(trace(job("a")), parse_cluster("1x4"), policy, FREE).run()
    assert policy.seen[0] == (None, None, None, None)


# -- GPU types -------------------------------------------------------------------------------------


def on_types(policy, *, cluster="1x4:slow,1x4:fast", speeds=(("slow", 1.0), ("fast", 4.0))):
    profiles = {"toy": TOY}
    jobs = played(trace(job("a", 1, model="toy", batch=8, speeds=speeds)), profiles)
    model = MeasuredSpeeds(profiles)
    return Simulation(jobs, parse_cluster(cluster), policy, FREE, speeds=model)


def test_steps_are_as_many_times_as_fast_as_the_job_is_on_the_type():
    assert on_types(Script((0, ONE))).run().state.finish_s[0] == 40.0
    assert on_types(Script((0, on_node(1, 1)))).run().state.finish_s[0] == 10.0
    both = on_types(Script((0, Allocation(((0, 1), (1, 1))))))
    assert both.run().state.finish_s[0] == 40.0  # the slowest of them; 2 s a step on two GPUs


def test_a_job_tells_on_which_type_its_steps_were_measured():
    found = on_types(Script((0, ONE), (4, on_node(1, 1))))
    while found.engine.now_s < 4.0:
        found.step()
    assert found.state.reports.measured(0) == (
        StepPoint(1, 1, 8, 2.0, 2.0, "slow"),
        StepPoint(1, 1, 8, 0.5, 0.5, "fast"),
    )


def test_a_job_on_a_type_that_it_names_no_speed_of_goes_as_measured():
    found = on_types(Script((0, on_node(1, 1))), speeds=(("other", 3.0),))
    assert found.run().state.finish_s[0] == 40.0


def test_a_job_where_it_cannot_run_is_an_error():
    found = on_types(Script((0, on_node(1, 1))), speeds=(("fast", 0.0),))
    with pytest.raises(SimulationError, match="puts job a on fast GPUs, where by its speeds"):
        found.run()
