"""``rota up --on slurm``: the cluster's nodes are those of pilots, jobs of Slurm."""

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rota.errors import InputError, ServerError
from rota.folder import Folder
from rota.live.controller.admission import Admission
from rota.live.provider.asked import Asked
from rota.live.provider.slurm import SlurmProvider, cancel_all, refusal


class SlurmEngine:
    """Pilots of a cluster in ``folder``, each asked for with ``words`` of ``sbatch``.

    ``agent`` are options of their agents.
    """

    def __init__(
        self, folder: Folder, bounds: tuple[int, int], words: Sequence[str], agent: Sequence[str]
    ) -> None:
        self.bounds = bounds
        self._folder, self._words, self._agent = folder, words, agent
        self._number = Asked(_file(folder), _name(folder)).number

    def check(self) -> None:
        """Raise InputError, with Slurm's own words, if it would refuse a pilot.

        A cluster that may have pilots goes on also where Slurm does not answer.
        """
        if (said := refusal(self._words)) and not (
            said.is_silence and _file(self._folder).exists()
        ):
            raise InputError(f"--on slurm: {said.text}")

    def is_own(self, node: str) -> bool:
        """True of the names of pilots' nodes."""
        return self._number(node) > 0

    def provider(self, admission: Admission) -> SlurmProvider:
        """The provider of these nodes."""
        command = [sys.executable, "-m", "rota.cli.main", "agent", "--ends"]
        provider = SlurmProvider(
            Asked(_file(self._folder), _name(self._folder)),
            self.bounds,
            self._words,
            [*command, "--home", str(self._folder.path), *self._agent],
            str(self._folder.path),
            admission,
        )
        provider.recall()
        return provider


def cancel_pilots(folder: Folder) -> None:
    """Cancel all pilots of a cluster; returns when there are none. Raises ServerError."""
    if not _file(folder).exists():
        return
    asked = Asked(_file(folder), _name(folder))
    if said := cancel_all(asked):
        raise ServerError(
            f"Slurm's jobs of {folder.path} can't be cancelled: {said}; they go on, with what runs "
            "on their nodes: try again when sinfo answers"
        )
    asked.settle((), asked.names)


def _file(folder: Folder) -> Path:
    return folder.path / "slurm.json"


def _name(folder: Folder) -> str:
    """The name of pilots: another one for each state folder of a user."""
    return f"rota-{hashlib.sha256(os.fsencode(folder.path)).hexdigest()[:6]}"
