"""A stand-in for Slurm's commands and for the agents of pilots, which tests steer."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from rota.live.provider.slurm import Answer

BEGINS_S = 0.02


class Commands:
    """Pilots run, and their agents connect, a moment after they were submitted, unless ``full``.

    It is also the cluster's side: agents that are connected have leases of ``leases``.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}  # by the names of their nodes
        self.given: list[Sequence[str]] = []  # the commands
        self.scripts: list[str] = []
        self.says = ""  # in place of any answer
        self.refuses = ""  # what is submitted
        self.full = self.agents_fail = False
        self.dark: set[str] = set()  # the hosts that Slurm does not hear
        self.connected: set[str] = set()
        self.leases: set[str] = set()
        self.kept: list[str] = []

    async def __call__(self, command: Sequence[str], text: str = "") -> Answer:
        await asyncio.sleep(0)
        self.given.append(command)
        if self.says:
            return Answer(1, "", self.says)
        answer: Answer = getattr(self, f"_{command[0]}")(command[1:], text)
        return answer

    def _sbatch(self, words: Sequence[str], text: str) -> Answer:
        if self.refuses:
            return Answer(1, "", f"sbatch: error: {self.refuses}\n")
        options = dict(word.lstrip("-").partition("=")[::2] for word in words)
        first, array = options["job-name"], len(self.given)
        self.scripts.append(text)
        for task in options["array"].split(","):
            cluster, _, number = first.rpartition("-")
            name, job = f"{cluster}-{int(number) + int(task)}", f"{array}_{task}"
            row = {"job": job, "first": first, "task": task, "state": "PENDING", "ends": "N/A"}
            self.jobs[name] = row | {"host": "", "why": "Priority"}
            if not self.full:
                asyncio.get_running_loop().call_later(BEGINS_S, self.begin, name)
        return Answer(0, f"{array}\n", "")

    def begin(self, name: str) -> None:
        """Have a pilot that waits run."""
        if self.jobs[name]["state"] == "PENDING":
            host = f"n{len(self.jobs)}"
            self.jobs[name] |= {
                "state": "RUNNING",
                "host": host,
                "ends": "4000000000",
                "why": "None",
            }
            if self.agents_fail:
                self.jobs[name]["state"] = "FAILED"
            else:
                self.connect(name)

    def connect(self, name: str) -> None:
        if self.jobs[name]["state"] == "RUNNING":
            self.connected.add(name)
            self.leases.add(name)

    def end(self, name: str, state: str) -> None:
        """Have a pilot end."""
        self.jobs[name]["state"] = state
        self.connected.discard(name)

    def _squeue(self, words: Sequence[str], text: str) -> Answer:
        rows = [
            (
                row["job"],
                row["first"],
                row["task"],
                row["state"],
                row["ends"],
                row["host"],
                row["why"],
            )
            for row in self.jobs.values()
        ]
        others = ["9|somebody-1|N/A|RUNNING|4000000000|n9|None"]
        return Answer(0, "\n".join([*("|".join(row) for row in rows), *others]) + "\n", "")

    def _scancel(self, words: Sequence[str], text: str) -> Answer:
        for name, row in self.jobs.items():
            if row["job"] in words:
                self.end(name, "CANCELLED")
        return Answer(0, "", "")

    def _sinfo(self, words: Sequence[str], text: str) -> Answer:
        (hosts,) = [word.partition("=")[2] for word in words if word.startswith("--nodes=")]
        lines = [f"{host} {'down*' if host in self.dark else 'idle'}" for host in hosts.split(",")]
        return Answer(0, "\n".join(lines), "")

    # -- the cluster's side --------------------------------------------------------------------

    def admit(self, node: str) -> str:
        return f'{{"token": "of {node}"}}'

    def keep(self, nodes: Collection[str]) -> None:
        self.kept = list(nodes)

    def is_connected(self, node: str) -> bool:
        return node in self.connected

    def may_run(self, node: str) -> bool:
        return node in self.leases

    def has_jobs(self, node: str) -> bool:
        return False
