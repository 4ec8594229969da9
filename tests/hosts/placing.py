"""A cluster of several machines whose jobs are where somebody puts them."""

import json
from pathlib import Path

from tests.process.conftest import until

from rota.experiment.runs import hosts

from .conftest import Lab

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
"""


class Placing(Lab):
    """A cluster whose jobs are where the test puts them."""

    def __init__(self, lan: hosts.Lan, base: Path) -> None:
        super().__init__(lan, base)
        self.base, self._places, self._told = base, base / "places.json", {}
        package = base / "package"
        (package / "placed-1.dist-info").mkdir(parents=True)
        (package / "placed.py").write_text(PLACED)
        (package / "placed-1.dist-info/METADATA").write_text("Name: placed\nVersion: 1\n")
        points = "[rota.policies]\nplaced = placed:Placed\n"
        (package / "placed-1.dist-info/entry_points.txt").write_text(points)
        self.head.more = {"PYTHONPATH": str(package), "PLACES": str(self._places)}
        self._tell()

    def place(self, job: str, **gpus: list[int]) -> None:
        """Let a job have these GPUs, by node; none if it is to wait."""
        self.place_all({job: gpus})

    def place_all(self, places: dict[str, dict[str, list[int]]]) -> None:
        """The same of several jobs, in one decision."""
        self._told |= places
        self._tell()

    def _tell(self) -> None:
        draft = self._places.with_suffix(".new")
        draft.write_text(json.dumps(self._told))
        draft.replace(self._places)

    def has(self, job: str, **gpus: list[int]) -> None:
        """Place a job, and wait until it runs there."""
        self.place(job, **gpus)
        wanted = [{"node": node, "gpus": each} for node, each in sorted(gpus.items())]

        def is_there() -> bool:
            now = self.client.job(job)
            return now["state"] == "RUNNING" and now["gpus"] == wanted

        until(is_there, f"job {job} is on {gpus}")

    def is_in(self, job: str, state: str) -> None:
        until(lambda: self.client.job(job)["state"] == state, f"job {job} is {state}")

    def logs(self, job: str, **which) -> str:
        return "".join(self.client.logs(job, **which))
