"""A cluster of several machines whose jobs are where somebody puts them."""

from pathlib import Path

from tests.process.conftest import until

from rota.experiment.runs import hosts
from support.placed import Places

from .conftest import Lab


class Placing(Lab):
    """A cluster whose jobs are where the test puts them."""

    def __init__(self, lan: hosts.Lan, base: Path) -> None:
        super().__init__(lan, base)
        self.base, self._places = base, Places(base)
        self.head.more = self._places.environment

    def place(self, job: str, **gpus: list[int]) -> None:
        """Let a job have these GPUs, by node; none if it is to wait."""
        self.place_all({job: gpus})

    def place_all(self, places: dict[str, dict[str, list[int]]]) -> None:
        """The same of several jobs, in one decision."""
        self._places.tell(places)

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
