"""Explains why a job does not run: each blocker, who holds what it needs, what would start it."""

from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import Any

from rota.explain import filling, reservation, trial_wait
from rota.explain.burst import burst_of
from rota.explain.cpus import cpus_of
from rota.explain.data_wait import data_wait_of
from rota.explain.flow import flow_of
from rota.explain.probes import tell as tell_probes
from rota.explain.sharing import sharing_of
from rota.explain.turns import ahead_text
from rota.explain.turns import blocker as turn_blocker
from rota.explain.turns import tell as tell_turns
from rota.model.allocation import Allocation, gpus_text, on_node
from rota.model.decide.device_memory import memory_keepers
from rota.model.decide.live_limits import (
    all_gpus,
    fits_on_more_nodes,
    fits_once_open,
    largest_node,
    most_gpus,
    of_wanted_types,
    stays_on_node,
)
from rota.model.ending import asked_end_text
from rota.model.fallback import sentence
from rota.model.job import JobState, Suspension
from rota.model.naming import few, jobs_text
from rota.model.reason import SENTENCES, Reason
from rota.model.state.displacement import takers_text
from rota.model.state.ledger import NEEDLESS
from rota.model.state.state import ClusterState
from rota.model.turns import Ahead, Turns

UNDECIDED = "the policy has yet to decide about it"
NO_NODE = "no node has joined yet"
MOST_HOLDERS = 100  # of the jobs whose turn comes earlier
ADAPTING = "`rota up --policy pollux` does that"
WAITING = (JobState.PENDING, JobState.SUSPENDED, JobState.HELD, JobState.SUSPENDING)


def explain(
    state: ClusterState,
    row: int,
    now_s: float,
    history: Iterable[tuple[float, int]] = (),
    *,
    resizes: bool = False,
    adapts: bool = True,
    fills: bool = True,
    turns: Turns | None = None,
    ahead: Ahead | None = None,
    quota: int | None = None,
    awaited: Iterable[Mapping[str, str]] = (),
    most_nodes: int = 0,
    shortage: str | None = None,
    progress: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The verdict on one job, JSON-able, as of ``now_s``.

    ``{"job_id", "state", "reason", "sentence", "blockers": [{"rule", "need", "have", "held_by"}],
    "would_start_if", "awaited", "position", "turns", "sharing", "data_wait", "resizing",
    "warnings", "trials": [{"at_s", "what", "predicted", "measured", "kept", "with", "on", "from"}],
    "history": [{"at_s", "reason"}], "cpus", "filling", "burst", "flow"}``.
    Reasons and rules are the names of :class:`Reason`; need, have, would_start_if and resizing are
    sentences, ``held_by`` job ids: of jobs whose turn comes earlier the first ``MOST_HOLDERS``;
    ``held_by_more`` counts the others, if there are any.
    A job that needs nothing has no blockers, and None for would_start_if and position; position
    counts the jobs that want GPUs and have none, by arrival, from 1. ``history`` is
    ``(at_s, reason code)`` as the controller saw it change. ``resizing`` says of a job with a
    range of GPUs why it has as many as it has, or why that can't change, and is None for others;
    ``resizes``: whether the policy changes the sizes of running jobs, ``adapts``: whether it
    chooses batches, ``fills``: whether a stage places background jobs. ``warnings`` are the
    policy's sentences on what the job has told and it can't reckon with, which batches did not go,
    and that the job's block ``batch`` or ``share`` has no effect.
    ``trials`` are the probes made with the job (:func:`rota.explain.probes.tell`). ``turns`` is
    what the policy says of them, and is told as in
    :func:`rota.explain.turns.tell`, and ``ahead`` which jobs come before this one, which the
    sentence tells of a job that waits for a turn, or to be let in; ``sharing`` as in
    :func:`rota.explain.sharing.sharing_of`,
    ``data_wait`` as in :func:`rota.explain.data_wait.data_wait_of`, ``cpus`` as in
    :func:`rota.explain.cpus.cpus_of`, ``filling`` as in :func:`rota.explain.filling.filling_of`,
    ``burst`` as in :func:`rota.explain.burst.burst_of`, ``flow`` as in
    :func:`rota.explain.flow.flow_of`, which ``progress``, the job's latest report, is for.
    ``quota`` is how many GPUs the quota of the job's queue has, None if that is not known.
    ``awaited`` are the nodes that were asked for and are not there yet, each with its ``name`` and
    ``why``: a job that waits for GPUs is told of them. ``most_nodes`` is how many nodes there can
    be, 0 if none can be asked for.
    ``shortage`` says how much room the disk of the state folder has, if that is too little.
    """
    job_state = JobState(state.state[row])
    parks = job_state == JobState.MIGRATING and row in state.parking
    waits = job_state in WAITING or parks
    if state.reason[row] == Reason.WAIT_DEVICE_MEMORY:
        turns = None  # the jobs it takes turns with stay where they are
    turn = turns if turns is not None and turns.position(row) else None
    earlier = _wait_before(state, row)
    blockers = (
        _blockers(state, row, now_s, turn, ahead, quota, fills, earlier, most_nodes)
        if waits
        else []
    )
    reason, undecided = Reason(state.reason[row]), _is_undecided(state, row)
    if waits and blockers and reason in (Reason.NONE, Reason.WAIT_PRIORITY) and not undecided:
        reason = Reason[blockers[0]["rule"]]
    if waits and not state.nodes:  # overrides the policy's reason
        reason, undecided = Reason.NODE_UNHEALTHY, False
        blockers = [_blocker(reason, gpus_text(state.num_gpus[row]), NO_NODE)]
    would_start_if = None
    if blockers:
        would_start_if = _would_start_if(
            state, row, now_s, blockers, turn, quota, fills, most_nodes
        )
    if waits and shortage is not None:
        reason, undecided = Reason.WAIT_DISK, False
        blockers.insert(0, _blocker(reason, "room on the disk of the state folder", shortage))
        would_start_if = "there was room on the disk; then the policy decides"
    return {
        "job_id": state.spec[row].job_id,
        "state": job_state.name,
        "reason": reason.name,
        "sentence": (UNDECIDED if undecided else _sentence(state, row, reason, quota, fills))
        + _ahead(state, reason, ahead if waits else None)
        + _asked_end(state, row),
        "blockers": blockers,
        "would_start_if": would_start_if,
        "awaited": [f"node {node['name']}: {node['why']}" for node in awaited] if blockers else [],
        "position": 1 + len(earlier) if row in state.active and _has_nothing(state, row) else None,
        "turns": tell_turns(state, row, turns),
        "sharing": sharing_of(state, row),
        "data_wait": data_wait_of(state, row),
        "resizing": _resizing(state, row, resizes),
        "warnings": [
            *_policy_fails(state, job_state),
            *_warnings(state, row, now_s, adapts=adapts, fills=fills),
        ],
        "trials": tell_probes(state, state.notes.probes.get(row, ())),
        "history": [{"at_s": at_s, "reason": Reason(code).name} for at_s, code in history],
        "cpus": cpus_of(state, row),
        "filling": filling.filling_of(state, row),
        "burst": burst_of(state, row),
        "flow": flow_of(state, row, now_s, progress),
    }


def _policy_fails(state: ClusterState, job_state: JobState) -> list[str]:
    """The sentence for a job that has not ended while the policy fails."""
    if not state.fallback.by or job_state.is_final:
        return []
    how, error = sentence(state.fallback.by), state.fallback.error
    return [f"the policy fails, and {how} ({error})"]


def _is_undecided(state: ClusterState, row: int) -> bool:
    """True if no decision has been taken since the job arrived, or came back."""
    first = Reason.WAIT_GAPS if state.spec[row].is_background else Reason.WAIT_PRIORITY
    waits = state.reason[row] == first and state.target[row] is None
    decided = row in state.active or row in state.background
    return waits and state.decision_needed and decided and row in state.changed


def _resizing(state: ClusterState, row: int, resizes: bool) -> str | None:
    elastic = state.spec[row].elastic
    if elastic is None or JobState(state.state[row]).is_final:
        return None
    if not resizes:
        policy, size = _policy_name(state), gpus_text(state.num_gpus[row])
        return f"it stays at {size}: {policy} does not resize jobs; `rota up --policy elastic` does"
    if state.state[row] != JobState.RUNNING:
        return None
    if not state.resizable[row]:
        if state.spec[row].is_flow:
            return "it can't be resized yet: its agent has not told that it can be"
        if state.suspension[row] != Suspension.BOUNDARY:
            return "it can't be resized: its program has not opened rota.train.session()"
        return "it can't be resized: its program has not called s.loader(...)"
    why = state.notes.why.get(row)
    most = state.most_ranks[row]
    if 0 < most < elastic.sizes[-1]:
        shards = "1 shard" if most == 1 else f"{most} shards"
        why = f"{why or 'it can grow'}; its batches have {shards}, for {gpus_text(most)} at most"
    return why or "its throughput at this size is being measured"


def _warnings(
    state: ClusterState, row: int, now_s: float, *, adapts: bool, fills: bool
) -> list[str]:
    """The policy's present ones, which batches have not gone, what is of no effect, who is away."""
    refused = [
        f"batches of {samples} samples or more at once on a GPU{gpu_type and ' ' + gpu_type} are "
        f"not chosen any more: {error}"
        for gpu_type, (samples, error) in state.refused.get(row, {}).items()
    ]
    ends = JobState(state.state[row]).is_final
    idle = state.spec[row].adapt is not None and not adapts and not ends
    told = [f"batch has no effect: {_policy_name(state)} chooses none; {ADAPTING}"] if idle else []
    role = filling.warning(state, row, fills=fills)
    told += [] if role is None else [role]
    told += [] if ends else _away(state, row, now_s)
    return [*told, *state.notes.warnings.get(row, ()), *refused]


def _away(state: ClusterState, row: int, now_s: float) -> list[str]:
    """What becomes of a job on nodes that are not heard."""
    place = state.held[row] or state.home[row]
    told = []
    for index in place.nodes() if place is not None else ():
        if index not in state.unreachable:
            continue
        name, lost_at_s = state.nodes[index].name, state.unreachable[index]
        then = f"unless it is removed: rota node remove --force {name}"
        if lost_at_s is not None:
            then = f"for {max(0.0, lost_at_s - now_s):.0f} s; then it starts anew elsewhere"
        told.append(f"node {name} is not heard, and the job stays there {then}")
    return told


def _policy_name(state: ClusterState) -> str:
    name = state.policy.partition(" ")[0]
    return f"the policy {name}" if name else "this policy"


def _blockers(
    state: ClusterState,
    row: int,
    now_s: float,
    turns: Turns | None,
    ahead: Ahead | None,
    quota: int | None,
    fills: bool,
    earlier: list[int],
    most_nodes: int,
) -> list[dict[str, Any]]:
    """Everything that stands between the job and its GPUs; the policy's reason comes first."""
    found = []
    if row in state.idle_jobs:
        have = "it has called no operation for a while"
        found.append(_blocker(Reason.IDLE, "a call of an operation", have))
    elif row in state.held_back:
        by = state.held_back[row] or "its owner"
        found.append(_blocker(Reason.HELD_BY_USER, f"{by} must resume it", f"suspended by {by}"))
    if waits_for := state.waits_for.get(row):
        found.append(_dependency(state, waits_for))
    if not state.spec[row].is_background:
        found += _cluster_too_small(state, row, most_nodes)
    if state.pauses(row):
        left_s = max(0.0, state.backoff[row] - now_s)
        lines = (line for _, line in reversed(state.story(row)) if " failed: " in line)
        have = f"{left_s:.0f} s are left; {next(lines, 'the last try failed')}"
        found.append(_blocker(Reason.WAIT_BACKOFF, "a pause before the next try", have))
    reason = Reason(state.reason[row])
    if state.spec[row].is_background:
        return found + _no_gap(state, row, now_s, fills)
    if turns is not None:
        found.append(turn_blocker(state, row, turns, now_s))
    elif reason == Reason.SLICE_WAITING_TURN:
        found.append(_turn(state, row, now_s))
    elif reason == Reason.WAIT_LIMIT:
        found.append(_limit(state, ahead))
    if not waits_for:
        found += _gpus_taken(state, row, elsewhere=turns is None and reason != Reason.WAIT_LIMIT)
    undecided = _is_undecided(state, row)
    if undecided:
        found.append(_blocker(Reason.WAIT_PRIORITY, "a decision of the policy", UNDECIDED))
    elif (
        earlier
        and turns is None
        and reason != Reason.WAIT_LIMIT
        and row in state.active
        and state.target[row] is None
    ):
        wait = "waits" if len(earlier) == 1 else "wait"
        have = f"{_jobs(len(earlier))} that came earlier and {wait}"
        first = state.ids(nsmallest(MOST_HOLDERS, earlier))
        found.append(_blocker(Reason.WAIT_PRIORITY, "its turn in the policy's order", have, first))
        if len(earlier) > len(first):
            found[-1]["held_by_more"] = len(earlier) - len(first)
    if reservation.is_for(state, row) and not undecided:
        found.append(_blocker(Reason.WAIT_RESERVATION, *reservation.standing(state, now_s)))
    told = {Reason.NONE.name, *(blocker["rule"] for blocker in found)}
    if reason.name not in told and (reason != Reason.WAIT_PRIORITY or not found):
        found.append(_by_policy(state, row, reason, now_s, quota))
    found.sort(key=lambda blocker: blocker["rule"] != reason.name)
    return found


def _no_gap(state: ClusterState, row: int, now_s: float, fills: bool) -> list[dict[str, Any]]:
    """What stands between a background job and a GPU, besides pauses and what its owner wants."""
    target, reason = state.target[row], Reason(state.reason[row])
    if row in state.held_back or row in state.waits_for or row in state.backoff:
        return []
    if target is not None:
        if state.idle_background.fits(target):
            return []
        need = f"the GPU it was given: {_places(state, target)}"
        return [_blocker(Reason.WAIT_RESOURCES, need, "about to be free")]
    if _is_undecided(state, row) and fills:
        return [_blocker(Reason.WAIT_GAPS, "a decision of the policy", UNDECIDED)]
    if reason == Reason.WAIT_DEVICE_MEMORY:
        have = "it is not known to fit beside the jobs that have GPUs"
        return [_blocker(reason, "GPU memory beside foreground jobs", have)]
    return [_blocker(reason, *filling.standing(state, row, now_s, fills=fills))]


def _blocker(rule: Reason, need: str, have: str, held_by: Iterable[str] = ()) -> dict[str, Any]:
    return {"rule": rule.name, "need": need, "have": have, "held_by": list(held_by)}


def _dependency(state: ClusterState, waits_for: Mapping[int, Sequence[str]]) -> dict[str, Any]:
    """The jobs whose ends the job waits for."""
    need = [f"job {state.spec[other].job_id} {_ended(how)}" for other, how in waits_for.items()]
    ids = state.ids(waits_for)
    verb = "has" if len(ids) == 1 else "have"
    return _blocker(Reason.WAIT_DEPENDENCY, few(need), f"{jobs_text(ids)} {verb} not ended", ids)


def _ended(how: Sequence[str]) -> str:
    return " and ".join({"ended": "to have ended"}.get(when, f"to have {when}") for when in how)


def _by_policy(
    state: ClusterState, row: int, reason: Reason, now_s: float, quota: int | None
) -> dict[str, Any]:
    """The policy's reason, with the jobs that are in the way by its rules."""
    spec = state.spec[row]
    if reason == Reason.TRIAL_BEHIND and spec.trial is not None:
        have, holders = trial_wait.standing(state, row, now_s), trial_wait.those_ahead(state, row)
        need = trial_wait.PLACE if spec.trial.sweep.is_array else trial_wait.NEED
        return _blocker(reason, need, have, holders)
    if reason == Reason.WAIT_QUOTA:
        need = f"room for {gpus_text(spec.num_gpus)} in the quota of {_queue(spec.vc)}"
        if _is_too_small(state, row, quota):
            return _blocker(reason, need, f"it has {gpus_text(quota)}" if quota else "it has none")
        return _blocker(reason, need, "it is used up", _holders_of_queue(state, row))
    if reason == Reason.WAIT_FAIRSHARE:
        owner = (spec.user, spec.vc)
        specs = (state.spec[r] for r in _holding(state, row))
        others = [other.job_id for other in specs if (other.user, other.vc) != owner]
        need, have = "a smaller use than that of owners whose jobs run", "its owner has used more"
        return _blocker(reason, need, have, others)
    if reason == Reason.WAIT_GANG_FRAGMENTED:
        nodes = sum(mask != 0 for mask in state.idle.masks)
        have = f"{state.idle.count} free, on {nodes} {'node' if nodes == 1 else 'nodes'}"
        need = f"{gpus_text(spec.num_gpus)} on few enough nodes"
        return _blocker(reason, need, have, _holders(state, row))
    if reason == Reason.WAIT_DEVICE_MEMORY:
        keepers = [state.spec[other].job_id for other in memory_keepers(state) if other != row]
        whose = "its" if len(keepers) == 1 else "their"
        have = f"{jobs_text(keepers)} can't give {whose} GPU memory up; see docs/start/gpu.md"
        return _blocker(reason, "GPU memory beside jobs that keep theirs", have, keepers)
    if reason == Reason.WAIT_RESERVATION and state.notes.reserved is not None:
        return _blocker(reason, *reservation.in_the_way(state, now_s))
    if reason == Reason.PREEMPTED_BY and (by_rows := state.displaced.get(row)):
        have = f"{takers_text(state, by_rows)} got its GPUs"
        return _blocker(reason, "its place in the policy's order", have, state.ids(by_rows))
    if reason == Reason.NODE_UNHEALTHY and row in state.staying:
        return _blocker(reason, "the node that holds it", "it does not answer")
    holders = _holders(state, row) if reason == Reason.PREEMPTED_BY else []
    return _blocker(reason, "its place in the policy's order", SENTENCES[reason], holders)


def _cluster_too_small(state: ClusterState, row: int, most_nodes: int) -> list[dict[str, Any]]:
    wanted = state.num_gpus[row]
    if fits_on_more_nodes(state, row, most_nodes):
        there = sum(node.alive for node in state.nodes)
        nodes = "1 node" if there == 1 else f"{there} nodes"
        have = f"{all_gpus(state)} on {nodes}; up to {most_nodes} nodes are asked for"
        return [_blocker(Reason.WAIT_RESOURCES, gpus_text(wanted), have)]
    if wanted <= state.total_gpus:
        largest = largest_node(state)
        offered = max((node.num_gpus for node in state.offered if node.alive), default=0)
        one_node = state.is_live and most_gpus(state, spans=state.spec[row].spans_nodes) == largest
        if one_node and offered < wanted <= largest:
            have = f"{offered} on the largest node that takes jobs; {_shut_nodes(state)}"
            return [_blocker(_shut_rule(state), gpus_text(wanted), have)]
        if one_node and wanted > largest:
            have = f"{largest} on the largest node, and a gang is on one node"
            return [_blocker(Reason.NEVER_FITS, gpus_text(wanted), have)]
        return []
    have = f"{state.total_gpus} in the cluster"
    if state.shut and fits_once_open(state, row):
        have = f"{have}; {_shut_nodes(state)}"
        return [_blocker(_shut_rule(state), gpus_text(wanted), have)]
    lost = [node for node in state.nodes if not node.alive]
    if lost and wanted <= state.total_gpus + sum(node.num_gpus for node in lost):
        have += f"; lost: {', '.join(node.name for node in lost)}"
        return [_blocker(Reason.NODE_UNHEALTHY, gpus_text(wanted), have)]
    return [_blocker(Reason.NEVER_FITS, gpus_text(wanted), have)]


def _shut_nodes(state: ClusterState) -> str:
    """Nodes that take no job as text, such as ``cordoned: n1; drained: n2, n3; away: n4``."""
    names: dict[str, list[str]] = {}
    for index, closing in state.closed.items():
        how = "drained" if closing.drains else "cordoned"
        names.setdefault(how, []).append(state.nodes[index].name)
    for index in state.unreachable:
        names.setdefault("away", []).append(state.nodes[index].name)
    return "; ".join(f"{how}: {', '.join(each)}" for how, each in names.items())


def _shut_rule(state: ClusterState) -> Reason:
    return Reason.NODE_CLOSED if state.closed else Reason.NODE_UNHEALTHY


def _free_on_shut(state: ClusterState) -> int:
    """Number of GPUs that no job holds on nodes that take no job."""
    return sum(state.idle.masks[index].bit_count() for index in state.shut)


def _limit(state: ClusterState, ahead: Ahead | None) -> dict[str, Any]:
    """The wait for a place among jobs that take turns."""
    need = "a place among the jobs that take turns"
    if ahead is None:
        return _blocker(Reason.WAIT_LIMIT, need, "all places are taken")
    before = state.ids(row for _, rows in ahead.before for row in rows)
    have = f"{_jobs(ahead.sharing)} on {gpus_text(ahead.gpus)}"
    return _blocker(Reason.WAIT_LIMIT, need, have, before[:MOST_HOLDERS])


def _ahead(state: ClusterState, reason: Reason, ahead: Ahead | None) -> str:
    """The jobs before one that waits for a turn, or to be let in; else ""."""
    if ahead is None or reason not in (Reason.SLICE_WAITING_TURN, Reason.WAIT_LIMIT):
        return ""
    return f": {ahead_text(state, ahead)}"


def _turn(state: ClusterState, row: int, now_s: float) -> dict[str, Any]:
    have = "others run now"
    if state.wake_at_s is not None:
        have += f"; the turn ends in {max(0.0, state.wake_at_s - now_s):.0f} s"
    return _blocker(Reason.SLICE_WAITING_TURN, "its turn", have, _holders(state, row))


def _gpus_taken(state: ClusterState, row: int, *, elsewhere: bool) -> list[dict[str, Any]]:
    """The missing GPUs, or the very ones that the job was promised or must return to.

    ``elsewhere`` is True if GPUs of all nodes count, and not only those where the job lives.
    """
    wanted = state.num_gpus[row]
    if wanted > state.total_gpus:
        return []
    target, home = state.target[row], state.home[row]
    if target is not None and not state.idle.fits(target):
        need, have = f"the GPUs it was given: {_places(state, target)}", "about to be free"
        return [_blocker(Reason.WAIT_RESOURCES, need, have, _holders(state, row, target))]
    found = _types_taken(state, row)
    unused = _free_on_shut(state)
    free = state.idle.count - unused
    if elsewhere and free < wanted <= free + unused:
        have = f"{gpus_text(unused)} free that take no job; {_shut_nodes(state)}"
        found.append(_blocker(_shut_rule(state), gpus_text(wanted), have))
    if elsewhere and free < wanted:
        have = f"{free or 'none'} of {state.total_gpus} free"
        found.append(_blocker(Reason.WAIT_RESOURCES, gpus_text(wanted), have, _holders(state, row)))
    if home is not None and not state.movable[row] and not state.idle.fits(home):
        need = f"the GPUs where its stopped processes are: {_places(state, home)}"
        holders = _holders(state, row, home)
        found.append(_blocker(Reason.WAIT_TOPOLOGY, need, "taken", holders))
    elif home is not None and stays_on_node(state, row):
        node = home.nodes()[0]
        free = state.idle.masks[node].bit_count()
        if free < wanted:
            whole = on_node(node, (1 << state.nodes[node].num_gpus) - 1)
            need = (
                f"{gpus_text(wanted)} of {state.nodes[node].name}, where its stopped processes are"
            )
            holders = _holders(state, row, whole)
            found.append(_blocker(Reason.WAIT_TOPOLOGY, need, f"{free} free", holders))
    return found


def _types_taken(state: ClusterState, row: int) -> list[dict[str, Any]]:
    """That too few GPUs of the types that the job asked for are free, if so."""
    spec, nodes = state.spec[row], of_wanted_types(state, row)
    free = max((state.idle.masks[node].bit_count() for node in nodes), default=0)
    if not spec.gpu_types or not nodes or free >= state.num_gpus[row]:
        return []
    whole = Allocation(tuple((node, (1 << state.nodes[node].num_gpus) - 1) for node in nodes))
    need = f"{gpus_text(state.num_gpus[row])} of {' or '.join(spec.gpu_types)} on one node"
    return [_blocker(Reason.WAIT_TOPOLOGY, need, f"{free} free", _holders(state, row, whole))]


def _would_start_if(
    state: ClusterState,
    row: int,
    now_s: float,
    blockers: list[dict[str, Any]],
    turns: Turns | None,
    quota: int | None,
    fills: bool,
    most_nodes: int,
) -> str:
    """The smallest change that would let the job start, as far as the state shows."""
    job_id = state.spec[row].job_id
    rules = [blocker["rule"] for blocker in blockers]
    if Reason.NEVER_FITS.name in rules:
        most = most_gpus(state, spans=state.spec[row].spans_nodes)
        return f"it asked for at most {gpus_text(most)}"
    if fits_on_more_nodes(state, row, most_nodes):
        return "the nodes that are awaited were there"
    if Reason.NODE_UNHEALTHY.name in rules:
        gone = "nodes that are away" if state.unreachable else "the lost nodes"
        return f"{gone} came back" if state.nodes else "a node joined"
    if row in state.idle_jobs:
        return f"it called an operation, or its owner let it go on: rota resume {job_id}"
    if row in state.held_back:
        return f"its owner let it go on: rota resume {job_id}"
    if row in state.waits_for:
        ids = state.ids(state.waits_for[row])
        return f"{jobs_text(ids)} ended as it waits for, and the policy put it first"
    if state.pauses(row):
        return f"{max(0.0, state.backoff[row] - now_s):.0f} s had passed"
    if Reason.NODE_CLOSED.name in rules:
        names = " ".join(state.nodes[index].name for index in state.closed)
        return f"nodes took jobs again: rota node enable {names}"
    if state.spec[row].is_background and state.target[row] is None:
        return filling.would_start_if(state, row, fills=fills)
    if Reason.WAIT_DEVICE_MEMORY.name in rules:
        ids = [state.spec[other].job_id for other in memory_keepers(state) if other != row]
        return f"{jobs_text(ids)} ended, or GPUs were free on which nobody keeps memory"
    if state.target[row] is not None:
        return "the GPUs it was given were released, which they are about to be"
    if Reason.TRIAL_BEHIND.name in rules:
        is_task = (trial := state.spec[row].trial) is not None and trial.sweep.is_array
        return trial_wait.TASK_ENDED if is_task else trial_wait.WOULD_START_IF
    if turns is not None:
        return f"its turn came, in {turns.left_s(now_s):.0f} s at the earliest"
    if Reason.WAIT_LIMIT.name in rules:
        return "one of the jobs that take turns ended, or the policy let one more in"
    if Reason.SLICE_WAITING_TURN.name in rules:
        if state.wake_at_s is None:
            return "its turn came"
        return f"its turn came, in {max(0.0, state.wake_at_s - now_s):.0f} s at the earliest"
    if state.reason[row] == Reason.WAIT_RESERVATION and state.notes.reserved is not None:
        return reservation.would_start_if(state, now_s)
    if types := _types_taken(state, row):
        return f"{types[0]['need']} were free"
    more = _more_gpus(state, row)
    if Reason.WAIT_QUOTA.name in rules:
        return _room_in_quota(state, row, more, quota)
    if Reason.WAIT_FAIRSHARE.name in rules:
        less = "its owner's use fell below that of owners whose jobs run"
        return f"{less}, or {more}" if more else less
    if Reason.WAIT_GANG_FRAGMENTED.name in rules:
        return f"{gpus_text(state.num_gpus[row])} were free on few enough nodes"
    if more:
        order = " and the policy put it first" if Reason.WAIT_PRIORITY.name in rules else ""
        return more + order
    return "the policy put it first"


def _more_gpus(state: ClusterState, row: int) -> str:
    """Number of missing GPUs, and the jobs that could release them; "" if enough are free."""
    missing = state.num_gpus[row] - state.idle.count + _free_on_shut(state)
    if missing <= 0:
        return ""
    ending = _smallest_release(state, row, missing)
    verb = "ends" if len(ending) == 1 else "end"
    hint = f", as when {jobs_text(ending)} {verb}" if ending else ""
    return f"{gpus_text(missing)} more were free{hint}"


def _is_too_small(state: ClusterState, row: int, quota: int | None) -> bool:
    """True if the job doesn't fit into its queue's quota even while nobody uses that."""
    return quota is not None and quota < state.num_gpus[row]


def _room_in_quota(state: ClusterState, row: int, more: str, quota: int | None) -> str:
    queue, holders = _queue(state.spec[row].vc), _holders_of_queue(state, row)
    larger = f"{queue} had a quota" if quota == 0 else f"the quota of {queue} were larger"
    if holders and not _is_too_small(state, row, quota):
        larger = f"jobs of {queue} ended ({few(holders)}), or {larger}"
    return f"{larger}; where queues may borrow, also if {more}" if more else larger


def _queue(name: str) -> str:
    return f"queue {name!r}" if name else "the nameless queue"


def _smallest_release(state: ClusterState, row: int, missing: int) -> list[str]:
    """The fewest running jobs that release ``missing`` GPUs; if one is enough, the smallest."""
    held = [(state.held[r], r) for r in _working(state) if r != row]
    sizes = [(allocation.num_gpus, r) for allocation, r in held if allocation is not None]
    enough = [item for item in sizes if item[0] >= missing]
    if enough:
        return [state.spec[min(enough)[1]].job_id]
    chosen = list[str]()
    for size, r in sorted(sizes, key=lambda item: (-item[0], item[1])):
        chosen.append(state.spec[r].job_id)
        missing -= size
        if missing <= 0:
            return chosen
    return []


def _resumption(job_id: str) -> str:
    """Explains how to start a job from what an abandoned job has saved."""
    return (
        f"`rota run --resume-from {job_id}`, or `resume_from: {job_id}` in a job file, begins "
        "another job with the checkpoints that it has left"
    )


def _sentence(state: ClusterState, row: int, reason: Reason, quota: int | None, fills: bool) -> str:
    job_state = JobState(state.state[row])
    held = state.held[row]
    if job_state.is_final:
        exit_code, message = state.ending.get(row, (None, ""))
        code = "" if exit_code is None else f" with exit code {exit_code}"
        sentence = f"it ended as {job_state.name}{code}" + (f": {message}" if message else "")
        if job_state == JobState.LOST and not state.spec[row].simulated:
            sentence += f"; {_resumption(state.spec[row].job_id)}"
        return sentence
    if job_state == JobState.STOPPING:
        why = state.needless.get(row)
        return "it is being stopped" + (f": {NEEDLESS}{why}" if why is not None else "")
    if held is not None and job_state == JobState.RUNNING:
        mates = state.sharers(row)
        sharing = f", which it shares with {jobs_text(state.ids(mates))}" if mates else ""
        if others := filling.beside(state, row):
            whom = jobs_text(state.ids(others))
            and_ = "; " if sharing else ", "
            sharing += (
                f"{and_}beside {whom}" if held.background else f"{and_}with {whom} in its gaps"
            )
        return f"it runs on {_places(state, held)}{sharing}"
    home = state.home[row]
    if home is not None and job_state == JobState.MIGRATING and row in state.parking:
        (node,) = state.parking[row].nodes()
        where = f"{state.nodes[node].name}, where the job goes on waiting"
        return f"its state is on its way from {_places(state, home)} to {where}"
    if held is not None and home is not None and job_state == JobState.MIGRATING:
        return f"its state is on its way from {_places(state, home)} to {_places(state, held)}"
    if held is not None and job_state == JobState.STARTING:
        return f"it is starting on {_places(state, held)}"
    if held is not None and job_state == JobState.SUSPENDED:
        return f"it is about to go on, on {_places(state, held)}"
    if reason == Reason.NODE_UNHEALTHY and not state.nodes:
        return NO_NODE
    if reason == Reason.WAIT_GAPS and not fills:
        return filling.NOT_PLACED
    if reason == Reason.WAIT_QUOTA and _is_too_small(state, row, quota):
        more = "it asks for more GPUs than its queue's quota has"
        return more if quota else "its queue has no quota"
    trial = state.spec[row].trial
    if reason == Reason.TRIAL_BEHIND and trial is not None and trial.sweep.is_array:
        return "other tasks of its array come first"
    return SENTENCES[reason]


def _asked_end(state: ClusterState, row: int) -> str:
    """How a suspended job's program ended, if otherwise than it was asked to; else ""."""
    program, code = state.spec[row].program, state.asked_ends.get(row)
    if code is None or program is None or state.state[row] != JobState.SUSPENDED:
        return ""
    return f"; when it was suspended, {asked_end_text(code, program.grace_s)}"


def _wait_before(state: ClusterState, row: int) -> list[int]:
    """The rows of jobs that came earlier, want GPUs and have none, in no order."""
    held, target = state.held, state.target
    return [r for r in state.active if r < row and held[r] is None and target[r] is None]


def _has_nothing(state: ClusterState, row: int) -> bool:
    return state.held[row] is None and state.target[row] is None


def _holders(state: ClusterState, row: int, of: Allocation | None = None) -> list[str]:
    """The ids of the other jobs that hold GPUs; only those among ``of`` if it is given."""
    return [state.spec[r].job_id for r in _holding(state, row, of)]


def _holders_of_queue(state: ClusterState, row: int) -> list[str]:
    """The ids of the other jobs of its queue that hold GPUs."""
    specs = (state.spec[r] for r in _holding(state, row))
    return [spec.job_id for spec in specs if spec.vc == state.spec[row].vc]


def _holding(state: ClusterState, row: int, of: Allocation | None = None) -> list[int]:
    """The rows of the other jobs that hold GPUs; only those among ``of`` if it is given."""
    wanted = None if of is None else dict(of.parts)
    rows = []
    for r in _working(state):
        held = state.held[r]
        if held is None or r == row:
            continue
        if wanted is None or any(mask & wanted.get(node, 0) for node, mask in held.parts):
            rows.append(r)
    return rows


def _working(state: ClusterState) -> list[int]:
    """The rows that hold GPUs: jobs that ended hold none and are in neither set."""
    held = state.held
    rows = (row for rows in (state.active, state.unsettled) for row in rows)
    return sorted({row for row in rows if held[row] is not None})


def _places(state: ClusterState, allocation: Allocation) -> str:
    return state.places(allocation.parts)


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
