"""``rota burst``: the numbers of GPUs on which each layer of a training is worth running."""

from pathlib import Path
from typing import Any

import click

from rota.burst.planner.costs import A100_NVSWITCH, Costs, Network
from rota.burst.planner.frontier import Frontier, Timed
from rota.burst.planner.timeline import (
    BACKWARD,
    FORWARD,
    REDUCTION,
    TRANSFER,
    Timeline,
    timeline,
)
from rota.cli.commandgroup import CommandGroup
from rota.cli.outfile import require_writable, whole_file
from rota.cli.table import render, width_of_terminal
from rota.workload.layer_profiles import read_layer_profile

LETTERS = {FORWARD: "f", BACKWARD: "b", TRANSFER: "t", REDUCTION: "r"}
WIDEST = 100
NEARLY = 1.1  # as long as the fastest for those who look for cheaper plans


@click.group(cls=CommandGroup)
def burst() -> None:
    """Plan numbers of GPUs layer by layer, from measured times of layers."""


@burst.command()
@click.argument("profile", type=click.Path(path_type=Path))
@click.option("--gpus", type=int, required=True, help="The most GPUs that a layer may have.")
@click.option("--batch", type=int, help="Samples of a step. [default: the most in the profile]")
@click.option(
    "--max-gpu-time",
    type=float,
    metavar="X",
    help="Take the fastest plan of at most X times the GPU time of one GPU.",
)
@click.option(
    "--bandwidth",
    type=float,
    help="GB/s between GPUs, in each direction. [default: the profile's, else 266]",
)
@click.option(
    "--latency",
    type=float,
    help="µs until a transfer begins. [default: the profile's, else 40]",
)
@click.option("--memory", type=float, metavar="GIB", help="The most that a GPU may hold.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page with the timeline.")
def plan(
    profile: Path,
    gpus: int,
    batch: int | None,
    max_gpu_time: float | None,
    bandwidth: float | None,
    latency: float | None,
    memory: float | None,
    as_json: bool,
    html: Path | None,
) -> None:
    """How many GPUs a training is worth, and each of its layers.

    PROFILE has the times of its layers: a JSON file of Rota, or one of DeepPool's published files.
    Steps are told twice: with gradients reduced after each layer's backward pass, and with
    reductions that overlap it, as in torch's DistributedDataParallel.
    """
    if html is not None:
        require_writable(html, "--html")
    graph = read_layer_profile(profile)
    batch = graph.most_batch if batch is None else batch
    network = _links(graph.network or A100_NVSWITCH, bandwidth, latency)
    limit = None if memory is None else memory * 2**30
    costs = Costs(graph, batch, gpus, network, limit)
    plain, overlapped = Frontier(costs, overlap=False), Frontier(costs)
    chosen = overlapped.fastest(max_gpu_time)
    named = {
        "chosen": chosen,
        "fastest without overlap": overlapped.timed(plain.fastest().plan),
        f"cheapest within {NEARLY:g}": overlapped.cheapest(NEARLY),
        "best for the cluster": overlapped.best_for_cluster(within=NEARLY),
    }
    advice = advice_of(overlapped, chosen)
    course = timeline(costs, chosen.plan)
    if as_json:
        from rota.cli.simoutput import print_json

        print_json(_as_dict(plain, overlapped, named, course, advice))
    else:
        click.echo("\n".join(_lines(plain, overlapped, named, course, advice)))
    if html is not None:
        from rota.report.burstpage import burst_page

        header, rows = _table(plain, overlapped, named)
        spans = [
            (span.kind, graph.layers[span.layer].name, gpu, span.start_s, span.end_s)
            for span in course.spans
            for gpu in range(gpus)
            if span.on(gpu)
        ]
        with whole_file(html, "--html", text=True) as file:
            file.write(burst_page(graph.name, header, rows, spans, gpus, advice))


def _links(network: Network, bandwidth: float | None, latency: float | None) -> Network:
    """The links of the profile, unless the user gave others; these carry reductions as well."""
    if bandwidth is not None:
        network = Network(bandwidth * 1e9, network.latency_s)
    if latency is not None:
        network = network._replace(latency_s=latency * 1e-6)
    return network


def advice_of(frontier: Frontier, chosen: Timed) -> list[str]:
    """Sentences that say how many GPUs the training is worth."""
    fastest_base = min(frontier.baselines, key=lambda base: base.step_s)
    size = fastest_base.plan.gpus
    said = []
    if chosen.plan.is_data_parallel:
        said.append(
            f"Data parallelism on {_gpus(chosen.plan.gpus)} is best here: "
            f"{_ms(chosen.step_s)} ms a step."
        )
    else:
        said.append(
            f"Sizes by layer, on up to {_gpus(chosen.plan.gpus)}: "
            f"{_compared(chosen, fastest_base)} data parallelism on {_gpus(size)}."
        )
    for base in frontier.baselines:
        less = base.gpu_time_s <= 0.8 * chosen.gpu_time_s
        if base.plan != chosen.plan and base.step_s <= 1.5 * chosen.step_s and less:
            said.append(
                f"{_gpus(base.plan.gpus)}: {base.step_s / chosen.step_s - 1:.0%} slower, "
                f"{base.gpu_time_s / chosen.gpu_time_s:.0%} of the GPU time."
            )
    cheap = frontier.cheapest(NEARLY)
    if cheap.gpu_time_s < 0.98 * chosen.gpu_time_s and not cheap.plan.is_data_parallel:
        said.append(
            f"Sizes by layer can save GPU time for others: {cheap.step_s / chosen.step_s - 1:.0%} "
            f"slower, {cheap.gpu_time_s / chosen.gpu_time_s:.0%} of the GPU time."
        )
    if frontier.tangled:
        said.append(
            f"{len(frontier.tangled)} layers, from {frontier.tangled[0]} to "
            f"{frontier.tangled[-1]}, are too entangled to be sized alone and share a size."
        )
    return said


def _compared(one: Timed, other: Timed) -> str:
    change = one.step_s / other.step_s - 1.0
    how = f"{-change:.0%} faster" if change < 0 else f"{change:.0%} slower"
    return f"{how}, with {one.gpu_time_s / other.gpu_time_s:.0%} of the GPU time, than"


def _gpus(number: int) -> str:
    return f"{number} GPU" + ("s" if number > 1 else "")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}"


def _table(
    plain: Frontier, overlapped: Frontier, named: dict[str, Timed]
) -> tuple[list[str], list[list[str]]]:
    """Data parallelism on each number of GPUs, and the plans: step and GPU time both ways."""
    header = ["PLAN", "GPUS", "STEP", "GPU TIME", "OVERLAPPED STEP", "GPU TIME", "OF ONE GPU"]
    one_s = plain.costs.least_gpu_time_s
    timed = {f"data parallel, {base.plan.gpus}": base for base in overlapped.baselines}
    rows = []
    for name, point in (timed | named).items():
        alone = plain.timed(point.plan)
        cells = (alone.step_s, alone.gpu_time_s, point.step_s, point.gpu_time_s)
        ratio = f"{point.gpu_time_s / one_s:.2f}"
        rows.append([name, str(point.plan.gpus), *map(_ms, cells), ratio])
    return header, rows


def _lines(
    plain: Frontier,
    overlapped: Frontier,
    named: dict[str, Timed],
    course: Timeline,
    advice: list[str],
) -> list[str]:
    costs = plain.costs
    width = int(min(width_of_terminal(), WIDEST))
    sizes = [group.size for group in named["chosen"].plan.groups]
    return [
        f"{costs.graph.name}: {len(costs.graph.layers)} layers, batch {costs.batch}, "
        f"up to {_gpus(costs.gpus)}; times in ms",
        "",
        render(*_table(plain, overlapped, named)),
        "",
        f"chosen: GPUs of each layer {_runs(sizes)}",
        f"a step of {_ms(course.step_s)} ms: f forward, b backward, t transfer, r reduction, . gap",
        *drawn(course, width),
        "",
        *advice,
    ]


def _runs(sizes: list[int]) -> str:
    """``8 x13, 1 x3``: sizes in the order of the layers, equal ones together."""
    runs: list[list[int]] = []
    for size in sizes:
        if runs and runs[-1][0] == size:
            runs[-1][1] += 1
        else:
            runs.append([size, 1])
    return ", ".join(f"{size} x{times}" for size, times in runs)


def drawn(course: Timeline, width: int) -> list[str]:
    """A line for GPUs that do the same, with a letter for what fills most of each column."""
    stories: dict[tuple[int, ...], list[int]] = {}
    for gpu in range(course.gpus):
        story = tuple(at for at, span in enumerate(course.spans) if span.on(gpu))
        stories.setdefault(story, []).append(gpu)
    lines = []
    labels = [f"GPU {gpus[0]}" + (f"-{gpus[-1]}" if gpus[1:] else "") for gpus in stories.values()]
    room = max(10, width - max(map(len, labels)) - 2)
    step = course.step_s / room
    for label, story in zip(labels, stories, strict=True):
        row = ["."] * room
        # What computes hides reductions beside it.
        spans = sorted((course.spans[at] for at in story), key=lambda s: s.kind != REDUCTION)
        for span in spans:
            for at in range(round(span.start_s / step), round(span.end_s / step)):
                row[at] = LETTERS[span.kind]
        lines.append(f"{label.ljust(max(map(len, labels)))}  {''.join(row)}")
    return lines


def _as_dict(
    plain: Frontier,
    overlapped: Frontier,
    named: dict[str, Timed],
    course: Timeline,
    advice: list[str],
) -> dict[str, Any]:
    costs = plain.costs
    layers = costs.graph.layers

    def told(point: Timed) -> dict[str, Any]:
        alone = plain.timed(point.plan)
        return {
            "gpus": point.plan.gpus,
            "step_s": alone.step_s,
            "gpu_time_s": alone.gpu_time_s,
            "overlapped_step_s": point.step_s,
            "overlapped_gpu_time_s": point.gpu_time_s,
            "memory_bytes": point.plan.memory_bytes,
        }

    chosen = named["chosen"].plan
    return {
        "model": costs.graph.name,
        "batch": costs.batch,
        "gpus": costs.gpus,
        "one_gpu_time_s": costs.least_gpu_time_s,
        "data_parallel": [told(base) for base in overlapped.baselines],
        "plans": {name: told(point) for name, point in named.items()},
        "frontier": [told(point) for point in overlapped.points],
        "layers": [
            {"name": layer.name, "first_gpu": group.first, "gpus": group.size}
            for layer, group in zip(layers, chosen.groups, strict=True)
        ],
        "timeline": [
            {
                "kind": span.kind,
                "layer": layers[span.layer].name,
                "groups": [list(group) for group in span.groups],
                "start_s": span.start_s,
                "end_s": span.end_s,
            }
            for span in course.spans
        ],
        "gaps": [[list(gap) for gap in course.gaps(gpu)] for gpu in range(course.gpus)],
        "advice": advice,
    }
