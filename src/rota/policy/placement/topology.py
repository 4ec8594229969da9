"""Keep a gang within one island of fast links, else one node, else one rack."""

from functools import partial

from rota.model.allocation import Allocation, on_node
from rota.model.cluster import FreeGpus, Node
from rota.model.view import View
from rota.policy.placement.nodesets import fewest, lowest, lowest_gpus, members


class Topology:
    """Cross as few boundaries as can be, the highest first: racks, then nodes, then islands.

    Of equal choices the tightest: the island, the node, then the rack with the fewest free GPUs
    that suffice; then the lowest-numbered. Nodes whose rack nobody named are one rack together.
    None only if too few GPUs are free.
    """

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._racks: list[int] = []  # a set of nodes per rack
        self._any_island = False

    def __call__(self, view: View, free: FreeGpus, row: int) -> Allocation | None:
        """GPUs for the job of ``row``."""
        num_gpus = view.num_gpus[row]
        if num_gpus > free.count:
            return None
        if view.nodes != self._nodes:
            self._learn(view.nodes)
        node = self._tightest_node(free, num_gpus)
        if node is not None:
            return on_node(node, self._gpus(free, node, num_gpus))
        parts = self._over_nodes(free, num_gpus)
        return Allocation(tuple(sorted((n, self._gpus(free, n, count)) for n, count in parts)))

    def _learn(self, nodes: list[Node]) -> None:
        self._nodes = list(nodes)
        racks: dict[str, int] = {}
        for i, node in enumerate(nodes):
            racks[node.rack] = racks.get(node.rack, 0) | 1 << i
        self._racks = list(racks.values())
        self._any_island = any(0 < node.island < node.num_gpus for node in nodes)

    def _tightest_node(self, free: FreeGpus, num_gpus: int) -> int | None:
        """The node to take all GPUs from: by islands crossed, the hole there, the node's hole."""
        best: tuple[tuple[int, int, int], int] | None = None
        for count in range(num_gpus, len(free.by_count)):
            if not free.by_count[count]:
                continue
            if not self._any_island:
                return lowest(free.by_count[count])
            for node in members(free.by_count[count]):
                taken = self._islands(free, node, num_gpus)
                last_hole = taken[-1][0].bit_count() - taken[-1][1]
                key = (len(taken), last_hole, count)
                if best is None or key < best[0]:
                    best = key, node
                if key[:2] == (1, 0):  # one island, filled: nothing later is better
                    return node
        return None if best is None else best[1]

    def _islands(self, free: FreeGpus, node: int, num_gpus: int) -> list[tuple[int, int]]:
        """``(free GPUs of an island as a mask, GPUs to take)``, on as few islands as can be."""
        num_island = self._nodes[node].island or self._nodes[node].num_gpus
        mask, island = free.masks[node], (1 << num_island) - 1
        islands = []
        for first in range(0, mask.bit_length(), num_island):
            islands.append(mask & island << first)
        by_count = [0] * (num_island + 1)
        for i, gpus in enumerate(islands):
            by_count[gpus.bit_count()] |= 1 << i
        return [(islands[i], count) for i, count in fewest(by_count, num_gpus) or ()]

    def _gpus(self, free: FreeGpus, node: int, num_gpus: int) -> int:
        mask = 0
        for gpus, count in self._islands(free, node, num_gpus):
            mask |= lowest_gpus(gpus, count)
        return mask

    def _over_nodes(self, free: FreeGpus, num_gpus: int) -> list[tuple[int, int]]:
        """``(node, GPUs)`` in as few racks as can be, and there on as few nodes."""
        racks = [[nodes & rack for nodes in free.by_count] for rack in self._racks]
        rooms = [sum(c * nodes.bit_count() for c, nodes in enumerate(rack)) for rack in racks]
        parts: list[tuple[int, int]] = []
        while num_gpus:
            fitting = [i for i, room in enumerate(rooms) if room >= num_gpus]
            if fitting:
                i = min(fitting, key=partial(_nodes_then_room, racks, rooms, num_gpus))
            else:
                i = max(range(len(rooms)), key=lambda i: (rooms[i], -i))
            gets = min(rooms[i], num_gpus)
            parts += fewest(racks[i], gets) or ()
            rooms[i] = 0
            num_gpus -= gets
        return parts


def _nodes_then_room(
    racks: list[list[int]], rooms: list[int], num_gpus: int, i: int
) -> tuple[int, int, int]:
    """Number of the rack's nodes that ``num_gpus`` take, and of GPUs free there."""
    nodes = 0
    for count in range(len(racks[i]) - 1, 0, -1):
        takes = min(racks[i][count].bit_count(), -(-num_gpus // count))
        nodes += takes
        num_gpus -= takes * count
        if num_gpus <= 0:
            break
    return nodes, rooms[i], i
