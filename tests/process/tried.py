"""Jobs with whom Gandiva tries a move, on clusters whose parties can be stopped and killed."""

from pathlib import Path
from typing import Any

import psutil

from .conftest import Cluster, Stops, until

# Each step waits: on the second of two nodes for longer, and nowhere once there is a file
# ``hurry``. The first step on another node than the one where the job began waits for ``go``, and
# so does the trial of that move.
SCRIPT = """
import os, time
import torch, rota.train
from pathlib import Path
from steady import Steady
here, first = os.environ["ROTA_NODE"], Path("{out}/first")
if not first.exists():
    first.write_text(here)
while not os.path.exists("{out}/slow"):
    time.sleep(0.01)
slow_s = float(Path("{out}/slow").read_text())
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
with rota.train.session() as s:
    model, optimizer = s.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    steady = Steady()
    for step in s.steps({steps}):
        if here != first.read_text() and not os.path.exists("{out}/go"):
            Path("{out}/at").touch()
            while not os.path.exists("{out}/go"):
                time.sleep(0.01)
        steady.begin()
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        s.report(samples=4)
        if not os.path.exists("hurry"):
            steady.end(slow_s if here.endswith("-1") else {step_s})
print("weights", model.weight.double().sum().item().hex())
"""
STEPS, STEP_S = 1000, 0.05  # 50 s at least, unless they hurry


class Tried:
    """Jobs on two nodes. Each is of a kind of its own: nothing is known of it beforehand."""

    def __init__(self, cluster: Cluster, stops: Stops, expected: str) -> None:
        self.cluster, self.stops, self.expected = cluster, stops, expected
        self.names = sorted(cluster.node_names())

    def until_moved(self, *names: str) -> None:
        """Wait until jobs are where they were moved to, and wait there to be let go."""
        for name in names:
            until((self.cluster.base / name / "at").exists, f"{name} is elsewhere")

    def lets_go(self, *names: str) -> None:
        """Let jobs go on that have been moved."""
        for name in names:
            (self.cluster.base / name / "go").touch()

    def worker(self, job: str) -> psutil.Process:
        """The process that runs its program, also while its agent is stopped."""
        return until(lambda: self.cluster.of_job(job), "its process is known")[0]

    def kill(self, victim: str, process: psutil.Process | None = None) -> None:
        """Kill the controller or a node's agent, and have it started again."""
        cluster = self.cluster
        if process is None:
            controller = victim == "controller"
            process = cluster.controller() if controller else cluster.agent_of(victim)
        cluster.kill(process)
        if victim == "controller":
            cluster.up()
        else:
            until(lambda: cluster.agent_of(victim).pid != process.pid, "there is another agent")

    # -- the policy's account ------------------------------------------------------------------

    def marks(self, job: str) -> dict[str, Any]:
        """What the policy remembers of a job."""
        found: dict[str, Any] = {}
        for event in self.cluster.events():
            mark = getattr(event, "marks", {}).get(int(job) - 1)
            found = mark if mark is not None else found
        return found

    def is_on_trial(self, job: str) -> bool:
        """Whether it is not known yet what its move is worth."""
        return self.marks(job).get("move") is not None

    def trials(self, job: str) -> list[str]:
        """What was tried with a job, and measured."""
        found = self.cluster.client.explain(job)["trials"]
        return [trial["what"] for trial in found if trial["measured"] is not None]

    # -- ends ----------------------------------------------------------------------------------

    def ends_well(self, *jobs: str, attempt: int = 1) -> None:
        """Assert that they end in this attempt, trained as if undisturbed, and leave nothing."""
        cluster = self.cluster
        (cluster.base / "hurry").touch()
        for job in jobs:
            assert cluster.ends(job)["attempt"] == attempt
            assert self.expected in "".join(cluster.client.logs(job))
        self.leave_nothing(*jobs)

    def leave_nothing(self, *jobs: str) -> None:
        """Assert that of these jobs there is no process, no arena, and no attempt on both nodes."""
        cluster = self.cluster

        def untidy() -> list[object]:
            processes = [process for job in jobs for process in cluster.of_job(job)]
            arenas = [file for name in self.names for file in cluster.folder.arenas(name).iterdir()]
            mine = [file for file in arenas if file.name.split("-")[0] in jobs]
            attempts = [f"{job}/{attempt}" for job in jobs for attempt in (1, 2)]
            both = [a for a in attempts if all(files_of(cluster, n, a) for n in self.names)]
            return [*processes, *mine, *both]

        until(lambda: not untidy(), f"nothing is left of {untidy()}")


def files_of(cluster: Cluster, node: str, attempt: str) -> list[Path]:
    """What a node still has of one attempt of a job, but for its state in memory."""
    return list((cluster.folder.node(node) / "jobs" / attempt).glob("*"))


def train(cluster: Cluster, name: str, slow_s: float | None = STEP_S) -> str:
    """Submit the training; its id. It waits to be told how long a step takes on the second node."""
    out = cluster.base / name
    out.mkdir()
    (out / "train.py").write_text(SCRIPT.format(out=out, steps=STEPS, step_s=STEP_S))
    if slow_s is not None:
        tell(cluster, name, slow_s)
    return cluster.submit(f"python {out}/train.py")


def tell(cluster: Cluster, name: str, slow_s: float) -> None:
    """Let a training begin, with so many seconds for a step on the second node."""
    (cluster.base / name / "new").write_text(str(slow_s))
    (cluster.base / name / "new").rename(cluster.base / name / "slow")


def undisturbed(cluster: Cluster) -> str:
    """What the training prints at its end if nobody disturbs it."""
    (cluster.base / "hurry").touch()
    job = train(cluster, "alone")
    (cluster.base / "alone" / "go").touch()
    cluster.ends(job)
    (cluster.base / "hurry").unlink()
    lines = "".join(cluster.client.logs(job)).splitlines()
    return next(line for line in lines if line.startswith("weights"))
