"""Jobs' reports of the times of their steps and validations, and of waits for data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rota.errors import InputError

TRAIN, EVALUATE = PHASES = ("train", "evaluate")
LONGEST_S, SHORTEST_S = 86_400.0, 1e-6  # of a step, or of a validation
MOST_STEPS, MOST_WORKERS = 1 << 40, 4096
MOST_SECONDS = 1e11  # since 1970


class PhaseTime(NamedTuple):
    """Mean times of ``steps`` steps, or whole validations, since ``since_s``.

    ``wait_s`` is the part of ``step_s`` in which a step waited for its data, which ``workers``
    processes loaded beside the program; None where nobody measured or counted that.
    """

    phase: str
    steps: int
    step_s: float
    wait_s: float | None
    since_s: float
    workers: int | None

    @property
    def wait_share(self) -> float | None:
        """The part of a step in which it waits for data; None if unknown."""
        return None if self.wait_s is None else self.wait_s / self.step_s

    def told(self) -> dict[str, Any]:
        """The entry of a report."""
        return {name: value for name, value in self._asdict().items() if name != "phase"}


def read(progress: Mapping[str, Any]) -> tuple[PhaseTime, ...]:
    """The times of phases in a report; empty if it has none.

    Raises InputError for an impossible figure, with its name and value.
    """
    told = progress.get("phases")
    if told is None:
        return ()
    if not isinstance(told, Mapping):
        raise InputError(f"phases: {told!r:.80} is no mapping")
    return tuple(_read(phase, entry) for phase, entry in told.items())


def times_in(progress: Mapping[str, Any]) -> tuple[PhaseTime, ...]:
    """The times of phases in a report; none if they can't be."""
    try:
        return read(progress)
    except InputError:
        return ()


def _read(phase: Any, entry: Any) -> PhaseTime:
    if phase not in PHASES:
        raise InputError(f"phases: {phase!r:.80} is no phase; there are {' and '.join(PHASES)}")
    where = f"phases.{phase}"
    if not isinstance(entry, Mapping):
        raise InputError(f"{where}: {entry!r:.80} is no mapping")
    told: dict[str, Any] = dict.fromkeys(PhaseTime._fields[1:]) | dict(entry)
    steps, step_s, wait_s = told["steps"], told["step_s"], told["wait_s"]
    since_s, workers = told["since_s"], told["workers"]
    if not _is_number(step_s, SHORTEST_S, LONGEST_S):
        raise InputError(f"{where}.step_s: {step_s!r:.80} s is no time for a step")
    if wait_s is not None and not _is_number(wait_s, 0.0, LONGEST_S):
        raise InputError(f"{where}.wait_s: {wait_s!r:.80} s is no time to wait")
    if wait_s is not None and wait_s > step_s:
        raise InputError(f"{where}.wait_s: {wait_s!r} s is more than the whole step's {step_s!r} s")
    if not _is_whole(steps, 1, MOST_STEPS):
        raise InputError(f"{where}.steps: {steps!r:.80} is no whole number above 0")
    if not _is_number(since_s, 0.0, MOST_SECONDS):
        raise InputError(f"{where}.since_s: {since_s!r:.80} is no time")
    if workers is not None and not _is_whole(workers, 0, MOST_WORKERS):
        raise InputError(
            f"{where}.workers: {workers!r:.80} is no whole number from 0 to {MOST_WORKERS}"
        )
    return PhaseTime(phase, steps, step_s, wait_s, since_s, workers)


def _is_number(value: Any, least: float, most: float) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and least <= value <= most  # NaN is not


def _is_whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most  # True and False are none
