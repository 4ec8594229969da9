"""Delivery to one hook, from the event log on: real sockets, a clock that the test moves."""

import asyncio
import base64
import hashlib
import hmac
import logging
from contextlib import closing

import pytest

from rota.errors import StoreFullError
from rota.model.events import (
    AttemptLost,
    JobFinished,
    JobLaunched,
    JobSubmitted,
    NodeLost,
    RetryDue,
    SweepEnded,
)
from rota.model.job import JobSpec, JobState, Notice
from rota.model.news import MAX_TEXT
from rota.server.notify import line as lines
from rota.server.notify.line import GIVEN_UP_S, REST_S, Line, pause_s
from rota.server.notify.outcome import Outcome
from rota.server.notify.webhook import Sender
from rota.store.deliveries import Deliveries, Hook
from rota.store.events import EventStore
from support.receivers import HANG, receiving

SPECS = (
    JobSpec("1", 1, 0.0, name="plain", user="ann", vc="vision", tags=("a:b",)),
    JobSpec("2", 1, 0.0, name="told", user="bob", notices=(Notice("team", ("ended",)),)),
)
FAILED = JobFinished(2.0, 0, JobState.FAILED, 3, "exit code 3")


class State:
    """As much of a cluster's state as a line reads."""

    spec = SPECS


class Clock:
    def __init__(self):
        self.at_s = 1000.0

    def __call__(self):
        return self.at_s


@pytest.fixture
def store(tmp_path):
    with closing(EventStore(tmp_path / "rota.db")) as it:
        it.append([JobSubmitted(0.0, spec) for spec in SPECS])
        yield it


@pytest.fixture
def deliveries(store):
    return Deliveries(store)


@pytest.fixture
def clock():
    return Clock()


def hook_for(receiver, *on, name="team", private=True):
    return Hook(name, "webhook", receiver.url, on, private, receiver.secret, "ann", 1.0)


def line_of(deliveries, clock, send=None):
    (hook,) = deliveries.hooks()
    return Line(hook, deliveries, State, clock, send or Sender(60.0).send)


def until_idle(line, clock):
    """Let the line do all that it has to do, however long it takes by its clock."""

    async def turns():
        while (wait_s := await line.turn()) is not None:
            clock.at_s += wait_s

    asyncio.run(turns())


def test_a_hook_is_told_of_the_news_that_it_and_the_jobs_of_its_name_want(deliveries, clock):
    with receiving() as receiver:
        deliveries.add(hook_for(receiver, "failed", "node_lost"))
        deliveries.store.append(
            [
                JobLaunched(1.0, 0, 1),  # nobody wants that
                RetryDue(1.5, 0),  # no news
                FAILED,  # the hook wants that
                JobFinished(3.0, 1, JobState.CANCELLED),  # the job of that name does
                JobFinished(3.5, 0, JobState.SUCCEEDED, 0),  # nobody
                NodeLost(4.0, "n1"),
            ]
        )
        until_idle(line_of(deliveries, clock), clock)
        failed, cancelled, lost = receiver.bodies()
    assert failed == {
        "id": f"{deliveries.store.identity[:12]}-5",
        "number": 5,
        "event": "failed",
        "at_s": 2.0,
        "text": "job 1 (plain) of ann has ended: FAILED: exit code 3",
        "job": {
            "id": "1",
            "name": "plain",
            "user": "ann",
            "queue": "vision",
            "tags": ["a:b"],
            "state": "FAILED",
            "exit_code": 3,
            "message": "exit code 3",
        },
    }
    assert (cancelled["event"], cancelled["job"]["id"], cancelled["number"]) == (
        "cancelled",
        "2",
        6,
    )
    assert (lost["event"], lost["node"]) == ("node_lost", "n1")
    counts = deliveries.counts("team")
    assert (counts.waiting, counts.delivered, counts.given_up) == (0, 3, 0)


def test_what_it_is_sent_is_signed_with_its_secret_over_id_time_and_body(deliveries, clock):
    with receiving() as receiver:
        deliveries.add(hook_for(receiver, "failed"))
        deliveries.store.append([FAILED])
        until_idle(line_of(deliveries, clock), clock)
        ((headers, body),) = receiver.calls
    text = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(receiver.secret.removeprefix("whsec_"))
    right = base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{right}"
    assert headers["webhook-id"] == receiver.bodies()[0]["id"]


def test_pauses_grow_to_an_hour_and_have_chance_in_them():
    for tries, mean_s in (
        (1, 10.0),
        (2, 20.0),
        (5, 160.0),
        (9, 2560.0),
        (10, 3600.0),
        (99, 3600.0),
    ):
        found = {pause_s(tries) for _ in range(50)}
        assert len(found) > 1
        assert all(0.8 * mean_s <= each <= 1.2 * mean_s for each in found)


def test_a_receiver_that_fails_for_a_day_is_given_up_and_told_so(deliveries, clock, caplog):
    clock.at_s = FAILED.at_s
    with receiving(500) as receiver:
        deliveries.add(hook_for(receiver, "failed"))
        deliveries.store.append([FAILED])
        with caplog.at_level(logging.WARNING):
            until_idle(line_of(deliveries, clock), clock)
        # 9 pauses to more than an hour in all, then one an hour; chance makes it more or less
        assert 9 + 18 <= len(receiver.calls) <= 9 + 31
        assert len({headers["webhook-id"] for headers, _ in receiver.calls}) == 1
    assert deliveries.tries == {"failed": len(receiver.calls) - 1, "given_up": 1}
    (delivery,) = deliveries.list("team", "given_up", 10)
    assert (delivery.tries, delivery.answer) == (len(receiver.calls), "500")
    assert GIVEN_UP_S - 1.2 * 3600.0 <= clock.at_s - FAILED.at_s <= GIVEN_UP_S
    assert deliveries.counts("team").error == "500"
    assert "hook team was not told of event 3 (failed 1)" in caplog.text
    assert "s3cret" not in caplog.text


def test_an_event_of_long_ago_is_tried_once_before_it_is_given_up(deliveries, clock):
    clock.at_s = FAILED.at_s + 3 * GIVEN_UP_S
    with receiving(500) as receiver:
        deliveries.add(hook_for(receiver, "failed"))
        deliveries.store.append([FAILED])
        until_idle(line_of(deliveries, clock), clock)
        assert len(receiver.calls) == 1
    assert deliveries.counts("team").given_up == 1


def test_one_that_can_not_take_an_event_gets_the_others(deliveries, clock):
    with receiving(422, 204) as receiver:
        deliveries.add(hook_for(receiver, "failed"))
        events = [FAILED, FAILED._replace(at_s=3.0), FAILED._replace(at_s=4.0)]
        deliveries.store.append(events)
        line = line_of(deliveries, clock)
        asyncio.run(line.turn())
        assert 0.0 < asyncio.run(line.turn()) <= REST_S  # the others wait no longer than that
        until_idle(line, clock)
        assert [body["number"] for body in receiver.bodies()] == [3, 4, 5, 3]
    assert deliveries.counts("team").delivered == 3


def test_no_redirect_is_followed(deliveries, clock):
    with receiving((302, {"Location": "http://169.254.169.254/latest/"}), 204) as receiver:
        deliveries.add(hook_for(receiver, "failed"))
        deliveries.store.append([FAILED])
        line = line_of(deliveries, clock)
        asyncio.run(line.turn())
        (delivery,) = deliveries.list("team", "waiting", 10)
        assert delivery.answer == "302: redirects are not followed"
        until_idle(line, clock)
        assert len(receiver.calls) == 2


def test_one_that_never_answers_is_left_after_the_time_limit(deliveries, clock):
    with receiving(HANG) as receiver:
        deliveries.add(hook_for(receiver, "failed"))
        deliveries.store.append([FAILED])
        asyncio.run(line_of(deliveries, clock, Sender(time_limit_s=0.2).send).turn())
        (delivery,) = deliveries.list("team", "waiting", 10)
    assert (delivery.tries, delivery.answer) == (1, "no answer within 0.2 s")


class Killed(BaseException):
    """The end of the process."""


def dying(delivery):
    raise Killed


def test_nothing_is_lost_at_a_kill_and_what_was_sent_comes_again_with_its_id(
    store, deliveries, clock, monkeypatch
):
    with receiving() as receiver:
        deliveries.add(hook_for(receiver, "failed"))
        deliveries.store.append([FAILED])  # killed here: nobody has looked at the log yet

        async def dies(hook, body):
            raise Killed

        with pytest.raises(Killed):  # killed between the look at the log and the sending
            asyncio.run(line_of(deliveries, clock, dies).turn())
        with monkeypatch.context() as patch, pytest.raises(Killed):  # between sending and noting
            patch.setattr(deliveries, "note", dying)
            asyncio.run(line_of(deliveries, clock).turn())
        with closing(EventStore(store.path)) as again:
            until_idle(line_of(Deliveries(again), clock), clock)
        first, second = receiver.bodies()
    assert first == second


def test_what_was_sent_while_the_disk_was_full_is_not_sent_again(deliveries, clock, monkeypatch):
    with receiving() as receiver:
        deliveries.add(hook_for(receiver, "failed"))
        deliveries.store.append([FAILED])
        line = line_of(deliveries, clock)
        with monkeypatch.context() as patch:
            patch.setattr(deliveries, "note", full)
            for _ in range(3):
                with pytest.raises(StoreFullError):
                    asyncio.run(line.turn())
        until_idle(line, clock)
        assert len(receiver.calls) == 1
    assert deliveries.counts("team").delivered == 1


def full(delivery):
    raise StoreFullError("no room")


def test_a_hook_that_is_behind_keeps_few_deliveries_and_leaves_the_rest_in_the_log(
    deliveries, clock, monkeypatch
):
    monkeypatch.setattr(lines, "MOST_WAITING", 2)
    monkeypatch.setattr("rota.store.deliveries.PAGE", 1)
    monkeypatch.setattr("rota.store.deliveries.KEPT", 1)
    told, most = [], []

    async def send(hook, body):
        most.append(deliveries.counts("team").waiting)
        told.append(body)
        return Outcome(True, "200")

    with receiving() as receiver:
        deliveries.add(hook_for(receiver, "failed"))
        deliveries.store.append([FAILED._replace(at_s=2.0 + n) for n in range(7)])
        until_idle(line_of(deliveries, clock, send), clock)
    assert (len(told), len(set(told)), max(most)) == (7, 7, 2)
    assert deliveries.counts("team").delivered <= 1 + 2


def test_the_place_in_the_log_is_kept_where_nothing_is_told(deliveries, clock, monkeypatch):
    monkeypatch.setattr(lines, "PAGE", 3)
    with receiving() as receiver:
        deliveries.add(hook_for(receiver, "failed"))
        deliveries.store.append([RetryDue(1.0, 0)] * 4)
        until_idle(line_of(deliveries, clock), clock)
    assert deliveries.hooks()[0].cursor == 6


def test_what_is_wrong_with_a_hook_is_logged_and_tried_again(deliveries, clock, caplog):
    tries = []

    async def send(hook, body):
        tries.append(body)
        if len(tries) == 1:
            raise OSError("no more files")
        return Outcome(True, "200")

    async def run():
        line = line_of(deliveries, clock, send)
        running = asyncio.create_task(line.run())
        while len(tries) < 2:
            line.news.set()
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with receiving() as receiver:
        deliveries.add(hook_for(receiver, "failed"))
        deliveries.store.append([FAILED])
        asyncio.run(run())
    assert "hook team can't be served now" in caplog.text
    assert deliveries.counts("team").delivered == 1


def test_what_others_wrote_is_cut_and_stays_one_line_of_json(deliveries, clock):
    hostile = '<script>"\x1b[31m\u202e\n' + "x" * 1_000_000
    with receiving() as receiver:
        deliveries.add(hook_for(receiver, "ended", "attempt_lost", "sweep_ended"))
        deliveries.store.append(
            [
                FAILED._replace(message=hostile),
                AttemptLost(3.0, 0, 1, hostile),
                SweepEnded(4.0, "digits", "FAILED", hostile),
            ]
        )
        until_idle(line_of(deliveries, clock), clock)
        bodies = [body for _, body in receiver.calls]
        failed, lost, sweep = receiver.bodies()
    assert all(body.isascii() and len(body) < 20_000 and b"\n" not in body for body in bodies)
    assert failed["job"]["message"] == lost["job"]["message"] == hostile[:MAX_TEXT]
    assert (lost["event"], lost["job"]["attempt"]) == ("attempt_lost", 1)
    assert (sweep["sweep"]["name"], sweep["sweep"]["message"]) == ("digits", hostile[:MAX_TEXT])
