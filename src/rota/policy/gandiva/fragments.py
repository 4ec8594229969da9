"""Free GPUs in fragments: which jobs to move so that a whole gang has room (OSDI 2018, 3.4)."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rota.policy.gandiva.servers import Servers

Job = tuple[int, int]  # (row, GPUs)


class Clearing(NamedTuple):
    """A node that has room for a gang once the jobs of ``goes`` (row -> node) have left it."""

    node: int
    goes: dict[int, int]


def clear_one(
    servers: Servers,
    num_gpus: int,
    lodgers: Mapping[int, Sequence[Job]],
    may_go: Callable[[int, int], bool],
    where: int = -1,
) -> Clearing | None:
    """The cheapest way to free so many GPUs on one node; None if there is none.

    ``lodgers`` are the jobs of each node that may be moved; they go only where GPUs are free and
    ``may_go(row, node)``. Fewest moves come first, that of the gang itself counted unless it lives
    on ``where``, then fewest GPUs moved, then the lowest node. ``servers`` does not count the gang.
    """
    best: tuple[tuple[int, int, int], Clearing] | None = None
    rooms = {node: servers.room(node) for node in servers.sizes}
    free = sum(rooms.values())
    if free < num_gpus:
        return None
    for node, size in servers.sizes.items():
        need = num_gpus - (size - servers.load[node])
        if size < num_gpus or free - rooms[node] < need:
            continue
        room = {n: gpus for n, gpus in rooms.items() if n != node}
        goes = fit_elsewhere(lodgers.get(node, ()), room, may_go, need)
        if goes is None:
            continue
        moved = sum(gpus for row, gpus in lodgers.get(node, ()) if row in goes)
        cost = (len(goes) + (where not in (-1, node)), moved, node)
        if best is None or cost < best[0]:
            best = cost, Clearing(node, goes)
    return None if best is None else best[1]


def fit_elsewhere(
    jobs: Sequence[Job], room: dict[int, int], may_go: Callable[[int, int], bool], need: int
) -> dict[int, int] | None:
    """Nodes for as few of the jobs as give back ``need`` GPUs; None if not so many can go.

    Of those that are enough the smallest goes, else the largest, to the tightest ``room`` that
    takes it, which is used up.
    """
    goes: dict[int, int] = {}
    while need > 0:
        found = []
        for row, gpus in jobs:
            fits = [(free, n) for n, free in room.items() if free >= gpus and may_go(row, n)]
            if row not in goes and fits:
                found.append((gpus, row, min(fits)[1]))
        enough = [each for each in found if each[0] >= need]
        if not found:
            return None
        gpus, row, node = (
            min(enough) if enough else max(found, key=lambda each: (each[0], -each[1]))
        )
        goes[row] = node
        room[node] -= gpus
        need -= gpus
    return goes
