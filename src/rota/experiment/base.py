"""The contract of an experiment, and how one is found by name.

Each published result has one module in this package, named as the experiment with ``_`` for
``-``. Its docstring's first line says what it reproduces; its bounds, seeds and job mix are
constants at its top, fixed before it is run; its ``run`` returns an :class:`Outcome`. Simulations
for several seeds go over the cores (:func:`for_each_seed`), in processes that import the caller's
main module: a script calls them under ``if __name__ == "__main__"``.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from pkgutil import iter_modules
from statistics import median
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import rota.experiment
from rota.errors import InputError, did_you_mean
from rota.policy.information import information_of
from rota.policy.registry import create
from rota.scenario.pool import over_cores

OPTIONS = ("data", "live", "hosts", "partition")
Key = TypeVar("Key")
Subject = TypeVar("Subject")
Found = TypeVar("Found")


class Figure(NamedTuple):
    """One figure: what was published, what the baseline gives here, and what Rota gives.

    ``published`` is None where the source has no such figure for this set-up; ``baseline`` where
    there is nothing to compare with. ``low`` and ``high`` are None for a figure that is reported
    and not judged. A figure of several seeds is their median, and ``least`` and ``most`` are the
    extremes among them, which have to lie within the bounds as well if ``every`` is true; without
    seeds, those of what the figure is the mean of.
    """

    name: str
    unit: str
    published: float | None
    baseline: float | None
    ours: float
    low: float | None = None
    high: float | None = None
    least: float | None = None
    most: float | None = None
    every: bool = False

    @property
    def judged(self) -> bool:
        """True if the figure has bounds."""
        return self.low is not None and self.high is not None

    @property
    def ok(self) -> bool:
        """True if what is judged lies within the bounds; true of a figure that has none."""
        if self.low is None or self.high is None:
            return True
        extremes = (self.least, self.most) if self.every else ()
        judged = [self.ours, *(value for value in extremes if value is not None)]
        return all(self.low <= value <= self.high for value in judged)


def over_seeds(
    name: str,
    unit: str,
    values: Sequence[float],
    *,
    published: float | None = None,
    baseline: Sequence[float] | None = None,
    bounds: tuple[float, float] | None = None,
    every: bool = False,
) -> Figure:
    """The figure of what each seed gave: the median, with the extremes; the baseline's likewise.

    With ``every`` the bounds are for each seed, and not for the median alone.
    """
    beside = None if baseline is None else median(baseline)
    low, high = bounds or (None, None)
    ours, least, most = median(values), min(values), max(values)
    every = every and bounds is not None
    return Figure(name, unit, published, beside, ours, low, high, least, most, every)


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Each value over the other value of the same seed."""
    return [value / other for value, other in zip(values, others, strict=True)]


class Outcome(NamedTuple):
    """Result of an experiment, with everything needed to run it again."""

    experiment: str
    seeds: list[int]
    settings: dict[str, Any]
    figures: list[Figure]

    @property
    def holds(self) -> bool:
        """True if every figure is within its bounds; never true if none has any."""
        judged = any(figure.judged for figure in self.figures)
        return judged and all(figure.ok for figure in self.figures)

    def as_dict(self) -> dict[str, Any]:
        """The outcome as JSON-able values."""
        return {
            "experiment": self.experiment,
            "seeds": self.seeds,
            "settings": self.settings,
            "figures": [{**figure._asdict(), "ok": figure.ok} for figure in self.figures],
            "holds": self.holds,
        }


def for_each_seed(
    measure: Callable[[Subject, int], Found],
    subjects: Mapping[Key, Subject],
    seeds: Sequence[int],
    *,
    num_jobs: int,
) -> dict[Key, list[Found]]:
    """``measure(subject, seed)`` by subject, each a list in the order of the ``seeds``.

    ``num_jobs`` is about how many jobs one measurement simulates; ``measure`` is as for
    :func:`~rota.scenario.pool.over_cores`.
    """
    calls = [(subject, seed) for subject in subjects.values() for seed in seeds]
    found = iter(over_cores(measure, calls, num_jobs=num_jobs))
    return {key: [next(found) for _ in seeds] for key in subjects}


def information(*policies: str) -> dict[str, str]:
    """Each policy's information on job lengths, for the settings of an outcome."""
    return {name: information_of(create(name)) for name in policies}


class Experiment(Protocol):
    """A module of this package.

    One that needs public data takes ``data``, the folder that has it, and raises DataMissingError
    if it has not; one with a live part takes ``live``, which asks for a real cluster, and ``hosts``
    if that may be of so many machines; one on a real Slurm takes the ``partition`` to ask.
    """

    run: Callable[..., Outcome]


def names() -> list[str]:
    """Every experiment, sorted."""
    modules = [module for module in iter_modules(rota.experiment.__path__) if not module.ispkg]
    return sorted(module.name.replace("_", "-") for module in modules if module.name != "base")


def load(name: str) -> Experiment:
    """The experiment called ``name``. Raises InputError naming the close ones."""
    if name not in names():
        hint = did_you_mean(name, names())
        raise InputError(
            f"there is no experiment {name!r}{hint}; `rota experiment list` lists them"
        )
    return cast(Experiment, import_module(f"rota.experiment.{name.replace('-', '_')}"))


def run(
    name: str,
    data: Path | None = None,
    *,
    live: bool = False,
    hosts: int | None = None,
    partition: str | None = None,
) -> Outcome:
    """Run an experiment. Raises InputError for what it has no use for."""
    experiment = load(name)
    takes = _taken(experiment)
    if data is not None and "data" not in takes:
        raise InputError(f"experiment {name} needs no data; leave out --data")
    if live and "live" not in takes:
        raise InputError(f"experiment {name} has no separate part on real jobs; leave out --live")
    if hosts is not None and "hosts" not in takes:
        raise InputError(f"experiment {name} runs on one machine; leave out --hosts")
    if hosts is not None and not live:
        raise InputError("--hosts: it is for the part on real jobs; add --live")
    if partition is not None and "partition" not in takes:
        raise InputError(f"experiment {name} asks no Slurm; leave out --partition")
    given = {"data": data, "live": live, "hosts": hosts, "partition": partition}
    return experiment.run(**{key: value for key, value in given.items() if key in takes})


def taken(name: str) -> list[str]:
    """The parameters that an experiment takes, out of those of OPTIONS."""
    return _taken(load(name))


def _taken(experiment: Experiment) -> list[str]:
    return [name for name in OPTIONS if name in signature(experiment.run).parameters]


def summary(name: str) -> str:
    """One line that says what an experiment reproduces."""
    return (load(name).__doc__ or "").strip().partition("\n")[0].rstrip(".")
