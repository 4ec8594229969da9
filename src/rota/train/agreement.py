"""Checks that all ranks of a group work on the same batch, by comparing a number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from rota.errors import InputError

MARKS = 251  # few enough for any floating-point type to tell them apart


def compare(marks: Sequence[float], rank: int) -> None:
    """Raises InputError if not all ranks are at the same batch with the same parameters."""
    for other, mark in enumerate(marks):
        if mark != marks[rank]:
            raise InputError(
                f"rank {rank} and rank {other} do not work on the same batch, or not with the same "
                "parameters unfrozen: what a program does must not depend on its rank, nor on loop "
                "counters of its own, which begin anew in a rank that joins; use s.epochs or "
                "s.steps, and keep counters by s.save and s.restore"
            )


class Places:
    """The batch on which each rank works, exchanged while it does."""

    def __init__(self, place: int) -> None:
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        self._found = [
            torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())
        ]
        self._failure = ""
        try:
            own = torch.tensor([place], device=device)
            self._work = dist.all_gather(self._found, own, async_op=True)
        except RuntimeError as error:  # a lost rank is none of ``forward``'s business
            self._failure = str(error)

    def answers(self) -> list[int]:
        """Answers by rank. Raises RuntimeError if a rank was lost."""
        if self._failure:
            raise RuntimeError(self._failure)
        self._work.wait()
        return [int(place.item()) for place in self._found]
