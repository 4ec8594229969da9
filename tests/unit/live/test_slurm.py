"""What the provider of Slurm asks for and tells, when Slurm answers otherwise than hoped."""

import asyncio
import subprocess
from types import SimpleNamespace

import pytest

from rota.errors import StoreError
from rota.live.provider.asked import LATE_S, Asked
from rota.live.provider.asking import AskingProvider
from rota.live.provider.book import MOST_RETRY_S, RETRY_S, Book
from rota.live.provider.slurm import Answer, ArrayJobs, Pilots, cancel_all, options, refusal
from support.slurm_commands import Commands

UNREACHED = "squeue: error: Unable to contact slurm controller (connect failure)"


class Lab:
    """A provider, what stands in for Slurm, and clocks that only tests move."""

    def __init__(self, tmp_path, monkeypatch, bounds=(1, 4)):
        self.slurm, self.wall_s, self.now_s = Commands(), 1e9, 0.0
        self.file, self.bounds = tmp_path / "slurm.json", bounds
        self.again()
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=lambda seconds: None)
        monkeypatch.setattr("rota.live.provider.slurm.time", clock)

    def again(self):
        """Another provider, as the next controller has it."""
        self.asked = Asked(self.file, "lab", lambda: self.wall_s)
        book = Book("Slurm", self.asked, self.bounds, self.slurm, lambda: self.now_s)
        words = options("gpu", None, 480), ["rota", "agent"], str(self.file.parent)
        self.pilots = Pilots(book, ArrayJobs(self.asked, *words), run=self.slurm)
        self.provider = AskingProvider(self.pilots)

    async def goes_on(self, turns=1):
        """So many seconds pass, in each of which Slurm may be asked once."""
        for _ in range(turns):
            await self.pilots.turn()
            await asyncio.sleep(0.03)  # pilots begin
            self.now_s += 1

    @property
    def words(self):
        return [command[0] for command in self.slurm.given]


@pytest.fixture
def lab(tmp_path, monkeypatch):
    return Lab(tmp_path, monkeypatch)


def names(provider):
    return [node.name for node in provider.nodes()]


def whys(provider):
    return {node.name: node.why for node in provider.awaited()}


def test_nodes_asked_for_at_one_time_are_one_array_job_of_whole_nodes(lab):
    async def story():
        lab.provider.scale(4)
        await lab.goes_on(4)
        (submitted,) = [each for each in lab.slurm.given if each[0] == "sbatch"]
        assert {"--job-name=lab-1", "--array=0,1,2,3", "--partition=gpu", "--time=480"} < {
            *submitted
        }
        assert {"--exclusive", "--mem=0", "--nodes=1", "--no-requeue"} < {*submitted}
        assert names(lab.provider) == ["lab-1", "lab-2", "lab-3", "lab-4"]
        assert lab.slurm.kept == names(lab.provider)
        first = next(iter(lab.provider.nodes()))
        assert first[1:5] == (True, 4e9, False, "Slurm job 1_0, step 0, on n4")

    asyncio.run(story())


def test_the_program_of_pilots_tells_each_its_own_name_and_token(lab, tmp_path):
    async def story():
        lab.provider.scale(2)
        await lab.goes_on()

    asyncio.run(story())
    (script,) = lab.slurm.scripts
    found = tmp_path / "bin"
    found.mkdir()
    (found / "srun").write_text('#!/bin/sh\nwhile [ "$1" != rota ]; do shift; done; echo "$@"\n')
    (found / "srun").chmod(0o755)
    environment = {"PATH": f"{found}:/usr/bin:/bin", "SLURM_CPUS_ON_NODE": "2"}
    environment |= {"SLURM_ARRAY_TASK_ID": "1", "XDG_RUNTIME_DIR": "/not/there"}
    subprocess.run(["sh"], input=script, text=True, env=environment, check=True)
    place = tmp_path / "nodes" / "lab-2"
    assert (place / "joined.json").read_text() == '{"token": "of lab-2"}'
    assert (place / "joined.json").stat().st_mode & 0o77 == 0
    assert (place / "agent.log").read_text() == "rota agent --node lab-2\n"


def test_slurm_is_never_given_two_commands_at_once(lab):
    async def story():
        lab.provider.scale(4)
        for turn in range(12):
            if turn == 4:
                lab.slurm.end("lab-1", "TIMEOUT")
                lab.provider.release("lab-2")
            if turn == 6:
                lab.provider.scale(4)
            before = len(lab.slurm.given)
            await lab.goes_on()
            assert len(lab.slurm.given) <= before + 1

    asyncio.run(story())


def test_a_pilot_that_waits_tells_slurms_reason_and_how_many_are_held(lab):
    async def story():
        lab.provider.scale(1)
        await lab.goes_on(3)
        lab.slurm.full = True
        lab.provider.scale(3)
        assert whys(lab.provider)["lab-2"] == "Slurm is asked for it"
        await lab.goes_on()
        assert whys(lab.provider)["lab-2"] == "Slurm was asked for it"
        await lab.goes_on(2)
        assert whys(lab.provider) == dict.fromkeys(
            ["lab-2", "lab-3"], "Slurm: Priority, 1 of 3 nodes held"
        )
        lab.slurm.connected.clear()
        lab.slurm.jobs["lab-3"] |= {"state": "RUNNING", "host": "n7"}
        await lab.goes_on(4)
        assert whys(lab.provider)["lab-3"].endswith("on n7: its agent has yet to connect")

    asyncio.run(story())


def test_what_slurm_refuses_is_told_once_and_asked_for_again_ever_later(lab):
    async def story():
        lab.slurm.refuses = "QOSMaxSubmitJobPerUserLimit"
        lab.provider.scale(2)
        await lab.goes_on(5)
        (error,) = lab.provider.errors()
        assert error == "Slurm refuses it: sbatch: error: QOSMaxSubmitJobPerUserLimit"
        assert whys(lab.provider) == dict.fromkeys(["lab-1", "lab-2"], error)
        assert lab.words.count("sbatch") == 1
        for tries in range(2, 12):
            lab.now_s += min(RETRY_S * 2 ** (tries - 2), MOST_RETRY_S)
            await lab.goes_on(2)
            assert lab.words.count("sbatch") == tries
        assert lab.provider.errors() == []
        lab.slurm.refuses = ""
        lab.now_s += MOST_RETRY_S
        await lab.goes_on(3)
        assert names(lab.provider) == ["lab-1", "lab-2"]
        assert all(node.is_alive for node in lab.provider.nodes())

    asyncio.run(story())


def test_what_waits_for_a_slurm_that_is_silent_is_asked_for_once_it_answers(lab):
    async def story():
        lab.provider.scale(1)
        await lab.goes_on(3)
        lab.slurm.says = UNREACHED
        lab.provider.scale(2)
        await lab.goes_on(4)
        lab.wall_s += 10 * LATE_S
        await lab.goes_on(4)
        (error,) = lab.provider.errors()
        assert UNREACHED in error
        assert UNREACHED in whys(lab.provider)["lab-2"]
        assert names(lab.provider) == ["lab-1", "lab-2"]
        lab.slurm.says = ""
        await lab.goes_on(5)
        assert [node.is_alive for node in lab.provider.nodes()] == [True, True]
        assert lab.words.count("sbatch") == 3  # of which the second was not heard

    asyncio.run(story())


def test_what_slurm_may_have_heard_is_not_asked_for_twice(lab):
    async def story():
        lab.slurm.says = "sbatch: error: Socket timed out on send/recv operation"
        lab.provider.scale(1)
        await lab.goes_on()
        lab.slurm.says = ""
        await lab.goes_on(5)
        assert names(lab.provider) == ["lab-1"]
        assert lab.words.count("sbatch") == 1
        lab.wall_s += LATE_S + 1  # it was not heard, nobody will hear it now
        await lab.goes_on(3)
        assert names(lab.provider) == []
        lab.provider.scale(1)
        await lab.goes_on()
        assert lab.words.count("sbatch") == 2
        assert names(lab.provider) == ["lab-2"]

    asyncio.run(story())


def test_pilots_that_end_without_an_agent_are_told_and_not_replaced_at_once(lab, tmp_path):
    async def story():
        lab.slurm.agents_fail = True
        lab.provider.scale(1)
        place = tmp_path / "nodes" / "lab-1"
        place.mkdir(parents=True)
        (place / "agent.log").write_text("begins\nno room on the disk\nsrun: error: n1\n")
        await lab.goes_on(4)
        (error,) = lab.provider.errors()
        words = "before its agent was connected: no room on the disk"
        assert error.endswith(f"(node lab-1) has ended: FAILED, {words}")
        assert names(lab.provider) == []
        lab.provider.scale(1)
        await lab.goes_on(4)
        assert lab.words.count("sbatch") == 1
        assert whys(lab.provider) == {"lab-2": error}
        lab.slurm.agents_fail = False
        lab.now_s += RETRY_S
        await lab.goes_on()
        assert [node.is_alive for node in lab.provider.nodes()] == [True]

    asyncio.run(story())


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "NODE_FAIL"])
def test_a_node_that_slurm_does_not_hear_stays_until_its_lease_is_over(lab, state):
    async def story():
        lab.provider.scale(1)
        await lab.goes_on(3)
        lab.slurm.dark.add(lab.slurm.jobs["lab-1"]["host"])
        lab.slurm.end("lab-1", state)
        await lab.goes_on(25)
        assert [node[:2] for node in lab.provider.nodes()] == [("lab-1", False)]
        lab.slurm.leases.clear()
        await lab.goes_on(5)
        assert names(lab.provider) == []

    asyncio.run(story())


@pytest.mark.parametrize(("state", "left"), [("CANCELLED", []), ("NODE_FAIL", ["lab-1"])])
def test_a_node_whose_slurmd_tells_the_end_is_lost_without_waiting(lab, state, left):
    """After NODE_FAIL that slurmd has yet to kill what it has."""

    async def story():
        lab.provider.scale(1)
        await lab.goes_on(3)
        lab.slurm.end("lab-1", state)
        await lab.goes_on(14)
        assert names(lab.provider) == left

    asyncio.run(story())


def test_a_pilot_that_has_gone_while_there_was_no_controller_stays_as_long_as_its_lease(lab):
    async def story():
        lab.provider.scale(1)
        await lab.goes_on(3)
        del lab.slurm.jobs["lab-1"]
        lab.slurm.connected.clear()
        lab.again()
        await lab.goes_on(3)
        assert names(lab.provider) == ["lab-1"]
        lab.slurm.leases.clear()
        await lab.goes_on(4)
        assert names(lab.provider) == []

    asyncio.run(story())


def test_an_agent_that_does_not_end_when_it_was_told_is_cancelled_after_a_while(lab):
    async def story():
        lab.provider.scale(1)
        await lab.goes_on(3)
        lab.provider.release("lab-1")
        await lab.goes_on(50)
        assert "scancel" not in lab.words
        await lab.goes_on(20)
        assert "scancel" in lab.words
        assert names(lab.provider) == []

    asyncio.run(story())


def test_fewer_nodes_are_not_given_up_before_it_is_known_which_are_there(lab):
    lab.provider.scale(3)
    lab.provider.scale(1)
    assert len(names(lab.provider)) == 3


def test_nodes_that_run_are_not_given_up_before_their_agents_have_called_again(lab):
    """They may have jobs: of pilots that wait alone there may be too many."""

    async def story():
        lab.provider.scale(3)
        await lab.goes_on(3)
        lab.slurm.connected.clear()  # the controller was killed
        lab.again()
        await lab.goes_on(2)
        lab.provider.scale(1)
        assert len(whys(lab.provider)) == 3
        lab.slurm.connected |= {"lab-1", "lab-2", "lab-3"}
        await lab.goes_on(10)
        assert "scancel" not in lab.words
        assert [node.is_alive for node in lab.provider.nodes()] == [True] * 3

    asyncio.run(story())


def test_the_next_controller_knows_at_once_when_nodes_must_go(lab, monkeypatch):
    async def begin():
        lab.provider.scale(1)
        await lab.goes_on(3)

    asyncio.run(begin())
    monkeypatch.setattr(
        "rota.live.provider.slurm.call", lambda *words: asyncio.run(lab.slurm(words))
    )
    lab.again()
    assert [node.leaves_s for node in lab.provider.nodes()] == [None]
    lab.pilots.recall()
    assert [node.leaves_s for node in lab.provider.nodes()] == [4e9]


def test_slurm_is_asked_for_nothing_right_after_it_was_asked_whether_it_would_refuse(lab):
    async def story():
        lab.pilots.pace_s = 1000.0
        await lab.provider.start()
        await asyncio.sleep(0.03)
        assert lab.words == []
        assert whys(lab.provider) == {"lab-1": "Slurm is asked for it"}
        await lab.provider.stop()

    asyncio.run(story())


def test_the_queue_is_looked_at_more_seldom_while_nothing_is_to_change(lab):
    async def story():
        lab.provider.scale(1)
        await lab.goes_on(4)
        before = lab.words.count("squeue")
        await lab.goes_on(30)
        assert lab.words.count("squeue") == before + 3
        lab.slurm.connected.clear()  # it may be gone
        await lab.goes_on(30)
        assert lab.words.count("squeue") == before + 3 + 15

    asyncio.run(story())


def test_the_end_cancels_what_waits_and_returns_when_nothing_is_left(lab, monkeypatch):
    async def story():
        lab.provider.scale(1)
        await lab.goes_on(3)
        lab.slurm.full = True
        lab.provider.scale(2)
        await lab.goes_on(3)
        lab.provider.scale(3)  # this one was only noted
        ending = asyncio.create_task(lab.provider.end())
        await asyncio.sleep(0)
        lab.slurm.end("lab-1", "COMPLETED")
        lab.pilots.pace_s = 0.0
        await asyncio.wait_for(ending, 30)
        assert lab.asked.names == lab.slurm.kept == []
        assert lab.slurm.jobs["lab-2"]["state"] == "CANCELLED"
        assert lab.words.count("sbatch") == 2

    asyncio.run(story())


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("sbatch: error: invalid partition specified: nope", "with --partition"),
        ("allocation failure: Invalid account or account/partition", "--partition"),
        ("allocation failure: Requested time limit is invalid", "another --time"),
        ("allocation failure: Requested node configuration is not available", "`sinfo -N -l`"),
        ("allocation failure: Something new", "change the options"),
    ],
)
def test_a_refusal_has_slurms_own_words_and_the_fix(monkeypatch, said, told):
    answer = Answer(1, "", f"{said}\n")
    monkeypatch.setattr("rota.live.provider.slurm.call", lambda *words, text: answer)
    found = refusal([])
    assert not found.is_silence
    assert said in found.text
    assert told in found.text


def test_a_machine_without_slurm_or_a_slurm_that_is_silent_is_told(monkeypatch):
    monkeypatch.setenv("PATH", "/not/there")
    assert "sbatch: No such file" in refusal([]).text
    answer = Answer(1, "", UNREACHED)
    monkeypatch.setattr("rota.live.provider.slurm.call", lambda *words, text: answer)
    assert refusal([]).is_silence
    assert "does not answer" in refusal([]).text


def test_pilots_of_a_dead_controller_are_cancelled_and_waited_for(lab, monkeypatch):
    async def begin():
        lab.provider.scale(2)
        await lab.goes_on(3)

    asyncio.run(begin())
    monkeypatch.setattr(
        "rota.live.provider.slurm.call", lambda *words: asyncio.run(lab.slurm(words))
    )
    assert cancel_all(lab.asked) == ""
    assert {job["state"] for job in lab.slurm.jobs.values()} == {"CANCELLED"}
    lab.slurm.says = UNREACHED
    assert cancel_all(lab.asked) == UNREACHED


def test_a_fault_does_not_keep_slurm_from_being_asked_on(lab, monkeypatch):
    calls = []

    async def turn():
        calls.append(len(calls))
        if len(calls) < 3:
            raise (ValueError if len(calls) == 1 else StoreError)("on purpose")

    monkeypatch.setattr(lab.pilots, "turn", turn)
    monkeypatch.setattr(lab.pilots, "pace_s", 0.0)

    async def main():
        await lab.provider.start()
        while len(calls) < 3:
            await asyncio.sleep(0)
        await lab.provider.stop()

    asyncio.run(main())
