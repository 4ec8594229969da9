"""The demo's trainings on each engine: suspended, moved and resized, they end as on this machine.

The same test for every engine; what differs is the words of ``rota up``.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.process.conftest import Cluster, until

from rota.demo.workload import EQUALS, examples_folder, fields
from support.kubelets import ROTA_IMAGE
from support.placed import Places

STEPS = 60
EPOCHS = 4  # of the training that is resized
PACED = Path(__file__).parents[1] / "support" / "paced.py"
ENGINES = {
    "slurm": ("--on", "slurm", "--partition", "gpu", "--time", "8h"),
    "ray": ("--on", "ray"),
    "kubernetes": (
        "--on",
        "kubernetes",
        "--namespace",
        "demo",
        "--image",
        ROTA_IMAGE,
        "--volume",
        "gates:/gates",
    ),
}


def trainings(gates: str = "") -> dict[str, dict[str, Any]]:
    """Their job files by name. Their targets are out of reach: each takes all of its steps.

    With a folder of ``gates`` they take their time until it has a file of their name.
    """
    folder = examples_folder()
    found = {}
    for each in EQUALS:
        never = each._replace(target=2.0 if each.higher_is_better else 0.0)
        found[each.name] = fields(never, folder, STEPS)
    run = f"python rota_elastic.py --epochs {EPOCHS}"
    found["elastic"] = {"run": run, "workdir": str(folder), "resources": {"gpus": "1..2"}}
    for name, job in found.items() if gates else ():
        words = str(job["run"]).removeprefix("python ")
        job |= {"name": name, "run": f"python {PACED} {gates}/{name} {words}"}
    return found


class Placed(Cluster):
    """A cluster whose jobs are where they are put; they see the folder of gates as ``seen``."""

    def __init__(self, base: Path, gates: Path, seen: str, **more: Any) -> None:
        super().__init__(base, "placed", **more)
        self.places, self.gates, self.seen = Places(base), gates, seen
        paths = [self.places.environment["PYTHONPATH"], self.environment["PYTHONPATH"]]
        self.environment |= self.places.environment | {"PYTHONPATH": os.pathsep.join(paths)}

    def has(self, places: dict[str, dict[str, list[int]]]) -> None:
        """Put jobs there; returns when each has made a step there, or is suspended if nowhere."""
        before = {job: self.steps(job) for job in places}
        self.places.tell(places)
        for job, place in places.items():
            gpus = [{"node": node, "gpus": each} for node, each in place.items()]
            state = "RUNNING" if gpus else "SUSPENDED"

            def is_there(job: str = job, gpus: Any = gpus, state: str = state) -> bool:
                now = self.show(job)
                assert now["state"] != "SUCCEEDED", "it ended before it was disturbed"
                there = now["state"] == state and (not gpus or now["gpus"] == gpus)
                return there and (not gpus or self.steps(job) > before[job])

            until(is_there, f"{job} is at {place}: {self.show(job)}")

    def steps(self, job: str) -> int:
        """How many steps a job has told of."""
        return int((self.show(job)["progress"] or {}).get("step") or 0)

    def told(self, name: str, job: str) -> str:
        """What a job has printed, once it was let end and has ended."""
        (self.gates / name).touch()
        assert self.ends(job)["attempt"] == 1
        return "".join(self.client.logs(job))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each training prints under ``rota up`` alone, undisturbed."""
    cluster = Cluster(tmp_path_factory.mktemp("alone"))
    cluster.up()
    try:
        jobs = {name: cluster.client.submit(job)["id"] for name, job in trainings().items()}
        told = {name: (cluster.ends(job), cluster.client.logs(job)) for name, job in jobs.items()}
        return {name: "".join(lines) for name, (_, lines) in told.items()}
    finally:
        cluster.close()


@pytest.fixture(params=ENGINES)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Placed]:
    engine = request.getfixturevalue(request.param)
    gates, seen = tmp_path / "gates", str(tmp_path / "gates")
    if request.param == "kubernetes":
        engine.add_namespace("demo")
        gates, seen = engine.add_claim("demo", "gates"), "/gates"
    else:
        gates.mkdir()
    if request.param == "ray":
        engine.mend()  # another test has cut the power of a node
    made = Placed(tmp_path, gates, seen, options=(*ENGINES[request.param], "--nodes", "2"))
    made.environment |= engine.environment
    made.nodes = 2
    try:
        yield made.up()
    finally:
        made.close()


def test_they_are_suspended_moved_and_resized_and_end_with_the_same_metrics(cluster, alone):
    here, there = cluster.node_names()
    jobs = {name: cluster.client.submit(job)["id"] for name, job in trainings(cluster.seen).items()}
    elastic, *others = jobs.pop("elastic"), *jobs.values()
    for pair in (others[:2], others[2:4], others[4:]):
        slots = dict(zip(pair, ([0], [1]), strict=True))
        cluster.has({job: {here: slot} for job, slot in slots.items()})
        cluster.has({job: {} for job in pair})
        cluster.has({job: {there: slot} for job, slot in slots.items()})
        for name, job in jobs.items():
            if job in pair:
                assert cluster.told(name, job) == alone[name]
    cluster.has({elastic: {here: [0]}})
    cluster.has({elastic: {here: [0, 1]}})
    cluster.has({elastic: {here: [1]}})
    cluster.has({elastic: {there: [0]}})
    told = cluster.told(
        "elastic", elastic
    )  # an epoch's loss is rank 0's: another one while there are two
    assert told.splitlines()[-1] == alone["elastic"].splitlines()[-1]
