"""The driver, before a real controller that has no nodes' agents: what it starts stays queued."""

import logging
import threading
from pathlib import Path

import pytest

from rota.client.client import Client
from rota.errors import ServerError, UnreachableError
from rota.folder import Folder
from rota.model.events import MetricReported
from rota.model.sweep import Report
from rota.sweep import driver as driver_module
from rota.sweep.driver import IDLE_S, MOST_PAUSE_S, MOST_TIMES, POLL_S, Driver
from support.served import controller_without_agents, served

pytestmark = pytest.mark.process

BLOCK = {
    "metric": "acc",
    "goal": "maximize",
    "space": {"x": {"choice": ["a" * 400, "b" * 400]}, "y": {"range": [0, 1]}},
    "max_trials": 4,
}


class Clock:
    """Time that passes when a test says so."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class Driven:
    """A controller, its client, and drivers on a clock of the test's."""

    def __init__(self, it, client):
        self.it, self.client, self.clock = it, client, Clock()
        self.driver = Driver(client, self.clock)

    def submit(self, name="s", run="python train.py", **block):
        job = {"name": name, "run": run, "workdir": "/tmp"}
        return self.client.submit_sweep(job | {"sweep": BLOCK | block})["name"]

    def trials(self, name="s"):
        return self.client.sweep(name)["trials"]

    def report(self, row, *values):
        """What a worker would: its values, as its agent passes them on."""
        reports = [Report(step, float(step), value) for step, value in enumerate(values, start=1)]
        event = MetricReported(self.clock.now_s, row, tuple(reports))
        self.it.do(lambda: self.it.controller.journal.write_first(event, durable=True))


@pytest.fixture
def driven(tmp_path):
    folder = Folder(tmp_path / "home").create()
    with served(folder, controller_without_agents(folder)) as it, Client(folder=folder) as client:
        yield Driven(it, client)


def test_it_starts_what_there_is_room_for_and_then_nothing(driven):
    driven.submit()
    assert driven.driver.look()
    first = driven.trials()
    assert [trial["number"] for trial in first] == [0, 1]
    assert not driven.driver.look()
    assert driven.trials() == first


def test_a_driver_that_replaces_another_goes_on_where_it_was(driven):
    """Trials are the same, whether one driver proposes them or each a new one."""
    for name, parallel in (("one", 4), ("each", 1)):
        driven.submit(name, parallel=parallel, space={"y": {"range": [0, 1]}})
    Driver(driven.client).look()
    (of_each,) = driven.trials("each")
    of_one = driven.trials("one")
    assert [trial["number"] for trial in of_one] == [0, 1, 2, 3]
    assert of_each["params"] == of_one[0]["params"]
    Driver(driven.client).look()
    assert driven.trials("one") == of_one


def test_two_drivers_at_once_start_no_trial_twice(driven):
    driven.submit(max_trials=8, parallel=8)
    clients = [Client(folder=driven.it.folder) for _ in range(3)]
    runs = [threading.Thread(target=Driver(client).look) for client in clients]
    for run in runs:
        run.start()
    for run, client in zip(runs, clients, strict=True):
        run.join()
        client.close()
    assert [trial["number"] for trial in driven.trials()] == list(range(8))
    assert len(driven.client.jobs()) == 8


def test_it_ends_a_search_that_reaches_its_target(driven):
    driven.submit(target=0.9)
    driven.driver.look()
    driven.report(0, 0.5, 0.95)
    driven.driver.look()
    told = driven.client.sweep("s")
    assert (told["state"], told["outcome"]) == ("ENDED", "TARGET")
    assert told["message"] == "s.0 reached acc 0.95"
    assert not driven.driver.look()


def test_it_stops_a_trial_that_is_behind_and_says_why(driven):
    driven.submit(rungs={"eta": 3, "first": 1})
    driven.driver.look()
    driven.report(0, 0.5)
    driven.report(1, 0.4)
    driven.driver.look()
    behind = driven.trials()[1]
    assert behind["state"] in ("STOPPING", "CANCELLED")
    assert behind["why"].startswith("at report 1 its best acc was 0.4, behind 1 of 2 trials")


def test_a_search_that_can_t_be_carried_on_fails_and_says_why(driven):
    driven.submit("long", run="echo " + "{x} " * 240)  # a value takes 400 bytes
    driven.submit("fine")
    driven.driver.look()
    assert len(driven.trials("fine")) == 2
    assert driven.client.sweep("long")["state"] == "RUNNING"
    driven.submit("longer", run="echo " + "{x} " * 260)
    driven.driver.look()
    told = driven.client.sweep("longer")
    assert (told["state"], told["outcome"]) == ("ENDED", "FAILED")
    assert told["message"].startswith("run: ")
    assert driven.client.sweep("fine")["state"] == "RUNNING"


def test_trouble_with_one_search_is_none_of_the_others_and_no_hot_loop(driven, monkeypatch, caplog):
    decide, asked = driver_module.decide, []

    def troubled(request, told, trials):
        asked.append(told["name"])
        if told["name"] == "bad" and len(asked) < 12:
            raise ZeroDivisionError("something is wrong")
        return decide(request, told, trials)

    monkeypatch.setattr(driver_module, "decide", troubled)
    driven.submit("bad")
    driven.submit("good")
    with caplog.at_level(logging.ERROR):
        driven.driver.look()
    assert len(driven.trials("good")) == 2 and not driven.trials("bad")
    assert "sweep bad: again in" in caplog.text and "something is wrong" in caplog.text
    asked.clear()
    pauses = []
    for _ in range(3):
        driven.driver.look()
        assert "bad" not in asked, "it is left alone for a while"
        before_s = driven.clock.now_s
        while "bad" not in asked:
            driven.clock.now_s += POLL_S
            driven.driver.look()
        pauses.append(driven.clock.now_s - before_s)
        asked.clear()
    assert pauses == sorted(pauses) and pauses[-1] > 2 * pauses[0]
    monkeypatch.undo()
    driven.clock.now_s += MOST_PAUSE_S
    driven.driver.look()
    assert len(driven.trials("bad")) == 2
    assert driven.client.sweep("bad")["state"] == "RUNNING"


def test_a_search_whose_driver_fails_again_and_again_ends_and_says_why(driven, monkeypatch):
    def broken(request, told, trials):
        raise TypeError("create_trial() takes no such argument")

    monkeypatch.setattr(driver_module, "decide", broken)
    driven.submit("bad")
    for _ in range(MOST_TIMES):
        driven.driver.look()
        driven.clock.now_s += MOST_PAUSE_S
    assert driven.client.sweep("bad")["state"] == "RUNNING"
    driven.driver.look()
    told = driven.client.sweep("bad")
    assert (told["state"], told["outcome"]) == ("ENDED", "FAILED")
    assert told["message"] == (
        "its driver failed again and again: TypeError('create_trial() takes no such argument')"
    )


def test_a_search_that_kills_its_driver_each_time_does_not_keep_others_from_going_on(
    driven, monkeypatch
):
    decide = driver_module.decide

    def deadly(request, told, trials):
        if told["name"] == "deadly":
            raise SystemExit(3)
        return decide(request, told, trials)

    monkeypatch.setattr(driver_module, "decide", deadly)
    driven.submit("deadly")
    driven.submit("fine")
    for _ in range(64):
        with pytest.raises(SystemExit):
            Driver(driven.client).look()
        if driven.trials("fine"):
            return
    raise AssertionError("the other one got no turn")


def test_a_search_is_not_given_up_for_what_the_controller_can_t_do(driven, monkeypatch):
    def refused(name, *more, **fields):
        raise ServerError("the disk is full")

    monkeypatch.setattr(driven.client, "submit_trial", refused)
    driven.submit("fine")
    for _ in range(MOST_TIMES + 2):
        driven.driver.look()
        driven.clock.now_s += MOST_PAUSE_S
    monkeypatch.undo()
    driven.driver.look()
    assert len(driven.trials("fine")) == 2


def run_for(driver, looks):
    """Let a driver run for so many looks; how long it waited, at least and at most."""
    pauses = []

    def until(pause_s, most_s):
        pauses.append((pause_s, most_s))
        return len(pauses) > looks

    driver.run(until)
    return pauses[1:]


def test_a_controller_that_is_away_is_waited_for(tmp_path, caplog):
    client = Client(folder=Folder(tmp_path / "nobody"))
    with caplog.at_level(logging.INFO):
        pauses = run_for(Driver(client, Clock()), 3)
    client.close()
    assert pauses == [(POLL_S, POLL_S)] * 3
    assert caplog.text.count("no answer: ") == 3


def test_it_pauses_ever_longer_if_the_controller_only_errs(driven, monkeypatch):
    def sweeps(**_):
        raise ServerError("it is broken")

    monkeypatch.setattr(driven.client, "sweeps", sweeps)
    least, pauses = zip(*run_for(driven.driver, 10), strict=True)
    assert least == pauses
    pauses = list(pauses)
    assert pauses[0] == POLL_S and pauses == sorted(pauses) and pauses[-1] == MOST_PAUSE_S


def test_looking_takes_a_small_part_of_its_time(driven, monkeypatch):
    told = driven.client.sweeps

    def slow(**more):
        driven.clock.now_s += 0.5
        return told(**more)

    monkeypatch.setattr(driven.client, "sweeps", slow)
    assert run_for(driven.driver, 2) == [(2.0, IDLE_S)] * 2


def test_a_controller_that_goes_away_is_told_to_nobody(driven, monkeypatch):
    def sweep(name, since):
        raise UnreachableError("it went away")

    driven.submit()
    monkeypatch.setattr(driven.client, "sweep", sweep)
    with pytest.raises(UnreachableError):
        driven.driver.look()
    monkeypatch.undo()
    assert driven.driver.look() and Path(driven.it.folder.database).exists()


def test_it_asks_for_what_is_new_alone(driven, monkeypatch):
    """Whatever it is told at once or bit by bit, it knows the same, also of what is taken back."""
    driven.submit(rungs={"eta": 3, "first": 4})
    driven.driver.look()
    driven.report(0, *[0.1] * 1000)
    driven.driver.look()
    sweep, told = driven.client.sweep, []

    def listen(name, since):
        told.append(sweep(name, since=since))
        return told[-1]

    monkeypatch.setattr(driven.client, "sweep", listen)
    driven.driver.look()
    told.clear()
    driven.driver.look()
    assert told == [], "nothing has changed"
    event = MetricReported(driven.clock.now_s, 0, (Report(1001, 1001.0, 0.2),))
    driven.it.do(lambda: driven.it.controller.journal.note(event))
    driven.driver.look()
    ((trial,),) = (each["trials"] for each in told)
    assert (trial["number"], trial["known"], trial["curve"]) == (0, 1000, [[1001, 1001.0, 0.2]])
    back = MetricReported(driven.clock.now_s, 0, (Report(900, 1002.0, 0.3, True),))
    driven.it.do(lambda: driven.it.controller.journal.note(back))
    driven.driver.look()
    assert told[-1]["trials"][0]["known"] == 899
    anew = Driver(driven.client)
    anew.look()
    for number, each in enumerate(driven.driver._known["s"].trials()):
        assert each == anew._known["s"].trials()[number]
    assert len(each.reports) in (0, 900)


def test_trouble_in_the_middle_is_mended_at_the_next_time_though_nothing_is_new(
    driven, monkeypatch
):
    driven.submit()

    def refused(name, *more, **fields):
        raise UnreachableError("it went away")

    monkeypatch.setattr(driven.client, "submit_trial", refused)
    with pytest.raises(UnreachableError):
        driven.driver.look()
    monkeypatch.undo()
    driven.driver.look()
    assert len(driven.trials()) == 2


def test_it_waits_for_news_but_not_beyond_the_budget(driven):
    driven.submit("manual", algorithm="manual")
    assert run_for(driven.driver, 2) == [(POLL_S, IDLE_S)] * 2
    driven.submit("short", gpu_hours=0.001)  # 1.8 s of both GPUs
    driven.driver.look()
    (wait,) = run_for(driven.driver, 1)
    assert wait == (POLL_S, pytest.approx(1.8))
    told, asked = driven.client.sweep, []
    driven.client.sweep = lambda name, since: asked.append(name) or told(name, since=since)
    driven.clock.now_s += 1.0
    driven.driver.look()
    used = driven.client.sweeps

    def spent():
        return [each | {"gpu_s": 3.6} for each in used()]

    driven.client.sweeps = spent
    driven.driver.look()
    assert driven.client.sweep("short", None)["state"] == "RUNNING"
    driven.clock.now_s += 1.0
    driven.driver.look()
    assert driven.client.sweep("short", None)["outcome"] == "BUDGET"
    assert asked == ["short", "short"], "the budget is told in brief"
