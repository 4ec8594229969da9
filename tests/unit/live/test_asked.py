import json

import pytest

from rota.live.provider.asked import LATE_S, Asked


class Clock:
    now_s = 1000.0


@pytest.fixture
def asked(tmp_path):
    """Makes it anew, as another controller does."""
    return lambda: Asked(tmp_path / "asked.json", "lab", lambda: Clock.now_s)


def test_a_name_is_on_the_disk_before_the_engine_can_be_asked(asked, tmp_path):
    assert asked().new() == "lab-1"
    assert json.loads((tmp_path / "asked.json").read_text())["asked_s"] == {"lab-1": 1000.0}
    assert asked().names == ["lab-1"]
    assert asked().new() == "lab-2"


def test_a_name_that_can_not_be_written_down_is_none(asked, tmp_path):
    first = asked()
    (tmp_path / "asked.json.new").mkdir()
    with pytest.raises(OSError):
        first.new()
    assert first.names == []
    first.settle(["lab-4"])  # what the engine tells counts all the same
    assert first.names == ["lab-4"]


def test_what_the_engine_has_had_and_has_no_more_is_dropped_at_once(asked):
    first = asked()
    first.new()
    first.settle(["lab-1", "labour-9", "somebody's", "lab-x"])
    assert asked().names == ["lab-1"]
    asked().settle([])
    assert asked().names == []
    assert asked().new() == "lab-2"  # names are not used again


def test_what_the_engine_has_never_had_counts_for_a_while(asked, monkeypatch):
    asked().new()
    monkeypatch.setattr(Clock, "now_s", 1000.0 + LATE_S - 1)
    asked().settle([])
    assert asked().names == ["lab-1"]
    monkeypatch.setattr(Clock, "now_s", 1000.0 + LATE_S)
    asked().settle([])
    assert asked().names == []


def test_what_the_engine_has_by_a_name_of_the_cluster_is_counted_whoever_asked(asked):
    first = asked()
    first.settle(["lab-10", "lab-2"])
    assert asked().names == ["lab-2", "lab-10"]
    assert asked().new() == "lab-11"


def test_what_was_noted_waits_for_as_long_as_nobody_has_asked_for_it(asked, monkeypatch):
    asked().note()
    asked().note()
    monkeypatch.setattr(Clock, "now_s", 1000.0 + 10 * LATE_S)
    asked().settle([])
    assert asked().noted == ["lab-1", "lab-2"]
    asked().ask(["lab-1"])
    assert (asked().noted, asked().names) == (["lab-2"], ["lab-1", "lab-2"])
    asked().refused(["lab-1"])
    assert asked().noted == ["lab-1", "lab-2"]
    asked().drop("lab-1")
    asked().ask(["lab-2"])
    assert asked().names == ["lab-2"]
    asked().settle([], gone=["lab-2"])  # it was there, and has ended already
    assert asked().names == []


def test_what_the_engine_has_had_is_told_from_what_it_may_have_yet(asked):
    asked().new()
    asked().new()
    asked().settle(["lab-2"])
    assert asked().known == ["lab-2"]
    assert asked().number("lab-2") == 2
    assert asked().number("labour-2") == asked().number("lab-x") == 0
