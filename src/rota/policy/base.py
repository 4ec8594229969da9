"""The policy contract, and settings that users can give a policy by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.errors import PolicySettingError
from rota.model.plan import Plan
from rota.model.turns import Ahead, Turns
from rota.model.view import View
from rota.policy.information import UNDECLARED

if TYPE_CHECKING:
    from rota.policy.cpus.stage import CpuStage
    from rota.policy.fill.stage import FillStage
    from rota.policy.stages.autoscale import Autoscaler
    from rota.policy.stages.selection import Stages

PER_S = 1e6  # amounts of service are compared in whole microseconds
NOISE_S = 1e-8  # more than sums of times are off by, up to 1e7 s; less than a GPU's part of 1e-6
LEAST_TURN_S = 1e-3
DAY_S = 86400.0


class Setting(NamedTuple):
    """One knob of a policy: how to read it from text, its default, and what it does."""

    parse: Callable[[str], Any]
    default: Any
    help: str


class Policy:
    """The base class of every policy, with everything that a policy declares.

    :meth:`decide` chooses who holds which GPUs. It is a function of the view alone: no clock, no
    I/O, no chance.
    """

    name: str = ""
    """Its name in tables and messages."""

    SETTINGS: Mapping[str, Setting] = {}
    """Its own settings, by name; the class takes their values as keywords."""

    information: str = UNDECLARED
    """The information on job lengths it gets: a word of :mod:`rota.policy.information`."""

    needs_duration: bool = False
    """True makes it an oracle, which reads the durations that a trace knows."""

    preemptive: bool = True
    """False: a job that has GPUs keeps them."""

    resizes: bool = False
    """True: it lets running elastic jobs grow and shrink."""

    adapts: bool = False
    """True: it chooses the batches of jobs that leave that to it."""

    turn_s: float = 60.0
    """Seconds until the next turn of a job that it starts: a node that goes earlier takes none."""

    autoscaler: Autoscaler | None = None
    """With one it asks for a number of nodes, by the ``nodes`` of its notes."""

    composes: bool = False
    """True: it honours :attr:`stages`, which the settings common to all orderings become."""

    stages: Stages | None = None
    """Stages that the common settings make; None of defaults that do nothing."""

    cpus: CpuStage | None = None
    """Apportions the CPU cores of nodes among the jobs of each plan; None leaves cores alone."""

    fill: FillStage | None = None
    """Places background jobs beside those of each plan; None: they wait."""

    weighs_priority: bool = False
    """True: it uses priorities itself, so that ``priority`` is none of its common settings."""

    alone: frozenset[str] = frozenset()
    """Settings of its own that have no effect beside any common one."""

    instead: str = ""
    """Its behaviour with a common setting instead; a clause for messages."""

    # What the registry sets where it makes a policy by name.
    identity: str = ""
    """Name and settings: what it remembered is valid only for the same. By default its class."""

    settings: Mapping[str, Any] = {}
    """The values of all its own settings, and of the common ones that are not at their defaults."""

    remark: str = ""
    """Sentence that names what its settings turn off; "" for nothing."""

    def decide(self, view: View) -> Plan:
        """The target of every active job, as changes to the previous plan."""
        raise NotImplementedError

    def fallback(self) -> Policy:
        """A policy that needs no memory, and decides on a live cluster where this one fails."""
        # By its name, as the registry loads policies: that one's file imports this one.
        made: Policy = import_module("rota.policy.ordering.fifo").FifoBackfill()
        return made

    def rank(self, view: View, row: int) -> tuple[float, ...]:
        """A job's place in the policy's own order, the least first; equal ones by arrival."""
        return ()

    def order(self, view: View) -> list[int]:
        """The active rows in the order in which the policy looks at them, for people to read.

        It is the policy's own, under the common settings where these have a say.
        """
        own = sorted(view.active, key=lambda row: (*self.rank(view, row), row))
        if not self.composes:
            return own
        from rota.policy.stages.selection import ordered

        return ordered(self.stages, view, own)

    def turns(self, view: View, row: int) -> Turns | None:
        """The jobs that take turns where a job lives or waits; None if no jobs take turns there."""
        return None

    def ahead(self, view: View, row: int) -> Ahead | None:
        """The jobs that come before one that waits for a turn, or to be let in; None: not told."""
        return None

    def quota(self, view: View, row: int) -> int | None:
        """GPUs of the quota of a job's queue; None if there are no quotas."""
        quotas = None if self.stages is None else self.stages.quotas
        return None if quotas is None else quotas.of(view, view.spec[row].vc)

    def queues(self) -> tuple[str, ...]:
        """The queues that have quotas, if these are all that have any; else none."""
        quotas = None if self.stages is None else self.stages.quotas
        return () if quotas is None else quotas.queues()

    def queue_weight(self, queue: str) -> float:
        """The share of a queue that has no quota, relative to the others' shares."""
        fair = None if self.stages is None else self.stages.fair_share
        return fair.shares.get(queue, 1.0) if fair is not None and fair.owner == "vc" else 1.0


def checked(policy: object) -> Policy:
    """The policy itself. Raises PolicySettingError if it is no Policy."""
    if not isinstance(policy, Policy):
        raise PolicySettingError(
            f"{type(policy).__qualname__} is no policy: derive its class from "
            "rota.policy.base.Policy, which declares what a policy has"
        )
    return policy


def positive(text: str) -> float:
    """A number above zero. Raises ValueError."""
    value = _number(text)
    if not 0 < value < float("inf"):
        raise ValueError("it must be a number above zero")
    return value


def turn_s(text: str) -> float:
    """Seconds between decisions that time alone causes, a millisecond at least. ValueError."""
    value = positive(text)
    if value < LEAST_TURN_S:
        raise ValueError(f"it must be {LEAST_TURN_S} s (a millisecond) or more")
    return value


def to_instant(at_s: float) -> float:
    """The whole microsecond within ``NOISE_S`` of a time; the time itself if there is none.

    The last bits of a sum of decimal fractions depend on the order of addition. Rounding makes
    times that are equal on paper one instant. Other times stay as they are: rounded thirds would
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
    """The number; NaN for other text, so that the caller's ValueError says what it must be."""
    try:
        return float(text)
    except ValueError:
        return nan


def spelled(read: Callable[[str], Any]) -> Callable[[str], str]:
    """A reader that checks the text by ``read`` and returns it unchanged."""

    def check(text: str) -> str:
        read(text)
        return text

    return check


def one_of(*words: str) -> Callable[[str], str]:
    """A reader of one of these words, which raises ValueError for any other."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"it must be one of {', '.join(words)}")
        return text

    return read
