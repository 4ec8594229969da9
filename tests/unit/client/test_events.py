"""Events through the client: typed, and followed through restarts of the controller."""

import asyncio
import math
import threading
from contextlib import ExitStack
from functools import partial
from itertools import islice
from urllib.parse import urlsplit

import pytest

from rota.client.client import Client
from rota.client.events import Busy, Connected, Disconnected, Line, Logged, Progress, Resync
from rota.errors import AuthError, BusyError, CursorError, InputError, UnreachableError
from rota.folder import Folder
from rota.model.events import NodeOpened
from rota.server import streams
from support.served import NODE, controller_without_agents, served

JOB = {"run": "true", "workdir": "/tmp"}


async def _made(folder):
    return controller_without_agents(folder)


class Restarted:
    """A controller that can be ended and started again, also on another folder."""

    def __init__(self):
        self._port = 0

    def start(self, folder):
        self._now = ExitStack()
        controller = asyncio.run(_made(folder))
        self.cluster = self._now.enter_context(served(folder, controller, port=self._port))
        self._port = urlsplit(self.cluster.url).port
        return self

    def stop(self):
        self._now.close()

    def happen(self, times=1):
        for _ in range(times):
            journal = self.cluster.controller.journal
            self.cluster.do(partial(journal.write_first, NodeOpened(1.0, NODE, "ann")))


@pytest.fixture
def restarted(folder):
    it = Restarted().start(folder)
    yield it
    it.stop()


@pytest.fixture
def client(restarted, folder):
    with Client(folder=folder) as it:
        yield it


def logged(seen):
    return [each.seq for each in seen if isinstance(each, Logged)]


def test_events_are_typed_and_go_on_where_the_last_loop_ended(client, restarted):
    job = client.submit(JOB)["id"]
    told = client.events(after=0)
    first = list(islice(told, 4))
    assert isinstance(first[0], Connected)
    assert first[1][:4] == (1, first[1].at_s, "NodeJoined", None)
    assert first[1].data["name"] == NODE
    submitted = next(each for each in client.events(after=1) if isinstance(each, Logged))
    assert submitted.seq == 2
    every = [*first[1:], *(each for each in islice(told, 3) if isinstance(each, Logged))]
    assert logged(every) == [1, 2, 3, 4, 5]
    (submitted,) = (each for each in every if each.kind == "JobSubmitted")
    assert (submitted.job_id, submitted.lines) == (job, (Line(job, "submitted"),))
    assert submitted.sentence == "submitted"
    assert every[0].sentence is None
    assert told.cursor == every[-1].cursor


def test_what_is_read_and_what_happens_afterwards_leave_no_gap(client, restarted):
    jobs = client.jobs()
    told = iter(client.events(after=client.cursor))
    begin = next(told)
    assert (jobs, begin.cursor) == ([], client.cursor)
    restarted.happen()
    assert next(told).seq == begin.seq + 1


def test_a_restart_of_the_controller_leaves_no_gap_and_no_repeat(client, restarted, folder):
    told, seen = iter(client.events(after=0)), []
    seen += islice(told, 3)
    restarted.happen(3)
    restarted.stop()
    starter = threading.Thread(target=restarted.start, args=(folder,))
    for each in told:
        seen.append(each)
        if isinstance(each, Disconnected):
            starter.start()
        if isinstance(each, Connected) and len(seen) > 1:
            break
    starter.join()
    restarted.happen(2)
    last = restarted.cluster.controller.journal.written
    while logged(seen)[-1] < last:
        seen.append(next(told))
    assert logged(seen) == [*range(1, last + 1)]
    links = [each for each in seen if isinstance(each, Connected | Disconnected)]
    assert [type(each) for each in links] == [Connected, Disconnected, Connected]
    assert links[2].seq < last


def test_events_asynchronously(client, restarted, folder):
    async def read():
        seen = []
        async for each in client.events(after=0):
            seen.append(each)
            if isinstance(each, Logged) and each.seq == 2:
                await asyncio.to_thread(restarted.stop)
            elif isinstance(each, Disconnected):
                await asyncio.to_thread(restarted.start, folder)
            elif isinstance(each, Connected) and len(seen) > 1:
                await asyncio.to_thread(restarted.happen)
            elif isinstance(each, Logged) and each.kind == "NodeOpened":
                return seen

    seen = asyncio.run(read())
    assert logged(seen) == [*range(1, logged(seen)[-1] + 1)]


def test_another_log_after_a_restart_is_read_anew(client, restarted, folder, tmp_path):
    restarted.happen(5)
    told = iter(client.events())
    next(told)
    restarted.stop()
    other = Folder(tmp_path / "other").create()
    other.token.write_text(folder.token.read_text())
    other.token.chmod(0o600)
    restarted.start(other)
    folder.server.write_text(other.server.read_text())
    seen = [next(told) for _ in range(3)]
    assert [type(each) for each in seen] == [Disconnected, Resync, Connected]
    assert seen[1].cursor == seen[2].cursor
    assert seen[1].cursor.startswith(restarted.cluster.controller.record.store.identity)


def test_a_place_that_is_not_there_is_refused_at_first(client):
    with pytest.raises(CursorError, match="has not happened") as error:
        next(iter(client.events(after=10**6)))
    assert isinstance(next(iter(client.events(after=error.value.begin))), Connected)
    with pytest.raises(InputError, match="after: 'x'"):
        next(iter(client.events(after="x")))


def test_a_wrong_token_is_refused(restarted, folder):
    client = Client(url=restarted.cluster.url, token="rota-user-wrong")
    with client, pytest.raises(AuthError):
        next(iter(client.events()))


def test_nobody_there_is_an_error_once_patience_is_over(client, restarted):
    told = iter(client.events(patience_s=0.0))
    next(told)
    restarted.stop()
    with pytest.raises(UnreachableError):
        list(told)
    restarted.start(restarted.cluster.folder)


def test_too_many_streams_are_an_error_once_patience_is_over(client, monkeypatch):
    monkeypatch.setattr(streams, "MOST_STREAMS", 1)
    held = iter(client.events())
    next(held)
    with pytest.raises(BusyError, match="1 in all") as error:
        next(iter(client.events(patience_s=0.0)))
    assert math.isclose(error.value.retry_after_s, streams.PATIENCE_S)


def test_a_stream_without_a_place_says_so_again_and_again_and_then_begins(client, monkeypatch):
    monkeypatch.setattr(streams, "MOST_STREAMS", 0)
    monkeypatch.setattr(streams, "PATIENCE_S", 0.0)
    told = iter(client.events(busy=True))
    assert [type(next(told)) for _ in range(3)] == [Busy] * 3
    monkeypatch.setattr(streams, "MOST_STREAMS", 1)
    while isinstance(each := next(told), Busy):
        pass
    assert isinstance(each, Connected)


def test_news_of_progress(client, restarted):
    job = client.submit(JOB)["id"]
    told = iter(client.events())
    next(told)

    def report():
        controller = restarted.cluster.controller
        controller.record.latest[0] = {"step": 3}
        controller.telemetry.on_progress(0)

    restarted.cluster.do(report)
    assert next(each for each in told if isinstance(each, Progress)) == Progress(job, {"step": 3})
