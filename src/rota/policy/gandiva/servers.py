"""Gandiva's servers: where jobs live, and where the next one goes (OSDI 2018, section 3)."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

Home = tuple[tuple[int, int], ...]  # (node, GPUs there) pairs: where a job lives


def num_gpus_of(home: Home) -> int:
    """The GPUs of a home."""
    return home[0][1] if len(home) == 1 else sum(gpus for _, gpus in home)


class Servers:
    """The load of each living node: GPUs that the jobs which live there ask for, taken together.

    ``height`` is load over GPUs, rounded up: above 1 jobs take turns. ``affinity`` is the size of
    the first gang that came to a node which was empty, for as long as anybody lives there; jobs go
    to nodes of their own size first, so that gangs find whole nodes. ``limit`` is the height that
    no newcomer may exceed, but for one that has waited for long. ``strict`` as published: a gang
    that finds neither a node of its size nor free GPUs waits in the queue, even if a node of
    another size has a height below the limit.
    ``whole``: a gang must live on one node. ``held`` nodes take nobody in: see :meth:`hold`.
    """

    def __init__(
        self,
        sizes: Mapping[int, int],
        affinity: Mapping[int, int],
        limit: int,
        *,
        strict: bool,
        whole: bool = False,
    ) -> None:
        self.sizes = dict(sizes)
        self._largest = max(self.sizes.values(), default=0)
        self.load = dict.fromkeys(self.sizes, 0)
        self.affinity = {node: affinity.get(node, 0) for node in self.sizes}
        self._groups: Counter[Home] = Counter()  # number of gangs on each set of several nodes
        self._limit = limit
        self._strict = strict
        self._whole = whole
        self.held: set[int] = set()

    def as_key(self) -> tuple[Any, ...]:
        """Everything that the choice of a home depends on, besides the request."""
        nodes = tuple(
            zip(self.sizes.items(), self.load.values(), self.affinity.values(), strict=True)
        )
        return nodes, frozenset(self._groups.items()), frozenset(self.held), self._whole

    def height(self, node: int, more: int = 0) -> int:
        """The node's height, with so many more GPUs asked for."""
        return ceil((self.load[node] + more) / self.sizes[node])

    def room(self, node: int) -> int:
        """GPUs of the node that nobody who lives there needs."""
        return max(0, self.sizes[node] - self.load[node])

    def takes(self, node: int, num_gpus: int) -> bool:
        """True if the node is there, and so many more GPUs may be promised."""
        return node in self.sizes and self.height(node, num_gpus) <= self._limit

    def overloaded(self) -> bool:
        """True if jobs take turns anywhere."""
        return any(self.load[node] > size for node, size in self.sizes.items())

    def add(self, home: Home) -> None:
        """A job comes to live here."""
        size = num_gpus_of(home)
        if len(home) > 1:
            self._groups[home] += 1
        for node, gpus in home:
            self.load[node] += gpus
            # Gangs larger than any node leave most GPUs idle where others live, too.
            self.affinity[node] = size if size > self._largest else self.affinity[node] or size

    def remove(self, home: Home) -> None:
        """A job that lived here does so no more."""
        if len(home) > 1:
            self._groups[home] -= 1
            if not self._groups[home]:
                del self._groups[home]
        for node, gpus in home:
            self.load[node] -= gpus
            if not self.load[node]:
                self.affinity[node] = 0

    def choose(self, num_gpus: int, *, higher: int = 0) -> Home | None:
        """The home for a gang (Algorithm 1); None if it must wait in the queue.

        Its nodes may be so much ``higher`` than the limit.
        """
        home = self.choose_free(num_gpus)
        if home is not None:
            return home
        if num_gpus > self._largest:
            return None if self._whole else self._several(num_gpus, self._limit + higher)
        large = [n for n, size in self.sizes.items() if size >= num_gpus and n not in self.held]
        alike = [node for node in large if self.affinity[node] == num_gpus]
        for nodes in (alike,) if self._strict else (alike, large):
            low = [n for n in nodes if self.height(n, num_gpus) <= self._limit + higher]
            if low:
                return ((self._least_loaded(low, num_gpus), num_gpus),)
        return None

    def choose_free(self, num_gpus: int, among: Collection[int] | None = None) -> Home | None:
        """Nodes with so many GPUs to spare: of the same affinity, else none's, else of any.

        With ``among`` one of these nodes; else, unless a gang must be whole, fragments will do.
        """
        nodes = self.sizes if among is None else among
        fits = [n for n in nodes if self.room(n) >= num_gpus and n not in self.held]
        for affinity in (num_gpus, 0):
            same = [node for node in fits if self.affinity[node] == affinity]
            if same:
                return ((self._least_loaded(same, num_gpus), num_gpus),)
        if fits:
            return ((min(fits, key=lambda node: (self.room(node), node)), num_gpus),)
        return None if self._whole or among is not None else self._fragments(num_gpus)

    def hold(self, num_gpus: int) -> None:
        """Let nobody come to the nodes that a gang in the queue can have soonest.

        Those where the fewest GPUs have to be asked for less. Nobody who comes later is let in, so
        that they come to be few enough; the gang itself has to have asked before.
        """

        def excess(node: int) -> int:
            others = self._strict and self.affinity[node] not in (0, num_gpus)
            height = 1 if others else self._limit
            return self.load[node] + min(num_gpus, self.sizes[node]) - height * self.sizes[node]

        left = num_gpus
        large = [node for node, size in self.sizes.items() if size >= num_gpus]
        for node in sorted(large or self.sizes, key=lambda node: (excess(node), node)):
            if left > 0:
                self.held.add(node)
                left -= self.sizes[node]

    def on_one_node(self, num_gpus: int, among: Iterable[int]) -> Home | None:
        """The one of these nodes with so many GPUs to spare, the tightest."""
        fits = [n for n in among if self.room(n) >= num_gpus and n not in self.held]
        if not fits:
            return None
        return ((min(fits, key=lambda node: (self.room(node), node)), num_gpus),)

    def _least_loaded(self, nodes: list[int], num_gpus: int) -> int:
        return min(nodes, key=lambda n: (self.height(n, num_gpus), self.load[n] / self.sizes[n], n))

    def _fragments(self, num_gpus: int) -> Home | None:
        """Free GPUs of as few nodes as can be; migration may bring them together later."""
        home, left = [], num_gpus
        for node in sorted(self.sizes, key=lambda node: (-self.room(node), node)):
            gpus = min(left, self.room(node))
            if gpus and node not in self.held:
                home.append((node, gpus))
                left -= gpus
        return None if left else tuple(sorted(home))

    def with_its_like(self, home: Home) -> Home | None:
        """A home of other gangs of that size on several nodes, better than ``home``.

        Gangs on the same nodes leave none of these idle in their turns. None unless more of them
        live there than in ``home``, and no node there would be higher than those of ``home``.
        """
        size, here = sum(gpus for _, gpus in home), self._groups[home]
        high = max(self.height(node) for node, _ in home)
        better = [
            (count, group)
            for group, count in self._like(size)
            if group != home and (count, home) > (here, group)
        ]
        for _, group in sorted(better, key=lambda each: (-each[0], each[1])):
            stay = dict(home)
            if all(self.height(n, gpus - stay.get(n, 0)) <= high for n, gpus in group):
                return group
        return None

    def of_its_size(self, home: Home) -> Home | None:
        """A node where gangs of its size live, for one among others or on several nodes.

        Gangs of unlike sizes leave GPUs idle in their turns. None if those nodes would be higher.
        """
        size = sum(gpus for _, gpus in home)
        if len(home) == 1 and self.affinity[home[0][0]] == size:
            return None
        high = max(self.height(node) for node, _ in home)
        same = [
            n
            for n, affinity in self.affinity.items()
            if affinity == size <= self.sizes[n]
            and self.height(n, size) <= high
            and n not in self.held
        ]
        return ((self._least_loaded(same, size), size),) if same else None

    def _like(self, size: int) -> list[tuple[Home, int]]:
        """Whole nodes where gangs of this size live, and how many of them."""
        return [
            (group, count)
            for group, count in self._groups.items()
            if sum(gpus for _, gpus in group) == size
            and all(gpus == self.sizes[n] and n not in self.held for n, gpus in group)
        ]

    def _several(self, num_gpus: int, limit: int) -> Home | None:
        """Whole nodes for a gang that is larger than any: with its like, or the least loaded."""
        home, left = [], num_gpus
        for node in sorted(self.sizes, key=lambda node: (self.load[node], node)):
            gpus = min(left, self.sizes[node])
            if gpus and node not in self.held and self.height(node, gpus) <= limit:
                home.append((node, gpus))
                left -= gpus
        if left:
            return None
        choices = [tuple(sorted(home))] + [group for group, _ in self._like(num_gpus)]
        heights = {each: max(self.height(node, gpus) for node, gpus in each) for each in choices}
        like = [
            each for each in choices[1:] if heights[each] <= min(limit, heights[choices[0]] + 1)
        ]
        return min(like or choices, key=lambda each: (heights[each], -self._groups[each], each))


class Vain:
    """Searches without success, remembered between turns so that they are not repeated.

    ``homes`` are those for which no better home was found while :meth:`Servers.as_key` was
    ``servers``; ``queue`` is the state of the queue's jobs, and of the servers, when no job found a
    home.
    """

    def __init__(self) -> None:
        self.queue: tuple[Any, ...] | None = None
        self._servers: tuple[Any, ...] | None = None
        self.homes: set[Home] = set()

    def of(self, servers: tuple[Any, ...]) -> set[Home]:
        """The homes than which there is nothing better, as servers are."""
        if servers != self._servers:
            self._servers, self.homes = servers, set()
        return self.homes


@dataclass
class Lodgers:
    """The gangs of a node of ``size`` GPUs, by their GPUs, and its jobs and packs of one GPU."""

    size: int
    gangs: list[int]
    singles: int

    def without(self, gpus: int) -> "Lodgers":
        """The same without one job of so many GPUs."""
        if gpus == 1:
            return Lodgers(self.size, self.gangs, self.singles - 1)
        gangs = self.gangs.copy()
        gangs.remove(gpus)
        return Lodgers(self.size, gangs, self.singles)

    def beside(self, gpus: int) -> "Lodgers":
        """The same with another job of so many GPUs."""
        if gpus == 1:
            return Lodgers(self.size, self.gangs, self.singles + 1)
        return Lodgers(self.size, [*self.gangs, gpus], self.singles)

    def fewer_turns(self, gpus: int = 1) -> bool:
        """True if everybody would have had a turn sooner without one job of so many GPUs."""
        return self.without(gpus).turns() < self.turns()

    def turns(self) -> float:
        """Turns until everybody has had one.

        Single jobs use what gangs leave free, then take turns among themselves.
        """
        rooms: list[int] = []
        for gpus in sorted(self.gangs, reverse=True):
            fits = next((n for n, room in enumerate(rooms) if room >= gpus), None)
            if fits is None:
                rooms.append(self.size - gpus)
            else:
                rooms[fits] -= gpus
        left = self.singles - sum(rooms)
        return len(rooms) + (max(1.0, left / self.size) if left > 0 else 0.0)
