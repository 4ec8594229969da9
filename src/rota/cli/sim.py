"""``rota sim``: run a trace under one policy, or under several side by side, or over a range."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rota.cli.commandgroup import CommandGroup
from rota.cli.keyvalue import parse_policy
from rota.cli.optiongroups import options
from rota.cli.progress import one_run
from rota.cli.simoptions import (
    BASELINE,
    JSON_OPTION,
    MANY_OPTIONS,
    PICTURE_OPTIONS,
    RUN_OPTIONS,
    TURN_OPTION,
    check_files,
    drawn_by_chance,
    parse_case,
    parse_load,
    world_options_of,
)
from rota.errors import InputError
from rota.policy.registry import create, remark

if TYPE_CHECKING:
    from rota.model.state.state import ClusterState


ALL = "all"  # policies


@click.group(cls=CommandGroup)
def sim() -> None:
    """Run job traces in the simulator."""


@sim.command()
@click.option("--policy", "policy_text", required=True, metavar="NAME", help="Who runs when.")
@click.option(
    "--set", "set_texts", multiple=True, metavar="KEY=VALUE", help="A setting of the policy."
)
@world_options_of(cluster=True)
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
    from rota.cli.simoutput import (
        cpu_s,
        describe,
        print_json,
        refuse_share_of_one,
        tell_jobs,
        tell_missing_profiles,
        tell_warnings,
        without_limits,
        write_per_job,
    )
    from rota.scenario.case import run_to_end

    name, given = parse_policy(policy_text, set_texts)
    policy = create(name, given)
    outputs = {"--per-job": per_job, "--html": html_file, "--png": png_folder}
    case = parse_case(**world)._replace(
        policy=name,
        given=given,
        load=parse_load(load, "--load"),
        seed=seed,
        history=history,
        drawn=html_file is not None or png_folder is not None,
        with_gpus=True,
    )
    check_files(outputs, world)
    if said := remark(policy):
        click.echo(said, err=True)
    tell_missing_profiles([name], case.profiles)
    without_limits([(name, given)], case, drop=False)
    refuse_share_of_one(given, case)
    tell_jobs(case)
    states: list[tuple[ClusterState, int]] = []
    with one_run(lambda: jobs_ended(states)):
        summary, state, drawn = run_to_end(case, lambda *begun: states.append(begun))
    summary["cpu_s"] = cpu_s()
    tell_warnings(state)
    if per_job is not None:
        write_per_job(state, Path(per_job))
    if drawn is not None:
        from rota.cli.simoutput import costs_note, entry_of, entry_of_log, write_pictures

        entry = entry_of([summary], {}, [drawn])
        notes, chance = [costs_note(summary)], drawn_by_chance(case)
        more: Any = {"notes": notes, "logged": entry_of_log(case, [])}
        write_pictures([entry], html_file, png_folder, drawn_by_chance=chance, **more)
    if as_json:
        print_json(summary)
    else:
        click.echo(describe(summary))


def jobs_ended(begun: Sequence[tuple[ClusterState, int]]) -> tuple[int, int]:
    """(jobs that have ended, all jobs) of a run that may have begun."""
    if not begun:
        return 0, 0
    state, num_jobs = begun[0]
    return len(state.spec) - len(state.active) - len(state.background), num_jobs


@sim.command()
@click.option(
    "--policy",
    "policy_texts",
    required=True,
    multiple=True,
    metavar="NAME[:KEY=VALUE...]",
    help="A policy, given once for each; tiresias:thresholds=600:within=entry sets its settings. "
    "all stands for every policy there is, oracles too, the best first.",
)
@world_options_of(cluster=True, several=True)
@options(MANY_OPTIONS, [TURN_OPTION], PICTURE_OPTIONS, [JSON_OPTION])
def compare(
    policy_texts: tuple[str, ...], cluster: tuple[str, ...], turn: bool | None, **given: Any
) -> None:
    """Run a trace under several policies, over several seeds, loads and clusters.

    Prints a line for each, with its difference from the first policy, and which policy is best, as
    far as the runs tell. cpu_s counts, for each run, what `rota sim run` would have used: the
    start, the reading of the trace, and the run.
    """
    from rota.cli.simgrid import run_grid

    if twice := [text for text in dict.fromkeys(cluster) if cluster.count(text) > 1]:
        raise InputError(f"--cluster {twice[0]} stands there twice; drop one")
    several = [("cluster", list(cluster))] if len(cluster) > 1 else []
    texts, sorted_ = every_policy(policy_texts, with_profiles=given["profiles"] is not None)
    run_grid(
        parse_policies(texts),
        several,
        best_first=sorted_,
        turn=turn,
        cluster=None if several else cluster[0],
        **given,
    )


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
    help="What changes: a setting of the policies, load, cluster, a cost such as resume_s, or a "
    "number of the faults such as mtbf_s. Values that hold commas are parted by |: "
    "'thresholds=600|600,1800'. Given several times, every combination is run.",
)
@world_options_of(cluster=False)
@options(MANY_OPTIONS, PICTURE_OPTIONS, [JSON_OPTION])
def sweep(
    policy_texts: tuple[str, ...],
    set_texts: tuple[str, ...],
    over_texts: tuple[str, ...],
    **given: Any,
) -> None:
    """Run a trace over a range of a setting, a load, a cost, faults or cluster sizes.

    Prints a line for each policy and each value or combination of values.
    """
    from rota.cli.simgrid import parse_axes, run_grid

    axes = parse_axes(over_texts)
    policies = parse_policies(policy_texts, set_texts, [key for key, _ in axes])
    run_grid(policies, axes, **given)


def every_policy(texts: Sequence[str], *, with_profiles: bool) -> tuple[list[str], bool]:
    """The texts with ``all`` replaced by every policy that they don't name; whether it was there.

    First among these is FIFO with backfill, which others are compared with. Without profiles those
    are left out, and named on stderr, that need them.
    """
    from rota.cli.simoutput import BY_PROFILES
    from rota.policy.registry import names

    if ALL not in texts:
        return list(texts), False
    named = [text for text in texts if text != ALL]
    known = {text.partition(":")[0] for text in named}
    others = [name for name in names() if name not in known and name != BASELINE]
    if blind := [name for name in others if name in BY_PROFILES and not with_profiles]:
        click.echo(f"left out, as they need --profiles: {', '.join(blind)}", err=True)
    first = [BASELINE] if BASELINE not in known else []
    return [*named, *first, *(name for name in others if name not in blind)], True


def parse_policies(
    texts: Sequence[str], more: Sequence[str] = (), swept: Sequence[str] = ()
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
        identity = create(name, given).identity
        if identity in seen:
            raise InputError(
                f"--policy {text}: the same policy with the same settings stands there twice; "
                "drop one, or give it other settings"
            )
        seen.add(identity)
    return policies
