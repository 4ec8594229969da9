"""A search over hyper-parameters, as policies know it: a trial is a job that says which one it is.

What the trials have reported of their metric comes by :meth:`rota.model.view.View.curve`.
"""

from typing import NamedTuple

Value = str | int | float | bool


class Sweep(NamedTuple):
    """One search. Its trials have one share among them, that of their priority.

    ``metric`` is the name that trials report, ``maximize`` whether more of it is better. The search
    is over when a trial reaches the ``target``; a trial makes ``reports`` of the metric in all,
    None if nobody has told how many.
    """

    name: str
    metric: str
    maximize: bool = True
    target: float | None = None
    reports: int | None = None


class SweepTrial(NamedTuple):
    """Which trial of which search a job is, and what it tries."""

    sweep: Sweep
    number: int
    params: tuple[tuple[str, Value], ...] = ()


class Report(NamedTuple):
    """What a trial said of its metric after so many steps; None for a value that is no number.

    ``first``: it is the first one that this process of the job has made.
    """

    step: int
    at_s: float
    value: float | None
    first: bool = False
