"""A policy that puts jobs where a test says, for a controller that is started with it."""

import json
from pathlib import Path

PLACED = """
import json, os, pathlib
from rota.model.allocation import Allocation
from rota.model.plan import Plan
from rota.policy.base import Policy

class Placed(Policy):
    name = "placed"
    preemptive = resizes = True

    def decide(self, view):
        wanted = json.loads(pathlib.Path(os.environ["PLACES"]).read_text())
        nodes = {node.name: index for index, node in enumerate(view.nodes) if node.alive}
        changes = {}
        for row in view.active:
            told = wanted.get(view.spec[row].job_id, {})
            parts = sorted((nodes[n], sum(1 << g for g in gpus)) for n, gpus in told.items())
            target = Allocation(tuple(parts)) if parts else None
            if target != view.target[row]:
                changes[row] = target
        return Plan(changes, {}, {}, wake_at_s=view.now_s + 0.1)

    def fallback(self):
        return Unchanged()  # a node that a job is to be on is away: nothing else puts jobs anywhere

class Unchanged(Policy):
    name = "unchanged"

    def decide(self, view):
        return Plan({}, {}, {}, wake_at_s=view.now_s + 0.1)
"""


class Places:
    """Which job is to have which GPUs: none until it is told.

    ``rota up --policy placed`` does as told where it is started with ``environment``.
    """

    def __init__(self, folder: Path) -> None:
        self._file, self._told = folder / "places.json", dict[str, dict[str, list[int]]]()
        package = folder / "package"
        (package / "placed-1.dist-info").mkdir(parents=True)
        (package / "placed.py").write_text(PLACED)
        (package / "placed-1.dist-info/METADATA").write_text("Name: placed\nVersion: 1\n")
        points = "[rota.policies]\nplaced = placed:Placed\n"
        (package / "placed-1.dist-info/entry_points.txt").write_text(points)
        self.environment = {"PYTHONPATH": str(package), "PLACES": str(self._file)}
        self.tell({})

    def tell(self, places: dict[str, dict[str, list[int]]]) -> None:
        """Let jobs have these GPUs, by node, in one decision; none if they are to wait."""
        self._told |= places
        draft = self._file.with_suffix(".new")
        draft.write_text(json.dumps(self._told))
        draft.replace(self._file)
