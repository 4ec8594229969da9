"""Questions of users about files on nodes: an agent answers them, or is waited for."""

import asyncio
import contextlib
import os
import pwd
import shutil
import subprocess
import sys
from array import array

import pytest

from rota.errors import AgentAwayError, NotFoundError, ServerError
from rota.folder import Folder
from rota.live.agent.answers import answer
from rota.live.agent.entering import FolderLooks
from rota.live.agent.line_times import times_file
from rota.live.controller import job_files
from rota.live.controller.job_files import JobFiles
from rota.live.controller.log_copies import LogCopies
from rota.live.controller.questions import AT_ONCE, Questions
from rota.live.controller.record import Record
from rota.live.wire.questions import AskCheckpoints, ask_of
from rota.model.job import JobState as S
from rota.request.jobfile import parse_job
from rota.store.events import EventStore
from rota.store.members import Members
from support.driven import cluster_with_a_job_that_is


class Nodes:
    """Two nodes of which any may be the cluster's."""

    names = ("node0", "node1")


class Desk:
    """A record with a job that runs on node0, and who may be asked about it."""

    def __init__(self, home, store):
        self.folder = Folder(home)
        self.record = Record(store, self.folder)
        self.record.state = cluster_with_a_job_that_is(S.RUNNING).state
        self.record.last_node[0, 1] = "node0"
        self.nodes = Nodes()
        self.questions = Questions(self.record.outboxes)
        members = Members(store)
        copies = LogCopies(self.record, self.questions, members)
        self.files = JobFiles(self.record, self.questions, self.nodes, members, copies)

    def prints(self, text, node="node0"):
        log = self.folder.log(node, "the-job", 1, 0)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(text)

    def connect(self, node):
        outbox = self.record.outboxes.open(node, None)
        self.questions.came(node)
        return outbox

    def leave(self, node, outbox):
        self.record.outboxes.close(node, outbox)
        self.questions.left(node)

    @contextlib.asynccontextmanager
    async def agent(self, node):
        """The agent of a node, which answers whatever it is asked."""
        outbox = self.connect(node)

        async def serve():
            looks = FolderLooks()
            while True:
                ask = ask_of(await outbox.get())
                self.questions.answered(node, await answer(self.folder, node, ask, looks))

        task = asyncio.create_task(serve())
        yield
        task.cancel()
        self.leave(node, outbox)

    async def text(self, **which):
        return (await self.files.output(0, 1, limit=100, **which)).text


@pytest.fixture
def desk(tmp_path):
    store = EventStore(tmp_path / "rota.db")
    yield Desk(tmp_path, store)
    store.close()


async def settled():
    for _ in range(20):
        await asyncio.sleep(0)


def test_what_a_job_has_printed_is_read_by_the_agent_of_its_node(desk):
    desk.prints("hello\n")

    async def story():
        async with desk.agent("node0"), desk.agent("node1"):
            assert await desk.text() == "hello\n"
            assert await desk.text(offset=2) == "llo\n"
            with pytest.raises(ServerError, match="is no longer a plain file"):
                desk.folder.log("node0", "the-job", 1, 0).unlink()
                desk.folder.log("node0", "the-job", 1, 0).mkdir()
                await desk.text()

    asyncio.run(story())


def test_a_rank_that_there_is_not_is_told_as_such(desk):
    desk.prints("")
    record = '{"members": [0], "gpus": [0], "slots": 1}'
    (desk.folder.attempt("node0", "the-job", 1) / "attempt.json").write_text(record)

    async def story():
        async with desk.agent("node0"):
            with pytest.raises(NotFoundError, match="no rank 1: it has rank 0 alone"):
                await desk.text(rank=1)
            (rank,) = await desk.files.ranks(0, 1)
            assert (rank.process, rank.pid, rank.gpu) == (0, None, 0)

    asyncio.run(story())


def test_before_its_start_nobody_is_asked(desk):
    async def story():
        assert (await desk.files.output(0, 0, limit=100)).text == ""
        assert await desk.files.ranks(0, 0) == []
        assert await desk.files.checkpoints(0) is None

    desk.record.last_node.clear()
    asyncio.run(story())


def test_an_agent_that_is_away_is_waited_for_and_what_it_was_asked_is_asked_again(desk):
    desk.prints("late\n")

    async def story():
        reading = asyncio.create_task(desk.text())
        await settled()
        first = desk.connect("node0")
        await settled()
        assert ask_of(first.get_nowait()).question.job_id == "the-job"
        desk.leave("node0", first)
        async with desk.agent("node0"):
            assert await reading == "late\n"

    asyncio.run(story())


@pytest.mark.parametrize("is_there", [True, False])
def test_an_agent_that_does_not_answer_is_named(desk, is_there):
    async def story():
        if is_there:
            desk.connect("node0")
        with pytest.raises(AgentAwayError, match="the agent of node node0") as caught:
            await desk.files.ranks(0, 1, patience_s=0.0)
        assert ("has not answered" in str(caught.value)) == is_there

    asyncio.run(story())


def test_nobody_waits_for_an_agent_once_the_controller_stops(desk):
    async def story():
        reading = asyncio.create_task(desk.text())
        await settled()
        desk.questions.close()
        with pytest.raises(AgentAwayError, match="is not connected"):
            await reading

    asyncio.run(story())


def test_folders_that_jobs_can_not_enter_are_told_by_field_and_node_with_the_way_round(
    desk, tmp_path, monkeypatch
):
    home = tmp_path / "home"
    (home / "ada").mkdir(parents=True)
    (home / "file").touch()

    async def told(folder, **more):
        request = parse_job({"run": "true", **more}, workdir=str(folder))
        return await desk.files.warnings(request)

    async def story():
        assert await told(home / "gone" / "a") == [], "nobody is there who could tell"
        async with desk.agent("node0"), desk.agent("node1"):
            assert await told(home / "ada") == []
            user = pwd.getpwuid(os.geteuid()).pw_name
            assert await told(home / "gone" / "a") == [
                f"workdir: on nodes node0, node1 there is no {home}/gone: the job would fail "
                "there; submit it with --snapshot, to run it in a copy, or from a folder that "
                f"user {user} may enter on every node"
            ]
            (other,) = await told(home / "file" / "a", env={"VIRTUAL_ENV": str(home / "ada")})
            assert f"{home}/file is no folder" in other
            (own,) = await told(home / "ada", env={"VIRTUAL_ENV": str(home / "venv")})
            assert own.startswith(f"VIRTUAL_ENV: on nodes node0, node1 there is no {home}/venv: ")
            assert "have `setup` make one" in own
            assert await told(home / "gone", snapshot=True) == []
        outbox = desk.connect("node0")  # an agent that says nothing, or of before
        monkeypatch.setattr(job_files, "FOLDERS_PATIENCE_S", 0.0)
        assert await told(home / "gone" / "b") == []
        desk.leave("node0", outbox)

    asyncio.run(story())


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_home_folder_of_somebody_else_is_told_with_its_mode(tmp_path):
    closed = tmp_path / "ada"
    (closed / "work").mkdir(parents=True)
    closed.chmod(0o700)
    for place in (tmp_path, *tmp_path.parents[:-2]):
        place.chmod(place.stat().st_mode | 0o111)
    code = (
        "import os, sys; from rota.live.agent.entering import obstacle_to\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); print(obstacle_to(sys.argv[1]))"
    )
    told = subprocess.check_output([sys.executable, "-c", code, closed / "work"], text=True)
    nobody = pwd.getpwuid(65534).pw_name
    assert told == f"user {nobody} can't enter {closed} (mode 0700)\n"


def test_few_questions_are_on_their_way_to_an_agent_however_many_ask(desk):
    async def story():
        outbox = desk.connect("node0")
        readers = [asyncio.create_task(desk.text()) for _ in range(10 * AT_ONCE)]
        await settled()
        assert outbox.qsize() == AT_ONCE
        # Others don't wait for it.
        async with desk.agent("node1"):
            await desk.questions.ask("node1", AskCheckpoints("the-job"))
        desk.leave("node0", outbox)
        desk.prints("x")
        async with desk.agent("node0"):
            assert await asyncio.gather(*readers) == ["x"] * len(readers)

    asyncio.run(story())


def test_files_of_a_node_that_is_gone_are_told_by_an_agent_that_has_them(desk):
    async def story():
        desk.nodes.names = ("node1",)
        async with desk.agent("node1"):
            with pytest.raises(AgentAwayError, match="on node node0, which is no longer part"):
                await desk.text()
            desk.prints("kept\n")
            assert await desk.text() == "kept\n"

    asyncio.run(story())


def test_an_output_whose_folder_was_removed_is_an_error_that_names_it(desk):
    desk.prints("hello\n")
    folder = desk.folder.attempt("node0", "the-job", 1)

    async def story():
        async with desk.agent("node0"):
            shutil.rmtree(folder.parent)
            with pytest.raises(
                NotFoundError, match=f"job the-job is no longer .*: its .* {folder} "
            ):
                await desk.text()
            desk.record.last_node.clear()  # its launch has failed: there was never any
            desk.record._launched[0, 1] = 0.0, "node0"
            assert await desk.text() == ""

    asyncio.run(story())


def test_times_of_lines_are_told_where_they_were_kept(desk):
    log = desk.folder.log("node0", "the-job", 1, 0)
    desk.prints("a\nb\nc\n")

    async def story():
        async with desk.agent("node0"):
            found = await desk.files.output(0, 1, limit=100, times=True)
            assert found.times is None
            with pytest.raises(NotFoundError, match="older Rota ran it; leave --since out"):
                await desk.text(since_s=1.0)
            times_file(log).write_bytes(array("d", [10.0, 2, 20.0, 6]).tobytes())
            found = await desk.files.output(0, 1, limit=100, times=True)
            assert found.times == [(1, 10.0), (2, 20.0)]
            assert await desk.text(since_s=10.0) == "a\nb\nc\n"
            assert await desk.text(since_s=10.5) == "b\nc\n"
            assert await desk.text(since_s=10.5, tail=1) == "c\n"
            assert await desk.text(since_s=10.5, tail=3) == "b\nc\n"
            assert await desk.text(since_s=1e12) == ""

    asyncio.run(story())


def test_an_answer_that_nobody_asked_for_is_passed_over(desk):
    desk.prints("")

    async def story():
        reading = asyncio.create_task(desk.text())
        outbox = desk.connect("node0")
        await settled()
        ask = ask_of(outbox.get_nowait())
        told = await answer(desk.folder, "node0", ask, FolderLooks())
        desk.questions.answered("node1", told)
        desk.questions.answered("node0", told | {"number": 77})
        await settled()
        assert not reading.done()
        desk.questions.answered("node0", told)
        desk.questions.answered("node0", told)
        assert await reading == ""

    asyncio.run(story())
