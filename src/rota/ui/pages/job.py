"""One job: its progress and curves, where it ran, what was decided about it, what it prints."""

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from nicegui import background_tasks, ui

from rota.client.outputs import LogPiece, split_lines
from rota.errors import NotFoundError, RotaError
from rota.report.text import duration
from rota.ui.frame import Frame
from rota.ui.pages.queue import eta_text, progress_text, reason_text, where, why
from rota.ui.parts import LogPane, Timeline, badge, facts, figure, moment, table, tag, write
from rota.ui.steering import ENDED, draw_steering, steer, steering_buttons
from rota.ui.text import log_line, number, plain

REREAD_S = 1.0  # between two readings of what the job's document tells
AGAIN_S = 5.0  # after which an output that could not be followed is followed again
TAIL_LINES = 500
MOST_STORY = 200


def build(frame: Frame, job_id: str) -> None:
    """The page."""
    with frame.shown("/job", f"Job {plain(job_id, 20)}", f"rota show {plain(job_id, 20)}"):
        top = tag("div", classes="head")
        with top:
            title = tag("h1", f"Job {plain(job_id, 20)}")
            state = tag("span", "", classes="badge")
            with tag("div", classes="end"):
                buttons = steering_buttons()
        missing = tag("p", "", classes="note", role="status")
        missing.set_visibility(False)
        with tag("div", classes="card"):
            with tag("div", classes="figures"):
                show = f"rota show {job_id}"
                figures = {
                    name: figure(name, show)
                    for name in ("progress", "loss", "seconds per step", "GPUs", "share", "to go")
                }
            with tag("div", classes="bar", aria_hidden="true"):
                bar = tag("div").style("width:0")
        verdict = tag("section", classes="card", aria_label="Why it has what it has")
        with tag("div", classes="cards"):
            details = tag("section", classes="card", aria_label="About the job")
            charts = tag("section", classes="card", aria_label="Curves")
            charts.set_visibility(False)
        ran = tag("section", classes="card", aria_label="When and where it ran")
        ran.set_visibility(False)
        with ran:
            tag("h2", "When and where it ran", data_command=f"rota show {job_id}")
            Timeline("When and where the job ran. Plus and minus zoom, arrow keys move.", job_id)
        with tag("section", classes="card", aria_label="Output"):
            with tag("div", classes="head"):
                tag("h2", "Output", data_command=f"rota logs {job_id} -f")
                ranks = tag("div", classes="end")
            pane = LogPane("Output of the job")
        with tag("div", classes="cards"):
            story = tag("section", classes="card", aria_label="Its story")
            trials = tag("section", classes="card", aria_label="Trials and processes")
        steer(frame, buttons, lambda: job_id)
        page = _JobPage(frame, job_id)
        page.parts = {
            "verdict": verdict,
            "details": details,
            "story": story,
            "trials": trials,
            "charts": charts,
            "ranks": ranks,
            "ran": ran,
        }
        page.texts = figures | {"title": title, "state": state, "missing": missing}
        page.bar, page.pane, page.buttons = bar, pane, buttons
        frame.on_change(page.update)
        background_tasks.create(page.follow_log(), name=f"rota log of {job_id}")


class _JobPage:
    """What a job's page shows, and when it was read."""

    def __init__(self, frame: Frame, job_id: str) -> None:
        self.frame, self.job_id = frame, job_id
        self.parts: dict[str, Any] = {}
        self.texts: dict[str, Any] = {}
        self.bar = self.pane = None  # type: Any
        self.buttons: dict[str, Any] = {}
        self._read_s = -REREAD_S
        self._is_over = False  # the document of a job that has ended was read
        self._shown: dict[str, Any] = {}
        self._rank: int | None = None
        self._restart = asyncio.Event()
        self._charts: dict[str, Any] = {}

    async def update(self) -> None:
        """Show what is new; the document is read at most once in ``REREAD_S``."""
        job = self.frame.reader.jobs.get(self.job_id)
        if job is not None:
            self._summary(job)
        self._curves()
        if self._is_over:
            return
        if time.monotonic() < self._read_s + REREAD_S:
            self.frame.again(self._read_s + REREAD_S)
            return
        self._read_s = time.monotonic()
        try:
            told, verdict = await self.frame.reader.call(
                lambda client: (client.job(self.job_id), client.explain(self.job_id))
            )
        except NotFoundError:
            self.texts["missing"].set_visibility(True)
            write(self.texts["missing"], f"There is no job {plain(self.job_id, 40)}.")
            return
        except RotaError:
            return
        self._is_over = told["state"] in ENDED
        self._summary(told)
        self._document(told, verdict)

    def _summary(self, job: Mapping[str, Any]) -> None:
        self._shown["state"] = job["state"]
        write(self.texts["title"], f"Job {job['id']} · {plain(job['name'], 100)}")
        with self.texts["state"].parent_slot.parent:
            fresh = badge(job["state"])
        self.texts["state"].classes(replace=" ".join(fresh._classes))
        write(self.texts["state"], fresh._text)
        fresh.delete()
        progress = job["progress"]
        write(self.texts["progress"], progress_text(progress) or "–")
        loss = progress.get("loss")
        write(self.texts["loss"], "–" if loss is None else number(loss))
        step_s = progress.get("step_time_s")
        write(self.texts["seconds per step"], "–" if step_s is None else number(step_s))
        write(self.texts["GPUs"], f"{job['num_gpus']} on {where(job)}" if job["gpus"] else "none")
        write(self.texts["share"], f"{job['share']:.0%}")
        write(self.texts["to go"], eta_text(job["eta_s"]) or "–")
        step, total = progress.get("step"), progress.get("total")
        if isinstance(step, int | float) and isinstance(total, int | float) and total > 0:
            self.bar.style(f"width:{min(1.0, step / total):.1%}")
        draw_steering(self.frame, self.buttons, self.job_id, job)

    def _document(self, told: Mapping[str, Any], verdict: Mapping[str, Any]) -> None:
        verdict = {key: value for key, value in verdict.items() if key != "history"}
        self._part("verdict", verdict, lambda told: why(told, links=False))
        shown = [
            "user queue priority workdir run gpu_types cpus memory_gb gpu_memory_gb setup snapshot",
            "resume_from python depends_on retries time_limit_s attempt exit_code message sweep",
            "submit_s",
            "first_start_s finish_s tags suspension suspend min_gpus max_gpus num_gpus",
        ]
        about = {key: told[key] for key in " ".join(shown).split()}
        about |= {"preemptions": told["preemptions"], "migrations": told["migrations"]}
        self._part("details", about, _details)
        self.parts["ran"].set_visibility(told["first_start_s"] is not None)
        self._part("story", told["story"][-MOST_STORY:], partial(_story, told["id"]))
        self._part(
            "trials",
            {"trials": told["trials"], "ranks": told["ranks"], "sharing": told["sharing"]},
            _trials,
        )
        self._part("ranks", len(told["ranks"]), self._rank_buttons)
        self._curve_of("goodput", told["goodput"])
        self._curve_of("cores", told["core_curve"])

    def _part(self, name: str, value: Any, draw: Any) -> None:
        if self._shown.get(name) != value:
            self._shown[name] = value
            self.parts[name].clear()
            with self.parts[name]:
                draw(value)

    def _rank_buttons(self, count: int) -> None:
        if count < 2:
            return
        choice = tag("select", classes="act", aria_label="Rank whose output is shown")
        with choice:
            for rank in range(count):
                tag("option", f"rank {rank}", value=str(rank))

        def changed(event: Any) -> None:
            self._rank = int(event.args)
            self._restart.set()

        choice.on("change", changed, js_handler="(e) => emit(e.target.value)")

    # -- curves --------------------------------------------------------------------------------

    def _curves(self) -> None:
        for name, curve in self.frame.reader.curves.of(self.job_id).items():
            if len(curve) > 1:
                shown = plain(name, 40)
                self._line(f"m:{name}", f"{shown} by step", "step", [(shown, list(curve))])

    def _curve_of(self, kind: str, told: Mapping[str, Any] | None) -> None:
        if told is None:
            return
        if kind == "goodput":
            rows = told["curve"]
            lines = [("goodput", _points(rows, "gpus", "goodput"))]
            self._line(kind, "Goodput by number of GPUs", "GPUs", lines)
        else:
            lines = [
                (plain(phase["phase"], 40), _points(phase["curve"], "cores", "speed"))
                for phase in told["phases"]
            ]
            self._line(kind, "Speed by CPU cores", "cores", lines)

    def _line(self, key: str, title: str, x: str, lines: list[tuple[str, list[Any]]]) -> None:
        lines = [(name, points) for name, points in lines if len(points) > 1]
        if not lines or self._shown.get(key) == lines:
            return
        self._shown[key] = lines
        series = [
            {
                "type": "line",
                "name": name,
                "data": points,
                "showSymbol": len(points) < 3,
                "animation": False,
                "lineStyle": {"width": 1.6},
            }
            for name, points in lines
        ]
        chart = self._charts.get(key)
        if chart is None:
            self.parts["charts"].set_visibility(True)
            with self.parts["charts"]:
                tag("h2", title)
                chart = self._charts[key] = ui.echart(_chart(series)).classes("chart")
                chart._props["role"] = "img"
                chart._props["aria-label"] = f"{title}, a line over {x}"
        else:
            chart.run_chart_method("setOption", {"series": series})

    # -- output --------------------------------------------------------------------------------

    async def follow_log(self) -> None:
        """Show the output of the job as it comes, until the page is closed."""
        page = self.frame.page
        await page.connected()
        page.on_delete(self._restart.set)
        while not page.is_deleted:
            self._restart.clear()
            with page.content:
                self.pane.run_method("clear")
            following = asyncio.create_task(self._follow_rank(self._rank))
            await self._restart.wait()
            following.cancel()
            await asyncio.wait([following])

    async def _follow_rank(self, rank: int | None) -> None:
        """Show the output of a rank to its end; the controller's absence does not end that."""
        output = self.frame.reader.output(self.job_id, rank=rank, tail=TAIL_LINES)
        of, rest = (0, 0), ""
        while True:
            try:
                async for piece in output:
                    if not isinstance(piece, LogPiece):
                        continue
                    if (piece.attempt, piece.process) != of:
                        of, rest = (piece.attempt, piece.process), ""
                    lines, rest = split_lines(rest, piece.text)
                    if piece.complete and rest:
                        lines, rest = [*lines, rest], ""
                    if lines:
                        text = "".join(f"{log_line(line)}\n" for line in lines[-TAIL_LINES:])
                        with self.frame.page.content:
                            self.pane.run_method("add", text)
                return
            except NotFoundError:
                return
            except RotaError:
                await asyncio.sleep(AGAIN_S)


def _points(rows: list[Mapping[str, Any]], x: str, y: str) -> list[tuple[float, float]]:
    return [(row[x], row[y]) for row in rows if row.get(x) is not None and row.get(y) is not None]


def _chart(series: list[dict[str, Any]]) -> dict[str, Any]:
    grey, many = "#8a8f98", len(series) > 1
    axis: dict[str, Any] = {
        "type": "value",
        "scale": True,
        "axisLabel": {"color": grey},
        "splitLine": {"lineStyle": {"color": "rgba(138,143,152,.25)"}},
    }
    return {
        "animation": False,
        "grid": {
            "left": 4,
            "right": 20,
            "top": 30 if many else 12,
            "bottom": 4,
            "containLabel": True,
        },
        "tooltip": {"trigger": "axis", "renderMode": "richText"},
        "legend": {"show": many, "textStyle": {"color": grey}, "top": 0},
        "xAxis": axis,
        "yAxis": axis,
        "color": ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"],
        "series": series,
    }


def _search_text(sweep: Mapping[str, Any] | None) -> str | None:
    if sweep is None:
        return None
    return f"{sweep['name']}, {'task' if sweep['array'] else 'trial'} {sweep['number']}"


def _details(told: Mapping[str, Any]) -> None:
    tag("h2", "About the job")
    sweep = told["sweep"]
    is_task = sweep is not None and sweep["array"]
    least, most = told["min_gpus"], told["max_gpus"]
    facts(
        [
            ("command", told["run"]),
            ("folder", told["workdir"]),
            ("snapshot", told["snapshot"]),
            ("user", told["user"]),
            ("queue", told["queue"]),
            ("priority", told["priority"]),
            ("tags", ", ".join(told["tags"])),
            ("GPUs", told["num_gpus"] if least == most else f"{least} to {most}"),
            ("GPU types", ", ".join(told["gpu_types"])),
            ("CPU cores", told["cpus"]),
            ("array" if is_task else "search", _search_text(sweep)),
            ("submitted", lambda: moment(told["submit_s"])),
            ("started", lambda: moment(told["first_start_s"])),
            ("ended", (lambda: moment(told["finish_s"])) if told["finish_s"] else None),
            ("attempt", told["attempt"]),
            ("exit code", told["exit_code"]),
            ("message", told["message"]),
            ("suspension", None if told["suspension"] == "UNKNOWN" else told["suspension"].lower()),
            ("preempted", told["preemptions"] or None),
            ("moved", told["migrations"] or None),
            ("time limit", duration(told["time_limit_s"]) if told["time_limit_s"] else None),
        ]
    )


def _story(job_id: str, lines: list[Mapping[str, Any]]) -> None:
    tag("h2", "Its story", data_command=f"rota logs {job_id} --system")
    table(
        ("When", "What"),
        [
            ((lambda at_s=line["at_s"]: moment(at_s)), plain(line["line"], 1000))
            for line in reversed(lines)
        ],
        label="The job's story, newest first",
    )


def _trials(told: Mapping[str, Any]) -> None:
    tag("h2", "Processes")
    if told["ranks"]:
        table(
            ("Rank", "GPU", "Process"),
            [
                (each["rank"], "–" if each["gpu"] is None else each["gpu"], each["pid"] or "–")
                for each in told["ranks"]
            ],
            label="Processes of the job",
        )
    else:
        tag("p", "It has none now.", classes="note")
    if told["sharing"]:
        sharing = told["sharing"]
        gain = "on trial" if sharing["on_trial"] else sharing["gain"]
        facts([("shares with", ", ".join(sharing["with"])), ("gain", gain)])
    if told["trials"]:
        tag("h2", "What was tried")
        table(
            ("When", "What", "Predicted", "Measured", "Kept"),
            [
                (
                    (lambda at_s=each["at_s"]: moment(at_s)),
                    reason_text(str(each["what"])),
                    number(each["predicted"]) if each["predicted"] is not None else "–",
                    number(each["measured"]) if each["measured"] is not None else "–",
                    "yes" if each["kept"] else "no",
                )
                for each in reversed(told["trials"])
            ],
            label="What the policy has tried with the job",
        )
