"""``rota sim``: run a trace under one policy, or under several side by side, or over a range."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rota.cli.keyvalue import parse_policy
from rota.cli.outfile import require_writable
from rota.cli.simoptions import (
    JSON_OPTION,
    MANY_OPTIONS,
    PICTURE_OPTIONS,
    RUN_OPTIONS,
    check_files,
    options,
    parse_case,
    parse_load,
    world_options,
)
from rota.errors import InputError
from rota.policy.registry import create


@click.group()
def sim() -> None:
    """Run job traces in the simulator."""


@sim.command()
@click.option("--policy", "policy_text", required=True, metavar="NAME", help="Who runs when.")
@click.option(
    "--set", "set_texts", multiple=True, metavar="KEY=VALUE", help="A setting of the policy."
)
@world_options
@options(RUN_OPTIONS)
@click.option(
    "--history",
    is_flag=True,
    help="Also figures that need the course of the run: time to the first 100 mini-batches, "
    "waiting jobs, fragmentation.",
)
@click.option("--per-job", metavar="OUT.csv", help="Write one row per job to this file.")
@options(PICTURE_OPTIONS, [JSON_OPTION])
def run(
    policy_text: str,
    set_texts: tuple[str, ...],
    load: float,
    seed: int,
    history: bool,
    per_job: str | None,
    html_file: str | None,
    png_folder: str | None,
    as_json: bool,
    **world: Any,
) -> None:
    """Run a trace under one policy."""
    from rota.cli.simcases import run_to_end
    from rota.cli.simoutput import cpu_s, describe, print_json, tell_jobs, write_per_job

    name, given = parse_policy(policy_text, set_texts)
    create(name, given)
    case = parse_case(**world)._replace(
        policy=name,
        given=given,
        load=parse_load(load, "--load"),
        seed=seed,
        history=history,
        drawn=bool(html_file or png_folder),
        with_gpus=True,
    )
    if per_job is not None:
        require_writable(Path(per_job), "--per-job")
    check_files(html_file, png_folder)
    tell_jobs(case)
    summary, state, drawn = run_to_end(case)
    summary["cpu_s"] = cpu_s()
    if per_job is not None:
        write_per_job(state, Path(per_job))
    if drawn is not None:
        from rota.cli.simoutput import entry_of, write_pictures

        write_pictures([entry_of([summary], {}, [drawn])], html_file, png_folder)
    if as_json:
        print_json(summary)
    else:
        click.echo(describe(summary))


@sim.command()
@click.option(
    "--policy",
    "policy_texts",
    required=True,
    multiple=True,
    metavar="NAME[:KEY=VALUE...]",
    help="A policy, given once for each; tiresias:thresholds=600:within=entry sets its settings.",
)
@world_options
@options(MANY_OPTIONS, PICTURE_OPTIONS, [JSON_OPTION])
def compare(policy_texts: tuple[str, ...], **given: Any) -> None:
    """Run a trace under several policies, over several seeds and loads.

    Prints a line for each policy and load. cpu_s counts, for each run, what `rota sim run` would
    have used: the start, the reading of the trace, and the run.
    """
    from rota.cli.simgrid import run_grid

    run_grid(parse_policies(policy_texts), [], **given)


@sim.command()
@click.option(
    "--policy",
    "policy_texts",
    required=True,
    multiple=True,
    metavar="NAME[:KEY=VALUE...]",
    help="A policy, given once for each; tiresias:within=entry sets its settings.",
)
@click.option(
    "--set",
    "set_texts",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of every policy that stays the same.",
)
@click.option(
    "--over",
    "over_texts",
    required=True,
    multiple=True,
    metavar="KEY=A,B,...",
    help="What changes: a setting of the policies, load, cluster, or a cost such as resume_s. "
    "Values that hold commas are parted by |: 'thresholds=600|600,1800'. Given several times, "
    "every combination is run.",
)
@world_options
@options(MANY_OPTIONS, PICTURE_OPTIONS, [JSON_OPTION])
def sweep(
    policy_texts: tuple[str, ...],
    set_texts: tuple[str, ...],
    over_texts: tuple[str, ...],
    **given: Any,
) -> None:
    """Run a trace over a range of a setting, a load, a cost or cluster sizes.

    Prints a line for each policy and each value or combination of values.
    """
    from rota.cli.simgrid import parse_axes, run_grid

    axes = parse_axes(over_texts)
    fixed = {key: "" for key, _ in axes}
    policies = parse_policies(policy_texts, set_texts, fixed)
    run_grid(policies, axes, **given)


def parse_policies(
    texts: Sequence[str], more: Sequence[str] = (), swept: Sequence[str] | dict[str, str] = ()
) -> list[tuple[str, dict[str, str]]]:
    """The policies that ``texts`` name, as (name, settings), each checked. Raises InputError.

    ``more`` are settings of all of them; none of ``swept`` may be among the settings.
    """
    policies = [parse_policy(text, more) for text in texts]
    seen: set[str] = set()
    for text, (name, given) in zip(texts, policies, strict=True):
        for key in swept:
            if key in given:
                raise InputError(f"--policy {text}: {key} is set, and is swept over; drop one")
        identity = create(name, given).identity  # type: ignore[attr-defined]
        if identity in seen:
            raise InputError(
                f"--policy {text}: the same policy with the same settings stands there twice; "
                "drop one, or give it other settings"
            )
        seen.add(identity)
    return policies
