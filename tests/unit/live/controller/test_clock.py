"""The live clock goes forward, whatever the system's does, and from one controller to the next."""

import json
import time
from itertools import pairwise

import pytest

from rota.live.controller import clock as controllers
from rota.live.controller.clock import Clock
from rota.live.wire import clock


class Machine:
    """What the clocks of a machine show, and which life it is in."""

    def __init__(self, monkeypatch):
        self.boot, self.up_s, self.wall_s = "first", 1000.0, 1e9
        for module in (clock, controllers):
            monkeypatch.setattr(module, "boottime_s", lambda: self.up_s)
        monkeypatch.setattr(clock, "boot_id", lambda: self.boot)
        monkeypatch.setattr(time, "time", lambda: self.wall_s)

    def passes(self, seconds):
        self.up_s += seconds
        self.wall_s += seconds

    def reboots(self, after_s):
        self.boot, self.up_s = self.boot + "'", 0.0
        self.wall_s += after_s


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "clock.json"


def test_every_reading_is_later_than_the_last(file):
    clock = Clock(file)
    readings = [clock.now_s() for _ in range(1000)]
    assert all(early < late for early, late in pairwise(readings))


def test_it_starts_after_what_is_written_down(file):
    assert Clock(file, after_s=1e10).now_s() > 1e10


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_it_goes_on_at_its_pace_when_the_wall_clock_is_set(machine, file, step_s):
    clock = Clock(file)
    before_s = clock.now_s()
    machine.wall_s += step_s
    machine.passes(5.0)
    assert clock.now_s() - before_s == pytest.approx(5.0)


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_the_next_controller_goes_on_with_it_however_the_wall_clock_is_set(machine, file, step_s):
    before_s = Clock(file).now_s()
    machine.wall_s += step_s
    machine.passes(5.0)
    assert Clock(file, before_s).now_s() - before_s == pytest.approx(5.0)


def test_after_a_reboot_it_is_set_by_the_wall_clock_and_not_back(machine, file):
    before_s = Clock(file).now_s()
    machine.reboots(after_s=60.0)
    assert Clock(file, before_s).now_s() - before_s == pytest.approx(60.0)
    machine.reboots(after_s=-3600.0)
    assert 60.0 <= Clock(file, before_s + 60.0).now_s() - before_s < 61.0


@pytest.mark.parametrize(
    "told", ["", "{", "[]", '{"boot_id": "first", "ahead_s": NaN}', '{"ahead_s": 3}']
)
def test_a_damaged_note_counts_as_none(machine, file, told):
    file.write_text(told)
    assert Clock(file).now_s() == pytest.approx(machine.wall_s)
    assert json.loads(file.read_text())["boot_id"] == "first"


def test_a_machine_whose_boots_have_no_names_goes_by_the_wall_clock(machine, file):
    machine.boot = ""
    Clock(file)
    machine.wall_s += 3600.0
    assert Clock(file).now_s() == pytest.approx(machine.wall_s)


def test_a_note_that_can_not_be_written_stops_nobody(machine, file, caplog):
    file.with_name("clock.json.new").mkdir()
    assert Clock(file).now_s() == pytest.approx(machine.wall_s)
    assert "clock.json can't be written" in caplog.text


def test_agents_and_workers_read_the_clock_of_their_controller(machine, file, monkeypatch):
    controller = Clock(file)
    machine.wall_s += 3600.0
    monkeypatch.setattr(clock, "_ahead_s", None)
    monkeypatch.setenv(clock.VARIABLE, "")
    clock.follow(clock.read_ahead_s(file))
    assert clock.now_s() == pytest.approx(controller.now_s())
    monkeypatch.setattr(clock, "_ahead_s", None)  # as in a worker, which has the environment alone
    assert clock.now_s() == pytest.approx(controller.now_s())


def test_without_a_cluster_it_is_the_wall_clock(machine, monkeypatch):
    monkeypatch.setattr(clock, "_ahead_s", None)
    monkeypatch.delenv(clock.VARIABLE, raising=False)
    assert clock.now_s() == pytest.approx(machine.wall_s)


@pytest.mark.parametrize(
    ("drifted_s", "took_s", "corrected"),
    [(3600.0, 0.02, True), (-0.5, 0.0, True), (0.05, 0.0, False), (2.0, 4.0, False)],
)
def test_a_clock_is_set_by_an_answer_that_shows_it_to_be_wrong(drifted_s, took_s, corrected):
    asked_s, right_s = 500.0, 1e9
    told_s = asked_s + took_s / 2 + right_s
    set_s = clock.corrected_ahead_s(right_s + drifted_s, asked_s, told_s, asked_s + took_s)
    assert set_s == pytest.approx(right_s if corrected else right_s + drifted_s)


@pytest.mark.parametrize("back", [0.0, 1.0])
def test_no_way_of_an_answer_makes_a_right_clock_wrong(back):
    told_s = 500.0 + back * 3.0 + 1e9  # told at once, or at the end of 3 s
    assert clock.corrected_ahead_s(1e9, 500.0, told_s, 503.0) == 1e9
