import asyncio
import json
import signal
import sys
import threading
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from rota.errors import AgentError
from rota.folder import Folder
from rota.live.agent import migrate_in as arrival_module
from rota.live.agent.devices import Devices
from rota.live.agent.migrate_in import ASKED_AHEAD, Arrival
from rota.live.agent.moves import Moves
from rota.live.agent.output import left_out_of
from rota.live.agent.rank import Rank
from rota.live.wire import PIECE_BYTES, arena_file

KEY = ("7", 1)


def arena(size: int, fill: int = 1, name: str = "7-1-0") -> bytes:
    """A whole arena of one tensor of so many bytes."""
    data = bytes([fill]) * size
    summed = arena_file.Checksum()
    summed.add(data)
    end = arena_file.FIRST_TENSOR_AT + size
    table = arena_file.PLACE.pack(arena_file.FIRST_TENSOR_AT, size, summed.value)
    rest = b"skeleton"
    checksum = arena_file.checksum_of(f"{name}.arena", table, rest)
    header = arena_file.ArenaHeader(1, end, len(rest), end + len(table) + len(rest), checksum)
    head = header.pack().ljust(arena_file.FIRST_TENSOR_AT, b"\0")
    return head + data + table + rest


class Source:
    """The other node, as far as an arrival knows it; it answers at once, unless told otherwise."""

    def __init__(self, files: dict[str, bytes], state_id: str = "first") -> None:
        self.files, self.state_id = files, state_id
        self.asked: list[tuple[str, int]] = []
        self.on_its_way, self.most = 0, 0
        self.left_out: dict[str, tuple[int, int]] = {}  # of files, a gap
        self.mute = 0  # so many questions are not answered
        self.damage: set[int] = set()  # pieces, by the number of the question
        self.instead: list[dict] = []  # answers to give before any other
        self.arrival: Arrival | None = None

    def ask(self, question: dict) -> None:
        assert question["node"] == "there"
        if self.mute:
            self.mute -= 1
            return
        if self.instead:
            self.answer(self.instead.pop(0), b"")
        elif question.get("want") == "state":
            self.answer(self.state(), b"")
        else:
            self.piece(question["file"], question["offset"])

    def state(self) -> dict:
        files = [
            {"name": name, "bytes": len(data), "slot": 0 if name == "0.arena" else None}
            | ({"left_out": self.left_out[name]} if name in self.left_out else {})
            for name, data in self.files.items()
        ]
        record = {"vacated": {"arenas": {"0": "/elsewhere"}, "at_s": 1.0}}
        return {"want": "state", "record": record, "files": files, "state_id": self.state_id}

    def piece(self, name: str, offset: int) -> None:
        number = len(self.asked)
        self.asked.append((name, offset))
        piece = self.files[name][offset : offset + PIECE_BYTES]
        checksum = zlib.crc32(piece)
        if number in self.damage:
            piece = b"x" + piece[1:]
        self.on_its_way += 1
        self.most = max(self.most, self.on_its_way)
        self.answer({"file": name, "offset": offset, "checksum": checksum}, piece)

    def answer(self, message: dict, piece: bytes) -> None:
        def deliver() -> None:
            if piece:
                self.on_its_way -= 1
            self.arrival.heard(message, piece)

        asyncio.get_running_loop().call_soon(deliver)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(arrival_module, "ASK_AGAIN_S", 0.02)


def arriving(tmp_path: Path, source: Source) -> Arrival:
    folder, arenas = tmp_path / "jobs/7/1", tmp_path / "arenas"
    arenas.mkdir(exist_ok=True)
    source.arrival = Arrival("there", *KEY, folder, arenas, tmp_path / "checkpoints/7", source.ask)
    return source.arrival


BIG = arena(5 * PIECE_BYTES + 1000)


def run(tmp_path: Path, source: Source) -> dict:
    return asyncio.run(arriving(tmp_path, source).run())


def test_all_files_come_piece_by_piece_and_only_so_many_at_a_time(tmp_path):
    source = Source({"0.arena": BIG, "rank0.log": b"hello\n", "metrics.jsonl": b""})
    record = run(tmp_path, source)
    path = tmp_path / "arenas/7-1-0.arena"
    assert record["vacated"]["arenas"] == {"0": str(path)}
    assert path.read_bytes() == BIG
    assert (tmp_path / "jobs/7/1/rank0.log").read_bytes() == b"hello\n"
    assert (tmp_path / "jobs/7/1/metrics.jsonl").read_bytes() == b""
    assert source.most <= ASKED_AHEAD
    assert len(source.asked) == 6 + 1
    assert not list(tmp_path.rglob("*.part"))


def test_what_is_left_out_of_a_long_output_is_not_asked_for_and_takes_no_room(tmp_path):
    begin, end = 2 * PIECE_BYTES, 9 * PIECE_BYTES
    output = b"first" * (begin // 5) + b"\n" * (begin % 5) + bytes(end - begin) + b"last\n"
    source = Source({"0.arena": BIG, "rank0.log": output, "rank1.log": output[:end]})
    source.left_out = {"rank0.log": (begin, end), "rank1.log": (begin, end)}
    run(tmp_path, source)
    asked = [offset for name, offset in source.asked if name == "rank0.log"]
    assert asked == [0, PIECE_BYTES, end]
    for name in ("rank0.log", "rank1.log"):
        file = tmp_path / "jobs/7/1" / name
        assert file.read_bytes() == source.files[name]
        assert left_out_of(file) == (begin, end)


def test_of_an_output_that_has_grown_meanwhile_comes_what_was_told(tmp_path):
    source = Source({"0.arena": BIG, "rank0.times": b"1 2\n"})
    told = source.state()
    source.state = lambda: told
    source.files["rank0.times"] += b"3 4\n"
    run(tmp_path, source)
    assert (tmp_path / "jobs/7/1/rank0.times").read_bytes() == b"1 2\n"


def test_another_way_is_taken_once_all_that_was_asked_has_come(tmp_path):
    source, ways = Source({"0.arena": BIG}), []
    arrival = arriving(tmp_path, source)

    def directly(question):
        ways.append(question["offset"] // PIECE_BYTES)
        source.ask(question)

    first = source.piece

    def piece(name, offset):
        if not source.asked:
            arrival.go_by(directly)
        first(name, offset)

    source.piece = piece
    asyncio.run(arrival.run())
    assert (tmp_path / "arenas/7-1-0.arena").read_bytes() == BIG
    assert [offset // PIECE_BYTES for _, offset in source.asked] == [0, 1, 2, 3, 4, 5]
    assert ways == [1, 2, 3, 4, 5]
    assert arrival.direct_bytes == len(BIG) - PIECE_BYTES


def test_what_was_asked_for_by_a_way_that_ended_comes_through_the_controller(tmp_path):
    source, lost = Source({"0.arena": BIG}), []
    arrival = arriving(tmp_path, source)

    def directly(question):
        lost.append(question["offset"] // PIECE_BYTES)
        if len(lost) < 3:
            source.ask(question)
        elif len(lost) == 3:  # nothing more comes
            asyncio.get_running_loop().call_later(0.05, arrival.go_by, None)

    arrival.go_by(directly)
    asyncio.run(arrival.run())
    assert (tmp_path / "arenas/7-1-0.arena").read_bytes() == BIG
    assert [offset // PIECE_BYTES for _, offset in source.asked] == [0, 1, 2, 3, 4, 5]
    assert arrival.received_bytes == len(BIG)
    assert arrival.direct_bytes == 2 * PIECE_BYTES


def test_what_is_lost_on_its_way_is_asked_for_again(tmp_path):
    source = Source({"0.arena": BIG})
    source.mute = 2
    run(tmp_path, source)
    assert (tmp_path / "arenas/7-1-0.arena").read_bytes() == BIG


def test_a_damaged_piece_is_asked_for_again(tmp_path):
    source = Source({"0.arena": BIG})
    source.damage = {0, 2}
    run(tmp_path, source)
    assert (tmp_path / "arenas/7-1-0.arena").read_bytes() == BIG


def test_pieces_that_never_come_whole_are_given_up(tmp_path):
    source = Source({"0.arena": BIG})
    source.damage = set(range(10**4))
    with pytest.raises(AgentError, match="came damaged from there"):
        run(tmp_path, source)


def test_a_state_that_was_damaged_where_it_lay_is_not_taken(tmp_path):
    data = bytearray(BIG)
    data[arena_file.FIRST_TENSOR_AT + 5] ^= 1
    with pytest.raises(AgentError, match="tensor 0 is damaged"):
        run(tmp_path, Source({"0.arena": bytes(data)}))


def test_another_jobs_arena_is_not_taken(tmp_path):
    with pytest.raises(AgentError, match="its table is damaged, or another job's"):
        run(tmp_path, Source({"0.arena": arena(100, name="8-1-0")}))
    assert list((tmp_path / "arenas").glob("*.arena")) == []


def test_another_agent_goes_on_after_the_last_whole_piece(tmp_path):
    source = Source({"0.arena": BIG})
    run(tmp_path, source)
    part = tmp_path / "arenas/7-1-0.arena.part"
    (tmp_path / "arenas/7-1-0.arena").unlink()
    part.write_bytes(BIG[: 3 * PIECE_BYTES + 77])  # killed while it wrote the fourth
    source.asked.clear()
    run(tmp_path, source)
    assert source.asked == [("0.arena", n * PIECE_BYTES) for n in (3, 4, 5)]
    assert (tmp_path / "arenas/7-1-0.arena").read_bytes() == BIG


def test_what_is_left_of_another_state_is_thrown_away(tmp_path):
    run(tmp_path, Source({"0.arena": BIG}))
    (tmp_path / "arenas/7-1-0.arena").rename(tmp_path / "arenas/7-1-0.arena.part")
    other = arena(len(BIG) - 4096 - 100, fill=2)
    source = Source({"0.arena": other}, state_id="second")
    run(tmp_path, source)
    assert (tmp_path / "arenas/7-1-0.arena").read_bytes() == other
    assert source.asked[0] == ("0.arena", 0)


def test_an_answer_that_takes_long_is_waited_for(tmp_path):
    source = Source({"0.arena": BIG})
    source.instead = [{"want": "state", "wait": True}] * 3 + [{"away": True}] * 3
    run(tmp_path, source)
    assert (tmp_path / "arenas/7-1-0.arena").read_bytes() == BIG


def test_a_node_that_never_answers_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(arrival_module, "PATIENCE_S", 0.05)
    source = Source({})
    source.instead = [{"away": True}] * 10**4
    with pytest.raises(AgentError, match="node there, where the state of job 7 lies, has not"):
        run(tmp_path, source)


@pytest.mark.parametrize("gets_on", [True, False])
def test_a_node_that_asks_for_patience_gets_it_as_long_as_it_gets_on(
    tmp_path, monkeypatch, gets_on
):
    now_s = 0.0
    monkeypatch.setattr(arrival_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    source = Source({"0.arena": BIG})
    source.instead = [{"wait": True, "progress": n if gets_on else 7} for n in (7, 3, 4, 9, 1)]
    answer = source.answer

    def late(message, piece):
        nonlocal now_s
        if message.get("wait"):
            now_s += 0.9 * arrival_module.STALLED_S
        answer(message, piece)

    source.answer = late
    if gets_on:
        run(tmp_path, source)
        assert (tmp_path / "arenas/7-1-0.arena").read_bytes() == BIG
        return
    with pytest.raises(AgentError, match="nothing of the state of job 7 has come from node there"):
        run(tmp_path, source)


def test_what_the_other_node_refuses_fails(tmp_path):
    source = Source({})
    source.instead = [{"error": "job 7 keeps its processes"}]
    with pytest.raises(AgentError, match="job 7 keeps its processes"):
        run(tmp_path, source)


@pytest.mark.parametrize("name", ["../../x.log", "attempt.json", "rank0.log/..", ""])
def test_files_that_have_no_business_here_are_not_taken(tmp_path, name):
    with pytest.raises(AgentError, match="is not taken"):
        run(tmp_path, Source({name: b"x"}))


def test_a_full_disk_is_an_error_of_that_job(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arrival_module.os, "pwrite", full)
    with pytest.raises(AgentError, match=r"can't be kept here.*No space left"):
        run(tmp_path, Source({"0.arena": BIG}))


def test_nothing_is_left_of_what_is_discarded(tmp_path):
    source = Source({"0.arena": BIG, "rank0.log": b"x"})
    run(tmp_path, source)
    (tmp_path / "arenas/7-1-1.arena.part").touch()
    source.arrival.discard()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_is_on_its_way_is_marked_for_the_next_agent(tmp_path):
    source = Source({"0.arena": BIG})
    run(tmp_path, source)
    mark = json.loads((tmp_path / "jobs/7/1/arrival.json").read_text())
    assert (mark["source"], mark["state_id"]) == ("there", "first")


def test_what_is_called_off_leaves_nothing_although_a_thread_is_still_at_it(tmp_path, monkeypatch):
    source, entered, release = Source({"0.arena": BIG}), threading.Event(), threading.Event()
    verify = arrival_module.verify

    def slow(path):
        entered.set()
        assert release.wait(10)
        verify(path)

    monkeypatch.setattr(arrival_module, "verify", slow)
    folder = Folder(tmp_path / "home")

    async def main():
        tasks = []

        def spawn(coroutine):
            tasks.append(asyncio.ensure_future(coroutine))
            return tasks[-1]

        def send(message, _):
            source.ask(message)

        devices = Devices("cpu", 1, (0,))
        moves = Moves(
            folder, "here", devices, {}, lambda *_: None, lambda *_: [], send, spawn, None
        )
        message = {"job_id": "7", "attempt": 1, "gpus": [0], "source": "there"}
        moves.arrive(message | {"command_id": 1, "epoch": 1})
        source.arrival = moves._arrivals[KEY]
        await asyncio.to_thread(entered.wait, 10)
        moves.call_off(KEY)
        await asyncio.sleep(0)
        assert not tasks[0].done()
        release.set()
        await asyncio.wait(tasks)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert not [path for path in folder.path.rglob("*") if path.is_file()]
    assert not list(folder.arenas("here").iterdir())
    folder.arenas("here").rmdir()
    folder.leave()


SHIM = """
import os, pathlib, sys, time
child = os.fork()
if not child:
    time.sleep(60)
    os._exit(0)
pathlib.Path(sys.argv[1], "rank0.pid").write_text("{}")
os.waitpid(child, 0)
time.sleep(0.2)
pathlib.Path(sys.argv[1]).mkdir(exist_ok=True)
pathlib.Path(sys.argv[1], "rank0.exit").write_text("{}")
"""


def test_of_an_attempt_that_left_nothing_stays_although_its_shim_still_writes(tmp_path):
    folder = Folder(tmp_path / "home")
    place = folder.attempt("here", *KEY)
    place.mkdir(parents=True)

    async def main():
        shim = await asyncio.create_subprocess_exec(sys.executable, "-c", SHIM, str(place))
        while not (place / "rank0.pid").exists():
            await asyncio.sleep(0.01)
        rank = Rank(0, place)
        rank.shim = shim.pid
        ending = SimpleNamespace(vanish=lambda _: rank.signal(signal.SIGKILL))
        attempt = SimpleNamespace(ranks=[rank], folder=place, ending=ending, tasks=set())
        tasks = []

        def spawn(coroutine):
            tasks.append(asyncio.ensure_future(coroutine))
            return tasks[-1]

        attempts = {KEY: attempt}
        devices = Devices("cpu", 1, (0,))
        moves = Moves(
            folder,
            "here",
            devices,
            attempts,
            lambda *_: None,
            lambda *_: [],
            lambda *_: None,
            spawn,
            None,
        )
        moves.leave(KEY)
        assert not attempts
        assert await shim.wait() == 0
        await asyncio.wait(tasks, timeout=30)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert not place.exists()


def test_an_attempt_that_has_ended_here_is_not_brought_here_again(tmp_path):
    """The controller repeats its command if it has not heard the answer, nor of the end."""
    ended = {"type": "ended", "job_id": "7", "attempt": 1, "exit_code": 0}
    record = SimpleNamespace(source=None)
    attempts = {KEY: SimpleNamespace(record=record, state="ended", ended=ended)}
    said, devices = [], Devices("cpu", 1, (0,))
    spawn = make = None  # nothing is begun
    moves = Moves(
        Folder(tmp_path),
        "here",
        devices,
        attempts,
        make,
        lambda *_: [],
        lambda message, _: said.append(message),
        spawn,
        None,
    )
    message = {"job_id": "7", "attempt": 1, "gpus": [0], "source": "there"}
    moves.arrive(message | {"command_id": 1, "epoch": 1})
    assert said == [ended]
