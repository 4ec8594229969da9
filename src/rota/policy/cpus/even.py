"""Stages that share the cores of a node out by its GPUs, whatever jobs make of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf

from rota.model.cluster import Node
from rota.model.plan import CpuPlan, Plan
from rota.model.view import View
from rota.policy.cpus.stage import CpuStage, Resident, Residents, cores_to_share

NOISE = 1e-6  # thousandths of a core: more than sums of shares are off by


class Even(CpuStage):
    """The same cores for each GPU in use, within the bounds of its job.

    A job on several nodes gets the cores of the node that has least for each of its GPUs: it is no
    faster than its slowest part. Jobs that share a GPU share its cores.
    """

    def __init__(self, *, floor: str = "proportional", period_s: float = 300.0) -> None:
        super().__init__(floor=floor, period_s=period_s)
        self._residents = Residents()
        self._of_node: dict[int, dict[int, float]] = {}  # node -> row -> thousandths of a core

    def most_per_gpu(self, node: Node) -> float:
        """The most for a GPU of the node, in thousandths of a core."""
        raise NotImplementedError

    def assign(self, view: View, plan: Plan) -> CpuPlan:
        residents, wanted = self._residents, dict[int, int | None]()
        touched = residents.follow(view, plan)
        for node, cores in cores_to_share(view, touched).items():
            most = self.most_per_gpu(view.nodes[node])
            on_node = residents.on(view, node) if cores else ()
            shares = level(on_node, cores, most)
            if any(share < 1 for share in shares.values()):  # no GPU gets less than a thousandth
                gpus = sum(mask.bit_count() for _, mask in residents.masks(node))
                shares = level(on_node, max(0, cores - gpus), most)
            self._of_node[node] = shares
        for row in {row for node in touched for row in residents.rows(node)}:
            millicores = self._whole(row)
            if view.target_cpus.get(row) != millicores:
                wanted[row] = millicores
        return CpuPlan(dict(sorted(wanted.items())))

    def _whole(self, row: int) -> int | None:
        """Thousandths of a core of the whole job; None if those of a node of its are unknown."""
        place = self._residents.place[row]
        per_gpu = []
        for node, mask in place.parts:
            share = self._of_node[node].get(row)
            if share is None:
                return None
            per_gpu.append(share / mask.bit_count())
        if len(per_gpu) == 1:
            return max(1, floor(per_gpu[0] * place.num_gpus + NOISE))
        return place.num_gpus * max(1, floor(min(per_gpu) + NOISE))


class Equal(Even):
    """All cores of a node, evenly over its GPUs that are in use now."""

    def most_per_gpu(self, node: Node) -> float:
        return inf


class Proportional(Even):
    """For each GPU in use its part of the node's cores; those of idle GPUs stay idle."""

    def most_per_gpu(self, node: Node) -> float:
        return node.millicores / node.num_gpus


def level(residents: Sequence[Resident], cores: float, most: float) -> dict[int, float]:
    """The shares by row of ``cores``: as many for each GPU, ``most`` at most, within the bounds.

    Where bounds from below ask for more than there is, each job has the same part of its own.
    """
    least = sum(each.least for each in residents)
    if least >= cores:
        return {each.row: each.least * cores / least for each in residents}
    shares: dict[int, float] = {}
    left = list(residents)
    while left:
        per_gpu = min(most, cores / sum(each.gpus for each in left))
        wanted = [min(max(per_gpu * each.gpus, each.least), each.most) for each in left]
        over = sum(wanted) - per_gpu * sum(each.gpus for each in left)
        # Those held by the bound that changes the sum most are settled; the others level again.
        held = [
            (each, want)
            for each, want in zip(left, wanted, strict=True)
            if (want > per_gpu * each.gpus if over > 0 else want < per_gpu * each.gpus)
        ]
        if not held:
            return shares | {each.row: want for each, want in zip(left, wanted, strict=True)}
        shares |= {each.row: want for each, want in held}
        cores -= sum(want for _, want in held)
        left = [each for each in left if each.row not in shares]
    return shares
