"""A job's output as it is printed: where it goes on, how it ends, and what is refused."""

import threading
from contextlib import contextmanager

import pytest

from rota.errors import AgentAwayError
from rota.live.wire.questions import NoAnswer
from rota.model.events import AttemptLost, JobFinished
from rota.model.job import JobState
from rota.server import log_stream
from support.sent_events import told

JOB = {"run": "python train.py", "workdir": "/tmp"}


@pytest.fixture(autouse=True)
def asks_often(monkeypatch):
    """Have streams look for the end of a job often: nobody tells those of a stand-in of it."""
    monkeypatch.setattr(log_stream, "HELD_S", 0.2)


@pytest.fixture
def running(cluster, http):
    http.post("/api/v1/jobs", json=JOB).raise_for_status()
    cluster.do(cluster.controller.turn)
    return cluster


@contextmanager
def stream(http, place=None, **params):
    headers = {} if place is None else {"Last-Event-ID": place}
    path = "/api/v1/jobs/1/logs/stream"
    with http.stream("GET", path, params=params, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        yield told(answer.iter_lines())


def finish(cluster):
    cluster.apply(JobFinished(cluster.controller.now_s(), 0, JobState.SUCCEEDED, 0))


def test_output_is_told_as_it_is_printed_until_the_job_ends(running, http):
    running.write_log(0, b"one\n")
    with stream(http) as it:
        assert next(it)[2]["text"] == "one\n"
        running.write_log(0, b"two\n")
        kind, place, data = next(it)
        assert (kind, place, data["text"], data["offset"]) == ("piece", "1.0.8", "two\n", 4)
        finish(running)
        assert list(it) == [("end", None, {"state": "SUCCEEDED"})]
    with stream(http, "1.0.4") as it:
        assert [data.get("text") for _, _, data in it] == ["two\n", None]


def test_a_stream_goes_through_attempts_and_one_of_an_attempt_ends_with_it(running, http):
    running.write_log(0, b"first\n")
    with stream(http) as it:
        assert next(it)[1] == "1.0.6"
        running.apply(AttemptLost(running.controller.now_s(), 0, 1, "its agent died"))
        running.do(running.controller.turn)
        running.write_log(0, b"second\n")
        assert [(place, data["text"]) for _, place, data in [next(it)]] == [("2.0.7", "second\n")]
        finish(running)
        assert [kind for kind, _, _ in it] == ["end"]
    with stream(http, attempt=1) as it:
        assert [kind for kind, _, _ in it] == ["piece", "end"]


def test_an_agent_that_is_away_is_told_of_and_waited_for(running, http, monkeypatch):
    monkeypatch.setattr(log_stream, "AGAIN_S", 0.0)
    running.write_log(0, b"one\n")
    ask, is_away = running.controller.ask, threading.Event()

    async def away(*args):
        if is_away.is_set():
            raise AgentAwayError("the agent of node here is not connected")
        return await ask(*args)

    monkeypatch.setattr(running.controller, "ask", away)
    with stream(http) as it:
        next(it)
        is_away.set()
        _, _, data = next(each for each in it if each[0] == "away")
        assert "not connected" in data["detail"]
        running.write_log(0, b"two\n")
        is_away.clear()
        assert next(each for each in it if each[0] == "piece")[2]["text"] == "two\n"


def test_an_output_that_goes_meanwhile_ends_the_stream_with_the_reason(running, http):
    running.write_log(0, b"one\n")
    with stream(http) as it:
        next(it)
        running.write_ranks(0, [1], leaders=[0])
        running.log_path(0).parent.rename(running.log_path(0).parent.with_name("gone"))
        ((kind, _, data),) = it
    assert kind == "error"
    assert data["code"] == "NotFoundError"


@pytest.mark.parametrize(
    ("place", "params", "status"),
    [
        (None, {"attempt": 9}, 404),
        (None, {"rank": -1}, 422),
        ("x", {}, 422),
        ("1.0", {}, 422),
        ("9.0.0", {}, 404),
        ("1.0.0,1.1.0", {}, 422),
        ("1.0.0,s", {"system": True}, 422),
    ],
)
def test_what_there_is_not_is_refused(running, http, place, params, status):
    headers = {} if place is None else {"Last-Event-ID": place}
    answer = http.get("/api/v1/jobs/1/logs/stream", params=params, headers=headers)
    assert answer.status_code == status


def test_one_stream_has_all_ranks_and_the_story_and_goes_on_where_it_was(cluster, http):
    http.post("/api/v1/jobs", json=JOB | {"resources": {"gpus": 2}}).raise_for_status()
    cluster.do(cluster.controller.turn)
    cluster.write_ranks(0, [0, 1])
    cluster.write_log(0, b"a\n", rank=0)
    both = {"rank": "all", "system": "true"}
    with stream(http, **both) as it:
        first = [next(it) for _ in range(3)]
        assert [data["line"] for kind, _, data in first if kind == "story"] == [
            "submitted",
            "started",
        ]
        cluster.write_log(0, b"b\n", rank=1)
        kind, place, data = next(it)
        assert (kind, place, data["rank"], data["text"]) == ("piece", "1.0.2,1.1.2,s2", 1, "b\n")
    cluster.write_log(0, b"c\n", rank=0)
    with stream(http, place, **both) as it:
        assert next(it)[2]["text"] == "c\n"
        cluster.write_log(0, b"d\n", rank=1)
        finish(cluster)
        *printed, story, end = it
        assert [data["text"] for _, _, data in printed] == ["d\n"]
        assert (story[0], story[2]["line"], end[0]) == ("story", "succeeded", "end")


def test_a_rank_that_an_elastic_job_gets_later_is_followed_too(cluster, http, monkeypatch):
    ask, lacking = cluster.controller.ask, threading.Event()

    async def asked(*args):
        found = await ask(*args)
        if isinstance(found, NoAnswer):
            lacking.set()
        return found

    monkeypatch.setattr(cluster.controller, "ask", asked)
    elastic = {"resources": {"gpus": "1..2"}}
    http.post("/api/v1/jobs", json=JOB | elastic).raise_for_status()
    cluster.do(cluster.controller.turn)
    cluster.write_ranks(0, [0])
    cluster.write_log(0, b"a\n")
    with stream(http, rank="all") as it:
        assert next(it)[2]["text"] == "a\n"
        assert lacking.wait(30)
        cluster.apply(AttemptLost(cluster.controller.now_s(), 0, 1, "its agent died"))
        cluster.do(cluster.controller.turn)
        cluster.write_ranks(0, [0, 1])
        cluster.write_log(0, b"b\n", rank=1)
        cluster.do(cluster.controller.on_written)
        kind, _, data = next(it)
        assert (kind, data["attempt"], data["rank"], data["text"]) == ("piece", 2, 1, "b\n")
        finish(cluster)
        cluster.do(cluster.controller.on_written)
        assert [kind for kind, _, _ in it] == ["end"]


def test_streams_of_outputs_and_of_events_share_their_places(running, http, monkeypatch):
    monkeypatch.setattr("rota.server.streams.MOST_OF_ONE", 1)
    running.write_log(0, b"one\n")
    with stream(http) as it:
        next(it)
        assert http.get("/api/v1/events").status_code == 429
        assert http.get("/api/v1/jobs/1/logs/stream").status_code == 429


def test_what_is_there_by_now_is_told_without_a_place(running, http, monkeypatch):
    monkeypatch.setattr("rota.server.streams.MOST_OF_ONE", 0)
    running.write_log(0, b"one\n")
    with stream(http, once=True, rank="all", system=True) as it:
        first = list(it)
    assert [data["text"] for kind, _, data in first if kind == "piece"] == ["one\n"]
    assert not any(kind == "end" for kind, _, _ in first)
    place = first[-1][1]
    with stream(http, place, once=True, rank="all", system=True) as it:
        assert list(it) == []
    running.write_log(0, b"two\n")
    finish(running)
    with stream(http, place, once=True, rank="all", system=True) as it:
        *pieces, end = it
    assert [data["text"] for kind, _, data in pieces if kind == "piece"] == ["two\n"]
    assert (end[0], end[2]) == ("end", {"state": "SUCCEEDED"})


def test_what_is_told_at_once_is_bounded_and_goes_on_at_its_place(running, http, monkeypatch):
    monkeypatch.setattr("rota.server.log_stream.MOST_PIECES_AT_ONCE", 2)
    monkeypatch.setattr("rota.server.log_stream.PIECE_BYTES", 4)
    running.write_log(0, b"one\ntwo\nsix\n")
    with stream(http, once=True) as it:
        told = list(it)
    assert "".join(data["text"] for _, _, data in told) == "one\ntwo\n"
    with stream(http, told[-1][1], once=True) as it:
        assert [data["text"] for _, _, data in it] == ["six\n"]
