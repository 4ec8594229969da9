import asyncio
import json
from types import SimpleNamespace

import pytest

from rota.errors import AgentError
from rota.folder import Folder
from rota.live.agent.abroad import Abroad, FarRank
from rota.live.agent.devices import Devices
from rota.live.agent.guest import Guests, exit_of
from rota.live.agent.launching import OF_A_GANG, gang_environments
from rota.live.agent.post import Word
from rota.live.agent.rank import LAST_BYTES, Rank
from rota.live.agent.world import World
from rota.live.wire import GANG_SECRET
from rota.live.wire.places import STRIDE

PROGRAM = {"run": "true", "workdir": "/", "env": {"KEY": "1"}, "processes": "gpu"}
TOLD = {"type": "guest", "job_id": "1", "attempt": 1, "origin": "o", "launch": "l", "host": "a"}
TOLD |= {"gpus": [0], "millicores": 1500, "program": PROGRAM, "name": ""}


@pytest.fixture
def rank(tmp_path):
    """A process that has printed much, and then that its memory ran out."""
    (tmp_path / "rank1.log").write_bytes(b"x" * LAST_BYTES + b"MemoryError\xff\n")
    return Rank(1, tmp_path)


def far(tmp_path):
    rank = FarRank(1, tmp_path, Abroad(None, tmp_path), "there")
    rank.find()
    return rank


def test_a_failed_process_tells_the_agent_of_its_attempt_what_it_printed_last(rank, tmp_path):
    rank.exit = {"code": 1, "at_s": 5.0}
    there = far(tmp_path / "elsewhere")
    there.has_ended(json.loads(json.dumps(exit_of(rank))))
    assert there.exit["code"] == 1
    assert there.last_printed.endswith("MemoryError\ufffd\n".encode())
    assert len(rank.last_printed) == LAST_BYTES


@pytest.mark.parametrize("exit_", [None, {"code": 0, "at_s": 5.0}])
def test_one_that_has_not_failed_tells_none_of_it(rank, tmp_path, exit_):
    rank.exit = exit_
    there = far(tmp_path)
    there.has_ended(exit_of(rank))
    assert there.last_printed == b""


class Said(list):
    """What agents of other nodes are told, in place of the post."""

    def tell(self, node, about, body):
        self.append((node, body))

    def keep(self, key, nodes):
        """Words about it are over."""

    async def answers(self, said):
        async with asyncio.timeout(10):
            while True:
                for node, body in self:
                    if body["said"] == said:
                        return node, body
                await asyncio.sleep(0.001)


def at_b(folder, scenario):
    """Run a scenario with the guests of node b, what they say, and what is to be started."""

    async def whole():
        said, asked = Said(), []

        def requests(record, folder, slots, gpus, *, step, adopt):
            asked.append((record, gpus, adopt))
            raise AgentError("nothing is started here")

        async def prepare(record, folder):
            """No snapshot has to be fetched."""

        no_attempts, devices = list, Devices("cpu", 2, (0, 0))
        guests = Guests(
            Folder(folder), "b", devices, no_attempts, said, None, requests, prepare, World(), print
        )
        await scenario(guests, said, asked)
        await guests.end_all(0.0)

    asyncio.run(whole())


def word(node, **body):
    about = {"job_id": "1", "attempt": 1, "launch": "l"}
    return Word(node, ("1", 1), body, anew=False), about


def test_what_it_runs_is_the_controllers_word_and_never_the_other_agents(tmp_path):
    async def scenario(guests, said, asked):
        guests.expect(TOLD)
        program = PROGRAM | {"run": "evil"}
        guests.hear(*word("a", do="prepare", address="127.0.0.1", launch={"program": program}))
        assert "port" in (await said.answers("prepared"))[1]
        told = dict.fromkeys(OF_A_GANG, "7") | {"LD_PRELOAD": "evil.so", GANG_SECRET: "s"}
        about = {"slot": 3, "gpu": 1, "step": None, "generation": 0}
        guests.hear(*word("a", do="start", env=told, **about))
        await said.answers("started")
        ((record, gpus, environments),) = asked
        assert (record.program, record.millicores, gpus) == (PROGRAM, 1500, [1])
        interfaces = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        known = dict.fromkeys(OF_A_GANG, "7") | {GANG_SECRET: "s"}
        assert environments == {3: known | interfaces}

    at_b(tmp_path, scenario)


@pytest.mark.parametrize("had_one", [False, True])
def test_what_was_prepared_before_a_reboot_counts_as_of_this_boot_unless_there_was_a_process(
    tmp_path, had_one
):
    async def scenario(guests, said, asked):
        guests.expect(TOLD)
        guests.hear(*word("a", do="prepare", address="127.0.0.1"))
        await said.answers("prepared")
        (guest,) = guests.all()
        guest.record.boot_id = "of another boot"
        if had_one:
            guest.record.members = [2]
            guest.adopt()
            assert [(rank.index, rank.alive) for rank in guest.ranks] == [(2, False)]
        start = {"slot": 3, "gpu": 1, "step": None, "generation": 0}
        guests.hear(*word("a", do="start", env=dict.fromkeys(OF_A_GANG, "7"), **start))
        error = (await said.answers("started"))[1]["error"]
        if had_one:
            assert error == "process 3 can't be started: the machine has started anew"
            assert not asked
        else:
            assert asked[0][0].boot_id == World().boot_id()

    at_b(tmp_path, scenario)


@pytest.mark.parametrize("node", ["a", "c"])
def test_an_attempt_that_the_controller_has_not_told_of_is_refused(tmp_path, node):
    async def scenario(guests, said, asked):
        guests.expect(TOLD)
        if node == "a":
            guests.expect_no_more(("1", 1))
        guests.hear(*word(node, do="prepare", address="127.0.0.1"))
        heard, answer = await said.answers("prepared")
        assert heard == node
        assert "the controller has told node b of no such attempt" in answer["error"]
        assert guests.all() == []

    at_b(tmp_path, scenario)


def test_all_that_a_process_elsewhere_is_told_of_its_gang_is_on_the_list():
    record = SimpleNamespace(
        members=[0, 1],
        gpus=[0, STRIDE],
        nodes=[{"name": "a", "address": "10.0.0.1"}, {"name": "b", "address": "10.0.0.2"}],
    )
    for environment in gang_environments(record, [0, 1], [0, STRIDE], None).values():
        assert environment.keys() == set(OF_A_GANG)
