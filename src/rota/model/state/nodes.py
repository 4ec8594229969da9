"""Changes to the ledger by events about nodes."""

from __future__ import annotations

from itertools import chain

from rota.errors import TransitionError
from rota.model.cluster import Closing, Node
from rota.model.commands import Park
from rota.model.events import (
    NodeAddressChanged,
    NodeClosed,
    NodeCpusChanged,
    NodeDeadlineChanged,
    NodeJoined,
    NodeLost,
    NodeOpened,
    NodeReachable,
    NodeUnreachable,
)
from rota.model.state.ledger import STOPPING, SUSPENDED, Ledger
from rota.model.state.lifecycle import lose_attempt


def node_joined(ledger: Ledger, e: NodeJoined) -> None:
    full = (1 << e.num_gpus) - 1
    index = ledger.node_index.get(e.name)
    node = Node(e.name, e.num_gpus, e.kind, True, *e[4:10], e.reach, e.whole_cores)
    if index is None:
        index = len(ledger.nodes)
        ledger.node_index[e.name] = index
        ledger.nodes.append(node)
        ledger.offered.append(node._replace(alive=False))
    elif ledger.nodes[index].alive:
        raise TransitionError(f"node {e.name} joined twice without being lost in between")
    else:
        ledger.nodes[index] = node
    ledger.is_live = ledger.is_live or node.is_live
    ledger.has_device_memory = ledger.has_device_memory or node.has_device_memory
    ledger.num_reached += node.reach != ""
    ledger.idle.set_mask(index, full)
    ledger.idle_background.set_mask(index, full)
    _offer(ledger, index, full, full)


def node_lost(ledger: Ledger, e: NodeLost) -> None:
    index = ledger.node_index.get(e.name)
    if index is None or not ledger.nodes[index].alive:
        raise TransitionError(f"node {e.name} was lost, but no such node is there")
    for row in sorted(ledger.placed_rows()):
        target, places = ledger.target[row], (ledger.held[row], ledger.home[row])
        if any(place and index in place.nodes() for place in places):
            if ledger.has_processes(row):
                lose_attempt(ledger, e.at_s, row, f"node {e.name} was lost")
        elif target and index in target.nodes():
            ledger.untarget(row)
            ledger.wait(row)
            ledger.note_change(row)
    for row in [row for row, place in ledger.parking.items() if index in place.nodes()]:
        _call_parking_off(ledger, row, e)
    ledger.num_reached -= ledger.nodes[index].reach != ""
    ledger.nodes[index] = ledger.nodes[index]._replace(alive=False)
    ledger.unreachable.pop(index, None)
    _forget_deadline(ledger, index)
    _let_go(ledger)
    ledger.idle.set_mask(index, 0)
    ledger.idle_background.set_mask(index, 0)
    _offer(ledger, index, 0, 0)


def _call_parking_off(ledger: Ledger, row: int, e: NodeLost) -> None:
    """The node that a job's state was being sent to is lost: the state is where it was."""
    del ledger.parking[row]
    if ledger.state[row] == STOPPING and type(ledger.outstanding[row]) is not Park:
        return
    ledger.outstanding[row] = None
    ledger.tell(row, e.at_s, f"node {e.name}, which its state was sent to, was lost")
    if ledger.state[row] != STOPPING:
        ledger.enter(row, SUSPENDED, e.at_s)
    ledger.settle(row)
    ledger.note_change(row)


def node_cpus_changed(ledger: Ledger, e: NodeCpusChanged) -> None:
    index = _known(ledger, e.name, "given CPU cores")
    for nodes in (ledger.nodes, ledger.offered):
        nodes[index] = nodes[index]._replace(millicores=e.millicores, whole_cores=e.whole_cores)
    ledger.decision_needed = ledger.policy_needed = True


def node_address_changed(ledger: Ledger, e: NodeAddressChanged) -> None:
    index = _known(ledger, e.name, "given another address")
    if ledger.nodes[index].alive:
        ledger.num_reached += (e.reach != "") - (ledger.nodes[index].reach != "")
    for nodes in (ledger.nodes, ledger.offered):
        nodes[index] = nodes[index]._replace(reach=e.reach)
    ledger.decision_needed = ledger.policy_needed = True


def node_deadline_changed(ledger: Ledger, e: NodeDeadlineChanged) -> None:
    index = _known(ledger, e.name, "told to go")
    was_closed = index in ledger.closed
    _forget_deadline(ledger, index)
    if e.leaves_s is not None:
        ledger.leaves_s[index] = e.leaves_s
    if was_closed and index not in ledger.closed:
        _reopen(ledger, index)
    ledger.decision_needed = ledger.policy_needed = True


def _forget_deadline(ledger: Ledger, index: int) -> None:
    """The node need not go by a time, and is closed no more if that was the reason."""
    leaves_s, closing = ledger.leaves_s.pop(index, None), ledger.closed.get(index)
    if leaves_s is not None and closing is not None and closing.by_s == leaves_s:
        del ledger.closed[index]


def node_closed(ledger: Ledger, e: NodeClosed) -> None:
    index = _known(ledger, e.name, "closed")
    ledger.closed[index] = Closing(e.drains, e.by_s)
    _offer(ledger, index, 0, 0)


def node_opened(ledger: Ledger, e: NodeOpened) -> None:
    index = _known(ledger, e.name, "opened")
    ledger.closed.pop(index, None)
    _reopen(ledger, index)


def node_unreachable(ledger: Ledger, e: NodeUnreachable) -> None:
    index = _known(ledger, e.name, "unreachable")
    ledger.unreachable[index] = e.until_s
    _offer(ledger, index, 0, 0)


def node_reachable(ledger: Ledger, e: NodeReachable) -> None:
    index = _known(ledger, e.name, "heard")
    ledger.unreachable.pop(index, None)
    _reopen(ledger, index)


def _reopen(ledger: Ledger, index: int) -> None:
    """The node takes jobs again, unless something else keeps it from that."""
    node = ledger.nodes[index]
    free = free_background = (1 << node.num_gpus) - 1 if node.alive else 0
    for row in chain(ledger.holding, ledger.stored, ledger.unsettled):
        target = ledger.target[row]
        for place, mask in target.parts if target is not None else ():
            if place != index:
                continue
            if target is not None and target.background:
                free_background &= ~mask
            else:
                free &= ~mask
    _let_go(ledger)
    _offer(ledger, index, free, free_background)


def _let_go(ledger: Ledger) -> None:
    """Jobs that stay on no shut node any more are the policy's again."""
    shut = ledger.shut
    for row in list(ledger.staying):
        there = ledger.held[row] or ledger.home[row]
        if there is None or shut.isdisjoint(there.nodes()):
            del ledger.staying[row]
            ledger.active[row] = None
            ledger.note_change(row)


def _known(ledger: Ledger, name: str, verb: str) -> int:
    index = ledger.node_index.get(name)
    if index is None:
        raise TransitionError(f"node {name} was {verb}, but no such node has ever been there")
    return index


def _offer(ledger: Ledger, index: int, free: int, free_background: int) -> None:
    """Show policies the node as it is, with these GPUs free on each layer.

    A shut one is shown as if it was gone.
    """
    node, before = ledger.nodes[index], ledger.offered[index]
    if index in ledger.closed or index in ledger.unreachable:
        node, free, free_background = node._replace(alive=False), 0, 0
    if before.alive:
        ledger.total_gpus -= before.num_gpus
    if node.alive:
        ledger.total_gpus += node.num_gpus
    ledger.offered[index] = node
    ledger.assumed.set_mask(index, free)
    ledger.assumed_background.set_mask(index, free_background)
    ledger.decision_needed = ledger.policy_needed = True
