"""Policies x points x seeds: the cases of ``rota sim compare`` and ``sweep``, and their table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import click

from rota.cli.costoptions import check_cost
from rota.cli.faultoptions import FAULT_KEYS, parse_faults
from rota.cli.progress import many_runs
from rota.cli.simoptions import (
    BASELINE,
    MOST_RUNS,
    check_files,
    check_links,
    check_seeds,
    drawn_by_chance,
    parse_case,
    parse_load,
    parse_loads,
    parse_seeds,
)
from rota.cli.simoutput import (
    BY_LIMITS,
    Policies,
    costs_note,
    cpu_s,
    entry_of,
    entry_of_log,
    has_limits,
    print_json,
    refuse_share_of_one,
    tell_jobs,
    tell_missing_profiles,
    without_limits,
    write_csv,
    write_pictures,
)
from rota.cli.table import fitting, in_parts, render, width_of_terminal
from rota.errors import InputError, RotaError, did_you_mean
from rota.model.figure import rounded
from rota.model.job import Suspension
from rota.policy.registry import create, remark, settings
from rota.report.comparison import (
    BY_KEY,
    ORACLE_NOTE,
    Entry,
    flat_table,
    narrow_table,
    spread_table,
)
from rota.report.curves import few_runs
from rota.report.statistic import FEWEST_DRAWN
from rota.report.verdict import REPLAYS, average_s, differences, doubt, verdict
from rota.scenario.case import Case, CaseResult, run_case, run_cases
from rota.scenario.turning import LEAST_S, MOST_S, turning_point
from rota.sim.costsets import BY_JOB, SETS, UNKNOWN
from rota.sim.machine import Costs, restarts
from rota.workload.trace import COOPERATIVE, PLAIN, RESTART, SUSPENSIONS

Axis = tuple[str, list[str]]  # name and values
MOST_FAILURES = 10
MOST_VERDICTS = 4
LONG_TURN_S = 60.0
ALIKE_S = 0.5  # between averages that a table shows as the same
TURN_STEPS = 5  # of a bisection, two runs each


class Line(NamedTuple):
    """One line of the table; its cases differ only in their seeds."""

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
    best_first: bool = False,
    turn: bool | None = False,
    **world: Any,
) -> None:
    """Run every policy at every point with every seed, and print what came out.

    ``best_first`` is the order of the lines; else it is that of the policies. ``turn`` is whether
    to look for the cost at which another policy becomes the best; None: if that is quick. Runs that
    fail are told on stderr, and end the program with 1 after the others have been
    printed. Raises RotaError, of the first run, if all fail.
    """
    base = parse_case(**_first_values(world, axes))._replace(history=not no_history)
    base, axes = _with_loads(base, list(axes), loads)
    drawn = html_file is not None or png_folder is not None
    # Where a figure over the axis tells more than a picture of each single run.
    base = base._replace(drawn=drawn and not axes)
    check_files({"--csv": csv_file, "--html": html_file, "--png": png_folder}, world)
    policies = without_limits(policies, base, drop=best_first)
    seed_list = parse_seeds(seeds)
    check_seeds(base, seed_list)
    lines = lines_of(policies, axes, base, seed_list)
    tell_remarks(lines)
    for line in lines:
        refuse_share_of_one(line.cases[0].given, line.cases[0])
    tell_missing_profiles([name for name, _ in policies], base.profiles)
    found, failures = _run(lines, workers)
    if best_first:
        found.sort(key=lambda pair: (list(pair[1].point.values()), average_s(pair[1])))
    entries = [entry for _, entry in found]
    keys = [key for key, _ in axes]
    logged = entry_of_log(lines[0].cases[0], keys) if set(keys) <= {"cluster"} else None
    told = entries if logged is None else [*entries, logged]
    if csv_file is not None:
        write_csv(Path(csv_file), *flat_table(told), "--csv")
    notes: list[str] = []
    if html_file is not None or not as_json:
        notes = _notes(lines, found, logged, turn=False if axes else turn, workers=workers)
    if drawn:
        chance = drawn_by_chance(base)
        more: Any = {"drawn_by_chance": chance, "notes": notes, "logged": logged}
        write_pictures(entries, html_file, png_folder, keys, **more)
    if as_json:
        print_json([summary for entry in told for summary in entry.summaries])
    else:
        width = width_of_terminal()
        first = next((entry for line, entry in found if line is lines[0]), None)
        click.echo(side_by_side(told, wide=wide, width=width, first=first, more=notes))
    tell_failures(failures)


def _notes(
    lines: Sequence[Line],
    found: Sequence[tuple[Line, Entry]],
    logged: Entry | None,
    *,
    turn: bool | None,
    workers: int | None,
) -> list[str]:
    """Lines: the costs, the log's own waits, the verdict, and what would change the verdict."""
    entries = [entry for _, entry in found]
    ran = entries[0].summaries[0]
    charged = ran["costs"]
    replays = [] if logged is None else _replays(lines, entries)
    notes = [costs_note(ran), *log_notes(logged, replays)]
    several = len({line.cases[0].policy + str(line.cases[0].given) for line in lines}) > 1
    if several or logged is not None:
        notes += verdicts(entries, logged, replays)
    if several and turn is not False:
        told_apart = len({average_s(entry) for entry in entries if entry.is_choice}) > 1
        if charged == PLAIN:
            notes += kind_notes(found, turn, workers)
        elif told_apart and charged != BY_JOB:
            notes += turn_notes(found, turn, workers)
    return notes


def _first_values(world: dict[str, Any], axes: Sequence[Axis]) -> dict[str, Any]:
    """The options with the first values of what is swept and not given: the cluster, faults.

    Raises InputError for what is both.
    """
    found = dict(world)
    for key, values in axes:
        if key in FAULT_KEYS:
            if world.get(key) is not None:
                raise InputError(f"--{key.replace('_', '-')} is given, and swept over; drop one")
            found[key] = _number(key, values[0])
        if key == "cluster" and world["cluster"] is None:
            found[key] = values[0]
    return found


def tell_remarks(lines: Sequence[Line]) -> None:
    """Say on stderr, once each, what settings of the policies turn off others."""
    policies = (create(line.cases[0].policy, line.cases[0].given) for line in lines)
    for said in dict.fromkeys(map(remark, policies)):
        if said:
            click.echo(said, err=True)


def tell_failures(failures: Sequence[RotaError]) -> None:
    """Say on stderr which runs failed, and end the program with 1 if any did."""
    for error in failures[:MOST_FAILURES]:
        click.echo(f"error: {' '.join(str(error).split())}", err=True)
    if len(failures) > MOST_FAILURES:
        click.echo(f"error: {len(failures) - MOST_FAILURES} more runs failed", err=True)
    if failures:
        raise click.exceptions.Exit(1)


def _with_loads(base: Case, axes: list[Axis], loads: str) -> tuple[Case, list[Axis]]:
    """The case with the one load that was asked for, or the axes with the several."""
    found = parse_loads(loads)
    if any(key == "load" for key, _ in axes):
        if found != [1.0]:
            raise InputError("--loads and --over load=... say the same; drop one")
        return base, axes
    if len(found) == 1:
        return base._replace(load=found[0]), axes
    return base, [*axes, ("load", [text.strip() for text in loads.split(",")])]


def _run(
    lines: Sequence[Line], workers: int | None
) -> tuple[list[tuple[Line, Entry]], list[RotaError]]:
    """The lines of which at least one run ended well, with their runs; the errors of the others.

    Raises the first if there are no others.
    """
    began_cpu_s = cpu_s()
    first = lines[0].cases[0]
    num_jobs = first.workload.num_jobs or tell_jobs(first)
    cases = [case for line in lines for case in line.cases]
    names = [_name(line, case) if len(cases) > 1 else "" for line in lines for case in line.cases]
    with many_runs():
        results = iter(run_cases(cases, names, workers=workers, num_jobs=num_jobs))
    entries: list[tuple[Line, Entry]] = []
    failures: list[RotaError] = []
    for line in lines:
        found: list[CaseResult] = []
        for _ in line.cases:
            result = next(results)
            if isinstance(result, RotaError):
                failures.append(result)
            else:
                result.summary["cpu_s"] += began_cpu_s
                found.append(result)
        sketches = [result.sketch for result in found if result.sketch is not None]
        if found:
            summaries = [result.summary for result in found]
            entries.append((line, entry_of(summaries, line.point, sketches)))
    if failures and not entries:
        raise failures[0]
    return entries, failures


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
            case = _with_faults(case, point)
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
        check_links(case.oversubscription, value, case.speeds)
        return case._replace(cluster=value)
    if key in Costs._fields:
        seconds = _number(key, value)
        check_cost(seconds, option)
        given = case.costs_given | {key: seconds}
        how = Suspension.RESTART if case.suspension is None else case.suspension
        costs = case.costs._replace(**{key: seconds})
        return case._replace(costs=costs, costs_given=given, suspension=how)
    if key == "restart_s":
        seconds = _number(key, value)
        check_cost(seconds, option)
        return at_restart(case, seconds)
    if key in FAULT_KEYS:
        return case  # valid values depend on the other axes
    if key not in (known := settings(case.policy)):
        others = ("load", "cluster", "restart_s", *Costs._fields, *FAULT_KEYS)
        raise InputError(
            f"--over: policy {case.policy} has no setting {key!r}"
            f"{did_you_mean(key, [*known, *others])}; it has: {', '.join(known) or 'none'}; "
            f"besides there are: {', '.join(others)}"
        )
    return case._replace(given=case.given | {key: value})


def at_restart(case: Case, seconds: float) -> Case:
    """The case with jobs that restart, at so many seconds each time they get GPUs."""
    return case._replace(costs=restarts(seconds), cost_set="", suspension=Suspension.RESTART)


def _with_faults(case: Case, point: Mapping[str, str]) -> Case:
    """The case with the faults of its point. Raises InputError."""
    swept = {key: _number(key, value) for key, value in point.items() if key in FAULT_KEYS}
    if not swept:
        return case
    given = case.faults_given | swept
    return case._replace(faults=parse_faults(**given), faults_given=given)


def _number(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InputError(f"--over {key}={value}: {value!r} is not a number") from None


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


def verdicts(
    entries: Sequence[Entry], logged: Entry | None = None, replays: Sequence[Entry] = ()
) -> list[str]:
    """The best policy, in a sentence for each point, if the points are few.

    Before it comes whether the cluster is that of the log, as far as its replays tell.
    """
    points = list(dict.fromkeys(tuple(entry.point.items()) for entry in entries))
    if len(points) > MOST_VERDICTS:
        return []
    said = []
    for point in points:
        where = "".join(f", {key} {value}" for key, value in point)
        sentence = verdict([entry for entry in entries if tuple(entry.point.items()) == point])
        there = [entry for entry in replays if tuple(entry.point.items()) == point]
        doubted = doubt(logged, there) if logged is not None else ""
        if doubted:
            said.append(f"verdict{where}: {doubted}")
        if sentence:
            said.append(f"{'if it were' if doubted else 'verdict'}{where}: {sentence}")
    return said


def replays_of(entries: Sequence[Entry]) -> list[Entry]:
    """The lines of policies that may have been the log's own."""
    return [entry for entry in entries if entry.policy.partition(":")[0] in REPLAYS]


def log_notes(logged: Entry | None, replays: Sequence[Entry]) -> list[str]:
    """Compares the log's own waits with those of its replays, if the log has them."""
    if logged is None or not replays:
        return []
    queue = BY_KEY["avg_queue_s"]
    here = " and ".join(f"{queue.cell(entry)} s under {entry.label}" for entry in replays)
    return [
        f"{logged.policy}: jobs waited {queue.cell(logged)} s on average, and here {here}: the "
        "nearer, the more the simulation is like the cluster that the log is of"
    ]


def _replays(lines: Sequence[Line], entries: Sequence[Entry]) -> list[Entry]:
    """The lines of policies that may have been the log's own; if there are none, a run of one."""
    if found := replays_of(entries):
        return found
    first = lines[0].cases[0]._replace(given={}, history=False, drawn=False)
    name = BY_LIMITS if has_limits(first) else BASELINE
    try:
        result = run_case(first._replace(policy=name))
    except RotaError:
        return []
    return [entry_of([result.summary], lines[0].point, [])]


def kind_notes(
    found: Sequence[tuple[Line, Entry]], turn: bool | None, workers: int | None
) -> list[str]:
    """The policy that would be best if the jobs could be suspended, in a sentence for each way."""
    choices = [pair for pair in found if pair[1].is_choice]
    about_s = 2 * sum(s["cpu_s"] for _, entry in choices for s in entry.summaries)
    if turn is None and about_s > LONG_TURN_S:
        return [
            "if jobs could be suspended: --turn looks for the policy that is best then, in about "
            f"{about_s:.0f} s"
        ]
    said = []
    for name, meaning in (
        (RESTART, "restarted from their own checkpoints"),
        (COOPERATIVE, "used rota.train"),
    ):
        how, costs = SUSPENSIONS[name], SETS[name](UNKNOWN)
        cases = {
            place: [
                case._replace(cost_set=name, costs=costs, suspension=how) for case in line.cases
            ]
            for place, (line, _) in enumerate(choices)
        }
        averages = _averages(cases, workers, _num_jobs(choices))
        best = min(averages, key=averages.__getitem__)
        if averages[best] == inf:
            continue
        first = f"{choices[best][1].label} would come first, with"
        if max(averages.values()) - averages[best] < ALIKE_S:
            first = "no policy would be ahead of another;"
        said.append(
            f"if jobs {meaning} (--costs {name}): {first} an average JCT of {averages[best]:,.0f} s"
        )
    return said


def _num_jobs(found: Sequence[tuple[Line, Entry]]) -> int:
    return int(max(summary["jobs"] for _, entry in found for summary in entry.summaries))


def _averages(
    cases: Mapping[int, Sequence[Case]], workers: int | None, num_jobs: int
) -> dict[int, float]:
    """The average JCT of the cases of each place; infinity if one of them does not finish."""
    listed = [
        case._replace(history=False, drawn=False) for of_one in cases.values() for case in of_one
    ]
    results = iter(run_cases(listed, [""] * len(listed), workers=workers, num_jobs=num_jobs))
    averages = {}
    for place, of_one in cases.items():
        got = [next(results) for _ in of_one]
        values = [r.summary["avg_jct_s"] for r in got if not isinstance(r, RotaError)]
        whole = len(values) == len(of_one) and None not in values
        averages[place] = sum(values) / len(values) if whole else inf
    return averages


def turn_notes(
    found: Sequence[tuple[Line, Entry]], turn: bool | None, workers: int | None
) -> list[str]:
    """The cost of a restart at which another policy becomes the best, in a sentence.

    Compares the three best policies, the best preemptive one and the best other one.
    """
    choices = sorted(
        (pair for pair in found if pair[1].is_choice), key=lambda pair: average_s(pair[1])
    )
    preempt = [create(line.cases[0].policy, line.cases[0].given).preemptive for line, _ in choices]
    firsts = {preempt.index(kind) for kind in set(preempt)}
    places = sorted({*range(min(len(choices), 3)), *firsts})
    if len(places) < 2:
        return []
    costs_s = {place: sum(s["cpu_s"] for s in choices[place][1].summaries) for place in places}
    about_s = 2 * sum(costs_s.values()) + 2 * TURN_STEPS * max(costs_s.values())
    if turn is None and about_s > LONG_TURN_S:
        return [
            "cost: --turn looks for the cost at which another policy is best, in about "
            f"{about_s:.0f} s"
        ]

    def measure(policies: Sequence[int], restart_s: float) -> dict[int, float]:
        cases = {
            place: [at_restart(case, restart_s) for case in choices[place][0].cases]
            for place in policies
        }
        return _averages(cases, workers, _num_jobs(choices))

    found_turn = turning_point(places, measure)
    if found_turn is None:
        return []
    cheap, dear = choices[found_turn.cheap][1].label, choices[found_turn.dear][1].label
    if found_turn.at_s is None:
        return [f"cost: {cheap} is best at a restart of {LEAST_S:g} s, and at one of {MOST_S:g} s"]
    about = f"a restart takes about {rounded(found_turn.at_s, 2)} s"
    return [f"cost: the ranking turns where {about}: {cheap} is best below, {dear} above"]


def side_by_side(
    entries: Sequence[Entry],
    *,
    wide: bool,
    width: float = inf,
    first: Entry | None = None,
    more: Sequence[str] = (),
) -> str:
    """The table as text, as far as it can be no wider than ``width``, and notes below it.

    With ``first``, the line of one policy, each line tells its difference from that policy's line
    at the same point. ``more`` are notes.
    """
    notes: list[str] = []
    beside: list[str] = []
    compared = differences(entries, first) if first is not None else []
    if first is not None and any(compared):
        beside = [f"against {first.policy}", *("-" if d is None else str(d) for d in compared)]
        if any(found is not None and found.by == "parts" for found in compared):
            notes.append("± over ten parts of the jobs, by arrival: of one log, rather too narrow")
    if wide:
        table = in_parts(*spread_table(entries), width)
    else:
        header, rows, left_out = narrow_table(entries, width, beside)
        told = any(entry.information for entry in entries)
        table = render(header, rows, text_columns=1 + told + len(entries[0].point))
        if left_out:
            notes.append(f"not enough room for: {', '.join(left_out)}; --wide prints all figures")
    if any(len(entry.summaries) > 1 for entry in entries):
        notes.append("means over the seeds, ± half the width of the 95 % confidence interval")
    if few_runs(entries):
        notes.append(f"fewer than {FEWEST_DRAWN} seeds say little: their intervals are very wide")
    if any(entry.is_oracle for entry in entries):
        notes.append(ORACLE_NOTE)
    return "\n".join([table, *(fitting(note, width) for note in (*notes, *more))])


def _name(line: Line, case: Case) -> str:
    """Name of a case in messages, without what all cases share."""
    settings = [f"{key}={value}" for key, value in case.given.items() if key not in line.point]
    policy = ":".join([case.policy, *settings])
    return ", ".join(
        [policy, *(f"{key} {value}" for key, value in line.point.items()), f"seed {case.seed}"]
    )
