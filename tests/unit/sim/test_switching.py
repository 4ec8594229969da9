"""Switches made at once leave what their events would have left."""

import pytest

from rota.model.cluster import parse_cluster
from rota.model.events import CommandSent
from rota.model.state.ledger import Ledger
from rota.policy.registry import create
from rota.sim.costsets import SETS
from rota.sim.faults import Faults
from rota.sim.machine import FREE, Costs
from rota.sim.simulation import Simulation
from rota.testing.builders import job, random_trace, trace
from rota.workload.trace import Trace

COSTS = {
    "free": FREE,
    "measured": Costs(),
    "slow": Costs(suspend_s=0.5, resume_s=2.0, migrate_s=4.0, cold_start_s=8.0),
    # The larger a job, the longer it takes: some go on before others have stopped.
    "unequal": lambda spec: Costs(0.25 * spec.num_gpus, spec.num_gpus, 1.5, 3.0 * spec.num_gpus),
    "cooperative": SETS["cooperative"],
    "restart": SETS["restart"],
}
POLICIES = {
    "gandiva": {"quantum_s": "20"},
    "tiresias": {"thresholds": "100,400", "promote_knob": "2"},
    "round-robin": {"quantum_s": "20"},
    "las": {"quantum_s": "45"},
    "srtf": {},
    "fifo-backfill": {},
}
COLUMNS = [name for name in Ledger.__annotations__ if name in vars(Ledger())] + [
    "target", "held", "home", "outstanding", "marks", "unsettled", "events", "decision_seq",
    "next_command_id", "wake_at_s", "policy_mark", "completed_gpu_s",
]  # fmt: skip


def ended(jobs, policy, costs, *, watched, **more):
    """A simulation at its end, and the events that were really made."""
    sim = Simulation(
        jobs, parse_cluster("1x8,2x2"), create(policy, POLICIES[policy]), costs, **more
    )
    made = []
    if watched:
        sim.state.observers.append(made.append)
    else:
        apply = sim.state.apply
        sim.state.apply = lambda event: (made.append(event), apply(event))
    sim.run()
    sim.state.validate()
    return sim, made


def differences(one, other):
    states = one.state, other.state
    return [name for name in COLUMNS if getattr(states[0], name) != getattr(states[1], name)]


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_can_tell_switches_made_at_once_from_their_events(policy, costs):
    jobs = random_trace(0, num_jobs=30)
    watched, events = ended(jobs, policy, COSTS[costs], watched=True)
    alone, made = ended(jobs, policy, COSTS[costs], watched=False)
    assert differences(watched, alone) == []
    assert watched.decisions == alone.decisions
    assert len(made) < len(events)


@pytest.mark.parametrize("seed", range(2))
def test_nor_where_nodes_fail_and_jobs_crash(seed):
    long = Trace([each._replace(duration_s=9 * each.duration_s) for each in random_trace(seed)])
    faults = Faults(seed=seed, mtbf_s=4000.0, mttr_s=500.0, worker_mtbf_s=20_000.0)
    one, other = (
        ended(long, "gandiva", COSTS["slow"], watched=watched, faults=faults)[0]
        for watched in (True, False)
    )
    assert differences(one, other) == []
    assert one.decisions == other.decisions


def test_turns_make_no_event_for_a_switch():
    jobs = trace(*(job(i, 1 + i % 2, lasts=6000 + 10 * i) for i in range(24)))
    sim, made = ended(jobs, "gandiva", COSTS["slow"], watched=False)
    assert sim.state.events > 4000
    assert sum(type(event) is CommandSent for event in made) < 100
