"""The page about a sweep: whole whatever the sweep is, small, and no text of it is markup."""

import copy
import re
from math import isclose

import pytest

from rota.report.sweep import best_so_far, read_sweep
from rota.report.sweepcharts import best_chart, parameters_chart, trials_chart
from rota.report.sweeppage import MOST_ROWS, sweep_page
from rota.report.sweepturns import MOST_BARS, turns_chart
from rota.testing.searches import SUBMIT_S, recorded_sweep

HOSTILE = "</script><script>alert(1)</script><b>%{x}"
FIGURES = ["Best so far", "Curves", "Parallel coordinates", "Who ran when"]


def read(document):
    return read_sweep(document, SUBMIT_S + 60)


def headings(text):
    return re.findall("<h2>(.*?)</h2>", text)


def body(text):
    """The page without plotly's own script."""
    return text[text.index("<body>") :]


def by_name(figure):
    return {trace.name: trace for trace in figure.data}


@pytest.fixture(scope="module")
def ended():
    return recorded_sweep()


def test_a_page_has_every_figure_and_needs_nothing_from_outside(ended):
    text = sweep_page(read(ended))
    assert [name for name in headings(text) if name in FIGURES] == FIGURES
    assert body(text).count("Plotly.newPlot(") == 4
    assert "<script src=" not in text
    assert "<link" not in text


def test_the_same_sweep_gives_the_same_page(ended):
    assert sweep_page(read(ended)) == sweep_page(read(copy.deepcopy(ended)))


@pytest.mark.parametrize(
    ("document", "figures"),
    [
        (recorded_sweep(trials=0), []),
        (recorded_sweep(until_s=0.0, trials=3), ["Curves", "Who ran when"]),
        (recorded_sweep(trials=1), FIGURES),
        (recorded_sweep(trials=1, reports=1), FIGURES),
        (recorded_sweep(trials=4, maximize=False), FIGURES),
        (recorded_sweep(trials=5, until_s=20.0), FIGURES),
    ],
    ids=["no trial", "none has begun", "one trial", "one report", "minimize", "running"],
)
def test_small_and_young_sweeps_have_pages(document, figures):
    text = sweep_page(read(document))
    assert [name for name in headings(text) if name in FIGURES] == figures


def test_a_sweep_whose_trials_all_failed_has_a_page():
    document = recorded_sweep(trials=4)
    for trial in document["trials"]:
        curve = [[1, SUBMIT_S + 1, None]]
        trial |= {"state": "FAILED", "curve": curve, "value": None}
        trial |= {"why": None, "message": "exit code 1"}
    document["best"] = None
    text = sweep_page(read(document))
    assert [name for name in headings(text) if name in FIGURES] == ["Curves", "Who ran when"]
    assert text.count("exit code 1") == 4


@pytest.mark.parametrize(
    "values", [[0.5], [0.0], [-1e300, 1e300], [1e-300, 1e300], [1e-310], [-5.0, 1e9]]
)
def test_any_values_have_a_page(values):
    document = recorded_sweep(trials=4, eta=None, reports=6)
    for n, trial in enumerate(document["trials"]):
        for m, report in enumerate(trial["curve"]):
            report[2] = values[(n + m) % len(values)]
    text = body(sweep_page(read(document)))
    assert "Infinity" not in text
    assert "NaN" not in text


def test_no_text_of_a_sweep_is_taken_as_markup():
    document = recorded_sweep(trials=3)
    document |= {"name": HOSTILE, "user": HOSTILE, "message": HOSTILE}
    search = document["request"]["sweep"]
    search["metric"] = HOSTILE
    search["space"] |= {HOSTILE: {"choice": [HOSTILE, "b"]}}
    for trial in document["trials"]:
        trial["params"][HOSTILE] = HOSTILE
        trial["why"] = HOSTILE
    text = body(sweep_page(read(document)))
    assert "<script>alert" not in text
    assert "</script><script>" not in text
    assert "<b>" not in text
    # What Plotly reads is JSON, in which it takes tags for tags: they are escaped there, too.
    assert "\\u003cb\\u003e" not in text
    assert "alert(1)" in text


def test_a_thousand_trials_with_a_hundred_reports_fit_in_a_page():
    document = recorded_sweep(trials=100, cluster="4x4", eta=None)
    kinds = document["trials"]
    document["trials"] = []
    for number in range(1000):
        trial = copy.deepcopy(kinds[number % 100]) | {"number": number}
        trial["curve"] = [
            [n + 1, SUBMIT_S + n, value]
            for n, (_, _, value) in enumerate((trial["curve"] * 100)[:100])
        ]
        trial["ran"] = [[SUBMIT_S + 9 * n, SUBMIT_S + 9 * n + 6] for n in range(100)]
        document["trials"].append(trial)
    story = read(document)
    text = body(sweep_page(story))
    assert len(text) < 1_300_000
    assert f"{1000 - MOST_ROWS} more are left out" in text
    assert sum(len(trace.x) for trace in turns_chart(story).data if trace.name != "waits") <= (
        MOST_BARS
    )


def test_the_best_so_far_is_a_line_that_goes_on_to_the_end(ended):
    story = read(ended)
    line = by_name(best_chart(story))["best so far"]
    assert list(line.y[:-1]) == [value for _, value, _ in best_so_far(story)]
    assert line.y[-1] == line.y[-2] == ended["best"]["value"]
    assert isclose(line.x[-1] * 60, story.end_s)


def test_the_target_is_a_line_of_its_own(ended):
    document = copy.deepcopy(ended)
    document["request"]["sweep"]["target"] = 0.95
    figure = best_chart(read(document))
    assert list(by_name(figure)["target 0.95"].y) == [0.95, 0.95]
    low, high = figure.layout.yaxis.range
    assert low < 0.95 < high


def test_the_best_curve_is_drawn_last_and_above_the_faint_ones(ended):
    traces = trials_chart(read(ended)).data
    assert traces[-1].name == f"best: trial {ended['best']['number']}"
    assert traces[-1].line.width > max(trace.line.width for trace in traces[:-1])
    assert by_name(trials_chart(read(ended)))["stopped"].opacity < 0.5


def test_parallel_coordinates_have_an_axis_for_each_parameter_and_the_value(ended):
    (trace,) = parameters_chart(read(ended)).data
    names = [*ended["request"]["sweep"]["space"], "val_acc"]
    assert len(trace.dimensions) == len(names)
    assert trace.dimensions[0].label == "optimizer"
    assert list(trace.dimensions[0].ticktext) == ["adamw", "rmsprop", "sgd"]
    values = list(trace.dimensions[-1]["values"])
    assert values == sorted(values)
    assert isclose(values[-1], ended["best"]["value"], rel_tol=1e-6)
    assert trace.line.reversescale is False


def test_turns_are_bars_of_the_time_that_trials_ran(ended):
    figure = turns_chart(read(ended))
    ran_min = sum(float(sum(trace.x)) for trace in figure.data if trace.name != "waits")
    told_s = sum(end - start for trial in ended["trials"] for start, end in trial["ran"])
    assert isclose(ran_min * 60, told_s, rel_tol=0.02)  # pauses too short to be seen are left out
    assert set(by_name(figure)) == {"waits", "best", "stopped"}
