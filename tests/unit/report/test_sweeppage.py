"""The page about a sweep: whole whatever the sweep is, small, and no text of it is markup."""

import copy
import re
from itertools import pairwise
from math import isclose

import pytest

from rota.report.sweep import best_so_far, ranked, read_sweep
from rota.report.sweepcharts import best_chart, trials_chart
from rota.report.sweepgpus import gpus_chart
from rota.report.sweeppage import MOST_ROWS, sweep_page
from rota.report.sweepparallel import parameters_chart
from rota.report.sweepturns import MOST_BARS, turns_chart
from support.searches import SUBMIT_S, recorded_sweep

HOSTILE = "</script><script>alert(1)</script><b>%{x}"
FIGURES = ["Best so far", "Curves", "Parallel coordinates", "Who ran when", "Who had which GPU"]


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
    assert body(text).count("Plotly.newPlot(") == 5
    assert "<script src=" not in text
    assert "<link" not in text


@pytest.mark.parametrize(
    "chart", [best_chart, trials_chart, parameters_chart, turns_chart, gpus_chart]
)
def test_no_figure_needs_a_graphics_processor(ended, chart):
    assert {trace.type for trace in chart(read(ended)).data} <= {"scatter", "bar"}


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
    assert [name for name in headings(text) if name in FIGURES] == ["Curves", *FIGURES[-2:]]
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
        trial["ran_on"] = [[{"node": "node0", "gpus": [number % 16]}]] * 100
        document["trials"].append(trial)
    story = read(document)
    text = body(sweep_page(story))
    assert len(text) < 2_000_000
    assert f"{1000 - MOST_ROWS} more are left out" in text
    for figure in (turns_chart(story), gpus_chart(story)):
        assert sum(len(trace.x) for trace in figure.data if trace.name != "waits") <= MOST_BARS


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


def lines_of(figure):
    """Of each line of a trial in parallel coordinates: its places on the axes, and its words."""
    wide = len(figure.layout.xaxis.ticktext) + 1
    found = []
    for trace in figure.data:
        if trace.showlegend is not False:
            for n in range(0, len(trace.y), wide):
                assert list(trace.x[n : n + wide]) == list(range(wide))
                found.append((list(trace.y[n : n + wide - 1]), trace.hovertext[n : n + wide - 1]))
    return found


def test_parallel_coordinates_have_an_axis_for_each_parameter_and_the_value(ended):
    figure = parameters_chart(read(ended))
    names = [*ended["request"]["sweep"]["space"], "val_acc"]
    assert len(figure.layout.xaxis.ticktext) == len(names)
    assert figure.layout.xaxis.ticktext[0] == "optimizer"
    words = [
        t for trace in figure.data for t in zip(trace.x, trace.y, trace.text or (), strict=False)
    ]
    choices = sorted((y, text) for x, y, text in words if x == 0)
    assert [text for _, text in choices] == ["adamw", "rmsprop", "sgd"]
    assert {text for x, _, text in words if x == 1} >= {"0.0001", "0.001", "0.01", "0.1"}


def test_a_line_goes_through_what_its_trial_tried_to_its_value(ended):
    story = read(ended)
    lines = lines_of(parameters_chart(story))
    assert len(lines) == len(story.trials)
    by_trial = {int(re.match(r"trial (\d+)", words[0])[1]): places for places, words in lines}
    for other, better in pairwise(reversed(ranked(story))):  # on the last axis the best is highest
        assert by_trial[other.number][-1] <= by_trial[better.number][-1]
    rates = sorted(story.trials, key=lambda trial: trial.params["learning_rate"])
    places = [by_trial[trial.number][1] for trial in rates]
    assert places == sorted(places)
    assert 0 <= places[0] < places[-1] <= 1.0001
    some = next(words for _, words in lines if words[0].startswith("trial 5,"))
    assert "optimizer rmsprop" in some[0]


def test_parallel_coordinates_are_coloured_by_value(ended):
    story = read(ended)
    named = [trace for trace in parameters_chart(story).data if trace.showlegend is not False]
    assert [trace.name for trace in named] == [
        "12 trials: 0.069 to 0.114",
        "7 trials: 0.115 to 0.285",
        "3 trials: 0.349 to 0.582",
        "trial 14: 0.777",
        "trial 0: 0.859",
    ]
    assert len({trace.line.color for trace in named}) == 5
    assert named[-1].line.width > max(trace.line.width for trace in named[:-1])


@pytest.mark.parametrize("parameters", [1, 2, 12])
@pytest.mark.parametrize("trials", [1, 2, 150])
def test_parallel_coordinates_of_any_size_tell_each_trial(parameters, trials):
    document = recorded_sweep(trials=min(trials, 10), reports=2, eta=None, cluster="4x4")
    told = document["trials"]
    document["trials"] = [copy.deepcopy(told[n % len(told)]) | {"number": n} for n in range(trials)]
    for trial in document["trials"]:
        trial["params"] = dict(list(trial["params"].items())[:parameters])
    space = document["request"]["sweep"]["space"]
    for name in list(space)[parameters:]:
        del space[name]
    lines = lines_of(parameters_chart(read(document)))
    assert sorted(int(re.match(r"trial (\d+)", words[0])[1]) for _, words in lines) == list(
        range(trials)
    )
    assert {len(places) for places, _ in lines} == {parameters + 1}


def test_turns_are_bars_of_the_time_that_trials_ran(ended):
    figure = turns_chart(read(ended))
    ran_min = sum(float(sum(trace.x)) for trace in figure.data if trace.name != "waits")
    told_s = sum(end - start for trial in ended["trials"] for start, end in trial["ran"])
    assert isclose(ran_min * 60, told_s, rel_tol=0.02)  # pauses too short to be seen are left out
    assert set(by_name(figure)) == {"waits", "best", "stopped"}


def test_a_turn_tells_its_gpu_and_a_gpu_its_turns(ended):
    story = read(ended)
    words = [text for trace in turns_chart(story).data for text in trace.hovertext or ()]
    first = story.trials[0].ran[0].gpus
    assert f"trial 0 on {', '.join(first)}" in words
    figure = gpus_chart(story)
    (trace,) = figure.data
    assert list(figure.layout.yaxis.ticktext) == [f"node0:{n}" for n in range(4)]
    ran_s = sum(turn.stop_s - turn.start_s for trial in story.trials for turn in trial.ran)
    assert isclose(float(sum(trace.x)) * 60, ran_s, rel_tol=1e-4)
    names = figure.layout.yaxis.ticktext
    for y, text in zip(trace.y, trace.hovertext, strict=True):
        assert text.endswith(f" on {names[round(float(y))]}")


def test_trials_that_share_a_gpu_lie_above_one_another():
    document = recorded_sweep(trials=3, reports=2, eta=None)
    times = ([[0, 50], [60, 80]], [[0, 50]], [[50, 60]])
    for trial, ran in zip(document["trials"], times, strict=True):
        trial["ran"] = [[SUBMIT_S + edge for edge in turn] for turn in ran]
        trial["ran_on"] = [[{"node": "node10", "gpus": [1]}]] * len(ran)
    document["trials"][2]["ran_on"] = [[{"node": "node2", "gpus": [0]}]]
    figure = gpus_chart(read(document))
    assert list(figure.layout.yaxis.ticktext) == ["node2:0", "node10:1"]
    (trace,) = figure.data
    found = zip(trace.hovertext, trace.y, trace.width, strict=True)
    bars = sorted((text, float(y), float(width)) for text, y, width in found)
    first, again, second, alone = bars
    assert (first[0], second[0]) == ("trial 0 on node10:1", "trial 1 on node10:1")
    assert first == again
    assert second[1] - first[1] == pytest.approx(first[2]) == pytest.approx(alone[2] / 2)
    assert alone[0] == "trial 2 on node2:0"
    assert alone[1] == pytest.approx(0, abs=1e-6)
