"""Tests that every policy must pass. Subclass with your policy in your tests, and run pytest.

class TestMine(PolicyContract):
    work_conserving = False

    def policy(self):
        return create("mine", {"knob": "3"})
"""

import json
import random
from copy import deepcopy
from math import inf
from typing import Any

import pytest

from rota.model.decide.decision import take_decision
from rota.model.events import (
    AttemptLost,
    CommandSent,
    DecisionTaken,
    JobSubmitted,
    NodeClosed,
    NodeJoined,
    NodeLost,
    NodeOpened,
    NodeReachable,
    NodeUnreachable,
    ResumeRequested,
    RetryDue,
    SuspendRequested,
)
from rota.model.job import Dependency, Elastic, JobSpec, JobState
from rota.model.reason import Reason
from rota.model.state.state import ClusterState
from rota.model.view import View, identity
from rota.policy.base import Policy
from rota.policy.fill.settings import fill_stage
from rota.policy.information import DECLARED, HISTORY, INFORMATION, NONE, information_of
from rota.sim.cores import CatalogCores
from rota.sim.fills import Gaps
from rota.sim.machine import FREE, Costs
from rota.sim.simulation import Simulation
from rota.testing.builders import (
    job,
    random_trace,
    simulation,
    trace,
    with_background,
    with_flow,
)
from rota.workload.trace import Trace

SEEDS = (1, 2, 3, 4)
SLOW = Costs(suspend_s=3.0, resume_s=7.0, migrate_s=11.0, cold_start_s=5.0)
# A load with each seed, in turn under one setting and the other.
LOADS = [
    pytest.param(seed, costs, id=f"{seed}-{name}")
    for seed, (name, costs) in zip(SEEDS, 2 * [("free", FREE), ("slow", SLOW)], strict=True)
]
CLOSINGS = [
    pytest.param(seed, how, id=f"{seed}-{how}")
    for seed, how in zip(SEEDS, 2 * ["cordoned", "drained"], strict=True)
] + [pytest.param(seed, "unreachable", id=f"{seed}-unreachable") for seed in SEEDS[:2]]
# Far above what any policy needs for these loads: a policy that never comes to an end stops here.
MOST_STEPS = 50_000
MOST_FAILURES = 5
MOST_IDLE = 20  # times that a job is suspended for calling nothing
MOST_CLOSINGS = 60  # steps in which nodes are closed or lost, now and then


class PolicyContract:
    """The promises of a policy, each a test. Override :meth:`policy`, and the flags as they are.

    ``work_conserving``: no job waits that fits by count into the free GPUs. ``preemptive``: False
    promises that a job that has GPUs keeps them to its end.
    """

    work_conserving = True
    preemptive = True

    def policy(self) -> Any:
        """A new policy object; each call must give one that decides alike."""
        raise NotImplementedError("a policy contract test must override policy()")

    # -- the promises --------------------------------------------------------------------------

    @pytest.mark.parametrize(("seed", "costs"), LOADS)
    def test_gangs_are_whole_and_gpus_are_never_given_twice(self, seed: int, costs: Costs) -> None:
        sim = simulation(random_trace(seed), self.policy(), costs=costs)
        for _ in steps(sim):
            sim.state.validate()

    @pytest.mark.parametrize(("seed", "costs"), LOADS)
    def test_every_job_finishes_having_run_its_whole_duration(
        self, seed: int, costs: Costs
    ) -> None:
        jobs = random_trace(seed)
        state = simulation(jobs, self.policy(), costs=costs).run().state
        assert list(state.service_s) == pytest.approx([spec.duration_s for spec in jobs])

    @pytest.mark.parametrize(("seed", "costs"), LOADS)
    def test_lost_nodes_are_not_used_and_the_queue_goes_on(self, seed: int, costs: Costs) -> None:
        chance = random.Random(seed)
        sim = simulation(random_trace(seed, max_gpus=4), self.policy(), "3x4", costs)
        state, lost_at, losses = sim.state, -1, 0
        for step in steps(sim):
            if lost_at < 0 and chance.random() < 0.2 and any(state.held):
                name = chance.choice(sorted(_nodes_in_use(state)))
                losses += 1
                state.apply(NodeLost(sim.engine.now_s, name))
                lost_at = step
            elif 0 <= lost_at < step - 5:
                state.apply(NodeJoined(sim.engine.now_s, name, 4))
                lost_at = -1
            state.validate()
            self.check_waiting(state)
        assert losses, "no node was lost: the load is too light to test anything"
        assert min(state.finish_s) >= 0

    @pytest.mark.parametrize(("seed", "how"), CLOSINGS)
    def test_shut_nodes_take_no_new_job_and_the_queue_goes_on(self, seed: int, how: str) -> None:
        chance = random.Random(seed)
        sim = simulation(random_trace(seed, max_gpus=4), self.policy(), "3x4", SLOW)
        state, closed_at, closings = sim.state, -1, 0
        name, there = "", set[int]()
        for step in steps(sim):
            if closed_at < 0 and chance.random() < 0.2 and any(state.held):
                name = chance.choice(sorted(_nodes_in_use(state)))
                state.apply(_shut(sim.engine.now_s, name, how))
                there, closed_at = _targets_on(state, name), step
                closings += 1
                assert not (how == "drained" and there), "a job stays that can leave"
            elif 0 <= closed_at < step - 5:
                state.apply(_reopened(sim.engine.now_s, name, how))
                closed_at = -1
            if closed_at >= 0:
                now = _targets_on(state, name)
                assert now <= there, f"jobs {now - there} were given GPUs of a node that is {how}"
                there = now
            state.validate()
            self.check_waiting(state)
        assert closings, "no node was shut: the load is too light to test anything"
        if closed_at >= 0:
            state.apply(_reopened(sim.engine.now_s, name, how))
            for _ in steps(sim):
                self.check_waiting(state)
        assert min(state.finish_s) >= 0

    @pytest.mark.parametrize("seed", SEEDS)
    def test_jobs_that_wait_for_others_or_for_a_retry_are_not_started(self, seed: int) -> None:
        chance = random.Random(seed)
        jobs = Trace(_in_chains(random_trace(seed).jobs, chance))
        sim = simulation(jobs, self.policy(), costs=SLOW)
        state, failures, more = sim.state, 0, True
        while more:
            for _ in steps(sim):
                for row in state.waits_for.keys() | state.backoff.keys():
                    assert state.target[row] is None, f"{state.spec[row].job_id} is to start"
                state.validate()
                self.check_waiting(state)
                running = [row for row in state.active if state.state[row] == JobState.RUNNING]
                if running and failures < MOST_FAILURES and chance.random() < 0.3:
                    failures += 1
                    row, now_s = chance.choice(running), sim.engine.now_s
                    lost = (row, state.attempt[row], "exit code 1", 0.0, False, now_s + 9.0, 1)
                    state.apply(AttemptLost(now_s, *lost))
                _retry(sim, at_s=sim.engine.now_s)
            more = _retry(sim, at_s=inf)
        assert failures, "no job failed: the load is too light to test anything"
        for row, spec in enumerate(state.spec):
            for awaited, _ in spec.depends_on:
                other = state.row_of(awaited)
                assert other is not None
                assert state.finish_s[other] <= state.first_start_s[row]
        assert min(state.finish_s) >= 0

    @pytest.mark.parametrize(("seed", "costs"), LOADS[:2])
    def test_idle_flow_jobs_hold_nothing_and_go_on_once_they_call(
        self, seed: int, costs: Costs
    ) -> None:
        chance = random.Random(seed)
        jobs = with_flow(random_trace(seed), seed)
        sim = simulation(jobs, self.policy(), costs=costs)
        state, idle, more = sim.state, 0, True
        while more:
            for _ in steps(sim):
                for row in state.held_back:
                    assert row not in state.active
                    assert state.target[row] is None, f"{state.spec[row].job_id} is to go on"
                state.validate()
                self.check_waiting(state)
                running = [row for row in state.active if state.state[row] == JobState.RUNNING]
                flow = [row for row in running if state.spec[row].is_flow]
                if flow and idle < MOST_IDLE and chance.random() < 0.3:
                    idle += 1
                    row = chance.choice(flow)
                    state.apply(SuspendRequested(sim.engine.now_s, row, by_itself=True))
                    assert state.reason[row] == Reason.IDLE
                elif state.held_back and chance.random() < 0.3:
                    _ask_for(state, sim.engine.now_s, chance)
            more = bool(state.held_back)
            for row in list(state.held_back):
                state.apply(ResumeRequested(sim.engine.now_s, row))
        assert idle, "no job was idle: the load is too light to test anything"
        assert list(state.service_s) == pytest.approx([spec.duration_s for spec in jobs])

    @pytest.mark.parametrize(("seed", "costs"), LOADS[1:2])
    def test_background_jobs_change_nothing_for_the_others(self, seed: int, costs: Costs) -> None:
        """With a stage that places them, and as long as they slow nobody down."""
        jobs = random_trace(seed)
        both = with_background(jobs, seed)
        sims = []
        for each in (jobs, both):
            policy = self.policy()
            policy.fill = fill_stage({})
            # What jobs tell of cores is drawn by row, and rows are others among background jobs.
            truth: Any = {"gaps": Gaps(cost=0.0), "cpus": CatalogCores(noise=0.0)}
            sims.append(simulation(each, policy, costs=costs, **truth))
        alone, among = sims
        assert _foreground(among) == _foreground(alone)
        assert len(among.state.spec) > len(alone.state.spec)
        assert min(among.state.finish_s) >= 0, "a background job never ran to its end"

    @pytest.mark.parametrize("seed", SEEDS[:1])
    def test_background_jobs_leave_lost_and_shut_nodes(self, seed: int) -> None:
        policy = self.policy()
        policy.fill = fill_stage({})
        jobs = with_background(random_trace(seed, max_gpus=4), seed)
        sim = simulation(jobs, policy, "3x4", SLOW)
        chance, state = random.Random(seed), sim.state
        for step in steps(sim):
            now_s, name = sim.engine.now_s, f"node{chance.randrange(3)}"
            if step % 7 == 1 and step < MOST_CLOSINGS and not state.closed:
                state.apply(NodeClosed(now_s, name, chance.random() < 0.5))
            elif step % 7 == 4:
                for index in list(state.closed):
                    state.apply(NodeOpened(now_s, state.nodes[index].name))
                for index in list(state.unreachable):
                    state.apply(NodeReachable(now_s, state.nodes[index].name))
            elif step % 7 == 2 and step < MOST_CLOSINGS and not state.unreachable:
                state.apply(NodeUnreachable(now_s, name))
            elif step % 7 == 5 and step < MOST_CLOSINGS:
                state.apply(NodeLost(now_s, name))
            elif step % 7 == 6:
                for each in [each for each in state.nodes if not each.alive]:
                    state.apply(NodeJoined(now_s, each.name, each.num_gpus))
            state.validate()
            for row in state.background:
                target = state.target[row]
                assert target is None or state.shut.isdisjoint(target.nodes())
                assert target is not None or state.reason[row] != Reason.NONE

    @pytest.mark.parametrize("seed", SEEDS[:2])
    def test_the_same_load_gives_the_same_events_twice(self, seed: int) -> None:
        jobs = random_trace(seed)
        assert self.events(jobs) == self.events(jobs)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_rebuilt_policy_with_marks_read_from_json_decides_alike(self, seed: int) -> None:
        jobs = random_trace(seed)
        assert self.events(jobs, rebuild=random.Random(seed)) == self.events(jobs)

    @pytest.mark.parametrize(("seed", "costs"), LOADS)
    def test_indexes_thrown_away_at_any_decision_change_no_event(
        self, seed: int, costs: Costs
    ) -> None:
        jobs = random_trace(seed)
        kept = self.events(jobs, costs=costs)
        assert self.events(jobs, forget=random.Random(seed), costs=costs) == kept
        assert self.events(jobs, forget=_Always(), costs=costs) == kept

    def test_flow_jobs_are_decided_on_alike_whatever_is_thrown_away(self) -> None:
        jobs = with_flow(random_trace(2), 2)
        kept = self.events(jobs)
        assert self.events(jobs, rebuild=random.Random(2)) == kept
        assert self.events(jobs, forget=random.Random(2)) == kept

    @pytest.mark.parametrize("seed", SEEDS[:2])
    def test_deciding_changes_nothing_that_the_view_shows(self, seed: int) -> None:
        watched = _Watched(self.policy())
        sim = simulation(random_trace(seed), watched)
        watched.state = sim.state
        for _ in steps(sim):
            pass

    @pytest.mark.parametrize("seed", SEEDS)
    def test_every_active_job_without_gpus_has_a_reason(self, seed: int) -> None:
        sim = simulation(random_trace(seed), self.policy())
        for _ in steps(sim):
            self.check_waiting(sim.state)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_no_job_waits_that_fits_into_the_free_gpus(self, seed: int) -> None:
        if not self.work_conserving:
            pytest.skip("the policy does not promise it")
        sim = simulation(random_trace(seed), self.policy())
        for _ in steps(sim):
            state = sim.state
            free = state.assumed.count
            waiting = {row: state.num_gpus[row] for row in waiting_rows(state)}
            assert all(gpus > free for gpus in waiting.values()), (
                f"at {sim.engine.now_s} s {free} GPUs are free while (row: gang) wait: {waiting}"
            )

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_job_keeps_its_gpus_unless_the_policy_is_preemptive(self, seed: int) -> None:
        if self.preemptive:
            pytest.skip("the policy is preemptive")
        state = simulation(random_trace(seed), self.policy()).run().state
        assert sum(state.preemptions) == 0

    def test_no_jobs_and_no_nodes_are_no_trouble(self) -> None:
        sim = simulation(trace(), self.policy())
        for _ in steps(sim):
            pass
        empty = ClusterState()
        take_decision(empty, self.policy(), 0.0)

    def test_a_job_on_a_cluster_without_nodes_waits_and_is_told_why(self) -> None:
        state = ClusterState()
        state.apply(JobSubmitted(0.0, job()))
        take_decision(state, self.policy(), 0.0)
        assert state.target == [None]
        assert state.reason[0] == Reason.NEVER_FITS

    def test_an_elastic_job_whose_least_size_no_node_has_starts_on_several(self) -> None:
        wide = job(1, 4, elastic=Elastic((4, 5)))
        state = simulation([wide], self.policy(), "3x2").run().state
        assert state.state[0] == JobState.SUCCEEDED

    def test_a_job_that_never_fits_does_not_stop_one_that_does(self) -> None:
        state = ClusterState()
        state.apply(NodeJoined(0.0, "node0", 4))
        state.apply(JobSubmitted(0.0, job("large", 5)))
        state.apply(JobSubmitted(0.0, job("small", 4)))
        take_decision(state, self.policy(), 0.0)
        assert state.reason[0] == Reason.NEVER_FITS
        assert state.target[1] is not None

    def test_it_declares_what_it_is_told_of_how_long_jobs_are(self) -> None:
        told = information_of(self.policy())
        assert told in INFORMATION, (
            f"information is {told!r}; set it to one of {', '.join(map(repr, INFORMATION))}"
        )

    @pytest.mark.parametrize("seed", SEEDS[:2])
    def test_labels_that_it_is_not_told_change_no_decision(self, seed: int) -> None:
        if information_of(self.policy()) not in (NONE, HISTORY, DECLARED):
            pytest.skip("the policy is told the labels of jobs")
        jobs = random_trace(seed)
        labelled = Trace(
            spec._replace(model=f"model{index % 3}") for index, spec in enumerate(jobs)
        )
        assert _decisions(self.events(labelled)) == _decisions(self.events(jobs))

    # -- how they are checked ------------------------------------------------------------------

    def check_waiting(self, state: ClusterState) -> None:
        """Every active job without GPUs has a reason, once the policy has seen it."""
        if state.decision_needed:
            return
        for row in waiting_rows(state):
            assert state.reason[row] != Reason.NONE, (
                f"{state.spec[row].job_id} waits: nobody knows why"
            )

    def events(
        self,
        jobs: Trace,
        *,
        rebuild: random.Random | None = None,
        forget: random.Random | None = None,
        costs: Costs = SLOW,
    ) -> list[Any]:
        """Every event of a run, decisions in JSON's terms.

        With ``rebuild``, the policy is thrown away at random points, as a controller's restart
        does it, and what it remembered goes through JSON. With ``forget`` the policy stays, but the
        view shows at random points that the last plan was not its own: indexes are void.
        """
        sim = simulation(jobs, self.policy(), costs=costs)
        events: list[Any] = []
        apply = sim.state.apply

        def record(event: Any) -> None:
            if isinstance(event, DecisionTaken):
                marks = {row: _through_json(mark) for row, mark in event.marks.items()}
                mark = _through_json(event.policy_mark)
                events.append(event._replace(marks=marks, policy_mark=mark))
            else:
                events.append(event)
            apply(event)

        sim.state.apply = record  # type: ignore[method-assign]
        for _ in steps(sim):
            if forget is not None and forget.random() < 0.3:
                sim.state.plan = None
            if rebuild is not None and rebuild.random() < 0.3:
                sim.policy = self.policy()
                sim.state.plan = None
                sim.state.marks = [_through_json(mark) for mark in sim.state.marks]
                sim.state.policy_mark = _through_json(sim.state.policy_mark)
                sim.state.stage_marks = _through_json(sim.state.stage_marks)
        return events


def steps(sim: Simulation) -> Any:
    """Number the steps of a simulation while it goes on. Fails if it never comes to an end."""
    for step in range(MOST_STEPS):
        if not sim.step():
            return
        yield step
    pytest.fail(f"the simulation has not ended after {MOST_STEPS} steps")


def waiting_rows(state: ClusterState) -> list[int]:
    """The active jobs that the plan gives no GPUs."""
    return [row for row in state.active if state.target[row] is None]


def _in_chains(jobs: list[JobSpec], chance: random.Random) -> list[JobSpec]:
    """The jobs, of which about half depend on one that came before."""
    return [
        spec._replace(depends_on=(Dependency(chance.choice(jobs[:place]).job_id),))
        if place and chance.random() < 0.5
        else spec
        for place, spec in enumerate(jobs)
    ]


def _ask_for(state: ClusterState, now_s: float, chance: random.Random) -> None:
    """An idle job calls, or its user suspends or resumes it; a call resumes no other job."""
    row = chance.choice(list(state.held_back))
    idle = row in state.idle_jobs
    what = chance.choice(["call", "suspend", "resume"])
    if what == "suspend":
        state.apply(SuspendRequested(now_s, row, "ann"))
        assert (state.reason[row], row in state.idle_jobs) == (Reason.HELD_BY_USER, False)
    else:
        state.apply(ResumeRequested(now_s, row, by_itself=what == "call"))
        assert (row in state.active) == (idle or what == "resume")


def _retry(sim: Simulation, at_s: float) -> bool:
    """Let jobs start anew whose pauses end by then; False if there are none."""
    due = [row for row, until_s in sim.state.backoff.items() if until_s <= at_s]
    for row in due:
        sim.state.apply(RetryDue(sim.engine.now_s, row))
    return bool(due)


def _decisions(events: list[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, DecisionTaken)]


def _foreground(sim: Simulation) -> list[Any]:
    """What becomes of the foreground jobs: their commands, without numbers, and their ends."""
    found: list[Any] = []

    def note(event: Any) -> None:
        state = sim.state
        if isinstance(event, CommandSent) and not state.spec[event.command.row].is_background:
            command = event.command
            job_id = state.spec[command.row].job_id
            fields = [value for name, value in command._asdict().items() if name not in _NUMBERS]
            found.append((event.at_s, type(command).__name__, job_id, fields))

    sim.state.observers.append(note)
    for step in steps(sim):
        if step % 10 == 0:
            sim.state.validate()
    state = sim.state
    ends = {
        spec.job_id: (state.finish_s[row], state.service_s[row], state.preemptions[row])
        for row, spec in enumerate(state.spec)
        if not spec.is_background
    }
    return [sorted(found, key=repr), ends]


_NUMBERS = ("command_id", "row")


def _nodes_in_use(state: ClusterState) -> set[str]:
    return {state.nodes[node].name for held in state.held if held for node in held.nodes()}


def _shut(now_s: float, name: str, how: str) -> NodeClosed | NodeUnreachable:
    if how == "unreachable":
        return NodeUnreachable(now_s, name)
    return NodeClosed(now_s, name, how == "drained")


def _reopened(now_s: float, name: str, how: str) -> NodeOpened | NodeReachable:
    return NodeReachable(now_s, name) if how == "unreachable" else NodeOpened(now_s, name)


def _targets_on(state: ClusterState, name: str) -> set[int]:
    """The jobs that the plan gives GPUs of a node."""
    index = state.node_index[name]
    targets = enumerate(state.target)
    return {row for row, target in targets if target is not None and index in target.nodes()}


def _through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


class _Always(random.Random):
    """A chance that always comes."""

    def random(self) -> float:
        return 0.0


class _Watched(Policy):
    """A policy under watch: fails if deciding or telling its order changes what its view shows."""

    state: ClusterState

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.identity = identity(policy)
        self.needs_duration = policy.needs_duration
        self.cpus, self.fill = policy.cpus, policy.fill

    def decide(self, view: View) -> Any:
        before = deepcopy(_columns(self.state))
        order = self._policy.order(view)
        assert sorted(order) == sorted(view.active), "order() has other rows than the active ones"
        plan = self._policy.decide(view)
        after = _columns(self.state)
        changed = [name for name, value in before.items() if value != after[name]]
        assert not changed, f"order() or decide() changed {', '.join(changed)}"
        return plan


def _columns(state: ClusterState) -> dict[str, Any]:
    columns = {name: value for name, value in vars(state).items() if not name.startswith("_")}
    for lookup in ("reports", "truth", "cores"):  # what a driver knows, no columns
        del columns[lookup]
    layers = ("assumed", "idle", "assumed_background", "idle_background")
    free = {name: columns.pop(name) for name in layers}
    return columns | {
        name: (gpus.count, gpus.masks.copy(), gpus.by_count.copy()) for name, gpus in free.items()
    }
