"""Pieces go directly from one agent to another, to who shows a ticket and to nobody else."""

import asyncio
import contextlib
import os
import socket
import ssl
import zlib

import pytest

from rota.live.agent import direct_link, piece_server
from rota.live.agent.direct_link import DirectLink, fetch_directly
from rota.live.agent.piece_server import MOST_STRANGERS, PieceServer
from rota.live.wire import PIECE_BYTES, pieces
from rota.live.wire.pieces import LENGTH, framed, read_frame
from rota.server.tls import certifier

KEY, OTHER = ("7", 1), ("8", 1)
DATA = os.urandom(3 * PIECE_BYTES + 1000)
CERTIFY = certifier()


class Source:
    """An agent that hands out the bytes of each file of its attempts."""

    def __init__(self):
        self.asked, self.tasks = [], set()
        self.server = PieceServer(None, self.answer, self.spawn)
        self.certificate, key = CERTIFY("source")
        self.port = self.server.listen("127.0.0.1")
        self.server.begin(self.certificate, key)

    def spawn(self, coroutine):
        task = asyncio.ensure_future(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def answer(self, key, question):
        self.asked.append((key, question))
        piece = DATA[question["offset"] :][:PIECE_BYTES]
        return {**question, "checksum": zlib.crc32(piece)}, piece

    def ticket(self, secret, **more):
        place = {"host": "127.0.0.1", "port": self.port, "certificate": self.certificate}
        return place | {"ticket": secret} | more

    async def serves(self):
        """True if somebody with a new ticket gets a piece."""
        self.server.admit(OTHER, "another secret")
        arrival = Arrival()
        task = self.spawn(fetch_directly(arrival, self.ticket("another secret")))
        (message, piece) = await arrival.gets(0)
        await ended(task)
        return message["checksum"] == zlib.crc32(piece) and piece == DATA[:PIECE_BYTES]


class Arrival:
    """What a link knows of an arrival."""

    job_id, source = "7", "source"

    def __init__(self):
        self.way, self.ways, self.got = None, [], asyncio.Queue()

    def go_by(self, way):
        self.way = way
        self.ways.append(way is not None)

    def heard(self, message, piece):
        self.got.put_nowait((message, piece))

    async def gets(self, offset):
        await until(lambda: self.way is not None)
        self.way({"type": "fetch", "file": "a", "offset": offset, "job_id": "7"})
        return await asyncio.wait_for(self.got.get(), 20)


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def ended(task):
    task.cancel()
    await asyncio.wait([task])


def story(told):
    """A test of a source, after which nothing of it is left."""

    def test(monkeypatch):
        monkeypatch.setattr(direct_link, "PAUSES_S", (0.0, 0.05))

        async def main():
            source = Source()
            try:
                await told(source, monkeypatch)
            finally:
                source.server.close()
                for task in list(source.tasks):
                    await ended(task)

        asyncio.run(main())

    test.__name__ = test.__qualname__ = told.__name__
    return test


@story
async def test_pieces_come_directly_to_who_shows_the_ticket(source, _):
    source.server.admit(KEY, "secret")
    arrival = Arrival()
    task = source.spawn(fetch_directly(arrival, source.ticket("secret")))
    for offset in range(0, len(DATA), PIECE_BYTES):
        message, piece = await arrival.gets(offset)
        assert message == {"file": "a", "offset": offset, "checksum": zlib.crc32(piece)}
        assert piece == DATA[offset:][:PIECE_BYTES]
    assert {key for key, _ in source.asked} == {KEY}
    await ended(task)
    assert arrival.ways == [True, False]


async def refused(source, **ticket):
    """A ticket that is not good gets one refusal, and nothing else."""
    context = ssl.create_default_context(cadata=source.certificate)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    reader, writer = await asyncio.open_connection("127.0.0.1", source.port, ssl=context)
    writer.writelines(framed({"type": "ticket", **ticket}))
    question = {"type": "fetch", "job_id": "7", "attempt": 1, "file": "a", "offset": 0}
    writer.writelines(framed(question))
    assert await read_frame(reader, 1000) == ({"type": "refused"}, b"")
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    assert source.asked == []


@story
async def test_guessed_used_old_and_revoked_tickets_are_refused_and_get_nothing(source, patch):
    await refused(source, ticket="secret")
    source.server.admit(KEY, "secret")
    for guess in ("", "secre", "secret ", None, 7, ["secret"], "é\ud800"):
        await refused(source, ticket=guess)
    await refused(source)
    link = await DirectLink.open(source.ticket("secret"))
    await refused(source, ticket="secret")  # used, while its connection is open
    link.close()
    await refused(source, ticket="secret")  # and afterwards
    source.server.admit(KEY, "second")
    source.server.admit(KEY, "third")
    await refused(source, ticket="second")
    source.server.admit(KEY, None)
    await refused(source, ticket="third")
    patch.setattr(piece_server, "GOOD_S", 0.0)
    source.server.admit(KEY, "fourth")
    await refused(source, ticket="fourth")
    source.server.admit(KEY, "fifth")
    source.server.begin(*CERTIFY("source"))  # another conversation with the controller


@story
async def test_a_ticket_gives_the_files_of_its_own_attempt_whatever_is_asked(source, _):
    source.server.admit(OTHER, "other")
    link = await DirectLink.open(source.ticket("other"))
    link._writer.writelines(
        framed({"type": "fetch", "job_id": "7", "attempt": 1, "file": "a", "offset": 0})
    )
    await until(lambda: source.asked)
    assert source.asked == [(OTHER, {"file": "a", "offset": 0})]
    link.close()


@pytest.mark.parametrize("how", ["revoked", "another ticket", "another hello", "the agent ends"])
def test_a_connection_ends_with_its_ticket(how, monkeypatch):
    @story
    async def it(source, _):
        source.server.admit(KEY, "secret")
        arrival = Arrival()
        task = source.spawn(fetch_directly(arrival, source.ticket("secret")))
        await arrival.gets(0)
        match how:
            case "revoked":
                source.server.admit(KEY, None)
            case "another ticket":
                source.server.admit(KEY, "new")
            case "another hello":
                source.server.begin(*CERTIFY("source"))
            case _:
                source.server.close()
        arrival.way({"type": "fetch", "file": "a", "offset": 0})
        await asyncio.wait([task], timeout=20)
        assert task.done()
        assert arrival.ways == [True, False]
        assert len(source.asked) == 1

    it(monkeypatch)


@story
async def test_another_certificate_than_the_tickets_gets_no_ticket(source, _):
    source.server.admit(KEY, "secret")
    arrival, (other, _) = Arrival(), CERTIFY("source")
    await fetch_directly(arrival, source.ticket("secret", certificate=other))
    assert arrival.ways == []
    assert "7" in {key[0] for key in source.server._tickets}  # nobody has used it up


@story
async def test_a_ticket_that_the_other_agent_hears_of_later_is_shown_again(source, patch):
    patch.setattr(direct_link, "PAUSES_S", (0.0, *[0.3] * 100))  # it may hear of it much later
    arrival = Arrival()
    task = source.spawn(fetch_directly(arrival, source.ticket("secret")))
    await until(lambda: source.server._strangers)
    source.server.admit(KEY, "secret")
    assert (await arrival.gets(0))[1] == DATA[:PIECE_BYTES]
    await ended(task)


@story
async def test_where_nobody_listens_the_controllers_way_stays(source, _):
    arrival = Arrival()
    source.server.close()
    await fetch_directly(arrival, source.ticket("secret"))
    assert arrival.ways == []


@story
async def test_an_agent_that_falls_silent_or_tells_garbage_is_left(source, _):
    silent, garbage = asyncio.Event(), [{"file": "a", "offset": "0"}, {"type": 1}, {}]

    async def answer(key, question):
        if garbage:
            return garbage.pop(), b""
        await silent.wait()

    source.server._answer = answer
    for secret in "abcd":
        source.server.admit(KEY, secret)
        arrival = Arrival()
        task = source.spawn(fetch_directly(arrival, source.ticket(secret)))
        with pytest.MonkeyPatch.context() as once_connected:
            await until(lambda arrival=arrival: arrival.way)
            once_connected.setattr(pieces, "STALL_S", 0.05)
            arrival.way({"type": "fetch", "file": "a", "offset": 0})
            await asyncio.wait([task], timeout=20)
        assert arrival.ways == [True, False]
        assert arrival.got.empty()
        source.server.admit(KEY, None)


@pytest.mark.parametrize(
    "sent",
    [
        LENGTH.pack(1 << 31),
        LENGTH.pack(5) + b"hello",
        LENGTH.pack(2) + b"1\n",
        b"".join(framed({"type": "fetch", "file": "a", "offset": -1})),
        b"".join(framed({"type": "fetch", "file": "a", "offset": True})),
        b"".join(framed({"type": "fetch", "file": 1, "offset": 0})),
        b"".join(framed({"type": "fetch", "want": "state"})),
    ],
    ids=["too long", "no line", "no message", "before", "no number", "no file", "state"],
)
def test_who_asks_for_no_piece_is_left(sent, monkeypatch):
    @story
    async def it(source, _):
        source.server.admit(KEY, "secret")
        link = await DirectLink.open(source.ticket("secret"))
        link._writer.write(sent)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(link._reader.read(), 20) == b""
        link.close()
        assert source.asked == []
        assert await source.serves()

    it(monkeypatch)


@story
async def test_who_never_reads_is_left(source, patch):
    patch.setattr(piece_server, "SEND_S", 0.1)
    source.server.admit(KEY, "secret")
    link = await DirectLink.open(source.ticket("secret"))
    link._writer.transport.pause_reading()
    for _ in range(100):
        link._writer.writelines(framed({"type": "fetch", "file": "a", "offset": 0}))
    await until(lambda: KEY not in source.server._admitted)
    assert len(source.asked) < 20
    assert await source.serves()
    link.close()


@story
async def test_a_crowd_without_tickets_takes_few_places_and_no_time(source, patch):
    patch.setattr(piece_server, "CROWDED_PAUSE_S", 0.001)
    crowd, most = [], 0
    for number in range(1000):
        raw = socket.socket()
        raw.setblocking(False)
        raw.connect_ex(("127.0.0.1", source.port))
        crowd.append(raw)
        await asyncio.sleep(0.001)
        if number % 2:
            with contextlib.suppress(OSError):
                raw.send(b"\x16\x03\x01\x00\xf8"[: number % 6])  # a part of a handshake
        most = max(most, len(source.server._strangers))
    await until(lambda: len(source.server._strangers) <= MOST_STRANGERS)
    assert most <= MOST_STRANGERS + 1
    for raw in crowd:
        raw.close()
    assert await source.serves()


@story
async def test_half_a_handshake_and_no_ticket_end_by_themselves(source, patch):
    patch.setattr(piece_server, "TICKET_S", 0.1)
    context = ssl.create_default_context(cadata=source.certificate)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    reader, writer = await asyncio.open_connection("127.0.0.1", source.port)
    writer.write(b"\x16\x03\x01")
    quiet, other = await asyncio.open_connection("127.0.0.1", source.port, ssl=context)
    for each in (reader, quiet):
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(each.read(), 20) == b""
    await until(lambda: not source.server._strangers)
    writer.close()
    other.close()


def test_an_agent_may_listen_nowhere_or_on_a_port_that_is_taken(caplog):
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            assert PieceServer(port, None, None).listen("127.0.0.1") is None
            assert f"127.0.0.1 port {port}" in caplog.text
        assert PieceServer(0, None, None).listen("127.0.0.1") is None
        assert PieceServer(None, None, None).listen("") is None  # on the controller's machine
        server = PieceServer(port, None, None)
        assert server.listen("127.0.0.1") == port == server.listen("127.0.0.1")
        server.begin(None, None)  # a controller that makes no certificates
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))

    asyncio.run(main())
