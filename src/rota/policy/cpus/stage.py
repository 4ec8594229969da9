"""The contract of a stage of CPU cores, and the jobs on each node that such a stage goes by."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from rota.model.allocation import Allocation, indices
from rota.model.cluster import Node
from rota.model.plan import CpuPlan, Plan
from rota.model.view import View


class CpuStage:
    """The base class of every stage of CPU cores: asked after the policy, at each decision.

    Like a policy it is a function of the view, and of the plan that the policy has just made on
    it; what it must remember comes back in ``view.stage_marks["cpus"]``. ``learns`` says that it
    goes by what jobs tell of their step times.
    """

    learns = False

    def __init__(self, *, floor: str = "proportional", period_s: float = 300.0) -> None:
        self.floor = floor
        self.period_s = period_s

    def assign(self, view: View, plan: Plan) -> CpuPlan:
        """The cores of jobs once ``plan`` is carried out, as changes to those of the last plan.

        The cores of a job with GPUs that is not mentioned stay; a job without GPUs has none. A
        node's cores may be fewer than those that its jobs have.
        """
        raise NotImplementedError


class Resident(NamedTuple):
    """A job on a node: its GPUs there (a GPU that n jobs share counts 1/n), and its bounds.

    ``least`` and ``most`` are the cores that its user allows it on that node, in thousandths.
    """

    row: int
    gpus: float
    least: float
    most: float


class Residents:
    """The jobs that have GPUs of each node in the last plan that :meth:`follow` was told of.

    Those that stay on a closed node are among them: no policy moves them, but their cores follow
    the node's. An index like that of a policy: valid while ``view.plan`` is that plan, else made
    anew.
    """

    def __init__(self) -> None:
        self.place: dict[int, Allocation] = {}
        self._masks: dict[int, dict[int, int]] = {}  # node -> row -> its GPUs there
        self._nodes: list[Node] = []
        self._plan: Plan | None = None
        self.is_new = True  # made anew with the last plan

    def follow(self, view: View, plan: Plan, *, goes_on: bool | None = None) -> set[int]:
        """Go on to ``plan``. Returns the nodes whose jobs, or cores, may not be those of before.

        ``goes_on`` says if the index is valid where its user knows that otherwise.
        """
        target, planned = view.target, plan.allocations
        active, staying = view.active, view.staying
        if goes_on is None:
            goes_on = view.plan is not None and view.plan is self._plan
        self.is_new = not goes_on
        if self.is_new:
            self.place, self._masks, self._nodes = {}, {}, []
            rows: Iterable[int] = (*active, *staying)
        else:
            rows = {*view.changed, *planned}
        touched: set[int] = set()
        for row in rows:
            before, place = self.place.get(row), None
            if row in active or row in staying:
                place = planned[row] if row in planned else target[row]
            if before is not None:
                touched.update(before.nodes())
            if place is not None:
                touched.update(place.nodes())
            if place is not before:
                self._move(row, before, place)
        if view.nodes != self._nodes:
            changed = enumerate(view.nodes[: len(self._nodes)])
            touched.update(index for index, node in changed if node is not self._nodes[index])
            self._nodes = list(view.nodes)
        self._plan = plan
        return touched

    def _move(self, row: int, before: Allocation | None, place: Allocation | None) -> None:
        if before is not None:
            del self.place[row]
            for node, _ in before.parts:
                self._masks[node].pop(row)
        if place is not None:
            self.place[row] = place
            for node, mask in place.parts:
                self._masks.setdefault(node, {})[row] = mask

    def rows(self, node: int) -> Iterable[int]:
        """The jobs with GPUs of the node."""
        return self._masks.get(node, ())

    def nodes(self) -> list[int]:
        """The nodes of which jobs have GPUs, rising."""
        return sorted(node for node, masks in self._masks.items() if masks)

    def masks(self, node: int) -> list[tuple[int, int]]:
        """The jobs with GPUs of the node, by rising row, and a mask of these."""
        return sorted(self._masks.get(node, {}).items())

    def on(self, view: View, node: int) -> list[Resident]:
        """The jobs with GPUs of the node, by rising row."""
        masks, found = self._masks.get(node, {}), []
        for row in sorted(masks):
            mask = masks[row]
            whole = mask.bit_count()
            bounds = view.spec[row].cpus_per_gpu
            least, most = (0, inf) if bounds is None else bounds
            gpus = self._part(masks, mask) if self.place[row].shared else float(whole)
            found.append(Resident(row, gpus, 1000.0 * least * whole, 1000.0 * most * whole))
        return found

    def _part(self, masks: dict[int, int], mine: int) -> float:
        """The GPUs in ``mine``, each divided by the number of jobs that share it."""
        return sum(1 / sum(each >> gpu & 1 for each in masks.values()) for gpu in indices(mine))


def cores_to_share(view: View, nodes: Iterable[int]) -> dict[int, int]:
    """Thousandths of a core that the jobs of a plan may have of each node; 0 if that is unknown."""
    return {node: view.nodes[node].millicores for node in nodes}
