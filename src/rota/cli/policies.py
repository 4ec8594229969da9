"""``rota policies``: which policies there are, and what each needs."""

from __future__ import annotations

import inspect
import json
from typing import Any

import click

from rota.cli.table import render
from rota.policy.information import INFORMATION, information_of
from rota.policy.registry import create, names


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def policies(as_json: bool) -> None:
    """List the policies, with what each does and what it needs.

    NEEDS is what a policy is told of how long jobs are; an oracle is told the truth, and can't run
    live.
    """
    found: list[dict[str, Any]] = []
    for name in names():
        policy = create(name)
        word = information_of(policy)
        found.append(
            {
                "name": name,
                "what": (inspect.getdoc(type(policy)) or "").partition("\n")[0],
                "needs": word,
                "needs_text": INFORMATION.get(word, word),
                "preempts": policy.preemptive,
                "resizes": policy.resizes,
                "live": not policy.needs_duration,
            }
        )
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    header = ("POLICY", "NEEDS", "PREEMPTS", "RESIZES", "WHAT IT DOES")
    marks = {True: "yes", False: "-"}
    rows = [
        [p["name"], p["needs"], marks[p["preempts"]], marks[p["resizes"]], p["what"]] for p in found
    ]
    click.echo(render(header, rows, text_columns=5))
