"""Reports: one file with everything in it, and nothing of a job's name taken as markup."""

from rota.report.charts import bars_chart, curves_chart, slots_chart
from rota.report.page import Section, Table, write_page
from rota.report.timeline import Segment, Timeline

HOSTILE = "<script>alert(1)</script>"


def test_a_page_needs_nothing_from_outside(tmp_path):
    timeline = Timeline(())
    timeline.num_gpus = 1
    timeline.segments = [Segment(0, ((0, 0),), 5.0, 8.0)]
    figures = [
        slots_chart(timeline, ["job"], 5.0, "slots"),
        curves_chart({"job": [(0.0, 1.0), (1.0, 0.5)]}, "curves", "loss"),
        bars_chart({"measured": [1.0]}, ["job"], "bars", "seconds"),
    ]
    page = tmp_path / "page.html"
    write_page(page, "Title", [Section(f"part {i}", "text", f) for i, f in enumerate(figures)])
    text = page.read_text()
    assert text.count("Plotly.newPlot(") >= 3
    assert "<script src=" not in text
    assert "<link" not in text


def test_names_and_cells_are_text_not_markup(tmp_path):
    page = tmp_path / "page.html"
    write_page(page, HOSTILE, [Section(HOSTILE, HOSTILE, Table([HOSTILE], [[HOSTILE]]))])
    assert HOSTILE not in page.read_text()
