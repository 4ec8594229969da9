"""The CPU cores of a node, and the part of them that each of its jobs may use.

An attempt's record says how many thousandths of a core it may use; here it is held to that, by a
control group where the kernel has given the agent one, else by affinity: whole cores, for every
thread of the attempt's processes, again and again, because processes that a job has forked before
do not follow. The record is written first, so that the agent's successor goes on from there.
"""

import logging
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rota.live.agent.attempt import Attempt
from rota.live.agent.cpu_groups import Groups, cores_in
from rota.live.agent.devices import Devices
from rota.live.agent.guest import Guest
from rota.live.agent.host import usable_memory_gb, usable_millicores
from rota.live.agent.launching import Place, whole_cores
from rota.live.agent.record import Record
from rota.live.agent.world import World
from rota.live.wire.places import here

AFFINITY, NOT_HELD = "affinity", "not held"
LOOK_EVERY_S = 0.5
NUMA = Path("/sys/devices/system/node")

log = logging.getLogger("rota.agent")


class Part(NamedTuple):
    """A node's part of its machine's cores and memory: number ``place``, from 0, of ``parts``."""

    place: int = 0
    parts: int = 1

    def of(self, cores: Iterable[int]) -> list[int]:
        """The cores of this part; parts share cores where there are too few."""
        every = sorted(cores)
        first, last = (len(every) * i // self.parts for i in (self.place, self.place + 1))
        return every[first:last] or [every[self.place % len(every)]]


WHOLE = Part()
Held = Attempt | Guest


def allowed_cores() -> set[int]:
    """The cores that this process may use now: those that are online and in its cpuset."""
    return os.sched_getaffinity(0)


class Cpus:
    """Cores of one node, held by ``groups``, or by affinity if there are none.

    ``attempts`` are the node's; ``cores`` and ``usable`` tell what the machine has at this moment.
    """

    def __init__(
        self,
        attempts: Callable[[], Collection[Held]],
        devices: Devices,
        world: World,
        groups: Groups | None = None,
        part: Part = WHOLE,
        cores: Callable[[], set[int]] = allowed_cores,
        usable: Callable[[], int] = usable_millicores,
        numa: Sequence[set[int]] | None = None,
    ) -> None:
        self._attempts, self._devices, self._world = attempts, devices, world
        self._groups, self._part = groups, part
        self._find_cores, self._find_usable = cores, usable
        self._memory_gb = usable_memory_gb() / part.parts
        self._numa = numa_nodes() if numa is None else numa
        self._left: Groups | None = None  # groups that can hold no job any more
        self._made: set[str] = set()  # groups that must be there
        self._chosen: dict[str, list[int]] = {}  # by group, of jobs that are held by affinity
        self._bound: dict[str, int] = {}  # by group: the memory node that it is bound to
        self._can_bind = _may_bind()
        self.why = ""  # why it holds less well than it did at first
        self._count()

    # -- what there is -------------------------------------------------------------------------

    @property
    def held_by(self) -> str:
        """The mechanism, as ``rota nodes`` names it."""
        if self._groups is not None:
            return self._groups.name
        return AFFINITY if self._can_bind else NOT_HELD

    def told(self) -> dict[str, Any]:
        """Facts for the controller on the node's cores and memory."""
        return {
            "millicores": self._millicores,
            "host_memory_gb": self._memory_gb,
            "held_by": self.held_by,
        }

    def _count(self) -> None:
        self._every = self._find_cores()
        self._cores = self._part.of(self._every)
        whole = min(1000 * len(self._every), self._find_usable())
        self._millicores = max(1, whole // self._part.parts)

    # -- jobs ----------------------------------------------------------------------------------

    def place(self, record: Record) -> Place | None:
        """The place of processes about to be started for an attempt; None without a limit."""
        if record.millicores is None:
            return None
        group = group_of(record)
        if self._groups is not None:
            try:
                self._hold(record)
                return Place(self._groups.doors(group), [])
            except OSError as error:
                self._fall_back(error)
        return Place([], self._spread(also=record)[group] if self._can_bind else [])

    def give(self, attempt: Held, millicores: int | None) -> None:
        """Let an attempt use so much from now on: written down first, then made so."""
        was_free, record = attempt.record.millicores is None, attempt.record
        if record.millicores != millicores:
            record.millicores = millicores
            attempt.save_if_there_is_room()
            for rank in attempt.ranks:
                rank.send({"type": "cpus", "millicores": millicores})
        if not (was_free and millicores is None):
            self._apply(attempt, unbind=was_free)

    def adopt(self) -> None:
        """Hold what an earlier agent has left as its records say; remove groups of dead attempts.

        It may have been killed between any two writes.
        """
        for attempt in self._living():
            if attempt.record.millicores is not None:
                self._apply(attempt, unbind=True)
        self._sweep()

    def look(self) -> bool:
        """Look after the machine's cores and the groups; True if the controller must be told."""
        before = (self._millicores, self.held_by)
        self._count()
        try:
            if self._groups is not None:
                for attempt in self._held():
                    group = group_of(attempt.record)
                    if group in self._made:
                        self._groups.check(group)
                        self._hold(attempt.record)
        except OSError as error:
            self._fall_back(error)
        if self._groups is None:
            self._bind_all()
        self._sweep()
        return before != (self._millicores, self.held_by)

    def close(self) -> None:
        """Remove the groups of a node that has no jobs any more."""
        for groups in filter(None, (self._groups, self._left)):
            groups.close()

    # -- making it so --------------------------------------------------------------------------

    def _living(self) -> list[Held]:
        return [attempt for attempt in self._attempts() if attempt.ended is None]

    def _held(self) -> list[Held]:
        """The attempts with a limit and with processes that may run now."""
        return [
            attempt
            for attempt in self._living()
            if attempt.record.millicores is not None and attempt.record.suspended_s is None
        ]

    def _apply(self, attempt: Held, *, unbind: bool) -> None:
        record, group = attempt.record, group_of(attempt.record)
        if record.millicores is None:  # as it would have been started without a limit
            cores = self._devices.cores_of(here(record.gpus)) or self._cores
            if self._groups is None or self._devices.kind == "cpu":
                self._bind(attempt, cores)
        if self._groups is not None:
            try:
                self._hold(record)
                self._groups.gather(group, lambda: below(attempt))
                if unbind and record.millicores is not None:
                    self._bind(attempt, self._every)
                return
            except OSError as error:
                self._fall_back(error)
        self._bind_all(also=attempt)

    def _hold(self, record: Record) -> None:
        assert self._groups is not None, "groups hold what they are there for"
        group, millicores = group_of(record), record.millicores
        near = self._near(group, millicores)
        self._groups.set(group, millicores, near, background=record.background)
        self._made.add(group)

    def _near(self, group: str, millicores: int | None) -> set[int]:
        """The cores of the memory node that the group fits into; all if none, or if one is all."""
        assert self._groups is not None, "groups hold what they are there for"
        nodes = [node & self._every for node in self._numa]
        if len(list(filter(None, nodes))) < 2 or not self._groups.binds:
            return set()
        before = self._bound.pop(group, -1)
        room = [1000 * len(node) for node in nodes]
        for attempt in self._held():
            other = group_of(attempt.record)
            if other in self._bound:
                room[self._bound[other]] -= attempt.record.millicores or 0
        share = millicores if millicores is not None else math.inf
        fits = [index for index in range(len(nodes)) if room[index] >= share]
        if not fits:
            return self._every
        best = max(fits, key=lambda index: (index == before, room[index], -index))
        self._bound[group] = best
        return nodes[best]

    def _spread(self, also: Record | None = None) -> dict[str, list[int]]:
        records = [attempt.record for attempt in self._held()]
        records += [also] if also is not None and also not in records else []
        shares = {group_of(record): record.millicores or 0 for record in records}
        self._chosen = spread(shares, self._cores, self._numa, self._chosen)
        return self._chosen

    def _bind_all(self, also: Held | None = None) -> None:
        """Bind every attempt with a limit to its cores; ``also`` one that goes on at once.

        A program may restrict threads of its own further: that stays while its cores stay.
        """
        if not self._can_bind:
            return
        attempts = self._held()
        if also is not None and also.record.millicores is not None and also not in attempts:
            attempts.append(also)
        before = self._chosen
        chosen = self._spread(also.record if also in attempts and also is not None else None)
        for attempt in attempts:
            group = group_of(attempt.record)
            self._bind(attempt, chosen[group], widens=chosen[group] != before.get(group))

    def _bind(self, attempt: Held, cores: Collection[int], *, widens: bool = True) -> None:
        for rank in attempt.ranks:
            if rank.alive and rank.shim:  # one on another node has none here
                self._world.bind(rank.shim, cores, widens=widens)

    def _fall_back(self, error: OSError) -> None:
        """Hold jobs by affinity from now on, because a group is gone or can't be written."""
        groups, self._groups = self._groups, None
        assert groups is not None, "only groups fail"
        self._left = groups
        self._made.clear()
        self.why = f"{groups.name}: {error}"
        log.warning("jobs are held to their CPU cores by %s now: %s", self.held_by, self.why)
        for group in groups.names():  # else the quotas of that time would stay
            with suppress(OSError):
                groups.check(group)
                groups.set(group, None)
        self._bind_all()

    def _sweep(self) -> None:
        """Remove the groups of attempts that are over; one with a process left is tried again."""
        groups = self._groups or self._left
        if groups is None:
            return
        living = {group_of(attempt.record) for attempt in self._living()}
        for group in groups.names():
            if group not in living:
                with suppress(OSError):
                    groups.remove(group)
        self._made &= living
        self._bound = {group: node for group, node in self._bound.items() if group in living}


def group_of(record: Record) -> str:
    """The name of an attempt's group."""
    return f"{record.job_id}.{record.attempt}"


def below(attempt: Held) -> set[int]:
    """All processes of an attempt but its shims."""
    below = {pid for rank in attempt.ranks for pid in rank.below()}
    return below | set(attempt.worker_pids)


def spread(
    shares: Mapping[str, int],
    cores: Sequence[int],
    numa: Sequence[set[int]] = (),
    before: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, list[int]]:
    """Whole cores for each share, at least one: those with least on them, on one memory node.

    A share lies on several nodes only where it would have a core with another one otherwise.
    ``shares`` are thousandths of a core. Where it makes no difference a share keeps the cores that
    it had ``before``.
    """
    load = dict.fromkeys(cores, 0)
    chosen = {}
    for name, share in sorted(shares.items(), key=lambda each: (-each[1], each[0])):
        count = min(len(cores), whole_cores(share))
        own = set((before or {}).get(name, ()))
        nodes = [[core for core in cores if core in node] for node in numa]
        nodes = [node for node in nodes if len(node) >= count] or [list(cores)]
        picks = [
            sorted(node, key=lambda core: (load[core], core not in own, core))[:count]
            for node in nodes
        ]
        best = min(picks, key=lambda pick: (sum(load[core] for core in pick), not own & set(pick)))
        free = [core for core in cores if not load[core]]
        if any(load[core] for core in best) and len(free) >= count:
            best = sorted(free, key=lambda core: (core not in own, core))[:count]
        for core in best:
            load[core] += share // count
        chosen[name] = sorted(best)
    return chosen


def numa_nodes(folder: Path = NUMA) -> list[set[int]]:
    """The cores of each memory node; none if the machine does not tell."""
    nodes = []
    for file in sorted(folder.glob("node[0-9]*/cpulist")):
        with suppress(OSError, ValueError):
            nodes.append(cores_in(file.read_text()))
    return nodes


def _may_bind() -> bool:
    """True if this process may choose its cores; found out by choosing those that it has."""
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except OSError:
        return False
    return True
