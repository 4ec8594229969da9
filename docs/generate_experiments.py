"""Write the tables of docs/research/experiments.md that no test runs anew, from printed outcomes.

rota experiment run pollux-jct --data DIR --json > jct.json
python docs/generate_experiments.py jct.json ...

Each file is the JSON of one experiment. The tables of its section are replaced in their order; the
text around them stays as it is, and has to be read again.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "research" / "experiments.md"
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
Outcome = dict[str, Any]
Figures = dict[str, dict[str, Any]]


def main(paths: list[str]) -> int:
    """Rewrite the sections that the files are about."""
    text = PAGE.read_text()
    for path in paths:
        outcome = json.loads(Path(path).read_text())
        text = with_tables(text, outcome["experiment"], TABLES[outcome["experiment"]](outcome))
    PAGE.write_text(text)
    return 0


def with_tables(text: str, experiment: str, tables: list[str]) -> str:
    """The page with the tables of one section replaced. ValueError if it has not as many."""
    head, heading, rest = text.partition(f"\n## {experiment}\n")
    section, following, tail = rest.partition("\n## ")
    found = len(TABLE.findall(section))
    if found != len(tables):
        raise ValueError(f"section {experiment} has {found} tables, not {len(tables)}")
    made = iter(tables)
    section = TABLE.sub(lambda _: next(made), section)
    return head + heading + section + following + tail


def table(header: Iterable[str], rows: Iterable[Iterable[str]], *, text_columns: int = 1) -> str:
    """A Markdown table whose first columns are text, and the others numbers."""
    header = list(header)
    rule = ["---" if at < text_columns else "---:" for at in range(len(header))]
    lines = [header, rule, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def by_name(outcome: Outcome) -> Figures:
    """The figures of an outcome by their names."""
    return {figure["name"]: figure for figure in outcome["figures"]}


def number(value: float) -> str:
    """As many digits as tell something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def beside(figure: dict[str, Any]) -> str:
    """What we found, and in parentheses what was published."""
    published = figure["published"]
    return number(figure["ours"]) + ("" if published is None else f" ({number(published)})")


def spread(figure: dict[str, Any]) -> str:
    """The extremes among the seeds."""
    return f"{number(figure['least'])} .. {number(figure['most'])}"


def verdict(figure: dict[str, Any]) -> str:
    """The bound that a figure must not exceed, and whether it holds."""
    if figure["high"] is None:
        return "-"
    return f"{number(figure['high'])}: {'yes' if figure['ok'] else 'NO'}"


def jct(outcome: Outcome) -> list[str]:
    """By variant: completion times, spread and bound; what else it came to; and by workload."""
    found, variants = by_name(outcome), outcome["settings"]["variants"]
    workloads = outcome["settings"]["workloads"]
    times, rest, each = [], [], []
    for label, (_, _, when, told) in variants.items():
        average = found[f"average JCT, {label}"]
        times.append([label, when, told, beside(average), spread(average), verdict(average)])
        columns = (
            found[f"average JCT, {label}, testbed"],
            found[f"p99 of JCT, {label}"],
            found[f"makespan, {label}"],
        )
        again = found[f"restarts a job, {label}"]
        cpu = found[f"CPU time of a simulation, {label}"]
        rest.append([label, *map(beside, columns), number(again["ours"]), number(cpu["ours"])])
        figures = (found[f"workload {at}: average JCT, {label}"] for at in workloads)
        each.append([label, *map(beside, figures)])
    first = ["variant", "decides", "is told", "average JCT, s", "over seeds", "at most: holds"]
    second = ["variant", "average, h", "p99, h", "makespan, h", "restarts a job", "CPU s"]
    third = ["average JCT, s", *(f"workload {at}" for at in workloads)]
    return [table(first, times, text_columns=3), table(second, rest), table(third, each)]


def load(outcome: Outcome) -> list[str]:
    """By load and variant."""
    found, rows = by_name(outcome), []
    for at in outcome["settings"]["loads"]:
        for label in outcome["settings"]["variants"]:
            where = f"load {at:g}: {{}}, {label}".format
            over = found.get(where("average JCT over Pollux as published"))
            average, again = found[where("average JCT")], found[where("restarts a job")]
            rows.append(
                [
                    f"{at:g}",
                    label,
                    beside(average),
                    spread(average),
                    "-" if over is None else f"{over['ours']:.3f}{failed(over)}",
                    number(found[where("p99 of JCT")]["ours"]),
                    number(again["ours"]) + failed(again),
                ]
            )
    header = ["load", "variant", "average JCT, s", "over seeds", "over Pollux' here", "p99, s"]
    return [table([*header, "restarts a job"], rows, text_columns=2)]


def mixes(outcome: Outcome) -> list[str]:
    """By mix: times over those of the baseline, with the extremes; and restarts."""
    found, base = by_name(outcome), outcome["settings"]["baseline"]
    labels = list(outcome["settings"]["variants"])
    others = [label for label in labels if label != base]
    times, again = [], []
    for mix in outcome["settings"]["mixes"]:
        over = [found[f"{mix}: average JCT over {base}, {label}"] for label in others]
        cells = [f"{each['ours']:.2f} ({spread(each)}){failed(each)}" for each in over]
        times.append([mix, number(found[f"{mix}: average JCT, {base}"]["ours"]), *cells])
        each = (found[f"{mix}: restarts a job, {label}"] for label in labels)
        again.append([mix, *(number(figure["ours"]) for figure in each)])
    first = ["average JCT", f"{base}, s", *others]
    return [table(first, times), table(["restarts a job", *labels], again)]


def failed(figure: dict[str, Any]) -> str:
    """A word after a figure that is out of its bounds."""
    return "" if figure["ok"] else " NO"


def interference(outcome: Outcome) -> list[str]:
    """By what is lost: times, and how often jobs were beside each other."""
    found, rows = by_name(outcome), []
    cases = [name.partition(": ")[0] for name in found if name.endswith(": average JCT")]
    for case in cases:
        average, over = found[f"{case}: average JCT"], found.get(f"{case}: over avoided")
        met = found[f"{case}: time beside another job on a node"]
        ratios = ["1", "1", "-"]
        if over is not None:
            ratios = [f"{over['published']:.3f}", f"{over['ours']:.3f}", spread(over)]
            ratios[-1] += failed(over)
        there, here, seeds = ratios
        figures = [number(average["published"]), there, number(average["ours"]), here, seeds]
        rows.append([case, *figures, f"{met['ours']:.0%}"])
    header = ["", "published, s (mean of 8)", "over avoided", "ours, s (mean of 4)"]
    return [table([*header, "over avoided", "over seeds", "time beside another"], rows)]


def types(outcome: Outcome) -> list[str]:
    """By workload: times without a look at types and with it."""
    found, rows = by_name(outcome), []
    for at in outcome["settings"]["workloads"]:
        each = found[f"workload {at}: average JCT"]
        ratio = f"{each['ours'] / each['baseline']:.2f}"
        rows.append([str(at), number(each["baseline"]), number(each["ours"]), ratio, "-"])
    mean, over = found["average JCT"], found["average JCT over type-blind"]
    last = [number(mean["baseline"]), number(mean["ours"]), f"{over['ours']:.3f}"]
    rows.append(["mean", *last, spread(over) + failed(over)])
    header = ["workload", "type-blind: average JCT, s", "by type, s", "ratio", "over seeds"]
    return [table(header, rows)]


def batch(outcome: Outcome) -> list[str]:
    """By application: the mean of each figure, with the worst."""
    rows: dict[str, list[str]] = {}
    for figure in outcome["figures"]:
        worst = figure["least" if "goodput" in figure["name"] else "most"]
        name = figure["name"].partition(":")[0]
        rows.setdefault(name, [name]).append(f"{number(figure['ours'])} ({number(worst)})")
    header = ["application", "step time, fitted to all", "twice the GPUs", "gain of larger batches"]
    return [table([*header, "worth of chosen batches"], rows.values())]


def search(outcome: Outcome) -> list[str]:
    """By way to search: times in each order and what they took; and the ratios that are judged."""
    found, rows = by_name(outcome), []
    orders = range(1, len(outcome["seeds"]) + 1)
    for arm in outcome["settings"]["arms"]:
        time = found[f"{arm}: time to target"]
        each = [found[f"order {order}, {arm}: time to target"] for order in orders]
        rest = [found[f"{arm}: {what}"] for what in ("configurations begun", "reports until then")]
        cells = (number(figure["ours"]) for figure in (*each, time, *rest))
        reached = found[f"{arm}: orders in which it was reached"]["ours"]
        rows.append([arm, *cells, f"{reached:.0f} of {len(orders)}"])
    header = ["time to target, s", *(f"order {order}" for order in orders), "median"]
    ratios = [
        [name, number(figure["ours"]), spread(figure), within(figure)]
        for name, figure in found.items()
        if figure["high"] is not None
    ]
    return [
        table([*header, "configurations begun", "reports", "reached"], rows),
        table(["ratio", "median", "over orders", "bounds: holds"], ratios),
    ]


def within(figure: dict[str, Any]) -> str:
    """The bounds of a figure, and whether they hold."""
    bounds = f"{number(figure['low'])} .. {number(figure['high'])}"
    return f"{bounds}: {'yes' if figure['ok'] else 'NO'}"


TABLES: dict[str, Callable[[Outcome], list[str]]] = {
    "pollux-jct": jct,
    "pollux-load": load,
    "pollux-mixes": mixes,
    "pollux-interference": interference,
    "pollux-types": types,
    "pollux-batch": batch,
    "sweep-live": search,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
