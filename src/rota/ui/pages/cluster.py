"""The cluster: each GPU a cell, and the nodes with what can be done to them."""

from collections.abc import Mapping
from typing import Any

from rota.ui.frame import Frame
from rota.ui.parts import Gpus, Grid, figure, tag, write
from rota.ui.reader import Reader
from rota.ui.text import plain

COLUMNS = (
    {"field": "id", "headerName": "Node", "flex": 2, "minWidth": 110},
    {"field": "state", "headerName": "State", "width": 130, ":cellRenderer": "rota.badge"},
    {"field": "gpus", "headerName": "GPUs used", "width": 110},
    {"field": "type", "headerName": "Type", "width": 110, "context": {"from": 620}},
    {"field": "cores", "headerName": "Cores given", "width": 120, "context": {"from": 760}},
    {"field": "jobs", "headerName": "Jobs", "flex": 3, "context": {"from": 480}},
    {"field": "note", "headerName": "Note", "flex": 3, "context": {"from": 900}},
)
WAITING = ("PENDING", "SUSPENDED", "HELD")


def state_of(node: Mapping[str, Any]) -> str:
    """The state of a node: LOST, UNREACHABLE, CORDONED, DRAINING, DRAINED or READY."""
    if not node["alive"]:
        return "LOST"
    if not node["connected"]:
        return "UNREACHABLE"
    return str(node["closed"] or "ready").upper()


def cells(reader: Reader) -> list[dict[str, Any]]:
    """The nodes by name, as the canvas draws them."""
    told = []
    for name in sorted(reader.nodes, key=_natural):
        node = reader.nodes[name]
        gpus = []
        for holders, filler in zip(node["holders"], node["fillers"], strict=True):
            gpus.append(
                {
                    "jobs": [
                        {"id": job, "name": plain(reader.jobs.get(job, {}).get("name", ""), 60)}
                        for job in holders
                    ],
                    "fill": filler["id"] if filler else None,
                    "trial": any(job in reader.on_trial for job in holders),
                }
            )
        told.append(
            {
                "name": plain(name, 40),
                "type": plain(node["gpu_type"], 30),
                "state": state_of(node),
                "gpus": gpus,
            }
        )
    return told


def build(frame: Frame) -> None:
    """The page."""
    reader = frame.reader
    with frame.shown("/", "Cluster", "rota nodes"):
        with tag("div", classes="head"):
            tag("h1", "Cluster")
        with tag("div", classes="card figures"):
            used = figure("GPUs in use", "rota nodes")
            running = figure("jobs running", "rota ps --filter state=RUNNING")
            waiting = figure("jobs waiting", "rota ps --filter state=PENDING")
            shared = figure("GPUs shared", "rota nodes")
            policy = figure("policy", "rota report")
        with tag("section", classes="card", aria_label="GPUs"):
            tag("h2", "GPUs")
            gpus = Gpus("GPUs by node. Arrow keys move from one to the next, Enter opens its job.")
            _legend()
        with tag("div", classes="head"):
            tag("h2", "Nodes")
            buttons = {}
            with tag("div", classes="end"):
                for verb, hint in (
                    ("Cordon", "no new jobs"),
                    ("Drain", "its jobs leave"),
                    ("Enable", "takes jobs again"),
                ):
                    buttons[verb] = tag("button", verb, classes="act", type="button", title=hint)

        def draw_buttons() -> None:
            node = reader.nodes.get(grid.chosen or "")
            closed = node["closed"] if node is not None else None
            fits = {
                "Cordon": closed is None,
                "Drain": closed in (None, "cordoned"),
                "Enable": closed is not None,
            }
            for verb, button in buttons.items():
                can = node is not None and fits[verb] and frame.may(verb.lower())
                button._props["disabled"] = not can
                name = f" {plain(grid.chosen, 60)}" if grid.chosen else ": choose a node first"
                button._props["aria-label"] = verb + name
                button._props["data-command"] = f"rota node {verb.lower()} {grid.chosen or 'NODE'}"
                button.update()

        async def choose(_: str | None) -> None:
            draw_buttons()

        grid = Grid(
            COLUMNS,
            label="Nodes",
            empty="No node has joined yet.",
            commands={"": "rota nodes"},
            on_select=choose,
            short=True,
        )

        async def cordon() -> None:
            node = grid.chosen or ""
            await frame.act(f"{plain(node)} takes no new jobs.", lambda client: client.cordon(node))

        async def enable() -> None:
            node = grid.chosen or ""
            await frame.act(f"{plain(node)} takes jobs again.", lambda client: client.enable(node))

        def drain() -> None:
            node = grid.chosen or ""

            async def now() -> None:
                await frame.act(
                    f"The jobs of {plain(node)} leave it.", lambda client: client.drain(node)
                )

            frame.confirm(
                f"Drain {plain(node)}? Its jobs leave it, and it takes no new ones.", "Drain", now
            )

        buttons["Cordon"].on("click", cordon)
        buttons["Enable"].on("click", enable)
        buttons["Drain"].on("click", drain)
        draw_buttons()
        sent: list[Any] = [None]
        rows: dict[str, dict[str, Any]] = {}

        def update() -> None:
            told = cells(reader)
            if told != sent[0]:
                sent[0] = told
                gpus.run_method("show", told)
            there = [node for node in reader.nodes.values() if node["alive"]]
            holders = [each for node in there for each in node["holders"]]
            write(used, f"{sum(map(bool, holders))} of {len(holders)}")
            states = [job["state"] for job in reader.jobs.values()]
            write(running, states.count("RUNNING"))
            write(waiting, sum(states.count(state) for state in WAITING))
            write(shared, sum(len(each) > 1 for each in holders))
            fails = " fails" if reader.policy.get("error") else ""
            write(policy, plain(reader.policy.get("name", "–")) + fails)
            new = {name: _row(reader.nodes[name]) for name in sorted(reader.nodes, key=_natural)}
            merged = {key: rows[key] if rows.get(key) == row else row for key, row in new.items()}
            rows.clear()
            rows.update(merged)
            grid.show(merged)
            draw_buttons()

        frame.on_change(update)


def _legend() -> None:
    tag(
        "p",
        "A colour is a job; a divided cell is shared. A dashed frame is a trial, a bar at the foot "
        "a background job, an amber frame a node that takes no new jobs, a crossed red cell a node "
        "that does not answer.",
        classes="note",
    )


def _row(node: Mapping[str, Any]) -> dict[str, Any]:
    jobs = dict.fromkeys(job for each in node["holders"] for job in each)
    given = node["cores_given"]
    note = f"by {plain(node['closed_by'])}" if node["closed"] and node["closed_by"] else ""
    return {
        "id": node["name"],
        "state": state_of(node),
        "gpus": f"{sum(map(bool, node['holders']))} of {node['num_gpus']}",
        "type": plain(node["gpu_type"] or node["kind"]),
        "cores": f"{given:g} of {node['cores']:g}" if node["cores"] else "–",
        "jobs": ", ".join(jobs),
        "note": note,
    }


def _natural(name: str) -> tuple[str, int, str]:
    head = name.rstrip("0123456789")
    tail = name[len(head) :]
    return head, int(tail[:9]) if tail else -1, name
