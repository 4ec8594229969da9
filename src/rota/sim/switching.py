"""Switches of a simulation that nobody watches: jobs that stop and jobs that go on, at once.

Where jobs take turns, nearly all events are those of such switches: a command and what confirms
it, for each job that stops and each that goes on. If nothing else happens until the last of them
is confirmed, the ledger is brought to where these events would have brought it.
"""

from heapq import heappop
from math import inf

from rota.model.allocation import Allocation
from rota.model.state.ledger import PENDING, RUNNING, SUSPENDED
from rota.model.state.state import ClusterState
from rota.model.state.switches import go_on, moves, stop
from rota.sim.engine import FINISH, Engine
from rota.sim.machine import Machine

STOPS, AT_ONCE, AFTER = 0, 1, 2  # in this order commands of one instant are sent

# When a switch is confirmed, when its command is sent, which of these it is, and its row.
Switch = tuple[float, float, int, int]


def switch(state: ClusterState, machine: Machine, engine: Engine) -> bool:
    """Carry out what the last plan wants, if nothing else happens before all is confirmed.

    False, and nothing is done, if that takes events: somebody observes them, a job's speed may
    depend on others, something else than a stop or a start is due, or some of it is confirmed only
    after the next thing happens.
    """
    if state.observers or state.keeps_stories or state.closed or state.backoff:
        return False
    if not machine.is_steady or state.target_cpus or state.held_cpus:
        return False
    if state.has_background_jobs:
        return False
    switches = _switches(state, machine, engine.now_s)
    if not switches:
        return False
    switches.sort()
    last_s, target = switches[-1][0], state.target
    if state.wake_at_s is not None and state.wake_at_s <= last_s:
        return False
    if engine.arrival_s <= last_s or _next_s(state, machine, engine) <= last_s:
        return False
    speeds: dict[int, float] = {}
    for at_s, _, what, row in switches:
        if what != STOPS:
            place = target[row]
            assert place is not None
            speeds[row] = speed = machine.speed(row, place)
            left_s = state.duration_s[row] - state.service_s[row] + state.lag_s[row]
            if at_s + left_s / speed <= last_s + 1e-3:  # more than sums of times are off by
                return False
    # As their commands are sent, then as they are confirmed.
    state.changed += sorted(row for _, _, what, row in switches if what == STOPS)
    for at_s, sent_s, _, row in switches:
        place = target[row]
        if place is None:
            stop(state, row, sent_s, at_s)
        else:
            go_on(state, row, place, sent_s, at_s, speeds[row])
            machine.job_runs(row)
    return True


def _switches(state: ClusterState, machine: Machine, now_s: float) -> list[Switch]:
    """All that is to be done; empty if some of it is no plain stop or start."""
    target, held, home, standing = state.target, state.held, state.home, state.state
    switches: list[Switch] = []
    stops: dict[int, list[tuple[int, float]]] = {}  # by node, GPUs that become free, and when
    starts: list[tuple[int, Allocation]] = []
    for row in state.unsettled:
        has, gets = held[row], target[row]
        if state.outstanding[row] is not None:
            return []
        if gets is None and has is not None and not has.shared:
            if standing[row] != RUNNING:
                return []
            free_s = now_s + machine.costs(row).suspend_s
            switches.append((free_s, now_s, STOPS, row))
            for node, mask in has.parts:
                stops.setdefault(node, []).append((mask, free_s))
        elif has is None and gets is not None and not gets.shared and gets.batch is None:
            if standing[row] != (PENDING if home[row] is None else SUSPENDED):
                return []
            if gets.num_gpus != state.num_gpus[row]:
                return []
            starts.append((row, gets))
        else:
            return []
    idle = state.idle.masks
    for row, gets in starts:
        sent_s, what = now_s, AT_ONCE
        for node, mask in gets.parts:
            taken = mask & ~idle[node]
            for gpus, free_s in stops.get(node, ()) if taken else ():
                if gpus & taken:
                    what, taken = AFTER, taken & ~gpus
                    sent_s = max(sent_s, free_s)
            if taken:
                return []
        costs, last = machine.costs(row), home[row]
        if last is None:
            delay_s = costs.cold_start_s
        else:
            delay_s = costs.resume_s + (costs.migrate_s if moves(last, gets) else 0.0)
        switches.append((sent_s + delay_s, sent_s, what, row))
    return switches


def _next_s(state: ClusterState, machine: Machine, engine: Engine) -> float:
    """Time of the next entry; ends of jobs that have stopped since are dropped."""
    heap = engine.heap
    while heap:
        at_s, kind, _, what = heap[0]
        if kind != FINISH or (state.since_s[what] >= 0 and machine.finish_s(what) == at_s):
            return at_s
        heappop(heap)
    return inf
