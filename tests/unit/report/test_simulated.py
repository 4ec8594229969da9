"""The page and the images about simulated runs."""

import re

import pytest

from rota.report.charts import MANY_PIECES, gpus_chart
from rota.report.images import write_images
from rota.report.simulated import write_report
from rota.report.sketch import Piece

HOSTILE = "<script>alert(1)</script>"
SECTIONS = (
    "Figures",
    "Job completion times",
    "Waiting jobs",
    "GPUs in use",
    "Slowdown by job size",
    "Completion time by job size",
    "Who held which GPU",
    "What the words mean",
)


def test_the_page_holds_each_figure_and_loads_nothing(entry, tmp_path):
    page = tmp_path / "page.html"
    write_report(
        page, "Title", "What was run.", [entry("fifo"), entry("srtf", "srtf*", oracle=True)]
    )
    text = page.read_text()
    assert re.findall(r"<h2>(.*?)</h2>", text) == list(SECTIONS)
    assert text.count("Plotly.newPlot(") >= 6
    assert "an oracle: it reads durations" in text
    # Plotly's own script names addresses; nothing outside it does, and nothing is loaded.
    body = re.sub(r"<script>/\*\*.*?</script>", "", text, count=1, flags=re.DOTALL)
    assert len(body) < len(text) / 2
    assert not re.findall(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", body)
    assert "<link" not in body
    assert "@import" not in body
    assert "MathJax" not in body


def test_names_are_text_not_markup(entry, tmp_path):
    page = tmp_path / "page.html"
    write_report(page, HOSTILE, HOSTILE, [entry("fifo", HOSTILE), entry("srtf")])
    assert HOSTILE not in page.read_text()


def test_a_sweep_is_drawn_over_its_axis(entry, tmp_path):
    entries = [
        entry("fifo", point={"load": load}, runs=2)._replace(sketches=[]) for load in ("0.5", "1")
    ]
    page = tmp_path / "page.html"
    write_report(page, "Title", "", entries, axes=["load"])
    titles = re.findall(r"<h2>(.*?)</h2>", page.read_text())
    assert titles[1:-1] == [
        f"{name} over load" for name in ("avg JCT s", "median s", "avg queue s", "GPU use")
    ]
    names = [path.name for path in write_images(tmp_path, entries, ["load"])]
    assert names[0] == "avg_jct_s-over-load.png"


def test_a_menu_chooses_whose_gpus_are_shown(entry):
    figure = gpus_chart([entry("fifo"), entry("gandiva")])
    buttons = figure.layout.updatemenus[0].buttons
    assert [button.label for button in buttons] == ["fifo", "gandiva"]
    shown = [button.args[0]["visible"] for button in buttons]
    assert all(a != b for a, b in zip(*shown, strict=True))
    assert [trace.visible for trace in figure.data] == shown[0]


@pytest.mark.parametrize(("count", "kind"), [(10, "scatter"), (MANY_PIECES + 1, "scattergl")])
def test_many_pieces_are_drawn_by_the_graphics_processor(entry, count, kind):
    made = entry("fifo")
    pieces = [Piece(0, float(i), i + 1.0, 0) for i in range(count)]
    made = made._replace(sketches=[made.sketches[0]._replace(pieces=pieces)])
    assert {trace.type for trace in gpus_chart([made]).data} == {kind}


def test_the_images_are_png_files(entry, tmp_path):
    files = write_images(tmp_path, [entry("fifo"), entry("gandiva", runs=2)])
    assert [file.stem for file in files] == [
        "completion",
        "queue",
        "utilisation",
        "slowdown",
        "gpus",
    ]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
