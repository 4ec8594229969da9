"""The contract of a per-job scaler: its input and its answer."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, Protocol

from rota.errors import InputError
from rota.policy.scaling.condition import Outlook
from rota.policy.scaling.observations import Observations

Memory = Mapping[str, Any]


class Observed(NamedTuple):
    """A job as a scaler sees it.

    It has the job's measurements, the seconds since its start, the samples it still has to train
    on (infinite if unknown), and the seconds of a step with 1, 2, ... workers as its program
    predicts them, None where it does not; empty if it predicts none.
    """

    observations: Observations
    elapsed_s: float = 0.0
    remaining_samples: float = inf
    predicted: Sequence[float | None] = ()

    @property
    def workers(self) -> int:
        """The present number of workers."""
        return self.observations.workers


class Choice(NamedTuple):
    """The number of workers a job should have, JSON-able marks to remember, and the reason."""

    size: int
    memory: dict[str, Any]
    why: str


class Scaler(Protocol):
    """Chooses how many workers one job should have, from its own measurements alone.

    It is asked when the job runs at the size it was given, not while a resize is under way.
    """

    def choose(self, job: Observed, memory: Memory | None = None) -> Choice:
        """The size to go to, or the present one to stay. ``memory`` is the last choice's."""
        ...


def begin(job: Observed, marks: dict[str, Any]) -> Outlook:
    """The job's progress, for a condition; ``marks`` keep its completion time at its first size.

    A step must have been counted at the present size.
    """
    if job.remaining_samples < inf and "initial_jct_s" not in marks:
        rate = job.observations[job.workers].mean
        marks["initial_jct_s"] = job.elapsed_s + job.remaining_samples / rate
    return Outlook(job.elapsed_s, job.remaining_samples, marks.get("initial_jct_s", inf))


def checked_sizes(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes, ascending. Raises InputError if there is none, or one is below 1."""
    if not sizes or min(sizes) < 1:
        raise InputError(f"sizes: {list(sizes)} must be whole numbers above zero, at least one")
    return tuple(sorted(set(sizes)))
