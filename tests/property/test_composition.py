"""Every ordering under every setting that is common to all: what each promises, holds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.model.events import DecisionTaken, JobLaunched, JobResumed
from rota.model.job import JobSpec, Suspension
from rota.policy.composition import common_settings
from rota.policy.ordering.ranked import Ranked
from rota.policy.registry import BUILT_IN, create, policy_class
from rota.policy.registry import settings as takes
from rota.policy.stages.selection import run_first_that_fit
from rota.sim.machine import Costs
from rota.testing.builders import run, simulation
from rota.workload.trace import Trace
from support.strategies import EIGHTHS

OWN = {
    "tiresias": {"thresholds": "50,400", "promote_knob": "4"},
    "tiresias-gittins": {"thresholds": "50,400", "promote_knob": "4", "min_samples": "2"},
    "gandiva": {"quantum_s": "32"},
    "las": {"quantum_s": "32"},
    "round-robin": {"quantum_s": "32"},
}
COMPOSING = [name for name in BUILT_IN if common_settings(policy_class(name))]
PREEMPTIVE = [name for name in COMPOSING if getattr(policy_class(name), "preemptive", True)]
# Those that take the whole order anew at each decision, not only when a quantum is over.
PROMPT = [name for name in PREEMPTIVE if name not in ("gandiva", "las", "round-robin")]
STAGES = {
    "priority": {},
    "quotas, lent": {"quotas": "x=2;*=1"},
    "quotas, not lent": {"quotas": "*=8", "borrow": "no"},
    "equal quotas": {"quotas": "equal"},
    "fair share": {"fair_share": "user", "half_life_s": "256", "fair_period_s": "32"},
    "minimum run time": {"min_run_time_s": "16"},
    "spread": {"placement": "spread"},
    "skew": {"placement": "skew-strict", "pack_limit": "0.5"},
    "all": {"quotas": "equal", "fair_share": "vc", "min_run_time_s": "16", "placement": "best-fit"},
}
QUOTAS = {"x": 4, "y": 2, "": 2}


def traces(max_jobs=8, gangs=(1, 2, 3, 4, 8), priorities=(25, 50, 100)):
    """Jobs of two users in three queues, of three priorities, with skews."""
    spec = st.builds(
        JobSpec,
        elastic=st.none(),
        depends_on=st.just(()),
        gpu_types=st.just(()),
        suspension=st.just(Suspension.UNKNOWN),
        job_id=st.just(""),
        num_gpus=st.sampled_from(gangs),
        submit_s=EIGHTHS,
        duration_s=EIGHTHS,
        priority=st.sampled_from(priorities),
        user=st.sampled_from(["a", "b"]),
        vc=st.sampled_from(["x", "y", ""]),
        skew=st.sampled_from([None, 0.1, 0.7]),
    )

    def number(jobs):
        return Trace([spec._replace(job_id=str(i)) for i, spec in enumerate(jobs)])

    return st.lists(spec, max_size=max_jobs).map(number)


def policy(name, given=None):
    """The policy with those settings that it takes: `gandiva` forgets no use."""
    known = takes(name)
    given = {key: value for key, value in (given or {}).items() if key in known}
    return create(name, OWN.get(name, {}) | given)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", COMPOSING)
@given(jobs=traces())
@settings(max_examples=4, deadline=None)
def test_every_job_gets_its_whole_gang_and_its_whole_run(name, stage, jobs):
    sim = simulation(jobs, policy(name, STAGES[stage]), "2x4")
    while sim.step():
        sim.state.validate()
    assert list(sim.state.service_s) == pytest.approx([spec.duration_s for spec in jobs])
    again, _ = run(jobs, policy(name, STAGES[stage]), "2x4")
    assert again.finish_s == sim.state.finish_s
    if name not in PREEMPTIVE:
        assert sum(again.preemptions) == 0


def held_by(state, key):
    """GPUs that running jobs have in the plan, by ``key`` of their rows."""
    held = {}
    for row in state.active:
        if state.target[row] is not None:
            held[key(row)] = held.get(key(row), 0) + state.num_gpus[row]
    return held


def waiting(state):
    return [
        row
        for row in state.active
        if state.target[row] is None and state.num_gpus[row] <= state.total_gpus
    ]


@pytest.mark.parametrize("name", COMPOSING)
@given(jobs=traces(gangs=(1, 2)))
@settings(max_examples=10, deadline=None)
def test_a_queue_never_has_more_than_its_quota_if_quotas_are_not_lent(name, jobs):
    given = {"quotas": "x=4;y=2;*=2", "borrow": "no", "min_run_time_s": "8"}
    sim = simulation(jobs, policy(name, given), "2x4")
    while sim.step():
        for queue, gpus in held_by(sim.state, lambda row: sim.state.spec[row].vc).items():
            assert gpus <= QUOTAS[queue]


@pytest.mark.parametrize("name", PROMPT)
@given(jobs=traces(gangs=(1, 2, 3, 4)))
@settings(max_examples=10, deadline=None)
def test_nobody_within_the_quota_of_the_queue_waits_for_those_who_borrow(name, jobs):
    sim = simulation(jobs, policy(name, {"quotas": "x=4;y=2;*=2"}), "1x8")
    state = sim.state
    while sim.step():
        held = held_by(state, lambda row: state.spec[row].vc)
        for row in waiting(state):
            queue = state.spec[row].vc
            assert held.get(queue, 0) + state.num_gpus[row] > QUOTAS[queue]


@pytest.mark.parametrize("name", PROMPT)
@given(jobs=traces())
@settings(max_examples=10, deadline=None)
def test_nobody_waits_for_jobs_of_a_lower_priority(name, jobs):
    sim = simulation(jobs, policy(name), "2x4")
    state = sim.state
    while sim.step():
        held = held_by(state, lambda row: state.priority[row])
        for row in waiting(state):
            ahead = sum(gpus for prio, gpus in held.items() if prio >= state.priority[row])
            assert state.total_gpus - ahead < state.num_gpus[row]


@pytest.mark.parametrize("name", COMPOSING)
@given(jobs=traces(priorities=(50,)))
@settings(max_examples=4, deadline=None)
def test_equal_priorities_have_no_effect_whatever_they_are(name, jobs):
    plain, _ = run(jobs, policy(name), "2x4")
    higher = Trace([spec._replace(priority=100) for spec in jobs])
    assert run(higher, policy(name), "2x4").state.finish_s == plain.finish_s
    if "priority" in common_settings(policy_class(name)):
        mixed = Trace([spec._replace(priority=1 + i) for i, spec in enumerate(jobs)])
        ignoring = policy(name, {"priority": "ignore"})
        assert run(mixed, ignoring, "2x4").state.finish_s == plain.finish_s


@pytest.mark.parametrize("name", PREEMPTIVE)
@given(jobs=traces(), minimum=st.sampled_from([8.0, 40.0]))
@settings(max_examples=10, deadline=None)
def test_nobody_loses_gpus_before_the_minimum_run_time(name, jobs, minimum):
    costs = Costs(suspend_s=0.5, resume_s=2.0, migrate_s=1.0, cold_start_s=4.0)
    given = {"min_run_time_s": str(minimum), "fair_share": "user", "fair_period_s": "16"}
    sim = simulation(jobs, policy(name, given), "2x4", costs)
    sim.state.log = log = []
    while sim.step():
        pass
    began = {}
    for event in log:
        if isinstance(event, JobLaunched | JobResumed):
            began[event.row] = event.at_s
        elif isinstance(event, DecisionTaken):
            for row, allocation in event.allocations.items():
                if allocation is None:
                    assert row in began
                    assert event.at_s >= began[row] + minimum


# Gandiva's nodes have turns of their own, which common settings put an end to.
RANKED = [n for n in COMPOSING if issubclass(policy_class(n), Ranked) and n != "gandiva"]


@pytest.mark.parametrize("name", RANKED)
@given(jobs=traces(max_jobs=14, priorities=(50,)))
@settings(max_examples=20, deadline=None)
def test_an_index_changes_nothing_but_the_speed(name, jobs):
    indexed, plain = policy(name), policy(name)
    plain.stages = Stubborn()
    assert run(jobs, plain, "2x4").state.finish_s == run(jobs, indexed, "2x4").state.finish_s


class Stubborn:
    """Stages that have nothing to say, and say it on the slow path."""

    def have_a_say(self, view):
        return True

    def walk(self, what_if, order, *, keep, preempted, waits):
        kept = [row for row in order if row in keep and what_if.target(row) is not None]
        rest = [row for row in order if row not in kept]
        return run_first_that_fit(what_if, kept + rest, preempted=preempted, waits=waits)

    def break_off(self, view, released):
        return False

    def own_mark(self, view):
        return view.policy_mark

    def finish(self, what_if, *, spare_young=False, **mark):
        return what_if.plan(**mark)
