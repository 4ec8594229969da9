"""Decisions of the policy: what each changed, and why."""

from collections.abc import Mapping
from typing import Any

from rota.ui.frame import Frame
from rota.ui.pages.queue import AGE, reason_text
from rota.ui.parts import Grid, job_link, table, tag, write
from rota.ui.reader import Decision
from rota.ui.text import plain

COLUMNS = (
    {
        "field": "id",
        "headerName": "Decision",
        "width": 100,
        "sort": "desc",
        ":comparator": "(a, b) => a - b",
    },
    {"field": "at_s", "headerName": "Age", "width": 90, **AGE},
    {"field": "change", "headerName": "What changed", "flex": 3, "minWidth": 150},
    {"field": "why", "headerName": "Why others wait", "flex": 3, "context": {"from": 640}},
    {"field": "policy", "headerName": "Policy", "width": 120, "context": {"from": 900}},
)
MOST_NAMED = 6


def row_of(decision: Decision) -> dict[str, Any]:
    """A decision as a row of the grid."""
    data = decision.data
    changes = [f"{job} {_place(each)}" for job, each in data["allocations"].items()]
    by_reason: dict[str, list[str]] = {}
    for job, reason in data["reasons"].items():
        if reason != "NONE":
            by_reason.setdefault(reason, []).append(job)
    waits = [f"{_few(jobs)} {reason_text(reason)}" for reason, jobs in by_reason.items()]
    more = f"; and {len(changes) - MOST_NAMED} more" if len(changes) > MOST_NAMED else ""
    return {
        "id": str(data["number"]),
        "at_s": decision.at_s,
        "change": plain("; ".join(changes[:MOST_NAMED]) + more, 400) or "nothing",
        "why": plain("; ".join(waits), 400),
        "policy": plain(_decider(data)),
    }


def _decider(data: Mapping[str, Any]) -> str:
    """The policy, and if it failed, the fallback that took the decision."""
    name, fallback = str(data["policy"]).partition(" ")[0], data.get("fallback")
    return f"{name} failed: {fallback}" if fallback else name


def build(frame: Frame) -> None:
    """The page."""
    reader = frame.reader
    known: dict[str, tuple[Decision, dict[str, Any]]] = {}  # by number, of those that are shown
    with frame.shown("/decisions", "Decisions", "rota top"):
        with tag("div", classes="head"):
            tag("h1", "Decisions")
            count = tag("span", "", classes="note")
        detail = tag("section", classes="card", aria_label="The chosen decision")
        detail.set_visibility(False)

        async def choose(number: str | None) -> None:
            detail.set_visibility(number in known)
            detail.clear()
            if number in known:
                with detail:
                    _detail(known[number][0])

        grid = Grid(
            COLUMNS,
            label="Decisions",
            empty="None has been taken yet.",
            commands={"": "rota top", "policy": "rota report"},
            on_select=choose,
        )

        def update() -> None:
            kept = {}
            for each in reader.decisions:
                if each.data["allocations"] or each.data["reasons"]:
                    number = str(each.data["number"])
                    kept[number] = known.get(number) or (each, row_of(each))
            known.clear()
            known.update(kept)
            write(count, f"{len(known)} of the last {len(reader.decisions)} changed something")
            grid.show({number: row for number, (_, row) in known.items()})

        frame.on_change(update)


def _detail(decision: Decision) -> None:
    data = decision.data
    tag("h2", f"Decision {data['number']}: event {decision.seq} of the log")
    rows = [
        ((lambda job=job: job_link(job)), _place(each), "")
        for job, each in data["allocations"].items()
    ]
    rows += [
        ((lambda job=job: job_link(job)), "", reason_text(reason))
        for job, reason in data["reasons"].items()
        if reason != "NONE"
    ]
    table(("Job", "Place", "Reason"), rows, label="What the decision changed")


def _place(allocation: list[Mapping[str, Any]] | None) -> str:
    if not allocation:
        return "gives its GPUs up"
    return "on " + " ".join(
        f"{plain(part['node'], 60)}:{','.join(map(str, part['gpus']))}" for part in allocation
    )


def _few(jobs: list[str]) -> str:
    named = ", ".join(jobs[:MOST_NAMED])
    return named + (f" and {len(jobs) - MOST_NAMED} more" if len(jobs) > MOST_NAMED else "")
