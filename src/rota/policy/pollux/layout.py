"""Places the GPUs of elastic jobs: jobs that keep their number keep their GPUs, others move."""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import islice

from rota.model.allocation import Allocation, of_parts, on_node
from rota.model.reason import Reason
from rota.model.view import WhatIf
from rota.policy.placement.nodesets import first_gpus, lowest, lowest_gpus, members
from rota.policy.pollux.pools import resizes_as_it_runs


class Layout:
    """Gives jobs their wanted numbers of GPUs, on the fewest nodes.

    ``wanted`` is the number by row, 0 for none; ``weight`` orders jobs of equal size. A job that
    keeps its size is not moved, unless larger jobs need its node as a whole. A job that can give
    GPUs up while it runs is suspended with its least size: it continues with as many as it had.

    With ``avoid`` no node has two jobs that are on several nodes, which would slow each other down,
    unless a gang that takes no fewer GPUs finds no others. Without it such jobs take free GPUs on
    any nodes, and no job is moved for them. ``nodes`` is the set of those that may be used, as
    bits.
    """

    def __init__(
        self,
        what_if: WhatIf,
        node_gpus: int,
        wanted: Mapping[int, int],
        weight: Mapping[int, float],
        *,
        avoid: bool = True,
        nodes: int = -1,
    ) -> None:
        self._what_if = what_if
        self._node_gpus = node_gpus
        self._weight = weight
        self._avoid = avoid
        self._nodes = nodes
        self._before = {row: what_if.target(row) for row in wanted}
        self._wanted = {row: gpus or self._kept(row) for row, gpus in wanted.items()}

    def place(self) -> None:
        """Carry it out on the what-if. A job may get fewer GPUs than wanted."""
        what_if, growing = self._what_if, []
        for row, gpus in self._wanted.items():
            before = self._before[row]
            if before is None:
                if not gpus:
                    what_if.wait(row, self._why_not(row))
            elif gpus and before.num_gpus != gpus and self._as_it_runs(row):
                if gpus > before.num_gpus:
                    growing.append(row)
                else:
                    what_if.change(row, first_gpus(before, gpus))
            elif before.num_gpus != gpus:
                what_if.release(row, Reason.WAIT_PRIORITY)
        queue = [
            self._turn(row)
            for row, gpus in self._wanted.items()
            if gpus and not what_if.target(row)
        ]
        heapify(queue)
        while queue:
            row = heappop(queue)[-1]
            wanted, node_gpus = self._wanted[row], self._node_gpus
            if wanted == node_gpus or (wanted > node_gpus and self._avoid):
                for cleared in self._clear_nodes(row):
                    heappush(queue, self._turn(cleared))
            self._give(row)
        for row in growing:
            self._grow(row)

    def _kept(self, row: int) -> int:
        """GPUs that a job without a share keeps for now: its least, if it shrinks while running."""
        before, held = self._before[row], self._what_if.view.held[row]
        if before is None or held is None or not self._as_it_runs(row):
            return 0
        least = self._what_if.view.sizes(row)[0]
        return least if least < held.num_gpus else 0

    def _turn(self, row: int) -> tuple[float, float, int]:
        """Sort key: larger jobs are placed first; among equals, those of larger weight."""
        return -self._wanted[row], -self._weight[row], row

    def _why_not(self, row: int) -> Reason:
        view = self._what_if.view
        never = view.sizes(row)[0] > view.total_gpus
        return Reason.NEVER_FITS if never else Reason.WAIT_PRIORITY

    def _as_it_runs(self, row: int) -> bool:
        return resizes_as_it_runs(self._what_if.view, row)

    def _grow(self, row: int) -> None:
        """Add free GPUs of the job's node, as many as make a size of it."""
        before = self._what_if.target(row)
        if before is None:
            return
        node, mask = before.parts[0]
        free = self._what_if.free.masks[node]
        most = min(self._wanted[row], before.num_gpus + free.bit_count())
        size = max(size for size in self._what_if.view.sizes(row) if size <= most)
        if size > before.num_gpus and len(before.parts) == 1:
            more = lowest_gpus(free, size - before.num_gpus)
            found = on_node(node, mask | more)
            self._what_if.change(row, found)

    def _give(self, row: int) -> None:
        view, home = self._what_if.view, self._what_if.view.home[row]
        if home is not None and (view.must_stay(row) or view.stays_on_node(row)):
            found = self._at_home(row, home)
            size = self._size(row, found)
        else:
            found = self._anywhere(row, self._avoid)
            size = self._size(row, found)
            if not size and self._avoid:
                found = self._anywhere(row, False)
                size = self._size(row, found)
        if found is None or not size:
            self._what_if.wait(row, Reason.WAIT_RESOURCES)
        else:
            self._what_if.give(row, first_gpus(found, size))

    def _size(self, row: int, found: Allocation | None) -> int:
        """The largest size of the job that these GPUs make; 0 if they make none."""
        gpus = found.num_gpus if found is not None else 0
        before = self._before[row]
        if before is not None and self._as_it_runs(row):  # elsewhere it goes on as it was
            return before.num_gpus if before.num_gpus <= gpus else 0
        return max((size for size in self._what_if.view.sizes(row) if size <= gpus), default=0)

    def _at_home(self, row: int, home: Allocation) -> Allocation | None:
        """GPUs where a suspended job's state is, for a job whose state can't be moved."""
        free = self._what_if.free
        if free.fits(home):
            return home
        if self._what_if.view.must_stay(row):
            return None
        node, gpus = home.parts[0][0], home.num_gpus
        mask = free.masks[node]
        return on_node(node, lowest_gpus(mask, gpus)) if mask.bit_count() >= gpus else None

    def _anywhere(self, row: int, avoid: bool) -> Allocation | None:
        """The GPUs that the job should have, on the fewest nodes; or fewer GPUs."""
        wanted = self._wanted[row]
        parts = self._whole_nodes(row, wanted)
        rest = wanted - sum(mask.bit_count() for _, mask in parts)
        while rest:
            taken = {node for node, _ in parts}
            if avoid and parts:
                taken |= self._nodes_of_spread()
            part = self._one_node(row, min(rest, self._node_gpus) if avoid else rest, taken)
            if part is None:
                break
            parts.append(part)
            rest -= part[1].bit_count()
            if avoid or wanted <= self._node_gpus:
                break
        return of_parts(sorted(parts)) if parts else None

    def _nodes_of_spread(self) -> set[int]:
        """The nodes of jobs that span several."""
        targets = (self._what_if.target(row) for row in self._wanted)
        return {
            node
            for target in targets
            if target is not None and len(target.parts) > 1
            for node in target.nodes()
        }

    def _whole_nodes(self, row: int, wanted: int) -> list[tuple[int, int]]:
        """Free nodes, as many as the job fills; its former nodes first."""
        masks, number = self._what_if.free.masks, wanted // self._node_gpus
        if not number:
            return []
        whole = self._with_free(self._node_gpus)
        mine = [node for node in self._nodes_of(self._before[row]) if whole >> node & 1]
        others = members(whole & ~sum(1 << node for node in mine))
        nodes = [*sorted(mine), *islice(others, max(0, number - len(mine)))]
        return [(node, masks[node]) for node in nodes[:number]]

    def _with_free(self, gpus: int) -> int:
        """The nodes that have exactly so many free GPUs, as a bit set."""
        by_count = self._what_if.free.by_count
        return by_count[gpus] & self._nodes if gpus < len(by_count) else 0

    def _one_node(self, row: int, gpus: int, but: set[int]) -> tuple[int, int] | None:
        """``gpus`` GPUs of the node with the tightest fit; or all of the node with the most."""
        masks, by_count = self._what_if.free.masks, self._what_if.free.by_count
        mine = sum(1 << node for node in self._nodes_of(self._before[row]))
        others = self._nodes & ~sum(1 << node for node in but)
        fitting, smaller = range(gpus, len(by_count)), range(min(gpus, len(by_count)) - 1, 0, -1)
        for count in (*fitting, *smaller):
            if nodes := by_count[count] & others:
                node = lowest(nodes & mine or nodes)
                return node, lowest_gpus(masks[node], min(gpus, count))
        return None

    def _clear_nodes(self, row: int) -> list[int]:
        """Take small jobs off nodes until the job finds as many empty nodes as it fills."""
        lacking = self._wanted[row] // self._node_gpus
        lacking -= self._with_free(self._node_gpus).bit_count()
        cleared: list[int] = []
        if lacking <= 0:
            return cleared
        by_node: dict[int, list[int]] = {}
        spread: set[int] = set()
        for other in self._wanted:
            parts = getattr(self._what_if.target(other), "parts", ())
            for node, _ in parts:
                by_node.setdefault(node, []).append(other)
                large = len(parts) > 1 or self._wanted[other] >= self._node_gpus
                if large or not self._can_move(other):
                    spread.add(node)
        small = [(len(rows), node) for node, rows in by_node.items() if node not in spread]
        for _, node in sorted(small)[:lacking]:
            for other in by_node[node]:
                self._what_if.release(other, Reason.WAIT_PRIORITY)
                cleared.append(other)
        return cleared

    def _can_move(self, row: int) -> bool:
        """True if a running job may continue elsewhere, with its wanted number of GPUs."""
        view, before = self._what_if.view, self._before[row]
        if not (view.movable[row] and view.portable[row]) or view.changes_gpus(row):
            return False
        changes = before is not None and before.num_gpus != self._wanted[row]
        return not (changes and self._as_it_runs(row))

    def _nodes_of(self, allocation: Allocation | None) -> set[int]:
        return set(allocation.nodes()) if allocation is not None else set()
