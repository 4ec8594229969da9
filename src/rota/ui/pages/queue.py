"""The queue: jobs that run, and those that wait, with why, and what would start them."""

import math
from collections.abc import Mapping
from typing import Any

from rota.report.text import duration
from rota.ui.frame import Frame
from rota.ui.parts import Grid, facts, job_link, tag, write
from rota.ui.reader import Reader
from rota.ui.steering import ENDED, draw_steering, steer, steering_buttons
from rota.ui.text import plain

AGE = {
    "context": {"ages": True},
    ":valueFormatter": "p => rota.age(p.value)",
    ":comparator": "(a, b) => b - a",
}
COLUMNS = (
    {"field": "id", "headerName": "Job", "width": 68, ":cellRenderer": "rota.link('/job/')"},
    {
        "field": "name",
        "headerName": "Name",
        "flex": 2,
        "minWidth": 120,
        ":cellRenderer": "rota.link('/job/')",
    },
    {"field": "state", "headerName": "State", "width": 108, ":cellRenderer": "rota.badge"},
    {
        "field": "reason",
        "headerName": "Reason",
        "flex": 2,
        "minWidth": 130,
        "context": {"from": 560},
    },
    {"field": "position", "headerName": "Place", "width": 68, "context": {"from": 830}},
    {"field": "gpus", "headerName": "GPUs", "width": 64},
    {
        "field": "where",
        "headerName": "Where",
        "flex": 2,
        "minWidth": 110,
        "context": {"from": 930},
    },
    {"field": "user", "headerName": "User", "width": 96, "context": {"from": 700}},
    {"field": "queue", "headerName": "Queue", "width": 90, "context": {"from": 1010}},
    {"field": "priority", "headerName": "Priority", "width": 80, "context": {"from": 1350}},
    {"field": "share", "headerName": "Share", "width": 68, "context": {"from": 620}},
    {
        "field": "submit_s",
        "headerName": "Age",
        "width": 80,
        **AGE,
        "context": {"from": 480, "ages": True},
        ":valueFormatter": "p => rota.age(p.value, p.data.finish_s)",
    },
    {"field": "progress", "headerName": "Progress", "width": 136, "context": {"from": 1140}},
    {"field": "eta", "headerName": "ETA", "width": 132, "context": {"from": 1270}},
)


class Rows:
    """The grid's rows in the queue's order; a job that has not changed keeps its row."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[Mapping[str, Any], dict[str, Any]]] = {}

    def of(self, reader: Reader) -> dict[str, dict[str, Any]]:
        """Jobs with GPUs, those that wait in the policy's order, and those that have ended."""
        held: list[dict[str, Any]] = []
        waiting: list[dict[str, Any]] = []
        ended: list[dict[str, Any]] = []
        for job_id, job in reader.jobs.items():
            known = self._of.get(job_id)
            if known is None or known[0] is not job:
                known = self._of[job_id] = (job, row_of(job))
            group = ended if job["state"] in ENDED else held if job["gpus"] else waiting
            group.append(known[1])
        for gone in self._of.keys() - reader.jobs.keys():
            del self._of[gone]
        waiting.sort(key=lambda row: row["position"] or math.inf)
        return {row["id"]: row for row in (*held, *waiting, *reversed(ended))}


def row_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job as a row of the grid."""
    least, most = job["min_gpus"], job["max_gpus"]
    size = str(job["num_gpus"]) if least == most else f"{job['num_gpus']} ({least}–{most})"
    reason = job["reason"] if job["reason"] != "NONE" else ""
    return {
        "id": job["id"],
        "name": plain(job["name"]),
        "state": job["state"],
        "reason": plain(job["message"]) if job["state"] in ENDED else reason_text(reason),
        "gpus": size,
        "where": where(job),
        "user": plain(job["user"]),
        "queue": plain(job["queue"]),
        "priority": job["priority"],
        "share": f"{job['share']:.0%}",
        "submit_s": job["submit_s"],
        "finish_s": job["finish_s"],
        "progress": progress_text(job["progress"]),
        "eta": eta_text(job["eta_s"]),
        "position": job["position"],
    }


def where(job: Mapping[str, Any]) -> str:
    """The GPUs that a job has, and whom it shares them with."""
    places = " ".join(
        f"{plain(part['node'], 60)}:{','.join(map(str, part['gpus']))}" for part in job["gpus"]
    )
    return places + (f" with {' '.join(job['shared_with'])}" if job["shared_with"] else "")


def reason_text(reason: str) -> str:
    """A reason code in words: WAIT_GANG_FRAGMENTED is ``wait: gang fragmented``."""
    head, _, tail = reason.partition("_")
    words = tail.replace("_", " ").lower()
    return f"{head.lower()}: {words}" if words else head.lower()


def progress_text(progress: Mapping[str, Any]) -> str:
    """The steps done, of how many, and their part."""
    step, total = progress.get("step"), progress.get("total")
    if not isinstance(step, int | float):
        return ""
    if not isinstance(total, int | float) or total <= 0:
        return f"{step:,.0f}"
    return f"{step:,.0f}/{total:,.0f} {min(1.0, step / total):.0%}"


def eta_text(eta_s: list[float] | None) -> str:
    """Time to go if it runs alone, and with the share that it has had."""
    if eta_s is None:
        return ""
    alone, shared = map(duration, eta_s)
    return alone if alone == shared else f"{alone}–{shared}"


def build(frame: Frame, rows: Rows) -> None:
    """The page. All pages show the same rows, each of which is made once."""
    reader = frame.reader
    with frame.shown("/queue", "Queue", "rota ps"):
        with tag("div", classes="head"):
            tag("h1", "Queue")
            count = tag("span", "", classes="note")
            with tag("div", classes="end"):
                buttons = steering_buttons()
        verdict = tag("section", classes="card", aria_label="Why the chosen job waits")
        verdict.set_visibility(False)

        async def choose(_: str | None) -> None:
            draw_buttons()
            await explain()

        explained: list[Any] = [None]

        def standing() -> Any:
            job = reader.jobs.get(grid.chosen or "")
            return job and (job["id"], job["state"], job["reason"], job["gpus"])

        async def explain() -> None:
            job_id, explained[0] = grid.chosen, standing()
            verdict.set_visibility(job_id is not None)
            if job_id is None:
                return
            told = await frame.read(lambda client: client.explain(job_id))
            if told is not None and grid.chosen == job_id:
                verdict.clear()
                with verdict:
                    why(told)

        def draw_buttons() -> None:
            draw_steering(frame, buttons, grid.chosen, reader.jobs.get(grid.chosen or ""))

        grid = Grid(
            COLUMNS,
            label="Jobs",
            empty="No job yet: rota run --gpus 1 -- python train.py submits one.",
            commands={
                "": "rota show ROW",
                "reason": "rota why ROW",
                "position": "rota why ROW",
                "eta": "rota why ROW",
            },
            on_select=choose,
        )
        steer(frame, buttons, lambda: grid.chosen)
        draw_buttons()

        async def update() -> None:
            shown = rows.of(reader)
            states = [row["state"] for row in shown.values()]
            ended = sum(state in ENDED for state in states)
            holding = sum(bool(job["gpus"]) for job in reader.jobs.values())
            holding = min(holding, len(states) - ended)
            write(
                count,
                f"{holding} with GPUs, {len(states) - ended - holding} waiting, {ended} ended "
                f"within the hour; policy {plain(reader.policy.get('name', '–'))}",
            )
            grid.show(shown)
            draw_buttons()
            if standing() != explained[0]:
                await explain()

        frame.on_change(update)


def why(told: Mapping[str, Any], *, links: bool = True) -> None:
    """What the controller says about why a job waits, or why it has what it has."""
    job_id = told["job_id"]
    with tag("div", classes="head"):
        state = told["state"]
        title = (
            f"How job {job_id} ended" if state in ENDED else f"Why job {job_id} is {state.lower()}"
        )
        tag("h2", title, data_command=f"rota why {job_id}")
        if links:
            job_link(job_id, "Open the job")
    tag("p", plain(told["sentence"], 1000) or "It runs.", classes="note")
    pairs: list[tuple[str, object]] = [
        (reason_text(each["rule"]), f"needs {each['need']}; {each['have']}")
        for each in told["blockers"]
    ]
    pairs.append(("would start if", told["would_start_if"]))
    if told["position"]:
        pairs.append(("position", f"{told['position']}, in the policy's order"))
    turns = told["turns"]
    if turns and turns["position"]:
        pairs.append(("turn", f"number {turns['position']} on {', '.join(turns['nodes'])}"))
    pairs += [("awaited", text) for text in told["awaited"]]
    pairs += [("size", told["resizing"]), *(("warning", text) for text in told["warnings"])]
    facts(pairs)
