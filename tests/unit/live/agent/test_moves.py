"""Attempts that a node has already, in part or from before, when they are to come there to wait."""

import asyncio
import json

import pytest
from tests.support.attempts import attempt_in

from rota.errors import AgentError
from rota.folder import Folder
from rota.live.agent.devices import Devices
from rota.live.agent.moves import Moves
from rota.live.agent.states import State
from rota.live.wire.places import place_of

KEY = ("7", 1)
RECORD = {
    "job_id": "7",
    "attempt": 1,
    "suspension": "process",
    "slots": 1,
    "members": [0],
    "gpus": [0],
    "max_world": 1,
    "movable": True,
    "visible": None,
    "suspended_s": 5.0,
    "vacated": {"arenas": {}, "bytes": None, "at_s": 5.0},
}
PARK = {"kind": "park", "command_id": 17, "job_id": "7", "attempt": 1, "epoch": 1, "gpus": [0]}
PARK |= {"source": "there"}


class Node:
    """A node with an attempt of this record, suspended without processes."""

    def __init__(self, tmp_path, **more):
        self.folder = Folder(tmp_path).create()
        self.told, self.attempts, self.spawned = [], {}, []
        self.file = self.folder.attempt("here", *KEY)
        self.file.mkdir(parents=True)
        self.moves = Moves(
            self.folder,
            "here",
            Devices("cpu", 1, (0,)),
            self.attempts,
            lambda record, folder: None,
            lambda attempt, message: [],
            lambda message, piece: self.told.append(message),
            self.spawn,
            lambda record, folder: None,
        )
        self.attempt = attempt_in(self.file, RECORD | more, self.told.append)
        self.attempt.refused = self.moves.refused
        self.attempt.save()
        self.attempt.adopt()
        self.told.clear()
        assert self.attempt.state == State.SUSPENDED
        self.attempts[KEY] = self.attempt

    def spawn(self, coroutine):
        self.spawned.append(coroutine.__name__)
        coroutine.close()
        return asyncio.get_running_loop().create_future()

    def answers(self, command_id=17):
        return [
            (each["type"], each.get("error"))
            for each in self.told
            if each.get("command_id") == command_id
        ]

    def written(self):
        return json.loads((self.file / "attempt.json").read_text())


def run(work):
    async def in_a_loop():
        work()

    asyncio.run(in_a_loop())


def test_what_has_come_and_was_not_answered_for_is_this_nodes_from_then_on(tmp_path):
    node = Node(tmp_path, source="there")
    assert node.attempt.is_guest
    run(lambda: node.moves.arrive(PARK))
    assert node.answers() == [("done", None)]
    assert not node.attempt.is_guest
    assert node.written().get("source") is None
    assert node.written()["parked"] == 17


def test_a_command_that_is_repeated_is_answered_again(tmp_path):
    node = Node(tmp_path, parked=17)
    run(lambda: node.moves.arrive(PARK))
    assert node.answers() == [("done", None)]
    assert node.attempts[KEY] is node.attempt
    assert node.spawned == []


@pytest.mark.parametrize("command", [PARK | {"command_id": 18}, PARK | {"kind": "migrate"}])
def test_what_was_left_from_an_earlier_stay_is_not_taken_for_what_is_to_come(tmp_path, command):
    node = Node(tmp_path, parked=17)
    run(lambda: node.moves.arrive(command))
    assert node.answers(command["command_id"]) == []
    assert node.attempt.state == State.MOVED
    assert node.attempts == {}
    assert node.spawned == ["_fetch"]


@pytest.mark.parametrize("command", [PARK, PARK | {"kind": "migrate"}])
def test_a_state_that_is_to_come_from_its_own_node_stays_there(tmp_path, command):
    node = Node(tmp_path)
    with pytest.raises(AgentError, match="the state of job 7 is on this node, here, already"):
        node.moves.arrive(command | {"source": "here"})
    assert node.attempt.state == State.SUSPENDED
    assert node.attempts[KEY] is node.attempt
    assert node.spawned == []


def test_a_gang_on_several_nodes_is_handed_out_to_no_other(tmp_path):
    node = Node(tmp_path)
    node.attempt.record.gpus = [place_of(at, 0) for at in range(2)]
    told, _ = asyncio.run(node.moves.reply(KEY, {"want": "state"}))
    assert "can't move: it stays on its nodes" in told["error"]
    assert node.attempt.state == State.SUSPENDED


def test_without_room_for_its_record_it_stays_where_it_was_and_vanishes_here(tmp_path):
    node = Node(tmp_path, source="there")
    (node.file / "attempt.json.new").mkdir()  # in the way of its draft
    run(lambda: node.moves.arrive(PARK))
    said = "the record of job 7 can't be written: Is a directory"
    assert node.answers() == [("failed", said)]
    assert node.attempt.state == State.REFUSED
    assert node.attempts == {}


def test_an_attempt_that_does_not_wait_is_not_parked(tmp_path):
    node = Node(tmp_path, source="there")
    node.attempt.become(State.RESUMING)
    run(lambda: node.moves.arrive(PARK))
    assert node.answers() == [("failed", "job 7 is resuming, and does not wait here")]
