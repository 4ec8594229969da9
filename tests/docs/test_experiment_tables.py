"""The tables that are written from what experiments printed."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rota.experiment import pollux_batch, pollux_jct, pollux_load
from rota.experiment.base import Outcome
from rota.experiment.runs.pollux import Run

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_experiments", DOCS / "generate_experiments.py"
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def jct() -> dict[str, Any]:
    runs = {label: [[Run([2100.0], 3600.0, 2, 0.5)] * 4] for label in pollux_jct.VARIANTS}
    figures = [each for label in runs for each in pollux_jct.figures_of(label, runs)]
    figures += [each for label in runs for each in pollux_jct.by_workload(label, runs)]
    return Outcome("pollux-jct", [0], pollux_jct._settings(Path("data")), figures).as_dict()


def load() -> dict[str, Any]:
    figures = []
    for at in pollux_load.LOADS:
        runs = {label: [[Run([90.0], 3600.0, 2, 0.5)] * 4] for label in pollux_load.VARIANTS}
        figures += pollux_load.figures_at(at, runs, dict.fromkeys(runs, 80.0))
    return Outcome("pollux-load", [1], pollux_load._settings(Path("data")), figures).as_dict()


def batch() -> dict[str, Any]:
    found = pollux_batch.Found([0.1, 0.3], [0.2], [0.05], [0.9, 1.0])
    figures = [
        each for name in pollux_batch.APPLICATIONS for each in pollux_batch._figures(name, found)
    ]
    return Outcome("pollux-batch", [], {}, figures).as_dict()


@pytest.mark.parametrize("outcome", [jct(), load(), batch()], ids=lambda each: each["experiment"])
def test_a_section_of_the_page_has_the_tables_that_are_made(
    generator: ModuleType, outcome: dict[str, Any]
) -> None:
    page = (DOCS / "experiments.md").read_text()
    name = outcome["experiment"]
    tables = generator.TABLES[name](outcome)
    written = generator.with_tables(page, name, tables)
    for made in tables:
        assert made in written
    header = [made.splitlines()[0] for made in tables]
    assert all(line in page for line in header), "the page has other columns"
    assert generator.TABLE.sub("", written) == generator.TABLE.sub("", page)


def test_a_bound_that_does_not_hold_is_told(generator: ModuleType) -> None:
    (times, _, _) = generator.jct(jct())
    row = next(line for line in times.splitlines() if line.startswith("| B + label |"))
    assert row == (
        "| B + label | at events | declared, label | 2,100 (2,580) | 2,100 .. 2,100 | 2,100: yes |"
    )
    assert "| 2,030" not in times


def test_what_was_published_stands_in_parentheses_and_the_worst_beside_the_mean(
    generator: ModuleType,
) -> None:
    (table,) = generator.batch(batch())
    assert "| bert | 20 (30) | 20 (20) | 5 (5) | 95 (90) |" in table


def test_a_section_with_other_tables_is_not_touched(generator: ModuleType) -> None:
    with pytest.raises(ValueError, match="has 1 tables, not 2"):
        generator.with_tables("\n## x\n\n| a |\n| - |\n\n## y\n", "x", ["| b |\n", "| c |\n"])
