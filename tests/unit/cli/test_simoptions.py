import pytest

from rota.cli.simoptions import (
    check_profiles,
    check_workload,
    parse_loads,
    parse_seeds,
    require_drawing,
)
from rota.errors import InputError
from rota.scenario.case import Workload


def test_nothing_else_gives_the_speeds_beside_profiles():
    check_profiles(None, "catalog", 2.0)
    with pytest.raises(InputError, match="so does --speeds none; drop one"):
        check_profiles("dir", "none", 1.0)
    with pytest.raises(InputError, match="--oversubscription has no effect with --profiles"):
        check_profiles("dir", "auto", 2.0)


def test_seeds_are_numbers_and_ranges():
    assert parse_seeds("0") == [0]
    assert parse_seeds("7, 0-2,5") == [7, 0, 1, 2, 5]


@pytest.mark.parametrize(
    "text", ["", "a", "-1", "1-", "3-1", "1,1", "0-3,2", "0-999999999", "1.5", "0x1", "9" * 30, "²"]
)
def test_what_are_no_seeds_is_refused(text):
    with pytest.raises(InputError, match="--seeds"):
        parse_seeds(text)


def test_loads_are_numbers_above_zero():
    assert parse_loads("0.5,1, 1.5") == [0.5, 1.0, 1.5]


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1,,2", "nan", "inf", "1,1.0"])
def test_what_are_no_loads_is_refused(text):
    with pytest.raises(InputError, match="--loads"):
        parse_loads(text)


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        (Workload(None), "--trace FILE"),
        (Workload("a.csv", profile="philly"), "--trace FILE"),
        (Workload(None, profile="philly"), "either --num-jobs or --span"),
        (Workload(None, profile="philly", num_jobs=5, span_s=5.0), "either --num-jobs or"),
        (Workload(None, profile="philly", num_jobs=5, strict=True), "--strict"),
        (Workload(None, format="philly", profile="philly", num_jobs=5), "--format"),
        (Workload("a.csv", num_jobs=5), "--num-jobs has no effect"),
    ],
)
def test_options_that_do_not_go_together_are_refused(workload, says):
    with pytest.raises(InputError, match=says):
        check_workload(workload)


@pytest.mark.parametrize(("option", "library"), [("--html", "plotly"), ("--png", "matplotlib")])
def test_a_library_that_is_missing_is_named_with_what_installs_it(option, library, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    asked = {"html": "a.html" if option == "--html" else None, "png": None}
    asked["png"] = "dir" if option == "--png" else None
    with pytest.raises(InputError, match=rf"{option} needs {library}.*pip install .matplotlib"):
        require_drawing(**asked)
