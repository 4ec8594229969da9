"""Learning curves of searches over hyper-parameters, recorded from real trainings of small models.

They stand in JSON files beside this module, one run a line, as bench/record_learning_curves.py
wrote them; docs/reference/traces.md tells what was trained, and how.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from rota.errors import InputError, did_you_mean

FOLDER = Path(__file__).parent


class Run(NamedTuple):
    """One configuration of a search and its training.

    ``parameters`` are (name, value) pairs in the same order in all runs of a search.
    ``accuracies`` are validation accuracies, 0 to 1, after each epoch; ``epoch_s`` is the CPU time
    of one epoch with its validation, on one thread. ``diverged`` is the epoch, counted from 1, in
    which the loss ceased to be a finite number, None if it never did: from then on the accuracy is
    that of a network without use.
    """

    number: int
    parameters: tuple[tuple[str, float | int | str], ...]
    epoch_s: float
    diverged: int | None
    accuracies: tuple[float, ...]


class Search(NamedTuple):
    """The runs of one search, in the order in which their configurations were drawn.

    They were drawn independently of each other, so any part of them is a search too. ``task`` says
    what was trained; ``recorded`` with which versions, and on what; ``epochs`` is the length of
    every run.
    """

    name: str
    task: str
    epochs: int
    recorded: str
    runs: tuple[Run, ...]


def names() -> tuple[str, ...]:
    """The searches that were recorded."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@lru_cache(maxsize=8)
def load(name: str) -> Search:
    """The search called ``name``. Raises InputError naming the close ones if there is none."""
    if name not in names():
        hint = did_you_mean(name, names())
        raise InputError(f"search: {name!r} was not recorded{hint}; there are {', '.join(names())}")
    import json

    table = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    of = table.pop("parameters")
    runs = tuple(_run(of, row) for row in table.pop("runs"))
    return Search(name=name, runs=runs, **table)


def _run(of: list[str], row: dict[str, Any]) -> Run:
    parameters = tuple(zip(of, row.pop("parameters"), strict=True))
    return Run(parameters=parameters, accuracies=tuple(row.pop("accuracies")), **row)
