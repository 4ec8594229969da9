"""The tables that are written from what experiments printed."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rota.experiment import (
    pollux_batch,
    pollux_interference,
    pollux_jct,
    pollux_load,
    pollux_mixes,
    pollux_types,
    sweep_live,
)
from rota.experiment.base import Outcome
from rota.experiment.runs.pollux import Run, Variant, settings_of

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


def told(variants: dict[str, Variant]) -> dict[str, Any]:
    """The settings of an outcome that say what each variant is."""
    return {"variants": {label: variant.as_list() for label, variant in variants.items()}}


def jct(average_s: float = 2100.0) -> dict[str, Any]:
    runs = {label: [[Run([average_s], 3600.0, 2, 0.5)] * 4] for label in pollux_jct.VARIANTS}
    figures = [each for label in runs for each in pollux_jct.figures_of(label, runs)]
    figures += [each for label in runs for each in pollux_jct.by_workload(label, runs)]
    settings = settings_of(Path("data")) | told(pollux_jct.VARIANTS)
    return Outcome("pollux-jct", [0], settings, figures).as_dict()


def load() -> dict[str, Any]:
    figures = []
    for at in pollux_load.LOADS:
        runs = {label: [[Run([90.0], 3600.0, 2, 0.5)] * 4] for label in pollux_load.VARIANTS}
        figures += pollux_load.figures_at(at, runs, dict.fromkeys(runs, 80.0))
    settings = {"loads": list(pollux_load.LOADS)} | told(pollux_load.VARIANTS)
    return Outcome("pollux-load", [1], settings, figures).as_dict()


def batch() -> dict[str, Any]:
    found = pollux_batch.Found([0.1, 0.3], [0.2], [0.05], [0.9, 1.0])
    figures = [
        each for name in pollux_batch.APPLICATIONS for each in pollux_batch._figures(name, found)
    ]
    return Outcome("pollux-batch", [], {}, figures).as_dict()


def mixes() -> dict[str, Any]:
    figures, slow = [], [[Run([each_s], 1.0, 4, 0.5)] for each_s in (80.0, 90.0, 110.0)]
    for mix in pollux_mixes.MIXES:
        runs = {label: [[Run([100.0], 1.0, 2, 0.5)]] * 3 for label in pollux_mixes.VARIANTS}
        figures += pollux_mixes.figures_of(mix, runs | {"Tiresias": slow, "A + label": slow})
    settings = pollux_mixes._settings(Path("data"))
    return Outcome("pollux-mixes", [1], settings, figures).as_dict()


def interference() -> dict[str, Any]:
    runs = {("avoid", 0.5): [[Run([100.0], 1.0, 0, 0.5)]] * 2}
    for lost in pollux_interference.BOUNDS:
        each = [[Run([100.0 + 100 * lost + at], 1.0, 0, 0.5, 0.4)] for at in (0, 5)]
        runs["ignore", lost] = each
    figures = pollux_interference.figures(runs)
    return Outcome("pollux-interference", [0, 1], {}, figures).as_dict()


def types() -> dict[str, Any]:
    runs = {
        "off": [[Run([200.0 * at], 1.0, 0, 0.5) for at in (1, 2, 3, 4)]] * 2,
        "on": [[Run([times * at], 1.0, 0, 0.5) for at in (1, 2, 3, 4)] for times in (100, 196)],
    }
    settings = settings_of(Path("data"))
    return Outcome("pollux-types", [0, 1], settings, pollux_types.figures(runs)).as_dict()


def search() -> dict[str, Any]:
    """Of six orders, in the second of which successive halving never reached the target."""
    times = dict(zip(sweep_live.ARMS, (15.0, 45.0, 40.0, 12.0), strict=True))
    missed = (sweep_live.ASHA, 1)
    races = {
        arm: [sweep_live.Race(time_s + at, (arm, at) != missed, 9, 120) for at in range(6)]
        for arm, time_s in times.items()
    }
    figures = sweep_live.figures_of(races)
    return Outcome("sweep-live", sweep_live.SEEDS, sweep_live._settings(), figures).as_dict()


@pytest.mark.parametrize(
    "outcome",
    [jct(), load(), batch(), mixes(), interference(), types(), search()],
    ids=lambda each: each["experiment"],
)
def test_a_section_of_the_page_has_the_tables_that_are_made(
    generator: ModuleType, outcome: dict[str, Any]
) -> None:
    page = (DOCS / "research" / "experiments.md").read_text()
    name = outcome["experiment"]
    tables = generator.TABLES[name](outcome)
    written = generator.with_tables(page, name, tables)
    for made in tables:
        assert made in written
    header = [made.splitlines()[0] for made in tables]
    assert all(line in page for line in header), "the page has other columns"
    assert generator.TABLE.sub("", written) == generator.TABLE.sub("", page)


@pytest.mark.parametrize(("average_s", "verdict"), [(2100.0, "yes"), (2100.6, "NO")])
def test_whether_a_bound_holds_is_told(
    generator: ModuleType, average_s: float, verdict: str
) -> None:
    (times, _, _) = generator.jct(jct(average_s))
    (row,) = (line for line in times.splitlines() if line.startswith("| B + label |"))
    assert row.endswith(f"| 2,100: {verdict} |")
    (row,) = (line for line in times.splitlines() if line.startswith("| Tiresias |"))
    assert row.endswith("| - |")
    assert "2,030" not in times  # what is aimed at is no bound


def test_a_mix_with_which_one_seed_fails_is_marked(generator: ModuleType) -> None:
    times, again = generator.mixes(mixes())
    row = next(line for line in times.splitlines() if line.startswith("| small |"))
    cells = ["100", "0.90 (0.8 .. 1.1)", "1.00 (1 .. 1)", "1.00 (1 .. 1)"]
    cells += ["0.90 (0.8 .. 1.1) NO", "1.00 (1 .. 1)"]
    assert row == f"| small | {' | '.join(cells)} |"
    assert "| small | 4 | 2 | 2 | 2 | 4 | 2 |" in again


def test_two_types_and_links_are_told_by_their_ratios(generator: ModuleType) -> None:
    (blind,) = generator.types(types())
    assert "| 3 | 600 | 444 | 0.74 | - |" in blind
    assert "| mean | 500 | 370 | 0.740 | 0.5 .. 0.98 NO |" in blind
    (met,) = generator.interference(interference())
    assert "| avoided | 2,751 | 1 | 100 | 1 | - | 0% |" in met
    assert "| not avoided, 50% lost | 3,903 | 1.419 | 152 | 1.525 | 1.5 .. 1.55 | 40% |" in met


def test_a_race_is_told_order_by_order_and_by_the_ratios_that_are_judged(
    generator: ModuleType,
) -> None:
    races, ratios = generator.search(search())
    assert "| Gandiva with rungs | 15 | 16 | 17 | 18 | 19 | 20 | 17.5 | 9 | 120 | 6 of 6 |" in races
    assert "| ASHA | 12 | 13 | 14 | 15 | 16 | 17 | 14.5 | 9 | 120 | 5 of 6 |" in races
    gain = "| run to completion over Gandiva with rungs | 2.43 | 2.25 .. 2.67 | 1.3 .. 12: yes |"
    assert gain in ratios
    assert "| Gandiva with rungs over ASHA | 1.19 | 0 .. 1.25 | 0 .. 1.1: NO |" in ratios


def test_what_was_published_stands_in_parentheses_and_the_worst_beside_the_mean(
    generator: ModuleType,
) -> None:
    (table,) = generator.batch(batch())
    assert "| bert | 20 (30) | 20 (20) | 5 (5) | 95 (90) |" in table


def test_a_section_with_other_tables_is_not_touched(generator: ModuleType) -> None:
    with pytest.raises(ValueError, match="has 1 tables, not 2"):
        generator.with_tables("\n## x\n\n| a |\n| - |\n\n## y\n", "x", ["| b |\n", "| c |\n"])
