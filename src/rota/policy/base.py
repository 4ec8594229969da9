"""The policy contract, and settings that users can give a policy by name."""

from collections.abc import Callable
from math import nan
from typing import Any, NamedTuple, Protocol

from rota.model.plan import Plan
from rota.model.view import View

PER_S = 1e6  # amounts of service are compared in whole microseconds
NOISE_S = 1e-8  # more than sums of times are off by, up to 1e7 s; less than a GPU's part of 1e-6
LEAST_TURN_S = 1e-3
DAY_S = 86400.0


class Policy(Protocol):
    """Decides who holds which GPUs. A function of the view alone: no clock, no I/O, no chance.

    It declares ``information``, what it is told of how long jobs are
    (:mod:`rota.policy.information`); ``needs_duration`` True makes it an oracle that reads the
    durations a trace knows, and declares that by itself. A class may also set ``name``,
    ``SETTINGS`` (name -> Setting) and ``preemptive`` (False: a job that has GPUs keeps them).
    ``composes`` True says that it honours its attribute ``stages``, which the settings common to
    all orderings become; ``weighs_priority`` that it uses priorities itself, so that they are none
    of these; ``alone`` are its own settings that have no effect beside any of these, and
    ``instead`` says what it does with one. ``resizes`` True says that it lets running elastic jobs
    grow and shrink; the entry ``why`` of a job's mark is then shown to its user. So are the entries
    ``trials`` and ``tried`` (:mod:`rota.model.probe`) and ``pack`` (:mod:`rota.explain.sharing`). A
    method ``turns(view, row)`` may tell who takes turns where a job waits
    (:class:`rota.model.turns.Turns`). With an ``autoscaler``
    (:class:`rota.policy.stages.autoscale.Autoscaler`) it asks for a number of nodes, by the entry
    ``nodes`` of its own mark (:mod:`rota.model.desired_nodes`).
    """

    def decide(self, view: View) -> Plan:
        """The target for every active job, as changes against the plan before."""
        ...


class Setting(NamedTuple):
    """One knob of a policy: how to read it from text, its default, and what it does."""

    parse: Callable[[str], Any]
    default: Any
    help: str


def positive(text: str) -> float:
    """A number above zero. Raises ValueError."""
    value = _number(text)
    if not 0 < value < float("inf"):
        raise ValueError("it must be a number above zero")
    return value


def turn_s(text: str) -> float:
    """Seconds between two decisions that time alone brings, a millisecond at least. ValueError."""
    value = positive(text)
    if value < LEAST_TURN_S:
        raise ValueError(f"it must be {LEAST_TURN_S} s (a millisecond) or more")
    return value


def to_instant(at_s: float) -> float:
    """The whole microsecond that is within ``NOISE_S`` of a time; else the time as it is.

    Sums of decimal fractions differ in their last bits by the order in which they were added up.
    Rounded alike, times that are equal on paper are one instant. Others stay: rounded thirds would
    not add up to one.
    """
    try:
        instant_s = round(at_s * PER_S) / PER_S
    except OverflowError:
        return at_s
    return instant_s if -NOISE_S < instant_s - at_s < NOISE_S else at_s


def pause_s(text: str) -> float:
    """Seconds that a job stands still, above zero, a day at most. Raises ValueError."""
    value = positive(text)
    if value > DAY_S:
        raise ValueError(f"it must be {DAY_S:.0f} s (a day) or less")
    return value


def not_negative(text: str) -> float:
    """Zero or a number above it. Raises ValueError."""
    value = _number(text)
    if not 0 <= value < float("inf"):
        raise ValueError("it must be zero or a number above it")
    return value


def _number(text: str) -> float:
    """NaN for what is no number: the ValueError of its reader says what it must be."""
    try:
        return float(text)
    except ValueError:
        return nan


def one_of(*words: str) -> Callable[[str], str]:
    """A reader of one of these words, which raises ValueError for any other."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"it must be one of {', '.join(words)}")
        return text

    return read
