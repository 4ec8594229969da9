"""The contract of a stage of CPU cores, and the jobs on each node that such a stage goes by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rota.model.allocation import Allocation
from rota.model.cluster import Node
from rota.model.plan import CpuPlan, Plan
from rota.model.view import View


class CpuStage:
    """The base class of every stage of CPU cores: asked after the policy, at each decision.

    Like a policy it is a function of the view, and of the plan that the policy has just made on
    it; what it must remember comes back in ``view.stage_marks["cpus"]``.
    """

    def __init__(self, *, floor: str = "proportional", period_s: float = 300.0) -> None:
        self.floor = floor
        self.period_s = period_s

    def assign(self, view: View, plan: Plan) -> CpuPlan:
        """The cores of jobs once ``plan`` is carried out, as changes to those of the last plan.

        The cores of a job with GPUs that is not mentioned stay; a job without GPUs has none.
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

    An index like that of a policy: valid while ``view.plan`` is that plan, else made anew.
    """

    def __init__(self) -> None:
        self.place: dict[int, Allocation] = {}
        self._rows: dict[int, dict[int, None]] = {}
        self._nodes: list[Node] = []
        self._plan: Plan | None = None

    def follow(self, view: View, plan: Plan) -> set[int]:
        """Go on to ``plan``. Returns the nodes whose jobs, or cores, may not be those of before."""
        target, planned, active = view.target, plan.allocations, view.active
        if view.plan is None or view.plan is not self._plan:
            self.place, self._rows, self._nodes = {}, {}, []
            rows: Iterable[int] = active
        else:
            rows = {*view.changed, *planned}
        touched: set[int] = set()
        for row in rows:
            before, place = self.place.get(row), None
            if row in active:
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
        for node in before.nodes() if before is not None else ():
            self._rows[node].pop(row, None)
        if place is None:
            self.place.pop(row, None)
            return
        self.place[row] = place
        for node in place.nodes():
            self._rows.setdefault(node, {})[row] = None

    def rows(self, node: int) -> list[int]:
        """The jobs with GPUs of the node, rising."""
        return sorted(self._rows.get(node, ()))

    def on(self, view: View, node: int) -> list[Resident]:
        """The jobs with GPUs of the node, by rising row."""
        rows = self.rows(node)
        masks = {row: dict(self.place[row].parts)[node] for row in rows}
        shared = [row for row in rows if self.place[row].shared]
        found = []
        for row in rows:
            whole = masks[row].bit_count()
            gpus = float(whole)
            if self.place[row].shared:
                mine = (1 << gpu for gpu in range(masks[row].bit_length()) if masks[row] >> gpu & 1)
                gpus = sum(1 / sum(bool(masks[other] & gpu) for other in shared) for gpu in mine)
            least, most = view.spec[row].cpus_per_gpu or (0.0, float("inf"))
            found.append(Resident(row, gpus, 1000.0 * least * whole, 1000.0 * most * whole))
        return found


def cores_to_share(view: View, node: int) -> int:
    """Thousandths of a core that the jobs of a plan may have of the node; 0 if none, or unknown.

    Cores of jobs that are not the policy's to move, on nodes that close, are theirs.
    """
    about = view.nodes[node]
    if not about.alive:
        return 0
    kept = 0
    for row in view.target_cpus.keys() - view.active.keys():
        place = view.target[row]
        if place is not None:
            kept += dict(place.shares(view.target_cpus[row])).get(node, 0)
    return max(0, about.millicores - kept)
