"""Searches over hyper-parameters: the driver that proposes trials, and the API for programs.

A program calls :func:`search`, or keeps a loop of its own with Optuna and gives it an
:class:`Objective`.
"""

from rota.sweep.objective import Objective
from rota.sweep.results import Result, TrialResult, search
from rota.sweep.run import Run

__all__ = ["Objective", "Result", "Run", "TrialResult", "search"]
