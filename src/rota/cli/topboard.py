"""The lines and rows of text that ``rota top`` shows, from answers of the API and its events."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size

from rota.cli.present import absence_text, closed_text, is_final, places, progress_text
from rota.cli.text import clock
from rota.client.events import Busy, Connected, Disconnected, Logged, Progress, Resync, Told
from rota.report.text import duration, printable

MOST_JOBS, MOST_ENDED, MOST_NODES, MOST_TURNS = 500, 20, 200, 4
KEPT_LINES = 300  # of what has happened
MOST_CHARACTERS = 400  # of a line
CONNECTING = "connecting; what is below may be old"
CUT = "~"  # ends what is cut
# Kinds of events that change nothing of what is shown but a job's progress.
QUIET = frozenset(
    {
        "BurstPlanned",
        "FillMeasured",
        "MetricReported",
        "ModelReported",
        "NodeCpusChanged",
        "WorkerRegistered",
        "WorkerReported",
    }
)


class Key(NamedTuple):
    """A key of ``rota top``: the action that it calls, its name on the screen, and its meaning."""

    key: str
    action: str
    label: str
    meaning: str


KEYS = (
    Key("s", "suspend", "Suspend", "take the job off its GPUs until it is resumed"),
    Key("r", "resume", "Resume", "let the suspended job go on"),
    Key("c", "cancel", "Cancel", "end the job, after a question"),
    Key("l", "logs", "Logs", "follow what the job prints"),
    Key("w", "why", "Why", "why the job does not run, when it will, and what was tried"),
    Key("i", "show", "Info", "everything about the job"),
    Key("d", "decisions", "Decisions", "the last 300 lines of what has happened"),
    Key("q", "quit", "Quit", "leave; jobs go on"),
)
BACK = Key("escape", "back", "Back", "close what is open; so does q")
ANSWERS = (Key("y", "yes", "Yes", "do it"), Key("n", "no", "No", "leave it; so does escape"))


class Column(NamedTuple):
    """A column of jobs, and its width on a terminal of 80 columns, with the gap after it."""

    name: str
    width: int


NARROW = (
    Column("ID", 4),
    Column("NAME", 13),
    Column("STATE", 11),
    Column("WHY", 19),
    Column("GPUS", 10),
    Column("PROGRESS", 12),
    Column("ETA", 10),
)
SCROLLBAR = 1  # column beside those of jobs
MOST_ID = 10  # cells, which ids take off names
WIDE = (*NARROW[:2], Column("USER", 10), *NARROW[2:], Column("RUN", 8), Column("QUEUE", 10))
STRETCHED = ("NAME", "WHY", "GPUS")  # by what is left of a wider terminal


class Snapshot(NamedTuple):
    """Answers of the API that were read at once: jobs, nodes, policies, gauges, turns."""

    jobs: Sequence[Mapping[str, Any]]
    nodes: Sequence[Mapping[str, Any]]
    policies: Sequence[Mapping[str, Any]]
    gauges: Mapping[str, Any]
    turns: Sequence[Mapping[str, Any]]
    seq: int  # of the last event that it has in it
    may: frozenset[str] = frozenset()  # the actions that the caller's role allows


class Board:
    """The cluster as it is shown now. Texts of others are written out, and cut to their place."""

    def __init__(self) -> None:
        self.away: str | None = CONNECTING  # since when and why nothing is told; None: all is
        self.jobs: dict[str, dict[str, Any]] = {}
        self._snapshot = Snapshot((), (), (), {}, (), 0)
        self._happened: deque[str] = deque(maxlen=KEPT_LINES)
        self._last_seq = 0

    def take(self, snapshot: Snapshot) -> None:
        """Show what was read just now."""
        self._snapshot = snapshot
        self.jobs = {job["id"]: dict(job) for job in snapshot.jobs}

    def may(self, action: str) -> bool:
        """True if the caller's role allows an action, by what was read last."""
        return action in self._snapshot.may

    def note(self, told: Told, now_s: float) -> bool:
        """Take in what the stream tells. True if what was read before is out of date."""
        match told:
            case Connected() | Resync():
                was_away, self.away = self.away not in (None, CONNECTING), None
                return was_away or told.seq > self._snapshot.seq
            case Busy():
                self.away = None
                return True
            case Disconnected(why):
                self.away = f"no controller answers since {clock(now_s)}, tried again: {why}"
                return False
            case Progress(job_id, progress):
                if job_id in self.jobs:
                    self.jobs[job_id]["progress"] = progress
                return False
        return self._note_event(told)

    def _note_event(self, told: Logged) -> bool:
        if told.seq <= self._last_seq:
            return False
        self._last_seq = told.seq
        for line in told.lines:
            self._happened.append(f"{clock(told.at_s)}  job {line.job_id}  {line.text}")
        if not told.lines and told.kind.startswith("Node"):
            name = told.data.get("name", "")
            self._happened.append(f"{clock(told.at_s)}  {told.kind} {name}")
        return told.kind not in QUIET and told.seq > self._snapshot.seq

    # -- what is shown -------------------------------------------------------------------------

    def heading(self, now_s: float, width: int) -> str:
        """The time, the policy, GPUs in use, waiting jobs, fragmentation and preemptions."""
        gauges = self._snapshot.gauges
        if not gauges:
            return ""
        stranded = gauges["fragmentation"]
        told = [
            f"{policy['name']}{'' if policy['error'] is None else ' fails'}"
            for policy in self._snapshot.policies
        ]
        told += [
            f"{gauges['held_gpus']}/{gauges['gpus']} GPUs",
            f"{gauges['waiting_jobs']} waiting",
            f"fragmentation {'-' if stranded is None else f'{stranded:.0%}'}",
            f"{gauges['preemptions']} preemptions",
        ]
        return cut(f"{clock(now_s)}  {', '.join(told)}", width)

    def gpu_lines(self, width: int) -> list[str]:
        """A line for each node: who holds which of its GPUs."""
        nodes = sorted(self._snapshot.nodes, key=lambda node: not node["alive"])
        listed = nodes[:MOST_NODES]
        name_width = max((cell_len(printable(node["name"])) for node in listed), default=0)
        lines = [cut(_node_line(node, min(name_width, 20)), width) for node in listed]
        more = len(nodes) - len(listed)
        return [*lines, *([f"... {more} more: rota nodes"] if more else [])] or ["no node yet"]

    def columns(self, width: int) -> list[Column]:
        """The columns of jobs on a terminal so wide, which they fill; ids are not cut."""
        width -= SCROLLBAR
        wide = sum(column.width for column in WIDE)
        columns = WIDE if width >= wide else NARROW
        left = max(0, width - sum(column.width for column in columns))
        more = {name: left // len(STRETCHED) for name in STRETCHED}
        more["NAME"] += left % len(STRETCHED)
        id_width = 1 + min(MOST_ID, max(map(len, self.jobs), default=0))
        more["ID"] = max(0, id_width - NARROW[0].width)
        more["NAME"] -= more["ID"]
        return [Column(name, size + more.get(name, 0)) for name, size in columns]

    def listed(self) -> list[dict[str, Any]]:
        """Jobs with GPUs, those that wait in the policy's order, and the last that have ended."""
        jobs = self.jobs.values()
        held = [job for job in jobs if job["gpus"] and not is_final(job)]
        wait = [job for job in jobs if not job["gpus"] and not is_final(job)]
        wait.sort(key=lambda job: job["position"] or math.inf)
        ended = sorted((job for job in jobs if is_final(job)), key=lambda job: -job["finish_s"])
        return [*[*held, *wait][:MOST_JOBS], *ended[:MOST_ENDED]]

    def rows(self, columns: Sequence[Column], now_s: float) -> dict[str, list[str]]:
        """The cells of each job that is shown, by its id."""
        return {
            job["id"]: [cut(_cell(job, name, now_s), size - 1) for name, size in columns]
            for job in self.listed()
        }

    def left_out(self) -> str:
        """Says which jobs are not shown, if any."""
        more = sum(not is_final(job) for job in self.jobs.values()) - MOST_JOBS
        return f"{more} more jobs wait: rota ps" if more > 0 else ""

    def turn_lines(self, now_s: float, width: int) -> list[str]:
        """A line for each group of nodes on which jobs take turns."""
        lines = []
        for turns in self._snapshot.turns:
            left = duration(max(0.0, turns["ends_s"] - now_s))
            running, waiting = (
                " ".join("+".join(ids) for ids in turns[what]) for what in ("running", "waiting")
            )
            where = " ".join(turns["nodes"])
            lines.append(cut(f"{where}: {running} now, for {left}; then {waiting}", width))
        return lines

    def happened(self, lines: int, width: int) -> list[str]:
        """The last lines of what has happened, the latest last."""
        return [cut(line, width) for line in list(self._happened)[-lines:]]


def cut(text: object, width: int) -> str:
    """The text with nothing that plays tricks on a terminal, in ``width`` cells at most."""
    told = printable(str(text)[:MOST_CHARACTERS])
    return told if cell_len(told) <= width else set_cell_size(told, max(0, width - 1)) + CUT


def _node_line(node: Mapping[str, Any], name_width: int) -> str:
    name = cut(node["name"], name_width)
    told = [name + " " * (name_width - cell_len(name))]
    if not node["alive"]:
        return f"{told[0]}  lost"
    if not node.get("connected", True):
        told.append(absence_text(node))
    if (closed := closed_text(node)) is not None:
        told.append(closed)
    fillers = node.get("fillers", ())
    for gpu, ids in enumerate(node.get("holders", ())):
        filler = fillers[gpu] if gpu < len(fillers) else None
        who = "+".join(ids) + (f"(+{filler['id']})" if filler else "")
        told.append(f"{gpu}:{who or '-'}")
    return "  ".join(told)


def _cell(job: Mapping[str, Any], column: str, now_s: float) -> str:
    if column == "ID":
        return str(job["id"])
    if column == "STATE":
        return str(job["state"])
    if column == "WHY":
        if is_final(job):
            return job["message"] or (
                "" if job["exit_code"] is None else f"exit {job['exit_code']}"
            )
        return "" if job["reason"] == "NONE" else str(job["reason"])
    if column == "GPUS":
        return places(job) if job["gpus"] else str(job["num_gpus"])
    if column == "PROGRESS":
        steps, _, part = progress_text(job["progress"]).partition(" ")
        return f"{part} {steps}" if part else steps  # the part stays if it is cut
    if column == "ETA":
        return "-".join(map(_short, job["eta_s"])) if job["eta_s"] else "-"
    if column == "RUN":
        return duration(job["run_s"])
    return str(job[column.lower()] or "-")


def _short(seconds: float) -> str:
    """Such as 94s, 32m, 5.2h, 12h, 3.1d."""
    if seconds < 6000:
        return f"{seconds:.0f}s" if seconds < 100 else f"{seconds / 60:.0f}m"
    value, unit = (seconds / 3600, "h") if seconds < 360_000 else (seconds / 86400, "d")
    return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"
