"""Policies x points x seeds: the cases of ``rota sim compare`` and ``sweep``, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import click

from rota.cli.pool import run_cases
from rota.cli.simcases import Case
from rota.cli.simoptions import (
    MOST_RUNS,
    check_files,
    check_seeds,
    parse_case,
    parse_load,
    parse_loads,
    parse_seeds,
)
from rota.cli.simoutput import (
    cpu_s,
    entry_of,
    print_json,
    tell_jobs,
    write_csv,
    write_pictures,
)
from rota.cli.table import render
from rota.errors import InputError
from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.report.comparison import (
    ORACLE_NOTE,
    Entry,
    flat_table,
    narrow_table,
    spread_table,
)
from rota.sim.machine import Costs

Policies = Sequence[tuple[str, dict[str, str]]]
Axis = tuple[str, list[str]]  # what changes, and its values


class Line(NamedTuple):
    """What one line of the table is about: its cases differ in their seeds alone."""

    point: dict[str, str]
    cases: list[Case]


def run_grid(
    policies: Policies,
    axes: Sequence[Axis],
    *,
    loads: str,
    seeds: str,
    workers: int | None,
    wide: bool,
    no_history: bool,
    csv_file: str | None,
    html_file: str | None,
    png_folder: str | None,
    as_json: bool,
    **world: Any,
) -> None:
    """Run every policy at every point with every seed, and print what came out.

    Raises RotaError, of the first run that fails.
    """
    base = parse_case(**world)._replace(history=not no_history)
    base, axes = _with_loads(base, list(axes), loads)
    drawn = bool(html_file or png_folder)
    # Where a figure over the axis tells more than a picture of each single run.
    base = base._replace(drawn=drawn and not axes)
    check_files(html_file, png_folder, csv_file)
    seed_list = parse_seeds(seeds)
    check_seeds(base, seed_list)
    entries = _run(lines_of(policies, axes, base, seed_list), workers)
    if csv_file is not None:
        write_csv(Path(csv_file), *flat_table(entries), "--csv")
    if drawn:
        write_pictures(entries, html_file, png_folder, [key for key, _ in axes])
    if as_json:
        print_json([summary for entry in entries for summary in entry.summaries])
    else:
        click.echo(side_by_side(entries, wide=wide))


def _with_loads(base: Case, axes: list[Axis], loads: str) -> tuple[Case, list[Axis]]:
    """The case with the one load that was asked for, or the axes with the several."""
    found = parse_loads(loads)
    if any(key == "load" for key, _ in axes):
        if found != [1.0]:
            raise InputError("--loads and --over load=... say the same; drop one")
        return base, axes
    if len(found) == 1:
        return base._replace(load=found[0]), axes
    return base, [*axes, ("load", [f"{value:g}" for value in found])]


def _run(lines: Sequence[Line], workers: int | None) -> list[Entry]:
    began_cpu_s = cpu_s()
    first = lines[0].cases[0]
    num_jobs = first.workload.num_jobs or tell_jobs(first)
    cases = [case for line in lines for case in line.cases]
    names = [_name(line, case) if len(cases) > 1 else "" for line in lines for case in line.cases]
    outcomes = iter(run_cases(cases, names, workers=workers, num_jobs=num_jobs))
    entries = []
    for line in lines:
        found = [next(outcomes) for _ in line.cases]
        for outcome in found:
            outcome.summary["cpu_s"] += began_cpu_s
        sketches = [outcome.sketch for outcome in found if outcome.sketch is not None]
        entries.append(entry_of([outcome.summary for outcome in found], line.point, sketches))
    return entries


def lines_of(
    policies: Policies, axes: Sequence[Axis], base: Case, seeds: Sequence[int]
) -> list[Line]:
    """Every policy at every point, each with a case per seed. Raises InputError."""
    total = len(policies) * len(seeds)
    for _, values in axes:
        total *= len(values)
    if total > MOST_RUNS:
        raise InputError(f"these are {total} runs; at most {MOST_RUNS} go at once")
    lines = []
    for name, given in policies:
        for chosen in product(*(values for _, values in axes)):
            point = {key: value for (key, _), value in zip(axes, chosen, strict=True)}
            case = base._replace(policy=name, given=dict(given))
            for key, value in point.items():
                case = at_point(case, key, value)
            create(case.policy, case.given)
            first_sees_gpus = case._replace(with_gpus=True)
            cases = [
                (case if index else first_sees_gpus)._replace(seed=seed)
                for index, seed in enumerate(seeds)
            ]
            lines.append(Line(point, cases))
    return lines


def at_point(case: Case, key: str, value: str) -> Case:
    """The case with one thing changed: load, cluster, a cost, or a setting of its policy.

    Raises InputError.
    """
    option = f"--over {key}={value}"
    if key == "load":
        return case._replace(load=parse_load(value, option))
    if key == "cluster":
        parse_cluster(value)
        return case._replace(cluster=value)
    if key in Costs._fields:
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < float("inf"):
            raise InputError(f"{option}: it must be zero or a number of seconds above it")
        return case._replace(costs=case.costs._replace(**{key: seconds}))
    return case._replace(given=case.given | {key: value})


def parse_axes(texts: Sequence[str]) -> list[Axis]:
    """``key=a,b,...`` texts, or ``key=a|b|...``, as (key, values). Raises InputError."""
    axes: list[Axis] = []
    for text in texts:
        key, equals, rest = (part.strip() for part in text.partition("="))
        values = [value.strip() for value in rest.split("|" if "|" in rest else ",")]
        if not (key and equals and all(values)):
            raise InputError(
                f"--over {text!r} is not of the form KEY=A,B,...; write for example "
                "promote_knob=1,2,4,8 or 'thresholds=600|600,1800'"
            )
        if any(key == other for other, _ in axes):
            raise InputError(f"--over: {key} is given twice; write its values one after the other")
        if len(set(values)) < len(values):
            raise InputError(f"--over {text!r}: a value stands there twice; drop one")
        axes.append((key, values))
    return axes


def side_by_side(entries: Sequence[Entry], *, wide: bool) -> str:
    """The table as text."""
    header, rows = spread_table(entries) if wide else narrow_table(entries)
    points = 0 if wide or not entries else len(entries[0].point)
    lines = [render(header, rows, text_columns=1 + points)]
    if any(len(entry.summaries) > 1 for entry in entries):
        lines.append("means over the seeds, ± half the width of the 95 % confidence interval")
    if any(entry.is_oracle for entry in entries):
        lines.append(ORACLE_NOTE)
    return "\n".join(lines)


def _name(line: Line, case: Case) -> str:
    """What tells a case apart in messages."""
    settings = [f"{key}={value}" for key, value in case.given.items() if key not in line.point]
    policy = ":".join([case.policy, *settings])
    return ", ".join(
        [policy, *(f"{key} {value}" for key, value in line.point.items()), f"seed {case.seed}"]
    )
