import pytest

from rota.errors import NeverFitsError, SimulationError
from rota.model.events import DecisionTaken, NodeJoined, NodeLost, StopRequested, SuspendRequested
from rota.model.job import Dependency, JobState
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.policy.base import Policy
from rota.policy.ordering.fifo import Fifo, FifoBackfill
from rota.policy.ordering.shortest import ShortestRemaining
from rota.policy.registry import BUILT_IN, create
from rota.sim.machine import FREE, Costs
from rota.testing.builders import job, random_trace, run, simulation, trace, twenty_jobs

COSTS = Costs(suspend_s=1.0, resume_s=2.0, migrate_s=4.0, cold_start_s=8.0)


def events_of(sim):
    events = []
    apply = sim.state.apply
    sim.state.apply = lambda event: (events.append(event), apply(event))
    sim.run()
    return events


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_same_trace_gives_the_same_events_bit_for_bit(name):
    first, second = (events_of(simulation(twenty_jobs(), create(name), "1x8")) for _ in range(2))
    assert repr(first) == repr(second)
    assert len(first) > 60


def test_a_job_alone_pays_for_its_start_and_nothing_else():
    state, _ = run([job(lasts=60)], Fifo(), "1x1", COSTS)
    assert state.finish_s[0] == 68.0
    assert state.first_start_s[0] == 8.0
    assert state.overhead_s[0] == 8.0
    assert state.service_s[0] == 60.0


def test_a_preemption_costs_its_suspension_and_its_resumption():
    jobs = [job("long", lasts=100), job("short", at=50, lasts=10)]
    state, _ = run(jobs, ShortestRemaining(), "1x1", COSTS)
    # long: start 0-8, runs to 50, is off its GPU at 51; short: start to 59, runs to 69;
    # long: resumed at 71, and 58 s are left.
    assert list(state.finish_s) == [129.0, 69.0]
    assert list(state.overhead_s) == [8.0 + 1.0 + 2.0, 8.0]


def test_going_on_elsewhere_costs_a_migration_on_top():
    jobs = [
        job("a", 1, lasts=20),
        job("b", 1, lasts=300),
        job("c", 2, at=10, lasts=5),
        job("d", 1, at=10, lasts=100),
    ]
    sim = simulation(jobs, ShortestRemaining(), "2x1", COSTS)
    state = sim.run().state
    assert sum(state.migrations) == 1
    moved = list(state.migrations).index(1)
    preemptions = state.preemptions[moved]
    assert state.overhead_s[moved] == 8.0 + preemptions * (1.0 + 2.0) + 4.0


def test_charges_add_up_to_their_number_times_their_cost():
    costs = FREE._replace(resume_s=62.1)
    state, _ = run(twenty_jobs(), create("tiresias", {"thresholds": "600"}), "1x8", costs)
    assert sum(state.preemptions) > 0
    assert sum(state.overhead_s) == pytest.approx(62.1 * sum(state.preemptions))


def test_a_job_of_no_duration_starts_and_finishes():
    state, _ = run([job("a", lasts=0), job("b", at=5, lasts=0)], Fifo(), "1x1", COSTS)
    assert list(state.finish_s) == [8.0, 16.0]


def test_nothing_to_do_is_done_at_once():
    state, decisions = run(trace(), Fifo())
    assert len(state.spec) == 0
    assert decisions == 0


def test_one_decision_is_taken_for_all_that_happens_at_one_instant():
    jobs = [job(i, at=10.0 * (i // 5), lasts=10) for i in range(10)]
    sim = simulation(jobs, FifoBackfill(), "1x8")
    decided_at = [e.at_s for e in events_of(sim) if isinstance(e, DecisionTaken)]
    assert decided_at == [0.0, 10.0, 20.0]


def test_finishes_come_before_arrivals_of_the_same_instant():
    jobs = [job("old", 4, lasts=10), job("new", 4, at=10, lasts=10)]
    state, _ = run(jobs, Fifo(), "1x4")
    assert state.first_start_s[1] == 10.0


def test_a_confirmation_alone_asks_for_no_decision():
    _, free = run([job(lasts=60)], Fifo(), "1x1")
    _, charged = run([job(lasts=60)], Fifo(), "1x1", COSTS)
    assert free == charged == 2


def test_a_job_that_can_never_run_is_told_before_anything_runs():
    with pytest.raises(
        NeverFitsError, match="job huge of trace asks for 9 GPUs and the cluster has 8"
    ):
        simulation([job("huge", 9)], Fifo(), "2x4")


class Lazy(Policy):
    """A policy that never starts anything."""

    def decide(self, view):
        return Plan({}, dict.fromkeys(view.active, Reason.WAIT_QUOTA), {})


def test_a_run_that_loses_a_job_is_an_error_that_names_it():
    with pytest.raises(SimulationError, match=r"1 jobs have not finished.*job stuck.*WAIT_QUOTA"):
        run([job("stuck")], Lazy())


@pytest.mark.parametrize("costs", [FREE, COSTS], ids=["free", "charged"])
def test_a_job_survives_the_loss_of_its_node_at_every_instant(costs):
    jobs = random_trace(5, num_jobs=8, max_gpus=2)
    instants = 0
    sim = simulation(jobs, ShortestRemaining(), "2x2", costs)
    while sim.step():
        instants += 1
    for lost_at in range(instants):
        sim = simulation(jobs, ShortestRemaining(), "2x2", costs)
        for _ in range(lost_at + 1):
            sim.step()
        sim.state.apply(NodeLost(sim.engine.now_s, "node0"))
        state = sim.run().state
        state.validate()
        assert list(state.service_s) == pytest.approx([spec.duration_s for spec in jobs])


def test_a_simulation_whose_only_node_is_lost_goes_on_when_it_comes_back():
    sim = simulation([job(lasts=60)], Fifo(), "1x1")
    sim.step()
    sim.state.apply(NodeLost(0.0, "node0"))
    sim.step()
    assert sim.state.reason[0] == Reason.NEVER_FITS
    sim.state.apply(NodeJoined(0.0, "node0", 1))
    assert sim.run().state.finish_s[0] == 60.0


def test_owners_may_step_in():
    sim = simulation([job("a", lasts=60), job("b", at=1, lasts=60)], Fifo(), "1x1", COSTS)
    sim.step()
    sim.step()
    sim.state.apply(StopRequested(1.0, 1))
    sim.state.apply(SuspendRequested(1.0, 0))
    while sim.step():
        pass
    assert [JobState(code) for code in sim.state.state] == [JobState.SUSPENDED, JobState.CANCELLED]
    sim.state.validate()


def test_a_job_waits_for_those_that_it_depends_on():
    jobs = [job("a", lasts=60), job("b", lasts=10)._replace(depends_on=(Dependency("a"),))]
    state, _ = run(jobs, Fifo(), "1x2", FREE)
    assert list(state.first_start_s) == [0.0, 60.0]


def test_a_job_that_waits_for_a_failure_is_cancelled_and_those_that_wait_for_it_too():
    jobs = [
        job("a", lasts=60),
        job("b", lasts=10)._replace(depends_on=(Dependency("a", "failed"),)),
        job("c", lasts=10)._replace(depends_on=(Dependency("b"),)),
    ]
    state, _ = run(jobs, Fifo(), "1x2", FREE)
    assert [JobState(each).name for each in state.state] == ["SUCCEEDED", "CANCELLED", "CANCELLED"]
    assert list(state.finish_s) == [60.0, 60.0, 60.0]
