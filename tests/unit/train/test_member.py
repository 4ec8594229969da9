"""A rank's side of the agreement, with an agent that says what the test scripts."""

from types import SimpleNamespace

import pytest
import torch

from rota.errors import GangError
from rota.train import member as member_module
from rota.train.member import Member


class Agent:
    """Stands for the link: each thing it is to say is a message, or an event of the connection."""

    def __init__(self, *script):
        self.script = list(script)
        self.heard = []
        self.connected, self.connections = True, 1

    def wait(self):
        if not self.script:
            return None
        said = self.script.pop(0)
        if said == "lost":
            self.connected = False
            return None
        if said == "another":
            self.connected, self.connections = True, self.connections + 1
            return None
        return {"type": said} if isinstance(said, str) else said

    def poll(self):
        return []

    def send(self, message):
        if self.connected:
            self.heard.append(message["type"])
        return self.connected


class World:
    """Votes as scripted; remembers what it was asked for."""

    def __init__(self, *votes):
        self.votes = list(votes)
        self.rank, self.size, self.generation = 0, 2, 3
        self.did = []

    def agree(self, yes, *, at_once):
        outcome = self.votes.pop(0) if self.votes else True
        if isinstance(outcome, Exception):
            raise outcome
        return yes and outcome

    def host(self):
        self.did.append("host")
        return 4000

    def form(self, generation, rank, size, *_):
        self.did.append("form")
        self.generation, self.rank, self.size = generation, rank, size

    def leave(self):
        self.did.append("leave")

    abandon = leave

    def stand_alone(self, _):
        self.did.append("stand alone")


FORM = {"type": "form", "generation": 4, "rank": 0, "world": 2, "senders": [0, 1]} | {
    "host": "127.0.0.1",
    "port": 4000,
}
HOST = {"type": "host", "generation": 4}


def member(agent, *votes):
    made = Member(World(*votes), agent)
    made.device = torch.device("cpu")
    return made


def test_a_change_takes_two_votes_and_then_a_meeting():
    agent = Agent(HOST, FORM)
    made = member(agent)
    made.change()
    assert agent.heard == ["voted", "hosting", "formed"]
    assert made.world.generation == 4


def test_a_change_that_is_called_off_or_outvoted_leaves_all_as_it_was():
    for script, votes, heard in [
        (["resume"], [], ["voted"]),
        (["lost"], [], ["voted"]),
        ([FORM], [True, False], ["voted", "stayed"]),
    ]:
        agent = Agent(*script)
        made = member(agent, *votes)
        made.change()
        assert agent.heard == heard
        assert made.world.did == []


@pytest.mark.parametrize("votes", [[RuntimeError("reset")], [True, RuntimeError("reset")]])
def test_a_vote_that_fails_is_a_broken_group(votes):
    agent = Agent(*([FORM] if len(votes) > 1 else []), FORM)
    made = member(agent, *votes)
    made.change()
    assert agent.heard[-2:] == ["broken", "formed"]
    assert made.world.did == ["leave", "form"]


def test_an_agent_that_comes_after_another_is_told_that_the_group_is_broken():
    agent = Agent("lost", "another", FORM)
    member(agent).recover("a peer is gone")
    assert agent.heard == ["broken", "broken", "formed"]


def test_without_an_agent_a_broken_gang_ends_with_an_error(monkeypatch):
    with pytest.raises(GangError, match="there is no agent to tell who is left: a peer is gone"):
        member(None).recover("a peer is gone")
    now = iter(range(0, 10_000, 10))
    clock = SimpleNamespace(monotonic=lambda: next(now))
    monkeypatch.setattr(member_module, "time", clock)
    with pytest.raises(GangError, match="its agent is gone"):
        member(Agent("lost")).recover("a peer is gone")


def test_a_rank_that_was_stopped_for_longer_than_its_patience_looks_for_its_agent_yet(monkeypatch):
    now = iter([0.0, 0.1, 300.0, 300.1, 300.2])
    monkeypatch.setattr(member_module, "time", SimpleNamespace(monotonic=lambda: next(now)))
    agent = Agent("lost", "none", "another", FORM)
    member(agent).recover("a peer is gone")
    assert agent.heard[-1] in ("broken", "formed")


def test_a_pause_that_comes_while_it_waits_is_kept_for_the_next_boundary():
    made = member(Agent({"type": "pause", "gang": True, "round": 2}, FORM))
    made.recover("a peer is gone")
    assert made.must_hold(7)


def test_a_new_pause_while_it_holds_is_answered_anew():
    agent = Agent({"type": "pause", "gang": True, "round": 2}, "vote")
    made = member(agent)
    made.obey({"type": "pause", "gang": True, "round": 1}, 5)
    assert made.agree(5) == "vote"
    assert agent.heard == ["at", "at"]


def test_who_leaves_keeps_the_state_until_it_is_parked_and_comes_back_as_newcomers_do():
    agent = Agent({"type": "standby", "generation": 4}, "park", FORM | {"senders": [0]})
    made = member(agent)
    made.can_return = True
    made.change()
    assert agent.heard == ["voted", "standing_by"]
    assert made.rehearses
    made.join()
    assert agent.heard == ["voted", "standing_by", "ready", "formed"]
    assert not made.rehearses


def test_who_leaves_takes_over_if_nobody_else_is_left():
    agent = Agent({"type": "standby", "generation": 4}, HOST | {"generation": 5}, FORM)
    made = member(agent)
    made.change()
    assert agent.heard == ["voted", "standing_by", "hosting", "formed"]
    assert not made.rehearses


@pytest.mark.parametrize("last", ["leave", "park"])
def test_who_is_told_to_leave_or_can_not_come_back_ends(last):
    with pytest.raises(SystemExit) as ending:
        member(Agent({"type": "standby", "generation": 4}, last)).change()
    assert ending.value.code == 0


def test_a_meeting_that_fails_is_followed_by_another():
    agent = Agent(FORM, FORM | {"generation": 5})
    made = member(agent)
    form, failures = made.world.form, [RuntimeError("not all came")]

    def flaky(*place):
        if failures:
            raise failures.pop()
        form(*place)

    made.world.form = flaky
    made.change()
    assert agent.heard == ["voted", "broken", "formed"]
    assert made.world.generation == 5


class Replica:
    """A state that fails as it is taken apart or put together."""

    def send(self, *_):
        raise ValueError("cannot pickle")

    def receive(self, *_):
        raise KeyError("no such group")


@pytest.mark.parametrize(
    ("rank", "error"), [(0, "ValueError: cannot pickle"), (1, "KeyError: 'no such group'")]
)
def test_a_state_that_can_not_be_handed_over_is_a_failed_meeting(rank, error):
    agent = Agent(FORM | {"rank": rank, "senders": [0]}, FORM | {"generation": 5})
    said = []
    agent.send = lambda message: said.append(message) or True
    made = member(agent)
    made.replica = Replica()
    made.recover("a peer is gone")
    assert [message["type"] for message in said] == ["broken", "broken", "formed"]
    assert (said[1]["error"], said[1]["own"]) == (error, True)
