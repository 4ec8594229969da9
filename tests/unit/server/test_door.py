"""Whoever connects: strangers can't keep those out who have a token, nor hold on for ever."""

import asyncio
import contextlib
import json
import resource
import socket
import threading
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.sync.client import connect

from rota.server import door as door_module
from rota.server.auth import Tokens
from rota.server.door import Door, Limits, raise_open_files, usual_limits
from rota.server.guard import Guard
from support.served import NoMembers, StandInController, served

LONG_S = 1e6
HALF = b"GET /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "


class Transport:
    def __init__(self):
        self.closed = False

    def is_closing(self):
        return self.closed

    def abort(self):
        self.closed = True


def arrivals(door, count):
    transports = [Transport() for _ in range(count)]
    for transport in transports:
        door.enter(transport)
    return transports


def known_arrival(door):
    (transport,) = arrivals(door, 1)
    door.trust(transport)
    return transport


def test_one_too_many_closes_the_stranger_who_came_first_and_nobody_known():
    door = Door(Limits(most=100, most_strangers=2))
    known, (stranger,) = known_arrival(door), arrivals(door, 1)
    later = arrivals(door, 5)
    assert [each.closed for each in (known, stranger)] == [False, True]
    assert [each.closed for each in later] == [True] * 3 + [False] * 2


def test_who_has_left_is_forgotten():
    door = Door(Limits(most=3, most_strangers=1))
    known, (first,) = known_arrival(door), arrivals(door, 1)
    for each in (known, first, first):
        door.leave(each)
    arrivals(door, 1)
    assert not first.closed
    assert not known.closed


def test_who_has_left_makes_room():
    door = Door(Limits(most=3, most_strangers=2))
    known, (gone, stays) = known_arrival(door), arrivals(door, 2)
    gone.closed = True
    (last,) = arrivals(door, 1)
    assert not any(each.closed for each in (known, stays, last))


def test_those_with_a_token_may_take_every_place_and_then_nobody_else_comes_in():
    door = Door(Limits(most=3, most_strangers=2))
    known = [known_arrival(door) for _ in range(3)]
    late = arrivals(door, 2)
    assert not any(each.closed for each in known)
    assert all(each.closed for each in late)
    known[0].closed = True
    (next_one,) = arrivals(door, 1)
    assert not next_one.closed


@contextlib.contextmanager
def half_sent(url, count=1, text=HALF):
    address = urlsplit(url)
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            each = stack.enter_context(
                socket.create_connection((address.hostname, address.port), timeout=60)
            )
            each.sendall(text)
            sockets.append(each)
        yield sockets


def until_closed(sock):
    with contextlib.suppress(ConnectionResetError):
        assert sock.recv(1) == b""


def token(folder, kind="user"):
    path = folder.token if kind == "user" else folder.agent_token
    return {"Authorization": f"Bearer {path.read_text().strip()}"}


def test_half_sent_requests_keep_neither_users_nor_agents_out(folder):
    door = Door(Limits(most=100, most_strangers=8, head_timeout_s=LONG_S))
    with served(folder, door=door) as it:
        where = "ws" + it.url[4:] + "/agent/v1"
        with connect(where, additional_headers=token(folder, "agent"), proxy=None) as agent:
            with half_sent(it.url, 40) as sockets:
                for each in sockets[:32]:
                    until_closed(each)
                with httpx.Client(trust_env=False, headers=token(folder)) as client:
                    assert client.get(it.url + "/api/v1/jobs").status_code == 200
            agent.send("still here")
            assert agent.recv() == "welcome"
        assert it.controller.agents_said == ["still here"]


@pytest.mark.parametrize("sent", [b"", HALF], ids=["nothing", "half of the headers"])
def test_who_does_not_come_to_the_end_of_a_request_is_cut_off(folder, sent):
    door = Door(Limits(most=100, most_strangers=8, head_timeout_s=0.01))
    with served(folder, door=door) as it, half_sent(it.url, text=sent) as (caller,):
        until_closed(caller)


class EnteredDoor(Door):
    """Tells when somebody has connected."""

    def __init__(self, limits):
        super().__init__(limits)
        self.entered = threading.Event()

    def enter(self, transport):
        super().enter(transport)
        self.entered.set()


def test_a_request_that_came_while_the_controller_was_busy_is_answered(folder, monkeypatch):
    """The loop finds the request and its passed deadline in one turn."""
    door = EnteredDoor(Limits(most=100, most_strangers=8, head_timeout_s=1000.0))
    with served(folder, door=door) as it, half_sent(it.url, text=b"") as (caller,):
        assert door.entered.wait(60)

        def be_busy_for_long():
            caller.sendall(HALF + b"\r\n\r\n")
            loop = asyncio.get_running_loop()
            now_s = loop.time
            monkeypatch.setattr(loop, "time", lambda: now_s() + 2000.0)

        it.do(be_busy_for_long)
        assert caller.recv(9) == b"HTTP/1.1 "


def test_headers_without_end_are_not_read_to_their_end(folder):
    door = Door(Limits(most=100, most_strangers=8, head_timeout_s=LONG_S))
    with (
        served(folder, door=door) as it,
        half_sent(it.url) as (caller,),
        pytest.raises(ConnectionError),
    ):
        while True:
            caller.sendall(b"x" * (1 << 20))


def test_nor_may_a_second_request_take_its_time(folder):
    door = Door(Limits(most=100, most_strangers=8, head_timeout_s=LONG_S))

    class Hurried(StandInController):
        """From the first call on, callers have a moment."""

        def check(self, request):
            door.limits = door.limits._replace(head_timeout_s=0.01)
            super().check(request)

    body = json.dumps({"run": "true", "workdir": "/"})
    with served(folder, Hurried(folder), door=door) as it:
        lines = ["POST /api/v1/jobs?dry_run=true HTTP/1.1", f"Host: {urlsplit(it.url).netloc}"]
        lines += [f"Content-Length: {len(body)}", *map(": ".join, token(folder).items())]
        whole = "\r\n".join([*lines, "", body]).encode()
        with half_sent(it.url, text=whole + HALF) as (caller,):
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := caller.recv(4096):
                    answer += piece
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1") == 1


def test_a_body_that_does_not_come_is_answered_with_a_problem():
    class Asked:
        def has_asked(self, *, with_token):
            assert with_token

    async def call():
        sent = []

        async def receive():
            if sent_head:
                await asyncio.Event().wait()
            sent_head.append(True)
            return {"type": "http.request", "body": b"{", "more_body": True}

        async def send(message):
            sent.append(message)

        sent_head = []
        headers = [(b"host", b"localhost"), (b"authorization", b"Bearer right")]
        scope = {"type": "http", "path": "/api/v1/jobs", "headers": headers, "method": "POST"}
        scope["scheme"] = "http"
        guard = Guard(None, Tokens("right", "other"), NoMembers(), lambda: 0.0, body_timeout_s=0.01)
        await guard(scope | {"state": {"connection": Asked()}}, receive, send)
        return sent

    head, body = asyncio.run(call())
    assert head["status"] == 408
    assert "had not come within 0.01 s" in json.loads(body["body"])["detail"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1024, 4096), (4096, 4096)),
        ((1024, resource.RLIM_INFINITY), (door_module.MOST_FILES, resource.RLIM_INFINITY)),
        ((200_000, 1_000_000), None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None),
        ((64, 64), None),
    ],
)
def test_as_many_files_are_asked_for_as_there_may_be(monkeypatch, before, after):
    changed = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: before)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: changed.append(limits))
    assert raise_open_files() == before[0]
    assert changed == ([after] if after else [])


@pytest.mark.parametrize(
    ("files", "most", "strangers"), [(20_000, 19_872, 512), (1024, 896, 448), (64, 32, 16)]
)
def test_connections_leave_files_for_the_rest(monkeypatch, files, most, strangers):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert usual_limits()[:2] == (most, strangers)
