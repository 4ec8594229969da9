"""The timeline: who held which GPU when, from months to seconds."""

from collections.abc import Sequence
from typing import Any

import msgspec

from rota.ui.frame import Frame
from rota.ui.holds import Holds, Piece
from rota.ui.parts import Timeline, tag

SPANS = {"1 min": 60, "1 h": 3600, "1 day": 86400, "1 month": 30 * 86400}


def told(gpus: list[tuple[str, int]], first_gpu: int, *columns: Sequence[Any]) -> dict[str, Any]:
    """Pieces as columns (number, GPU, job, start, end), and the GPUs, of which one is the first."""
    names = ("number", "gpu", "job", "start_s", "end_s")
    return {"first_gpu": first_gpu, "gpus": gpus, "pieces": dict(zip(names, columns, strict=True))}


def whole(holds: Holds, job_id: str, now_s: float) -> bytes:
    """All pieces that are kept, of one job or of all, as the page loads them: JSON."""
    if job_id:
        numbered = holds.of_job(job_id)
        places = {gpu: place for place, gpu in enumerate(sorted({p.gpu for _, p in numbered}))}
        moved = [(number, piece._replace(gpu=places[piece.gpu])) for number, piece in numbered]
        part = told([holds.gpus[gpu] for gpu in places], 0, *_columns(moved))
    else:
        numbers = range(holds.first, holds.first + len(holds.job_of))
        columns = (list(numbers), holds.gpu_of, holds.job_of, holds.start_s, holds.end_s)
        part = told(holds.gpus, 0, *columns)
    return msgspec.json.encode(part | {"change": holds.change, "now_s": now_s})


def _columns(numbered: list[tuple[int, Piece]]) -> list[list[Any]]:
    rows = [(number, *piece) for number, piece in numbered]
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(5)]


def build(frame: Frame) -> None:
    """The page."""
    holds = frame.reader.holds
    with frame.shown("/timeline", "Timeline", "rota report --html report.html"):
        with tag("div", classes="head"):
            tag("h1", "Timeline")
            with tag("div", classes="end", role="group", aria_label="Length of time shown"):
                buttons = {
                    name: tag("button", name, classes="act", type="button") for name in SPANS
                }
                everything = tag("button", "All", classes="act", type="button")
        with tag("section", classes="card", aria_label="Timeline"):
            line = Timeline(
                "Who held which GPU when. Plus and minus zoom, arrow keys move, Home shows all."
            )
        tag(
            "p",
            "Scroll to zoom, drag to move; a click on a piece opens its job. A second job on a GPU "
            "is drawn over the lower half.",
            classes="note",
        )
        for name, seconds in SPANS.items():
            buttons[name].on("click", lambda _, s=seconds: line.run_method("span", s))
        everything.on("click", lambda: line.run_method("all"))
        place: dict[str, int | None] = {"change": None, "gpus": 0}

        def loaded(event: Any) -> None:
            place["change"], place["gpus"] = int(event.args), 0
            update()

        def update() -> None:
            change = place["change"]
            if change is None:
                return
            numbered, place["change"] = holds.since(change)
            first_gpu = place["gpus"] or 0
            if numbered or first_gpu != len(holds.gpus):
                place["gpus"] = len(holds.gpus)
                part = told(holds.gpus[first_gpu:], first_gpu, *_columns(numbered))
                line.run_method("add", part)

        line.on("loaded", loaded)
        frame.on_change(update)
