"""A training whose loader works tells how long its steps wait for it, and when it validates."""

from typing import Any

from rota.model.state.state import ClusterState
from rota.server import profiles

from .conftest import PROMPT, until

# Its samples are decompressed and augmented by a worker process; a sleep stands in for a GPU. While
# the file `slow` is there, a batch takes the worker ten times as long as the step that needs it.
SCRIPT = """
import sys, time, zlib
from pathlib import Path
import numpy, torch, rota.train

here = Path(sys.argv[1])
COMPUTE_S, SLOW_S = 0.05, 0.5

class Images(torch.utils.data.Dataset):
    def __init__(self):
        numbers = numpy.random.default_rng(0)
        images = numbers.integers(0, 9, (64, 32, 32), numpy.uint8)
        self.packed = [zlib.compress(image.tobytes()) for image in images]

    def __len__(self):
        return len(self.packed)

    def __getitem__(self, index):
        image = numpy.frombuffer(zlib.decompress(self.packed[index]), numpy.uint8).reshape(32, 32)
        left, top = numpy.random.randint(0, 8, 2)
        cut = image[top : top + 24, left : left + 24].astype(numpy.float32) / 9
        return torch.from_numpy(cut[:, ::-1].copy()).flatten()

    def __getitems__(self, indices):
        if (here / "slow").exists():
            time.sleep(SLOW_S)
        return [self[index] for index in indices]

torch.set_num_threads(1)
model = torch.nn.Linear(24 * 24, 1)
with rota.train.session() as s:
    model, optimizer = s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = s.loader(Images(), batch_size=4, shards=1, num_workers="auto")
    for epoch in s.epochs(10_000):
        for batch in loader:
            for images in batch:
                model(images).square().mean().backward()
                time.sleep(COMPUTE_S)
            optimizer.step()
            optimizer.zero_grad()
            while (here / "validate").exists():
                with s.evaluate():
                    while (here / "validate").exists():
                        time.sleep(0.01)
            if (here / "end").exists():
                sys.exit()
"""


def points(cluster: Any, job: str) -> dict[str, Any]:
    """What was measured of the job's kind, by phase."""
    known = cluster.show(job)["profile"]["of_kind"] or {"cpu_points": []}
    return {point["phase"]: point for point in known["cpu_points"]}


def test_waits_for_data_and_validations_are_told_and_kept(make_cluster: Any) -> None:
    cluster = make_cluster(environment=PROMPT)
    script = cluster.base / "train.py"
    script.write_text(SCRIPT)
    job = cluster.submit(f"python {script} {cluster.base}")

    def waits() -> float:
        told = cluster.show(job)["progress"].get("phases", {}).get("train")
        return told["wait_s"] / told["step_s"] if told else 0.5

    until(lambda: waits() < 0.3, "steps that a sleep takes wait for little")
    (cluster.base / "slow").touch()
    until(lambda: waits() > 0.6, "steps wait for a loader that is ten times as slow")
    wait = until(lambda: notable(cluster, job), "the verdict has it")
    assert wait["sentence"] == f"waits for data {100 * wait['share']:.0f} % of each step"
    assert wait["workers"] >= 1
    (cluster.base / "slow").unlink()
    (cluster.base / "validate").touch()
    until(lambda: phase(cluster, job) == "evaluate", "the phase is known while it lasts")
    (cluster.base / "validate").unlink()
    until(lambda: phase(cluster, job) == "train", "and its end")
    until(lambda: set(points(cluster, job)) == {"train", "evaluate"}, "both phases are measured")
    (cluster.base / "end").touch()
    cluster.ends(job)
    known = points(cluster, job)
    assert 0 < known["train"]["wait_s"] <= known["train"]["step_s"]
    assert known["train"]["step_s"] >= 0.05
    assert known["train"]["workers"] == wait["workers"]
    assert known["evaluate"]["wait_s"] is None
    assert known["evaluate"]["millicores"] is None, "nobody controls them"
    state = ClusterState()
    for event in cluster.events():
        state.apply(event)
    assert profiles.kinds(state) == cluster.client.profiles(), "the log makes them anew"


def notable(cluster: Any, job: str) -> Any:
    """What the verdict says of waiting for data, once that is much."""
    wait = cluster.client.explain(job)["data_wait"]
    return wait if wait is not None and wait["share"] > 0.6 else None


def phase(cluster: Any, job: str) -> str | None:
    return cluster.show(job)["progress"].get("phase")
