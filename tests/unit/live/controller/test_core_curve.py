"""The curve by CPU cores of a live job, as the API has it and a terminal shows it."""

import pytest

from rota.cli.core_curve import core_lines
from rota.live.controller.core_curve import Told, describe
from rota.predict.core_points import CorePoint

POINTS = tuple(CorePoint(cores, 0.3 + 0.6 / cores, "a100") for cores in (1, 3, 8))


def told(now=3, most=8, phase="train", **points):
    known = {"train": (), "evaluate": ()} | points
    return Told(known, "a100", now, most, phase, {"train": {3000: 0.4}, "evaluate": {}})


def test_a_curve_has_what_was_measured_and_what_is_predicted():
    [curve] = describe(told(train=POINTS))["phases"]
    assert (curve["phase"], curve["now"], curve["missing"]) == ("train", True, None)
    rows = {row["cores"]: row for row in curve["curve"]}
    assert list(rows) == [1, 2, 3, 4, 8]
    assert rows[2]["measured_s"] is None
    assert rows[2]["predicted_s"] == pytest.approx(0.6, rel=0.02)
    assert rows[3]["measured_s"] == pytest.approx(0.5)
    assert (rows[3]["speed"], rows[2]["speed"]) == (1.0, pytest.approx(5 / 6, rel=0.02))
    assert (rows[3]["wait_share"], rows[8]["wait_share"]) == (0.4, None)
    assert rows[3]["predicted_wait_share"] == pytest.approx(0.4, rel=0.05)


def test_one_measurement_makes_no_curve_and_says_so():
    [curve] = describe(told(phase="evaluate", train=POINTS[1:2]))["phases"]
    [row] = curve["curve"]
    assert (curve["now"], row["cores"], row["predicted_s"], row["speed"]) == (False, 3, None, None)
    assert curve["missing"] == ("speed by cores is unknown: each GPU type was measured once, at 3")


def test_a_doubtful_curve_predicts_no_waits():
    falling = (*POINTS[:2], CorePoint(8, 1.0, "a100"))
    [curve] = describe(told(train=falling))["phases"]
    assert curve["warnings"]
    assert {row["predicted_wait_share"] for row in curve["curve"]} == {None}
    assert all(row["predicted_s"] for row in curve["curve"])


def test_a_job_without_cores_of_its_own_has_no_curve():
    assert describe(None) is None
    assert core_lines({"core_curve": None}) == []


def test_a_terminal_of_80_columns_shows_it(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = core_lines({"core_curve": describe(told(train=POINTS))})
    assert lines[0] == "  by CPU cores in phase train, its present one  speed relative to now"
    assert lines[1].split() == ["CORES", "SPEED", "STEP,", "PREDICTED", "MEASURED", "WAITS"]
    assert lines[3].split()[0::6] == ["2", "~50"]
    assert lines[4].split()[0] == "*"
    assert lines[4].split()[-2:] == ["40", "%"]
    assert max(map(len, lines)) <= 80
