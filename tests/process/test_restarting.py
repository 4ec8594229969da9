"""Jobs without the library go on from checkpoints of their own, in new processes."""

import json
import signal

from .conftest import SCRIPTS, Cluster, until
from .test_nodes import node_of

COUNT = 200
TOTAL = COUNT * (COUNT - 1) // 2


class Counting:
    """One run of the counting program on a cluster."""

    def __init__(self, cluster: Cluster, name: str, *words: object, **fields: object) -> None:
        self.cluster, self.out = cluster, cluster.base / name
        self.out.mkdir()
        words = words or (COUNT, self.out)
        run = " ".join(map(str, ["python", SCRIPTS / "saves.py", *words]))
        wish = {"suspend": "restart", "grace": 20, "name": name}
        run = str(fields.pop("before", "")) + run + str(fields.pop("after", ""))
        self.job = cluster.submit(run, **wish | fields)

    def told(self, what: str = "", rank: int = 0) -> list[dict]:
        file = self.out / f"told{rank}"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in map(json.loads, lines) if what in ("", line["what"])]

    def at(self, rank: int = 0) -> int:
        file = self.out / f"at{rank}"
        return int(file.read_text() or 0) if file.exists() else 0

    def until_at(self, number: int, rank: int = 0) -> None:
        until(lambda: self.at(rank) >= number, f"{self.out.name} has counted to {number}")

    def suspends(self) -> dict:
        self.cluster.client.suspend(self.job)
        return self.cluster.until_state(self.job, "SUSPENDED")

    def resumes(self) -> dict:
        self.cluster.client.resume(self.job)
        return self.cluster.until_state(self.job, "RUNNING")

    def succeeds(self, rank: int = 0) -> dict:
        show = self.cluster.ends(self.job)
        assert (self.out / f"result{rank}").read_text() == str(TOTAL)
        return show


def test_jobs_that_take_turns_go_on_from_their_checkpoints(make_cluster):
    cluster = make_cluster("gandiva", gpus=1, quantum_s=0.7, pack="off")
    jobs = [Counting(cluster, f"turns{i}") for i in range(2)]
    shows = [job.succeeds() for job in jobs]
    assert sum(show["preemptions"] for show in shows) >= 2
    for job, show in zip(jobs, shows, strict=True):
        starts = job.told("start")
        assert (show["attempt"], show["suspension"]) == (1, "RESTART")
        assert "it asked for that" in show["suspension_why"]
        assert len({start["pid"] for start in starts}) == len(starts)
        assert len(starts) > 1 or show["preemptions"] == 0
        assert {start["ROTA_ATTEMPT"] for start in starts} == {"1"}
        assert len({start["ROTA_CHECKPOINT_DIR"] for start in starts}) == 1
        saved = 0
        for line in job.told():  # nothing is counted twice: it goes on exactly where it saved
            if line["what"] == "start":
                assert line["at"] == saved
            elif line["what"] == "saved":
                saved = line["at"]
