"""``rota up --on slurm``: the cluster's nodes are those of pilots, or of an allocation."""

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rota.errors import InputError, ServerError
from rota.folder import Folder
from rota.live.controller.admission import Admission
from rota.live.provider.allocation import GONE, Allocation, Steps, cancel_steps
from rota.live.provider.asked import Asked
from rota.live.provider.asking import AskingProvider
from rota.live.provider.book import Book
from rota.live.provider.slurm import ENDED, ArrayJobs, Jobs, Pilots, call, cancel_all, refusal

IN_ALLOCATION = "SLURM_JOB_ID"


class SlurmEngine:
    """Pilots of a cluster in ``folder``, each asked for with ``words`` of ``sbatch``.

    ``agent`` are options of their agents.
    """

    engine = "Slurm"

    def __init__(
        self, folder: Folder, bounds: tuple[int, int], words: Sequence[str], agent: Sequence[str]
    ) -> None:
        self.bounds = bounds
        self._folder, self._words, self._agent = folder, words, agent

    def check(self) -> None:
        """Raise InputError, with Slurm's own words, if it would refuse a pilot.

        A cluster that may have pilots goes on also where Slurm does not answer.
        """
        _leave_others(self._folder, "")
        if (said := refusal(self._words)) and not (
            said.is_silence and _file(self._folder).exists()
        ):
            raise InputError(f"--on slurm: {said.text}")

    def is_own(self, node: str) -> bool:
        """True of the names of pilots' nodes, and of those of former allocations."""
        return node.startswith(f"{_name(self._folder)}-")

    def provider(self, admission: Admission) -> AskingProvider:
        """The provider of these nodes."""
        _forget_others(self._folder, "")
        asked = Asked(_file(self._folder), _name(self._folder))
        agent = _agent(self._folder, self._agent)
        jobs = ArrayJobs(asked, self._words, agent, str(self._folder.path))
        return _provider(Book("Slurm", asked, self.bounds, admission), jobs)


class AllocationEngine:
    """The hosts of an allocation that is there already, for a cluster in ``folder``.

    ``agent`` are options of their agents. Raises InputError if Slurm does not tell the hosts.
    """

    engine = "Slurm"

    def __init__(self, folder: Folder, agent: Sequence[str]) -> None:
        job = os.environ[IN_ALLOCATION]
        said = call("scontrol", "show", "hostnames", os.environ.get("SLURM_JOB_NODELIST", ""))
        if said.code or not said.output.split():
            raise InputError(
                f"--on slurm: the hosts of job {job} can't be told: {said.words}; run it where "
                f"`scontrol show hostnames` answers, or unset {IN_ALLOCATION} for pilots"
            )
        gpus = os.environ.get("SLURM_GPUS_ON_NODE", "")
        hosts = said.output.split()
        self._allocation = Allocation(job, hosts, int(gpus) if gpus.isdecimal() else 0)
        self.bounds = len(hosts), len(hosts)
        self._folder, self._agent = folder, agent
        self._file, self._name = _file(folder, job), f"{_name(folder)}-{job}"

    def check(self) -> None:
        """Raise InputError if the cluster has nodes of Slurm elsewhere."""
        _leave_others(self._folder, self._allocation.job)

    def is_own(self, node: str) -> bool:
        """True of the names of steps' nodes, also of former allocations."""
        return node.startswith(f"{_name(self._folder)}-")

    def provider(self, admission: Admission) -> AskingProvider:
        """The provider of these nodes."""
        _forget_others(self._folder, self._allocation.job)
        book = Book("Slurm", Asked(self._file, self._name), self.bounds, admission)
        agent, log = _agent(self._folder, self._agent), self._folder.path / "srun.log"
        return _provider(book, Steps(book, self._allocation, agent, str(self._folder.path), log))


def _provider(book: Book, jobs: Jobs) -> AskingProvider:
    """The provider of nodes, of which it is known already when they must go."""
    pilots = Pilots(book, jobs)
    pilots.recall()
    return AskingProvider(pilots)


def cancel_pilots(folder: Folder) -> None:
    """Cancel all pilots and steps of a cluster without a controller; returns when there are none.

    Raises ServerError.
    """
    for job, asked in _all_asked(folder).items():
        if not asked.names:
            continue
        if said := cancel_steps(job, asked) if job else cancel_all(asked):
            raise ServerError(
                f"Slurm's jobs of {folder.path} can't be cancelled: {said}; they go on, with what "
                "runs on their nodes: try again when sinfo answers"
            )
        asked.settle((), asked.names)


def _leave_others(folder: Folder, own: str) -> None:
    """Raise InputError if the cluster may still have other nodes of Slurm.

    ``own`` is the job of this one's allocation, "" for pilots.
    """
    for job, asked in _all_asked(folder).items():
        if job == own or not asked.names:
            continue
        if not job:
            raise InputError(
                f"--on slurm: {folder.path} has pilots; `rota down` outside of an allocation gives "
                "them back, or give another --home"
            )
        told = call("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")
        if told.code and GONE not in told.words:
            raise InputError(
                f"--on slurm: the nodes of {folder.path} are those of job {job}, of which squeue "
                f"does not tell: {told.words}; try again when it does, or give another --home"
            )
        state = told.output.strip()
        if state == "NODE_FAIL":  # its hosts are not heard, and its jobs may go on there
            raise InputError(
                f"--on slurm: job {job}, which had the nodes of {folder.path}, ended by NODE_FAIL, "
                "and jobs may go on there: `rota down --now` once they are off, or another --home"
            )
        if not told.code and state not in {"", *ENDED}:
            raise InputError(
                f"--on slurm: the nodes of {folder.path} are those of job {job}, which goes on: "
                "run it there, or `scancel` that, or give another --home"
            )


def _forget_others(folder: Folder, own: str) -> None:
    """Forget former allocations, which have ended."""
    for job in _all_asked(folder):
        if job and job != own:
            _file(folder, job).unlink()


def _all_asked(folder: Folder) -> dict[str, Asked]:
    """The nodes asked for, by the allocation's job; "" for pilots."""
    found = {"": Asked(_file(folder), _name(folder))} if _file(folder).exists() else {}
    for file in folder.path.glob("slurm-*.json"):
        job = file.stem.partition("-")[2]
        found[job] = Asked(file, f"{_name(folder)}-{job}")
    return found


def _agent(folder: Folder, options: Sequence[str]) -> list[str]:
    command = [sys.executable, "-P", "-m", "rota.cli.main", "agent", "--ends"]
    return [*command, "--home", str(folder.path), *options]


def _file(folder: Folder, job: str = "") -> Path:
    return folder.path / (f"slurm-{job}.json" if job else "slurm.json")


def _name(folder: Folder) -> str:
    """The name of pilots: another one for each state folder of a user."""
    return f"rota-{hashlib.sha256(os.fsencode(folder.path)).hexdigest()[:6]}"
