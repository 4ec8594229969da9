"""The page and the images about simulated runs."""

import re

from rota.report.charts import course_chart
from rota.report.curves import OVER_AXIS, over_point, top_of
from rota.report.images import MANY_PIECES, MOST_PANELS, drawings, images
from rota.report.simulated import report
from rota.report.sketch import Piece

HOSTILE = "<script>alert(1)</script>"
OPEN = ("Policies", "Job completion times")
FOLDED = (
    "Waiting jobs",
    "GPUs in use",
    "Slowdown by job size",
    "Who held which GPU",
    "All figures",
    "What the words mean",
)
NOTES = ("costs: plain: none", "as it was: jobs waited 5 s", "verdict: fifo: it is best", "if x: y")


def test_the_page_opens_with_the_verdict_and_folds_what_is_not_needed_at_once(entry, made):
    entries = [entry("fifo"), entry("srtf", "srtf*", oracle=True)]
    log = made("as it was", 77.5)._replace(is_log=True)
    text = report("Title", "What was run.", entries, (), NOTES, log)
    assert re.findall(r"<h2>(.*?)</h2>", text) == ["Verdict", *OPEN]
    assert re.findall(r"<summary>(.*?)</summary>", text) == list(FOLDED)
    cells = re.findall(r"<td>(.*?)</td>", text.partition("Policies")[0])
    assert cells[:4] == ["verdict", "fifo: it is best", "costs", "plain: none"]
    assert "as it was" in text.partition("Job completion times")[0].partition("Policies")[2]
    assert "an oracle: it reads durations" in text
    assert text.count("<svg") == 5
    assert text.index("Title") < text.index("What was run.") < text.index("fifo: it is best")


def test_the_page_loads_nothing_and_runs_nothing(entry):
    text = report("Title", "", [entry("fifo")])
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", text)
    for word in ("<link", "@import", "<script", "MathJax"):
        assert word not in text


def test_the_page_of_many_policies_and_pieces_is_below_a_megabyte(entry):
    made = entry("fifo")
    pieces = [Piece(n % 8, n * 9.0, n * 9.0 + 9.0, n) for n in range(8 * MANY_PIECES)]
    (sketch,) = made.sketches
    course = sketch.course._replace(
        at_s=[n * 90.0 for n in range(400)],
        waiting_jobs=[n * 37 % 101 + 0.123456 for n in range(400)],
        used=[n * 37 % 101 / 101 for n in range(400)],
    )
    times = [1.1**n for n in range(400)]
    sketch = sketch._replace(pieces=pieces, course=course, end_s=36_000.0, jct_s=times)
    entries = [made._replace(policy=f"p{n}", sketches=[sketch]) for n in range(18)]
    text = report("Title", "", entries)
    assert len(text.encode()) < 1_000_000
    assert f"Of the first {MOST_PANELS} policies." in text


def test_the_same_runs_give_the_same_page_and_images(entry):
    entries = [entry("fifo"), entry("gandiva")]
    assert report("Title", "Facts.", entries) == report("Title", "Facts.", entries)
    assert dict(images(entries)) == dict(images(entries))


def test_the_page_follows_a_dark_desktop(entry):
    text = report("Title", "", [entry("fifo")])
    assert "prefers-color-scheme: dark" in text
    assert "svg text { fill: var(--ink) }" in text
    assert not re.search(r"fill: (?:#ffffff|white)", dict(drawings([entry("fifo")]))["completion"])


def test_names_are_text_not_markup(entry):
    assert HOSTILE not in report(HOSTILE, HOSTILE, [entry("fifo", HOSTILE), entry("srtf")])


def test_a_sweep_is_drawn_over_its_axis(entry):
    entries = [
        entry("fifo", point={"load": load}, runs=2)._replace(sketches=[]) for load in ("0.5", "1")
    ]
    text = report("Title", "", entries, axes=["load"])
    titles = re.findall(r"<(?:h2|summary)>(.*?)</", text)
    assert titles[1:-2] == [
        f"{name} over load"
        for name in ("Average JCT", "Median JCT", "Average queue time", "GPU use")
    ]
    assert "fewer than 3 seeds" in text
    assert [name for name, _ in images(entries, ["load"])] == [f"{k}-over-load" for k in OVER_AXIS]


def test_intervals_that_nobody_can_believe_do_not_flatten_the_lines(made):
    entries = [made("a", 10.0, 5000.0, 100.0, 200.0, point={"load": load}) for load in "12"]
    points = [points for _, _, points in over_point(entries, "load", "avg_jct_s")]
    mean = points[0][0].mean
    assert mean < top_of(points) <= 2.1 * mean


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
