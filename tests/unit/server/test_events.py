"""The event stream over real sockets: order, secrets, places in the log, limits, slow readers."""

import asyncio
import json
import socket
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest

from rota.live.controller.lines import Lines
from rota.model.events import NodeClosed, NodeOpened
from rota.model.job import JobSpec
from rota.server import events, streams
from rota.server.events import Streams
from rota.server.telling import Teller
from rota.testing.store_contract import every_event
from support.sent_events import told
from support.served import NODE, controller_without_agents, served

JOB = {"run": "python train.py --key hush-1", "workdir": "/tmp", "env": {"TOKEN": "hush-2"}}
SWEEP = JOB | {
    "run": "python train.py --key hush-3 --lr {lr}",
    "name": "digits",
    "sweep": {
        "metric": "loss",
        "goal": "minimize",
        "algorithm": "random",
        "space": {"lr": {"log": [0.0001, 0.1]}},
        "max_trials": 2,
    },
}


async def _made(folder):
    return controller_without_agents(folder)


@pytest.fixture
def cluster(folder):
    with served(folder, asyncio.run(_made(folder))) as it:
        yield it


@contextmanager
def stream(http, after=None, **headers):
    """An iterator over (kind, cursor, data) of a stream."""
    params = {} if after is None else {"after": after}
    with http.stream("GET", "/api/v1/events", params=params, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield told(answer.iter_lines())


def close_and_open(cluster, times=1):
    """Events that no decision follows from but the first ones."""
    journal = cluster.controller.journal
    for _ in range(times):
        for event in (NodeClosed(1.0, NODE, user="ann"), NodeOpened(1.0, NODE, "ann")):
            cluster.do(partial(journal.write_first, event))


def test_events_are_told_in_order_from_a_number_on_and_then_as_they_come(cluster, http):
    http.post("/api/v1/jobs", json=JOB)
    with stream(http, after=0) as it:
        assert next(it)[0] == "begin"
        first = [next(it) for _ in range(4)]
        close_and_open(cluster)
        seen = [*first, *(next(it) for _ in range(3))]
    written = list(cluster.controller.record.store.load())
    assert [data["seq"] for _, _, data in seen] == [1, 2, 3, 4, 5, 6, 7]
    kinds = [type(event).__name__ for event in written]
    assert [data["kind"] for _, _, data in seen] == kinds[:7]
    submitted = next(data for _, _, data in seen if data["kind"] == "JobSubmitted")
    assert submitted["job_id"] == "1"
    assert submitted["lines"] == [{"job_id": "1", "line": "submitted"}]
    with stream(http, **{"Last-Event-ID": seen[4][1]}) as it:
        assert next(it)[2] == {"seq": 5}
        assert next(it)[2] == seen[5][2]


def test_a_stream_begins_with_the_next_event_where_the_last_answer_was(cluster, http):
    cursor = http.get("/api/v1/jobs").headers["rota-cursor"]
    number = cluster.controller.journal.written
    with stream(http) as now, stream(http, after=cursor) as then:
        assert next(now)[2] == next(then)[2] == {"seq": number}
        close_and_open(cluster)
        assert next(now) == next(then)


def test_secrets_of_requests_are_not_told(cluster, http):
    http.post("/api/v1/jobs", json=JOB).raise_for_status()
    http.post("/api/v1/sweeps", json=SWEEP).raise_for_status()
    http.post("/api/v1/sweeps/@last/trials", json={"number": 0, "params": {"lr": 0.1}})
    last = cluster.controller.journal.written
    with stream(http, after=0) as it:
        seen = []
        while not seen or seen[-1][2]["seq"] < last:
            seen.append(next(it))
    assert {"JobSubmitted", "SweepSubmitted"} <= {data.get("kind") for _, _, data in seen}
    assert "hush" not in json.dumps(seen)


def test_every_kind_of_event_can_be_told_without_the_memory_of_the_policy():
    state = SimpleNamespace(
        spec=[JobSpec(f"j{row}", 1, 0.0) for row in range(5000)],
        nodes=[SimpleNamespace(name=f"n{index}") for index in range(200)],
    )
    teller = Teller(SimpleNamespace(state=state, lines=Lines()))
    for event in every_event():
        data = teller.tell(1, event)
        back = msgspec.json.decode(msgspec.json.encode(data))
        assert back["kind"] == type(event).__name__
        assert back["at_s"] == event.at_s
        if hasattr(event, "row"):
            assert back["job_id"] == f"j{event.row}"
        assert not {"marks", "policy_mark", "spec", "request", "row"} & back["data"].keys()


@pytest.mark.parametrize("after", ["999999", "{identity}-999999", "{other}-1"])
def test_a_place_that_is_not_in_the_log_is_gone_and_the_answer_says_where_to_begin(
    cluster, http, after
):
    identity = cluster.controller.record.store.identity
    asked = after.format(identity=identity, other="0" * 32)
    answer = http.get("/api/v1/events", params={"after": asked})
    assert answer.status_code == 410
    told_ = answer.json()
    assert told_["code"] == "CursorError"
    assert told_["begin"] == f"{identity}-{cluster.controller.journal.written}"
    with stream(http, after=told_["begin"]) as it:
        assert next(it)[0] == "begin"


@pytest.mark.parametrize("after", ["-1", "1.5", "x", "٣", "1\n", "1" * 99])
def test_what_is_no_place_is_refused(http, after):
    answer = http.get("/api/v1/events", params={"after": after})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("after: ")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://elsewhere.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "rebound.example"}, 421),
        ({"Authorization": "Bearer wrong"}, 401),
    ],
)
def test_other_sites_and_strangers_get_no_stream(http, headers, status):
    assert http.get("/api/v1/events", headers=headers).status_code == status


def test_there_are_as_many_streams_as_there_may_be(cluster, http, monkeypatch):
    monkeypatch.setattr(streams, "MOST_OF_ONE", 2)
    monkeypatch.setattr(streams, "MOST_STREAMS", 3)
    ann, bob = {"Rota-User": "ann"}, {"Rota-User": "bob"}
    with stream(http, **ann) as one:
        next(one)
        with stream(http, **ann) as two:
            next(two)
            answer = http.get("/api/v1/events", headers=ann)
            assert (answer.status_code, answer.json()["code"]) == (429, "BusyError")
            assert answer.headers["retry-after"] == "5"
            with stream(http, **bob) as three:
                next(three)
                assert http.get("/api/v1/events", headers={"Rota-User": "eve"}).status_code == 429
        close_and_open(cluster)  # whoever has gone is missed at the next write at the latest
        assert next(one)[0] == "logged"


def test_who_reconnects_all_the_time_is_refused_and_others_are_not(cluster, http, monkeypatch):
    monkeypatch.setattr(streams, "MOST_OF_ONE", 5)
    monkeypatch.setattr(streams, "BEGINS_PER_S", 0.001)
    ann = {"Rota-User": "ann"}
    statuses = []
    for _ in range(20):
        with http.stream("GET", "/api/v1/events", headers=ann) as answer:
            statuses.append(answer.status_code)
    assert statuses[0] == 200
    assert statuses[-1] == 429
    assert statuses.count(200) <= 7
    with stream(http, **{"Rota-User": "bob"}) as it:
        assert next(it)[0] == "begin"


def test_streams_end_with_the_controller(folder):
    with served(folder, asyncio.run(_made(folder))) as it:
        headers = {"Authorization": f"Bearer {folder.token.read_text().strip()}"}
        http = httpx.Client(base_url=it.url, headers=headers, trust_env=False)
        with http, stream(http) as told_:
            next(told_)
            it.stop()
            assert list(told_) == []


def test_who_takes_nothing_is_cut_off_and_little_is_kept_for_it(cluster, folder, monkeypatch):
    monkeypatch.setattr(streams, "STALL_S", 0.2)
    monkeypatch.setattr(events, "MOST_KEPT", 8)
    token, address = folder.token.read_text().strip(), urlsplit(cluster.url)
    with socket.create_connection((address.hostname, address.port)) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"GET /api/v1/events?after=0 HTTP/1.1\r\nHost: {address.netloc}\r\n"
        reader.sendall(f"{head}Authorization: Bearer {token}\r\n\r\n".encode())
        assert reader.recv(12) == b"HTTP/1.1 200"
        wide = NodeClosed(1.0, NODE, user="x" * 200_000)
        told_of = cluster.controller.journal.on_written.__self__
        for _ in range(60):
            cluster.do(partial(cluster.controller.journal.write_first, wide))
        while cluster.do(lambda: len(told_of.places)):
            pass
        assert cluster.do(lambda: len(told_of._kept)) == 0


# -- one stream, read step by step in the controller's own loop ------------------------------------


class ByHand:
    """The streams of a controller that nobody serves."""

    def __init__(self, folder):
        self.controller = controller_without_agents(folder)
        self.streams = Streams(self.controller)
        self.leave = self.streams.enter("ann")

    def happen(self, times):
        for _ in range(times):
            self.controller.journal.write_first(NodeOpened(1.0, NODE, "ann"))

    def reports(self, row, **progress):
        self.controller.record.latest[row] = progress
        self.controller.telemetry.on_progress(row)

    async def encoded(self):
        """Wait until all that has happened is kept."""
        while self.streams._head < self.controller.journal.written:
            await self.streams._bell.wait()


def by_hand(folder, story):
    """Run ``story`` on streams by hand, and leave nothing open."""

    async def main():
        it = ByHand(folder)
        try:
            async with asyncio.timeout(60):
                await story(it)
        finally:
            it.leave()
            it.streams.close()
            it.controller.record.store.close()

    asyncio.run(main())


async def values(reading):
    """(kind, data) of the next chunk of a stream that has any."""
    while True:
        found = [
            (kind, data) for kind, _, data in told((await anext(reading)).decode().split("\n"))
        ]
        if found:
            return found


def test_a_stream_that_falls_behind_is_told_to_read_anew(folder, monkeypatch):
    monkeypatch.setattr(events, "MOST_KEPT", 4)

    async def story(it):
        place = it.controller.journal.written
        slow, quick = it.streams.stream(place), it.streams.stream(place)
        for reading in (slow, quick):
            assert await values(reading) == [("begin", {"seq": place})]
        it.happen(1)
        for reading in (slow, quick):
            assert [data["seq"] for _, data in await values(reading)] == [place + 1]
        it.happen(10)
        await it.encoded()
        assert len(it.streams._kept) == 4
        assert await values(slow) == [("resync", {"seq": place + 11})]
        it.happen(1)
        assert [data["seq"] for _, data in await values(slow)] == [place + 12]

    by_hand(folder, story)


def test_a_stream_that_begins_long_ago_misses_nothing(folder, monkeypatch):
    monkeypatch.setattr(events, "MOST_KEPT", 4)
    monkeypatch.setattr(events, "PAGE", 3)

    async def story(it):
        it.happen(10)
        await it.encoded()
        reading, seen = it.streams.stream(0), []
        assert await values(reading) == [("begin", {"seq": 0})]
        while len(seen) < 16:
            if len(seen) == 3:
                it.happen(5)
            seen += [data["seq"] for _, data in await values(reading)]
        assert seen == [*range(1, 17)]

    by_hand(folder, story)


def test_what_is_kept_is_bounded_in_bytes(folder, monkeypatch):
    monkeypatch.setattr(events, "MOST_KEPT_BYTES", 1000)

    async def story(it):
        it.happen(50)
        await it.encoded()
        assert 0 < it.streams._kept_bytes <= 1000
        assert sum(len(kept.data) for kept in it.streams._kept) == it.streams._kept_bytes

    by_hand(folder, story)


def test_the_newest_progress_wins_and_comes_no_more_often_than_it_may(folder, monkeypatch):
    monkeypatch.setattr(events, "NEWS_EVERY_S", 3600.0)
    monkeypatch.setattr(events, "PACE_S", 0.0)

    async def story(it):
        it.controller.state.spec.append(JobSpec("7", 1, 0.0))
        reading = it.streams.stream(it.controller.journal.written)
        await values(reading)
        for step in (1, 2, 3):
            it.reports(0, step=step, loss=float("nan"))
        news = ("progress", {"job_id": "7", "progress": {"step": 3, "loss": None}})
        assert await values(reading) == [news]
        it.reports(0, step=4)
        it.happen(1)
        assert [kind for kind, _ in await values(reading)] == ["logged"]
        monkeypatch.setattr(events, "NEWS_EVERY_S", 0.0)
        ((kind, data),) = await values(reading)
        assert (kind, data["progress"]) == ("progress", {"step": 4})

    by_hand(folder, story)


@pytest.mark.parametrize("value", ["\ud800", 10**30, {"a": "\udfff"}])
def test_progress_that_is_hard_to_write_is_told_all_the_same(folder, value):
    async def story(it):
        it.controller.state.spec.append(JobSpec("7", 1, 0.0))
        reading = it.streams.stream(it.controller.journal.written)
        await values(reading)
        it.reports(0, metrics=value)
        ((_, data),) = await values(reading)
        assert data["progress"] == {"metrics": value}

    by_hand(folder, story)


def test_streams_end_if_events_cannot_be_told_and_can_begin_again(folder, monkeypatch):
    async def story(it):
        reading = it.streams.stream(it.controller.journal.written)
        await values(reading)
        with monkeypatch.context() as patch:
            patch.setattr(Teller, "tell", lambda *args: 1 / 0)
            it.happen(1)
            assert [chunk async for chunk in reading] == []
        leave = it.streams.enter("bob")
        again = it.streams.stream(0)
        await values(again)
        assert (await values(again))[0][1]["seq"] == 1
        leave()

    by_hand(folder, story)
