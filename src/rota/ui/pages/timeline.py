"""The timeline: who held which GPU when, from months to seconds."""

from typing import Any

from rota.ui.frame import Frame
from rota.ui.holds import Holds, Piece
from rota.ui.parts import Timeline, tag

SPANS = {"1 min": 60, "1 h": 3600, "1 day": 86400, "1 month": 30 * 86400}


def told(holds: Holds, numbered: list[tuple[int, Piece]], first_gpu: int) -> dict[str, Any]:
    """Pieces as columns, and the GPUs from ``first_gpu`` on."""
    return {
        "first_gpu": first_gpu,
        "gpus": holds.gpus[first_gpu:],
        "pieces": {
            "number": [number for number, _ in numbered],
            "gpu": [piece.gpu for _, piece in numbered],
            "job": [piece.job_id for _, piece in numbered],
            "start_s": [round(piece.start_s, 3) for _, piece in numbered],
            "end_s": [
                None if piece.end_s is None else round(piece.end_s, 3) for _, piece in numbered
            ],
        },
    }


def whole(holds: Holds, job_id: str, now_s: float) -> dict[str, Any]:
    """All pieces that are kept, of one job or of all, as the page loads them."""
    numbered = [
        (number, piece)
        for number, piece in enumerate(holds.pieces, holds.first)
        if not job_id or piece.job_id == job_id
    ]
    if not job_id:
        return told(holds, numbered, 0) | {"change": holds.change, "now_s": now_s}
    places = {gpu: place for place, gpu in enumerate(sorted({p.gpu for _, p in numbered}))}
    moved = [(number, piece._replace(gpu=places[piece.gpu])) for number, piece in numbered]
    part = told(holds, moved, 0) | {"gpus": [holds.gpus[gpu] for gpu in places]}
    return part | {"change": holds.change, "now_s": now_s}


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
                line.run_method("add", told(holds, numbered, first_gpu))

        line.on("loaded", loaded)
        frame.on_change(update)
