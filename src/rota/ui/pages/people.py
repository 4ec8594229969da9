"""People and queues: what each has now, what waits, and what they have used."""

from collections.abc import Mapping
from typing import Any

from rota.ui.frame import Frame
from rota.ui.pages.queue import ENDED
from rota.ui.parts import Grid, facts, tag
from rota.ui.reader import Reader
from rota.ui.text import plain

COLUMNS = (
    {"field": "name", "headerName": "Name", "flex": 2, "minWidth": 120},
    {"field": "gpus", "headerName": "GPUs now", "width": 110},
    {"field": "share", "headerName": "Share now", "width": 110},
    {"field": "running", "headerName": "Running", "width": 100, "context": {"from": 480}},
    {"field": "waiting", "headerName": "Waiting", "width": 100, "context": {"from": 480}},
    {"field": "wanted", "headerName": "GPUs waited for", "width": 140, "context": {"from": 700}},
    {"field": "ended", "headerName": "Ended in the hour", "width": 150, "context": {"from": 820}},
)
BY = {"user": "People", "queue": "Queues"}


def rows_by(reader: Reader, key: str) -> dict[str, dict[str, Any]]:
    """A row for each user, or queue, those with the most GPUs first. Shared GPUs count in part."""
    held: dict[str, float] = {}
    for node in reader.nodes.values():
        for holders in node["holders"]:
            for job in holders:
                who = reader.jobs.get(job, {}).get(key)
                if who is not None:
                    held[who] = held.get(who, 0.0) + 1 / len(holders)
    there = sum(node["num_gpus"] for node in reader.nodes.values() if node["alive"])
    found: dict[str, dict[str, Any]] = {}
    for job in reader.jobs.values():
        who = job[key]
        row = found.setdefault(
            who, {"id": who or "-", "running": 0, "waiting": 0, "wanted": 0, "ended": 0}
        )
        if job["state"] in ENDED:
            row["ended"] += 1
        elif job["gpus"]:
            row["running"] += 1
        else:
            row["waiting"] += 1
            row["wanted"] += job["num_gpus"]
    for who, row in found.items():
        gpus = held.get(who, 0.0)
        share = f"{gpus / there:.0%}" if there else "–"
        row |= {"name": plain(who) or "(none)", "gpus": f"{gpus:g}", "share": share}
    order = sorted(found, key=lambda who: (-held.get(who, 0.0), who))
    return {found[who]["id"]: found[who] for who in order}


def build(frame: Frame) -> None:
    """The page."""
    with frame.shown("/people", "People", "rota ps -a --user USER"):
        with tag("div", classes="head"):
            tag("h1", "People and queues")
        tag(
            "p",
            "Shares are of the GPUs that are there now; a shared GPU counts in part for each of "
            "its jobs.",
            classes="note",
        )
        grids = {}
        for key, title in BY.items():
            with tag("div", classes="card"):
                tag("h2", title, data_command="rota report")
                grids[key] = Grid(
                    COLUMNS,
                    label=title,
                    empty="No job yet.",
                    commands={"": f"rota ps --filter {key}=ROW"},
                    short=True,
                )
        settings = tag("section", classes="card", aria_label="The policy")
        rows: dict[str, dict[str, Mapping[str, Any]]] = {key: {} for key in BY}
        shown: list[Any] = [None]

        def update() -> None:
            for key, grid in grids.items():
                new = rows_by(frame.reader, key)
                old = rows[key]
                rows[key] = {
                    id_: old[id_] if old.get(id_) == row else row for id_, row in new.items()
                }
                grid.show(rows[key])
            policy = frame.reader.policy
            if policy != shown[0]:
                shown[0] = policy
                settings.clear()
                with settings:
                    _policy(policy)

        frame.on_change(update)


def _policy(policy: Mapping[str, Any]) -> None:
    tag("h2", f"Policy {plain(policy.get('name', '–'))}", data_command="rota report")
    with tag("div", classes="columns"):
        facts((plain(key), value) for key, value in policy.get("settings", {}).items())
