"""What an attempt on another machine has printed is copied at its end, and outlives the machine."""

import asyncio
from types import SimpleNamespace

import pytest

from rota.folder import Folder
from rota.live.agent.answers import look_up
from rota.live.agent.output import LEAST_BYTES, cut, left_out
from rota.live.controller import log_copies
from rota.live.controller.job_files import JobFiles
from rota.live.controller.log_copies import LogCopies
from rota.live.controller.questions import Questions
from rota.live.controller.record import Record
from rota.live.wire.questions import LogFiles, answer_message, ask_of
from rota.model.events import JobFinished
from rota.model.job import JobState
from rota.store.events import EventStore
from support.driven import cluster_with_a_job_that_is

MIB = 1 << 20


class Desk:
    """A controller with an agent of its own, and a machine that has joined, where a job runs."""

    def __init__(self, base, store):
        self.record = Record(store, Folder(base / "home").create())
        self.record.state = cluster_with_a_job_that_is(JobState.RUNNING).state
        self.record.last_node[0, 1] = "afar"
        self.afar = Folder(base / "afar")
        self.attempt = self.afar.attempt("afar", "the-job", 1)
        self.attempt.mkdir(parents=True)
        self.questions = Questions(self.record.outboxes)
        self.start()

    def start(self):
        """Another controller; the one before is forgotten."""
        members = SimpleNamespace(names={"afar"})
        self.copies = LogCopies(self.record, self.questions, members)
        nodes = SimpleNamespace(names={"here", "afar"})
        self.files = JobFiles(self.record, self.questions, nodes, members, self.copies)

    def ends(self):
        self.record.state.apply(JobFinished(self.record.now_s(), 0, JobState.SUCCEEDED))

    async def serve(self, node, find=look_up):
        """Be the agent of a node, until cancelled."""
        outbox = self.record.outboxes.open(node, None)
        self.questions.came(node)
        folder = self.afar if node == "afar" else self.record.folder
        try:
            while True:
                ask = ask_of(await outbox.get())
                found = find(folder, node, ask.question)
                self.questions.answered(node, answer_message(ask.number, found))
        finally:
            self.record.outboxes.close(node, outbox)
            self.questions.left(node)

    async def copied(self, find=look_up):
        """Serve as both agents until nothing is left to be copied, then as the one here alone."""
        afar = asyncio.create_task(self.serve("afar", find))
        copying = asyncio.create_task(self.copies.run())
        while self.copies.missing():
            await asyncio.sleep(0)
        afar.cancel()
        copying.cancel()
        await asyncio.gather(afar, copying, return_exceptions=True)

    async def told(self, **which):
        here = asyncio.create_task(self.serve("here"))
        await asyncio.sleep(0)
        found = await self.files.output(0, 1, limit=1 << 18, **which)
        here.cancel()
        await asyncio.gather(here, return_exceptions=True)
        return found


@pytest.fixture
def desk(tmp_path):
    store = EventStore(tmp_path / "rota.db")
    yield Desk(tmp_path, store)
    store.close()


RECORD = '{"members": [1, 0], "gpus": [0, 1], "slots": 2}'


def test_outputs_of_all_ranks_are_told_once_their_machine_is_away(desk):
    desk.attempt.joinpath("rank0.log").write_bytes(b"of the second \xff rank\n")
    desk.attempt.joinpath("rank1.log").write_text("of the first\n")
    desk.attempt.joinpath("attempt.json").write_text(RECORD)
    desk.attempt.joinpath("rank0.times").write_bytes(bytes(16))
    desk.attempt.joinpath("setup.log").write_text("nobody's")
    desk.ends()

    async def story():
        await desk.copied()
        assert desk.copies.has(0, 1, "afar")
        first, second = await desk.told(), await desk.told(rank=1)
        return first.text, second.text, second.complete

    assert asyncio.run(story()) == ("of the first\n", "of the second � rank\n", True)
    copy = desk.record.folder.copies("afar", "the-job") / "1"
    kept = sorted(file.name for file in copy.iterdir())
    assert kept == ["ended.json", "rank0.log", "rank0.times", "rank1.log"]
    assert {file.stat().st_mode & 0o777 for file in copy.iterdir()} == {0o600}


LINE = b"0123456789abcde\n"  # the first one after a gap is left out too: it may be a fragment


def test_gaps_of_an_output_are_those_of_its_copy(desk):
    log = desk.attempt / "rank0.log"
    log.write_bytes(LINE * (MIB // 4))
    cut(log, LEAST_BYTES)
    desk.ends()

    async def story():
        await desk.copied()
        return await desk.told(offset=MIB)

    assert asyncio.run(story()).text == left_out(2 * MIB + len(LINE))
    copy = desk.record.folder.copies("afar", "the-job") / "1/rank0.log"
    assert copy.read_bytes() == log.read_bytes()


def test_the_middle_of_a_long_output_is_left_out(desk, monkeypatch):
    monkeypatch.setattr(log_copies, "MOST_BYTES", 4 * MIB)
    log = desk.attempt / "rank0.log"
    log.write_bytes(LINE * (MIB // 2) + b"end\n")
    desk.ends()

    async def story():
        await desk.copied()
        return await desk.told(offset=MIB), await desk.told(tail=1)

    gap, last = asyncio.run(story())
    assert (gap.text, last.text) == (left_out(4 * MIB + len(LINE)), "end\n")


def test_the_next_controller_makes_copies_that_are_missing(desk):
    desk.attempt.joinpath("rank0.log").write_text("hello\n")
    desk.ends()
    half = desk.record.folder.copies("afar", "the-job") / "1.new"
    half.mkdir(parents=True)
    half.joinpath("rank7.log").write_text("what the killed one has begun")
    desk.start()

    async def story():
        await desk.copied()
        return (await desk.told()).text

    assert asyncio.run(story()) == "hello\n"
    assert [each.name for each in half.parent.iterdir()] == ["1"]
    desk.start()
    assert not desk.copies.missing()


@pytest.mark.parametrize("name", ["../../rota.db", "/etc/passwd", "rank0.log/", "", "a\0.log"])
def test_names_that_no_output_has_are_refused(desk, name, caplog):
    desk.ends()
    asyncio.run(desk.copied(lambda *_: LogFiles({name: 7})))
    assert "which no output has" in caplog.text
    assert not desk.copies.has(0, 1, "afar")


def test_an_agent_that_cuts_a_file_short_does_not_keep_the_copy_from_its_end(desk):
    log = desk.attempt / "rank0.log"
    log.write_text("hello\n")
    desk.ends()

    def find(folder, node, question):
        found = look_up(folder, node, question)
        log.write_text("")
        return found

    asyncio.run(desk.copied(find))
    assert desk.copies.has(0, 1, "afar")
