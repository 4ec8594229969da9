"""``rota burst plan``: the table, the drawing, the advice, and what can't be planned."""

import json

import pytest

from support.layers import graph


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "invented.json"
    path.write_text(json.dumps(graph("ab bc cd de", seed=7).as_json()))
    return str(path)


def test_a_plan_has_both_baselines_a_drawing_and_advice(rota, profile):
    code, out, _ = rota("burst", "plan", profile, "--gpus", "6", "--bandwidth", "1")
    assert code == 0
    assert out.startswith("invented: 5 layers, batch 12, up to 6 GPUs")
    assert "OVERLAPPED STEP" in out
    for size in (1, 2, 3, 4, 6):
        assert f"\ndata parallel, {size} " in out
    assert "\nGPU 0" in out
    advice = out.strip().splitlines()[-1]
    assert advice.endswith(".")
    assert "GPU" in advice


def test_json_has_layers_timeline_gaps_and_advice(rota, profile):
    args = ("--gpus", "6", "--bandwidth", "1", "--max-gpu-time", "1.4")
    code, out, _ = rota("burst", "plan", profile, *args, "--json")
    told = json.loads(out)
    assert code == 0
    assert [layer["name"] for layer in told["layers"]] == list("abcde")
    assert told["plans"]["chosen"]["overlapped_gpu_time_s"] <= 1.4 * told["one_gpu_time_s"]
    assert len(told["gaps"]) == 6
    assert {span["kind"] for span in told["timeline"]} >= {"forward", "backward"}
    assert told["frontier"]
    assert told["advice"]


def test_a_page_has_the_timeline(rota, profile, tmp_path):
    pytest.importorskip("plotly")
    page = tmp_path / "plan.html"
    assert rota("burst", "plan", profile, "--gpus", "3", "--html", str(page))[0] == 0
    text = page.read_text()
    assert "Timeline" in text
    assert "c, backward" in text


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        ({"forward_s": 0, "backward_s": 0}, "the layers of invented take no time; measure them"),
        ({"forward_s": 1e300}, "times are numbers from 0 to 1e+09"),
        ({"name": "a\x1b[31m"}, "it is a text of printable characters"),
    ],
)
def test_a_profile_with_figures_that_mean_nothing_is_refused(rota, tmp_path, figure, message):
    told = graph("").as_json()
    told["layers"][0] |= {field: value for field, value in figure.items() if field == "name"}
    for time in told["layers"][0]["times"]:
        time |= {field: value for field, value in figure.items() if field != "name"}
    path = tmp_path / "invented.json"
    path.write_text(json.dumps(told))
    code, out, err = rota("burst", "plan", str(path), "--gpus", "2")
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nowhere.json", "--gpus", "2"), "nowhere.json: No such file"),
        (("PROFILE", "--gpus", "0"), "gpus is 0"),
        (("PROFILE", "--gpus", "2", "--batch", "100"), "batch 100 on up to 2 GPUs"),
        (("PROFILE", "--gpus", "2", "--max-gpu-time", "0.2"), "allow as much"),
        (("PROFILE", "--gpus", "2", "--memory", "1e-6"), "does not fit"),
        (("PROFILE", "--gpus", "2", "--bandwidth", "0"), "the network has 0 bytes/s"),
        (("PROFILE", "--gpus", "2", "--html", "no/such/page.html"), "there is no folder"),
    ],
)
def test_what_cannot_be_planned_is_told_in_a_line(rota, profile, args, message):
    code, out, err = rota("burst", "plan", *(profile if a == "PROFILE" else a for a in args))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
