"""Limits of agents that no plan can exceed: gangs over several nodes, moves of processes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rota.model.allocation import Allocation, of_parts, on_node
from rota.model.cluster import FreeGpus, Node
from rota.model.commands import Resize
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.state.resizing import can_resize
from rota.model.state.state import ClusterState

MOST_ASKS = 10  # a policy, for one plan


def confine_whole(state: ClusterState, plan: Plan, ask_again: Callable[[], Plan]) -> Plan:
    """The plan, confined, with the GPUs that it can't give to some jobs offered to the others.

    Policies know neither which nodes reach each other nor the types of GPUs that jobs ask for. A
    job that the plan wants where it can't be gets other free GPUs if there are any. Else it waits,
    and ``ask_again`` gives the policy's plan as if that job was not there, so that it keeps no GPUs
    from others that it can't use.
    """
    confined = confine(state, plan)
    waiting = set[int]()
    for _ in range(MOST_ASKS):
        refused = _refused(state, plan, confined)
        if refused <= waiting:
            break
        waiting |= refused
        with hidden(state, waiting):
            plan = ask_again()
            confined = confine(state, plan)
    if not waiting:
        return confined
    told = {row: _why_not(state, row, state.num_gpus[row]) for row in waiting}
    news = {
        row: code
        for row, code in (confined.reasons | told).items()
        if row not in told or code != state.reason[row]
    }
    return confined._replace(reasons=news)


def _refused(state: ClusterState, plan: Plan, confined: Plan) -> set[int]:
    """The jobs to which the plan gives GPUs, and the confined plan none.

    A job that has GPUs now and did not ask for types is none of these: it loses its GPUs, which the
    plan may have given to others.
    """
    if confined is plan:
        return set()
    return {
        row
        for row, place in plan.allocations.items()
        if isinstance(place, Allocation) and 0 <= row < len(state.spec)
        if state.spec[row].gpu_types or state.target[row] is None
        if confined.allocations.get(row, state.target[row]) is None
    }


@contextmanager
def hidden(state: ClusterState, rows: set[int]) -> Iterator[None]:
    """Let policies see neither these jobs nor their GPUs, for as long as one plan takes."""
    active, total_gpus, before = dict(state.active), state.total_gpus, state.plan
    state.plan = None  # what policies remember with it is of other jobs
    for row in rows:
        state.active.pop(row, None)
        place = state.target[row]
        state.total_gpus -= 0 if place is None else place.num_gpus
    try:
        yield
    finally:
        state.active.clear()
        state.active.update(active)
        state.total_gpus, state.plan = total_gpus, before


def confine(state: ClusterState, plan: Plan) -> Plan:
    """The plan with gangs on nodes that reach each other, and jobs that can't leave on theirs.

    On a live cluster some jobs can be on one node alone (``JobSpec.spans_nodes``), and only state
    that can be written to a file moves between nodes. A job that the plan wants elsewhere gets
    other free GPUs if there are any; else it waits, with a reason. A job that does not adapt trains
    with its own batch: its program can't be told another one. Simulated nodes take every plan. A
    plan without changes is returned as it is: its policy's indexes stay valid.
    """
    if not state.is_live or not plan.allocations:
        return plan
    plan = _with_own_batches(state, plan)
    allocations = plan.allocations
    wrong = [row for row, place in allocations.items() if not _can_be(state, row, place)]
    if any(state.spec[row].gpu_types for row in wrong):
        wrong = _movable_for_types(state, plan, wrong)
    free = left_free(state, plan, wrong) if wrong else None
    if free is None:
        return plan
    confined, reasons = dict(allocations), dict(plan.reasons)
    for row in wrong:
        wanted = allocations[row]
        assert wanted is not None
        stays = _can_be(state, row, wanted) and free.fits(wanted)
        place = wanted if stays else other_place(state, row, wanted.num_gpus, free)
        if place is not None:
            free.take(place)
            place = place.with_batch(wanted.batch)
        else:
            reasons[row] = _why_not(state, row, wanted.num_gpus)
        if place == state.target[row]:
            del confined[row]
        else:
            confined[row] = place
    return plan._replace(allocations=confined, reasons=reasons)


def _with_own_batches(state: ClusterState, plan: Plan) -> Plan:
    places, rows = plan.allocations, len(state.spec)
    tuned = {
        row: place.with_batch(None)
        for row, place in places.items()
        if isinstance(place, Allocation) and place.batch is not None
        if 0 <= row < rows and state.spec[row].adapt is None
    }
    return plan._replace(allocations={**places, **tuned}) if tuned else plan


def stays_on_node(state: ClusterState, row: int) -> bool:
    """True if a suspended job can continue only on the node where it was."""
    return state.home[row] is not None and not state.portable[row]


def largest_node(state: ClusterState) -> int:
    """GPUs of the largest living node, closed or not."""
    return max((node.num_gpus for node in state.nodes if node.alive), default=0)


def further_node(state: ClusterState) -> Node | None:
    """The living node like which those count that can still be asked for: the largest one."""
    there = (node for node in state.nodes if node.alive)
    return max(there, key=lambda node: (node.num_gpus, bool(node.reach)), default=None)


def all_gpus(state: ClusterState, most_nodes: int = 0) -> int:
    """GPUs of all living nodes, closed or not, and of further ones up to ``most_nodes`` in all."""
    there, further = [node for node in state.nodes if node.alive], further_node(state)
    more = 0 if further is None else further.num_gpus * max(0, most_nodes - len(there))
    return sum(node.num_gpus for node in there) + more


def most_gpus(state: ClusterState, *, spans: bool, most_nodes: int = 0) -> int:
    """The most GPUs that a job can have on the living nodes, which it ``spans`` or not.

    Further nodes count, up to ``most_nodes`` in all, which are like the largest living one.
    """
    if not state.is_live:
        return all_gpus(state)
    further = further_node(state)
    joined = sum(node.num_gpus for node in state.nodes if node.alive and node.reach)
    if further is not None and further.reach:
        joined += all_gpus(state, most_nodes) - all_gpus(state)
    return max(largest_node(state), joined if spans else 0)


def fits_on_more_nodes(state: ClusterState, row: int, most_nodes: int) -> bool:
    """True if a job without processes is too large for the nodes, but not for ``most_nodes``."""
    if state.home[row] is not None or state.held[row] is not None or state.spec[row].gpu_types:
        return False
    gpus, spans = state.num_gpus[row], state.spec[row].spans_nodes
    most = most_gpus(state, spans=spans, most_nodes=most_nodes)
    return most_gpus(state, spans=spans) < gpus <= most


def fits_once_open(state: ClusterState, row: int) -> bool:
    """True if there are as many GPUs as a job needs once no node is closed."""
    return state.num_gpus[row] <= most_gpus(state, spans=state.spec[row].spans_nodes)


def _can_be(state: ClusterState, row: int, place: Allocation | None) -> bool:
    if not isinstance(place, Allocation) or not 0 <= row < len(state.spec):
        return True  # the plan is refused elsewhere
    if not all(0 <= node < len(state.nodes) for node in place.nodes()):
        return True  # so is this one
    home, held = state.home[row], state.held[row]
    if len(place.parts) > 1 and not _reach_each_other(state, row, place):
        return False
    # That a suspended job leaves GPUs to which its state is bound, the check refuses.
    may_go = home is not None and not state.movable[row]
    may_go = may_go or state.can_go_on(row, place)
    if not may_go and home is None and held is not None:
        may_go = can_resize(state, row, held, place)
    return may_go and _has_its_types(state, row, place)


def _reach_each_other(state: ClusterState, row: int, place: Allocation) -> bool:
    nodes = [state.nodes[node] for node in place.nodes() if node < len(state.nodes)]
    return state.spec[row].spans_nodes and not place.shared and all(n.reach for n in nodes)


def _movable_for_types(state: ClusterState, plan: Plan, wrong: list[int]) -> list[int]:
    """These jobs, and those that start anyway and can make room for them, in the order of choice:
    those that asked for types come first."""
    fresh = {
        row
        for row, place in plan.allocations.items()
        if isinstance(place, Allocation) and not place.shared
        if 0 <= row < len(state.spec) and state.target[row] is None and state.home[row] is None
    }
    return sorted(fresh.union(wrong), key=lambda row: (not state.spec[row].gpu_types, row))


def of_wanted_types(state: ClusterState, row: int) -> list[int]:
    """The nodes that policies see whose GPUs are of the types that the job asked for."""
    wanted = state.spec[row].gpu_types
    return [
        index
        for index, node in enumerate(state.offered)
        if node.alive and (not wanted or node.gpu_type in wanted)
    ]


def _has_its_types(state: ClusterState, row: int, place: Allocation) -> bool:
    wanted = state.spec[row].gpu_types
    nodes = (state.nodes[node] for node in place.nodes() if node < len(state.nodes))
    return not wanted or all(node.gpu_type in wanted for node in nodes)


def left_free(state: ClusterState, plan: Plan, wrong: list[int]) -> FreeGpus | None:
    """The GPUs that the rest of the plan leaves free; None if it breaks the contract anyway."""
    free = state.assumed.copy()
    for row in plan.allocations:
        if not 0 <= row < len(state.spec):
            return None
        before = state.target[row]
        if before is not None:
            free.give(before)
    for row, place in plan.allocations.items():
        if place is not None and row not in wrong:
            known = isinstance(place, Allocation) and place.nodes()[-1] < len(free.masks)
            if not known or not free.take(place):
                return None
    return free


def other_place(state: ClusterState, row: int, num_gpus: int, free: FreeGpus) -> Allocation | None:
    """The job's last place, or else the tightest fit, on a node that the job may use."""
    home, held, target = state.home[row], state.held[row], state.target[row]
    if home is not None and (len(home.parts) > 1 or not state.movable[row]):
        return home if free.fits(home) else None
    bound = home is None and held is not None and (len(held.parts) > 1 or not state.movable[row])
    if bound and target is None:
        # It is being suspended, and no event of its own calls for a decision once it is. One that
        # is being resized as well holds the GPUs of before and after, and a decision follows.
        resizes = isinstance(state.outstanding[row], Resize)
        return held if held is not None and not resizes and free.fits(held) else None
    for known in (target, home):
        if known is not None and known.num_gpus == num_gpus and free.fits(known):
            return known
    nodes = of_wanted_types(state, row)
    if (before := home or held) is not None and not state.portable[row]:
        nodes = list(before.nodes()[:1])
    if bound:
        nodes = []
    holes = [(free.masks[n].bit_count(), n) for n in nodes if free.masks[n].bit_count() >= num_gpus]
    if holes:
        node = min(holes)[1]
        return on_node(node, _lowest(free.masks[node], num_gpus))
    if target is not None and free.fits(target):
        return target
    if home is not None or held is not None or not state.spec[row].spans_nodes:
        return None
    parts = []
    for node in sorted(nodes, key=lambda n: (-free.masks[n].bit_count(), n)):
        if state.nodes[node].reach and (count := min(num_gpus, free.masks[node].bit_count())):
            parts.append((node, _lowest(free.masks[node], count)))
            num_gpus -= count
    return of_parts(sorted(parts)) if num_gpus == 0 else None


def _lowest(mask: int, num_gpus: int) -> int:
    gpus = 0
    for _ in range(num_gpus):
        gpus |= (mask ^ gpus) & -(mask ^ gpus)
    return gpus


def _why_not(state: ClusterState, row: int, num_gpus: int) -> Reason:
    there = [state.offered[node] for node in of_wanted_types(state, row)]
    together = sum(node.num_gpus for node in there if node.reach)
    most = max((node.num_gpus for node in there), default=0)
    if num_gpus > max(most, together if state.spec[row].spans_nodes else 0):
        return Reason.NEVER_FITS
    if state.spec[row].gpu_types:
        return Reason.WAIT_TOPOLOGY
    return Reason.WAIT_TOPOLOGY if stays_on_node(state, row) else Reason.WAIT_GANG_FRAGMENTED
