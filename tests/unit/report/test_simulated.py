"""The page and the images about simulated runs."""

import re

import pytest

from rota.report.charts import course_chart, slowdown_chart, sweep_chart
from rota.report.colours import COLOURS
from rota.report.curves import OVER_AXIS
from rota.report.gpuchart import MANY_PIECES, gpus_chart
from rota.report.images import images
from rota.report.simulated import report
from rota.report.sketch import SEVERAL, Piece

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


def test_the_page_holds_each_figure_and_loads_nothing(entry):
    text = report("Title", "What was run.", [entry("fifo"), entry("srtf", "srtf*", oracle=True)])
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


def test_the_same_runs_give_the_same_page_and_images(entry):
    entries = [entry("fifo"), entry("gandiva")]
    assert report("Title", "Facts.", entries) == report("Title", "Facts.", entries)
    assert dict(images(entries)) == dict(images(entries))


def test_the_page_follows_a_dark_desktop(entry):
    text = report("Title", "", [entry("fifo")])
    assert "prefers-color-scheme: dark" in text
    assert text.count('"paper_bgcolor":"rgba(0,0,0,0)"') >= 6


def test_names_are_text_not_markup(entry):
    assert HOSTILE not in report(HOSTILE, HOSTILE, [entry("fifo", HOSTILE), entry("srtf")])


def test_a_sweep_is_drawn_over_its_axis(entry):
    entries = [
        entry("fifo", point={"load": load}, runs=2)._replace(sketches=[]) for load in ("0.5", "1")
    ]
    text = report("Title", "", entries, axes=["load"])
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles[1:-1] == [
        f"{name} over load"
        for name in ("Average JCT", "Median JCT", "Average queue time", "GPU use")
    ]
    assert "fewer than 3 seeds" in text
    assert [name for name, _ in images(entries, ["load"])] == [f"{k}-over-load" for k in OVER_AXIS]


def test_intervals_that_nobody_can_believe_do_not_flatten_the_lines(made):
    entries = [made("a", 10.0, 5000.0, 100.0, 200.0, point={"load": load}) for load in "12"]
    figure = sweep_chart(entries, "load", "avg_jct_s")
    low, high = figure.layout.yaxis.range
    mean = figure.data[0].y[0]
    assert low == 0
    assert mean < high <= 2.1 * mean
    assert figure.data[0].error_y.arrayminus[0] == pytest.approx(mean)


def test_the_share_of_gpus_in_use_is_percent_and_never_above_all(made):
    entry = made("a", 1, point={"load": "1"})
    spread = [entry.summaries[0] | {"gpu_utilisation": use} for use in (0.5, 0.9, 1.0)]
    figure = sweep_chart([entry._replace(summaries=spread)], "load", "gpu_utilisation")
    assert figure.layout.yaxis.tickformat == ".0%"
    assert figure.data[0].y[0] + figure.data[0].error_y.array[0] == pytest.approx(1.0)
    assert figure.layout.yaxis.range[1] <= 1.0


def test_slowdown_bars_begin_at_one_and_empty_bins_are_left_out(entry):
    figure = slowdown_chart([entry("fifo"), entry("gandiva")])
    assert [trace.base for trace in figure.data] == [1.0, 1.0]
    assert figure.layout.yaxis.range[0] == 0  # the logarithm of 1
    assert set(figure.layout.yaxis.ticktext) <= {"1", "2", "5", "10", "20", "50", "100"}
    # None of the twenty is long.
    assert list(figure.data[0].x) == ["small, short", "large, short"]


def test_bars_of_the_same_colour_are_hatched_otherwise(entry):
    figure = slowdown_chart([entry("fifo", f"p{i}") for i in range(len(COLOURS) + 1)])
    first, *_, last = figure.data
    assert first.marker.color == last.marker.color
    assert first.marker.pattern.shape != last.marker.pattern.shape


def test_the_course_of_all_is_told_at_the_same_times_with_units(entry):
    figure = course_chart([entry("fifo"), entry("gandiva")], "used", "GPUs in use", share=True)
    assert list(figure.data[0].x) == list(figure.data[1].x)
    assert figure.layout.hovermode == "x unified"
    assert figure.layout.xaxis.unifiedhovertitle.text.endswith(" min")
    assert figure.layout.xaxis.title.text == "minutes"
    assert all(text.endswith("%") for text in figure.data[0].hovertext if text)


def test_legends_stand_under_the_figures(entry):
    legend = course_chart([entry("fifo")], "used", "GPUs in use", share=True).layout.legend
    assert (legend.yref, legend.y, legend.yanchor) == ("container", 0, "bottom")


def test_a_bar_says_whose_it_is_where_and_when(entry):
    figure = gpus_chart([entry("fifo")])
    text = figure.data[0].hovertext[0]
    assert re.fullmatch(
        r"job \d+, \d GPUs?<br>node0, GPU \d<br>from [\d.]+ min, for [\d a-z]+<br>fifo", text
    )
    assert list(figure.layout.yaxis.ticktext) == ["node0", "node1"]
    assert list(figure.layout.yaxis.tickvals) == [1.5, 5.5]


def test_the_names_in_a_bar_are_text_and_merged_turns_have_none(entry):
    made = entry("fifo")
    (sketch,) = made.sketches
    row, spec = next(iter(sketch.specs.items()))
    pieces = [Piece(0, 0.0, 60.0, row), Piece(1, 0.0, 60.0, SEVERAL)]
    specs = {row: spec._replace(job_id="<b>x", user="<i>u")}
    changed = sketch._replace(pieces=pieces, specs=specs)
    one, several = gpus_chart([made._replace(sketches=[changed])]).data[0].hovertext
    assert one.startswith("job &lt;b&gt;x, of &lt;i&gt;u, ")
    assert several.startswith("several jobs<br>")


def test_a_menu_chooses_whose_gpus_are_shown(entry):
    figure = gpus_chart([entry("fifo"), entry("gandiva")])
    buttons = figure.layout.updatemenus[0].buttons
    assert [button.label for button in buttons] == ["fifo", "gandiva"]
    shown = [button.args[0]["visible"] for button in buttons]
    assert all(a != b for a, b in zip(*shown, strict=True))
    assert [trace.visible for trace in figure.data] == shown[0]


@pytest.mark.parametrize(("count", "kind"), [(10, "bar"), (MANY_PIECES + 1, "scattergl")])
def test_many_pieces_are_drawn_by_the_graphics_processor(entry, count, kind):
    made = entry("fifo")
    pieces = [Piece(0, float(i), i + 1.0, 0) for i in range(count)]
    made = made._replace(sketches=[made.sketches[0]._replace(pieces=pieces)])
    assert {trace.type for trace in gpus_chart([made]).data} == {kind}


def test_a_long_line_can_be_pointed_at_along_its_length(entry):
    made = entry("fifo")
    pieces = [Piece(0, float(i), i + 1.0, 0) for i in range(MANY_PIECES)]
    pieces.append(Piece(1, 0.0, float(MANY_PIECES), 0))
    sketch = made.sketches[0]._replace(pieces=pieces, end_s=float(MANY_PIECES))
    (line,) = gpus_chart([made._replace(sketches=[sketch])]).data
    assert sum(1 for y in line.y if y == 1) > 50


def test_the_images_are_png_files_with_a_panel_of_gpus_for_each_policy(entry):
    drawn = dict(images([entry("fifo"), entry("gandiva", runs=2)]))
    assert list(drawn) == ["completion", "queue", "utilisation", "slowdown", "gpus"]
    assert all(image.startswith(b"\x89PNG") for image in drawn.values())
    one = dict(images([entry("fifo")]))["gpus"]
    assert height(drawn["gpus"]) > 1.5 * height(one)


def test_a_run_of_which_nothing_is_known_can_be_drawn(entry):
    made = entry("fifo")
    (sketch,) = made.sketches
    course = sketch.course._replace(at_s=[], waiting_jobs=[], used=[])
    nothing = made._replace(sketches=[sketch._replace(jct_s=[], course=course, pieces=[])])
    assert "Job completion times" in report("Title", "", [nothing])
    assert "gpus" not in dict(images([nothing]))


def height(png):
    return int.from_bytes(png[20:24], "big")
