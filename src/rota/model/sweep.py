"""A search over hyper-parameters, as policies see it: a trial is a job that names its search.

Trials' reports of their metric come by :meth:`rota.model.view.View.curve`.
"""

from typing import NamedTuple

Value = str | int | float | bool


class Sweep(NamedTuple):
    """One search. Its trials have one share among them, that of their priority.

    ``metric`` is the name that trials report, ``maximize`` is True if more of it is better. The
    search is over when a trial reaches the ``target``; a trial makes ``reports`` of the metric in
    all, None if unknown. The trials of an array are its tasks, which differ in an index alone.
    """

    name: str
    metric: str
    maximize: bool = True
    target: float | None = None
    reports: int | None = None
    is_array: bool = False


class SweepTrial(NamedTuple):
    """The search and number of a job that is a trial, and its parameters."""

    sweep: Sweep
    number: int
    params: tuple[tuple[str, Value], ...] = ()


class Report(NamedTuple):
    """A trial's metric after so many steps; None for a value that is no number.

    ``first`` is True for the first report of this process of the job.
    """

    step: int
    at_s: float
    value: float | None
    first: bool = False
