"""The GPUs that Pollux shares out: one pool, or one for each type if there are several.

With several types, each job has GPUs of one type, chosen with their number by its goodput on each
type, as in Sia (Jayaram Subramanya et al., SOSP 2023): jobs that gain most by the fast ones get
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from rota.model.allocation import Allocation
from rota.model.view import View
from rota.policy.pollux.models import Shapes
from rota.policy.pollux.value import Matrix, Vector
from rota.predict.goodput_table import canonical

EVERYWHERE = -1  # all nodes, as a set of bits


class Pool(NamedTuple):
    """Some of the GPUs: their nodes as a set of bits; most nodes have ``node_gpus``."""

    gpu_type: str
    nodes: int
    num_gpus: int
    node_gpus: int

    def has(self, allocation: Allocation) -> bool:
        """True if all of these GPUs belong to the pool."""
        return all(self.nodes >> node & 1 for node in allocation.nodes())


class Choices(NamedTuple):
    """The choices of a job, in the order of columns: no GPU, then numbers of GPUs of each pool."""

    gpus: tuple[int, ...]
    pools: tuple[int, ...]
    shapes: list[Shapes]  # of each pool


def pools_of(view: View, rows: list[int]) -> list[Pool]:
    """The GPUs of each type, most first; one pool if there is one type or a gang needs several.

    There is at least one pool, even without nodes.
    """
    by_type: dict[str, list[int]] = {}
    for index, node in enumerate(view.nodes):
        if node.alive:
            by_type.setdefault(node.gpu_type, []).append(index)
    if len(by_type) > 1:
        pools = [
            _pool(view, gpu_type, sum(1 << node for node in nodes), nodes)
            for gpu_type, nodes in by_type.items()
        ]
        pools.sort(key=lambda pool: (-pool.num_gpus, pool.gpu_type))
        largest = pools[0].num_gpus
        if all(not largest < view.sizes(row)[0] <= view.total_gpus for row in rows):
            return pools
    there = [index for nodes in by_type.values() for index in nodes]
    return [_pool(view, "", EVERYWHERE, there)]


def _pool(view: View, gpu_type: str, nodes: int, there: list[int]) -> Pool:
    sizes = Counter(view.nodes[node].num_gpus for node in there)
    node_gpus = max(sizes, key=lambda size: (sizes[size], size), default=1)
    return Pool(gpu_type, nodes, sum(sizes.elements()), node_gpus)


def choices_of(
    view: View, rows: list[int], pools: Sequence[Pool], *, whole_nodes: bool = True
) -> Choices:
    """The numbers of GPUs of each pool among which jobs are given one."""
    shapes = [_offered(view, rows, pool, whole_nodes) for pool in pools]
    gpus = tuple(gpus for each in shapes for gpus, _ in each)
    numbers = tuple(number for number, each in enumerate(shapes) for _ in each)
    return Choices((0, *gpus), (0, *numbers), shapes)


def _offered(view: View, rows: list[int], pool: Pool, whole_nodes: bool) -> Shapes:
    """(GPUs, nodes) of a pool: the canonical ones, and what gangs ask for.

    For a job that can have none of the canonical numbers of GPUs, its least is included. Without
    ``whole_nodes`` every number is offered.
    """
    asked, node_gpus = [view.sizes(row) for row in rows], pool.node_gpus
    most = min(max(sizes[-1] for sizes in asked), pool.num_gpus)
    shapes = dict(canonical(node_gpus, most))
    if not whole_nodes:
        shapes |= {gpus: -(-gpus // node_gpus) for gpus in range(1, most + 1)}
    for sizes in dict.fromkeys(asked):
        if shapes.keys().isdisjoint(sizes) and sizes[0] <= pool.num_gpus:
            shapes[sizes[0]] = -(-sizes[0] // node_gpus)
    return sorted(shapes.items())


def pool_of(pools: Sequence[Pool], allocation: Allocation) -> int:
    """The pool of most of these GPUs; the first if they are of none, on nodes that are lost."""
    if len(pools) == 1:
        return 0
    gpus = [
        sum(mask.bit_count() for node, mask in allocation.parts if pool.nodes >> node & 1)
        for pool in pools
    ]
    return gpus.index(max(gpus))


def taken_of(view: View, pools: Sequence[Pool], places: Collection[Allocation]) -> list[int]:
    """GPUs of each pool that these allocations have, on nodes that are there."""
    parts = [part for place in places for part in place.parts if view.nodes[part[0]].alive]
    return [
        sum(mask.bit_count() for node, mask in parts if pool.nodes >> node & 1) for pool in pools
    ]


def current_choices(view: View, rows: list[int], pools: Sequence[Pool], choices: Choices) -> Vector:
    """Each job's present choice: the nearest number of GPUs of its pool."""
    counts, of_pool = np.array(choices.gpus), np.array(choices.pools)
    held = [view.target[row] for row in rows]
    gpus = np.array([0 if each is None else each.num_gpus for each in held])
    where = np.array([0 if each is None else pool_of(pools, each) for each in held])
    away = np.abs(counts[None, :] - gpus[:, None]).astype(float)
    away[(of_pool[None, :] != where[:, None]) | (counts == 0)] = np.inf
    return np.where(gpus > 0, away.argmin(axis=1), 0)


def possible_choices(
    view: View, rows: list[int], pools: Sequence[Pool], choices: Choices, most_gpus: list[int]
) -> Matrix:
    """A mask of each job's choices: its sizes, up to its limit, on the types where it can run.

    ``most_gpus`` is each job's limit; its least size is always allowed. A job that can't be moved
    from its node stays on its type.
    """
    counts, of_pool = np.array(choices.gpus), np.array(choices.pools)
    on_one_node = counts <= np.array([pool.node_gpus for pool in pools])[of_pool]
    node_gpus = max(pool.node_gpus for pool in pools)
    sizes = [view.sizes(row) for row in rows]
    most = [
        max(each, _least(allowed, choices.gpus))
        for each, allowed in zip(most_gpus, sizes, strict=True)
    ]
    may: Matrix = np.array([_among(allowed, choices.gpus) for allowed in sizes])
    may &= counts <= np.array(most)[:, None]
    for job, row in enumerate(rows):
        as_it_runs = resizes_as_it_runs(view, row)
        if as_it_runs:  # its ranks stay on one node, unless no node has its least size
            least = _least(sizes[job], choices.gpus)
            may[job] &= on_one_node if least <= node_gpus else counts == least
        if len(pools) > 1 and (stays := _stays(view, row, as_it_runs)) is not None:
            may[job] &= of_pool == pool_of(pools, stays)
    may[:, 0] = True
    return may


def resizes_as_it_runs(view: View, row: int) -> bool:
    """True if the job's size changes without a suspension, on the nodes where it is."""
    elastic = view.spec[row].elastic
    return elastic is not None and not elastic.by_restart


def _stays(view: View, row: int, as_it_runs: bool) -> Allocation | None:
    """The job's allocation or home, if it can't continue on another type of GPU; else None."""
    held = view.target[row]
    if not (view.movable[row] and view.portable[row]):
        return view.home[row] if held is None else held
    return held if as_it_runs else None


@lru_cache(maxsize=1024)
def _least(allowed: tuple[int, ...], counts: tuple[int, ...]) -> int:
    """The least of these numbers of GPUs that is allowed."""
    return min(set(allowed).intersection(counts), default=allowed[0])


@lru_cache(maxsize=1024)
def _among(allowed: tuple[int, ...], counts: tuple[int, ...]) -> tuple[bool, ...]:
    """For each of these numbers of GPUs, True if it is allowed."""
    found = frozenset(allowed)
    return tuple(gpus in found for gpus in counts)
