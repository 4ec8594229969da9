"""What the events of nodes do to the ledger."""

from __future__ import annotations

from rota.errors import TransitionError
from rota.model.cluster import Node
from rota.model.events import NodeJoined, NodeLost
from rota.model.reason import Reason
from rota.model.state.ledger import Ledger
from rota.model.state.lifecycle import lose_attempt


def node_joined(ledger: Ledger, e: NodeJoined) -> None:
    full = (1 << e.num_gpus) - 1
    index = ledger.node_index.get(e.name)
    node = Node(e.name, e.num_gpus, e.kind, True, e.gpu_type, e.rack, e.island, e.memory_gb)
    if index is None:
        index = len(ledger.nodes)
        ledger.node_index[e.name] = index
        ledger.nodes.append(node)
    elif ledger.nodes[index].alive:
        raise TransitionError(f"node {e.name} joined twice without being lost in between")
    else:
        ledger.nodes[index] = node
    ledger.total_gpus += e.num_gpus
    ledger.one_node_gangs = ledger.one_node_gangs or node.is_live
    ledger.assumed.set_mask(index, full)
    ledger.idle.set_mask(index, full)
    ledger.decision_needed = True


def node_lost(ledger: Ledger, e: NodeLost) -> None:
    index = ledger.node_index.get(e.name)
    if index is None or not ledger.nodes[index].alive:
        raise TransitionError(f"node {e.name} was lost, but no such node is there")
    for row in range(len(ledger.spec)):
        target, places = ledger.target[row], (ledger.held[row], ledger.home[row])
        if any(place and index in place.nodes() for place in places):
            if ledger.has_processes(row):
                lose_attempt(ledger, e.at_s, row, f"node {e.name} was lost")
        elif target and index in target.nodes():
            ledger.untarget(row)
            ledger.reason[row] = Reason.WAIT_PRIORITY
            ledger.note_change(row)
    ledger.total_gpus -= ledger.nodes[index].num_gpus
    ledger.nodes[index] = ledger.nodes[index]._replace(alive=False)
    ledger.assumed.set_mask(index, 0)
    ledger.idle.set_mask(index, 0)
    ledger.decision_needed = True
