"""The coordinator of a gang, against a model of its ranks: any interleaving, deaths at any point.

The model keeps to what ranks do: messages between the coordinator and a rank stay in order, a rank
may be killed at any time, a vote or a meeting fails for everybody if one of its ranks is dead, and
those of an old group notice at their next step that it is broken.
"""

from collections import deque
from itertools import count
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rota.live.agent.gang import FORMING, HOLDING, PLACING, SETTLED, Gang

TRAINING, HELD, VOTED, WAITING, MEETING, WARM, DEAD = (
    "training",
    "held",
    "voted",
    "waiting",
    "meeting",
    "warm",
    "dead",
)


class Rank:
    """One process, as far as the coordinator can tell."""

    def __init__(self, slot, group, state):
        self.slot = slot
        self.group = group  # the meeting place of the group it is in, or None
        self.generation = 0
        self.doing = TRAINING if group is not None else WARM
        self.state = state  # whether it has the state of training
        self.step = 0
        self.hold_at = None
        self.round = None
        self.place = None
        self.formed = 0 if group is not None else -1  # the last generation that it has formed
        self.said = None  # in what state it told the agent that it waits
        self.connected = True
        self.inbox, self.outbox = deque(), deque()


class Ranks:
    """All processes, the groups that they formed, and the coordinator."""

    def __init__(self, members, random):
        self.random = random
        self.ranks = {slot: Rank(slot, 0, True) for slot in members}
        self.groups = {0: list(members)}
        self.meetings = count(4000)
        self.come = {}  # who came to which meeting place
        self.votes = {}
        self.lost = False
        self.known_to_have_state = set(members)
        self.dismissed, self.outcomes = set(), []
        self.written = list(members), 0  # what an agent that comes after this one finds
        self.agents_lost = 0
        self.gang = self.coordinator()

    def coordinator(self):
        members, generation = self.written
        end = self.dismissed.update
        return Gang(members, self.send, self.settled, end, park=end, generation=generation)

    def settled(self, outcome):
        self.outcomes.append(outcome)
        self.written = list(self.gang.members), self.gang.generation

    def send(self, slot, message):
        if self.ranks[slot].doing != DEAD and self.ranks[slot].connected:
            self.ranks[slot].inbox.append(message)

    def lose_agent(self):
        """Another one comes, which kills whom it does not know, and learns of the dead."""
        self.agents_lost += 1
        for rank in self.ranks.values():
            rank.connected = False
            rank.outbox.clear()
        self.gang = self.coordinator()
        members = list(self.gang.members)
        for slot, rank in self.ranks.items():
            if slot not in members:
                rank.doing, rank.inbox = DEAD, deque()
            elif rank.doing == DEAD:
                self.gang.ended(slot)
        self.known_to_have_state &= set(members)
        self.lost = self.lost or not self.gang.has_state

    def reconnect(self, rank):
        """As a rank does at a boundary or while it waits: it says where it is, and if it waits."""
        rank.connected = True
        rank.inbox.clear()
        rank.outbox.append(("is_in", rank.formed))
        if rank.doing == WAITING:
            rank.outbox.append(rank.said)

    def all_connected(self):
        return all(rank.connected for rank in self.living())

    def living(self):
        return [rank for rank in self.ranks.values() if rank.doing != DEAD]

    def is_whole(self, rank):
        group = self.groups[rank.group]
        return all(
            self.ranks[slot].doing != DEAD and self.ranks[slot].group == rank.group
            for slot in group
        )

    # -- what may happen next ------------------------------------------------------------------

    def possible(self):
        """Everything that can happen, as functions without arguments."""
        found = []
        for rank in self.living():
            if rank.outbox:
                found.append(lambda rank=rank: self.deliver(rank))
            if rank.slot in self.dismissed:
                found.append(lambda rank=rank: self.kill(rank.slot))
            elif not rank.connected and not rank.inbox and rank.doing != VOTED:
                found.append(lambda rank=rank: self.miss_agent(rank))
            elif act := self.act_of(rank):
                found.append(lambda rank=rank, act=act: act(rank))
        if self.gang.phase == HOLDING and (not found or self.random.random() < 0.02):
            found.append(self.gang.advance_holders)
        return found

    def miss_agent(self, rank):
        """What a rank does that notices the loss of the agent."""
        if rank.doing == HELD:
            rank.hold_at, rank.doing = None, TRAINING
        elif rank.doing == "voting":
            rank.place, rank.doing = {"type": "resume"}, VOTED
            self.votes.setdefault((rank.group, rank.step), {})[rank.slot] = False
        elif rank.doing == MEETING and self.random.random() < 0.5 and self.can_meet(rank):
            self.meet(rank)
        elif rank.doing == TRAINING and self.random.random() < 0.5 and (act := self.act_of(rank)):
            act(rank)
        else:
            self.reconnect(rank)

    def act_of(self, rank):
        if rank.doing == TRAINING:
            behind = [self.ranks[s] for s in self.groups[rank.group]]
            whole = self.is_whole(rank)
            # Nobody is more than a step ahead; in a broken group the next step fails.
            if whole and rank.step > min(other.step for other in behind if other.doing != DEAD):
                return None
            return self.step
        if rank.doing == MEETING and not rank.inbox:
            return self.meet if self.can_meet(rank) else None
        if rank.doing == VOTED:
            return self.second_vote if self.vote_is_over(rank) else None
        return self.read if rank.inbox else None

    def deliver(self, rank):
        message = rank.outbox.popleft()
        kind, gang = message[0], self.gang
        if kind == "formed":
            self.known_to_have_state.add(rank.slot)
        if kind == "at":
            gang.holds(rank.slot, message[1], message[2])
        else:
            getattr(gang, kind)(rank.slot, *message[1:])

    def kill(self, slot):
        rank = self.ranks[slot]
        rank.doing, rank.inbox = DEAD, deque()
        while rank.outbox:  # what it had sent arrives before its end is known
            self.deliver(rank)
        self.gang.ended(slot)
        if not self.gang.has_state and not self.lost:
            self.lost = True
            known = self.known_to_have_state - self.dismissed
            assert not any(rank.slot in known for rank in self.living())

    # -- a rank ----------------------------------------------------------------------------------

    def step(self, rank):
        if not self.is_whole(rank):
            self.say_broken(rank)
            return
        rank.step += 1
        while rank.inbox:
            self.obey(rank, rank.inbox.popleft())
        if rank.hold_at is not None and rank.step >= rank.hold_at:
            rank.doing = HELD
            self.say_only(rank, "at", rank.step, rank.round)

    def obey(self, rank, message):
        if message["type"] == "pause":
            rank.hold_at, rank.round = rank.step, message["round"]
        elif message["type"] == "run_to" and rank.hold_at is not None:
            rank.hold_at = max(rank.hold_at, message["step"])
        elif message["type"] == "resume":
            rank.hold_at = None

    def read(self, rank):
        message = rank.inbox.popleft()
        kind = message["type"]
        if kind == "leave" and rank.doing in (WAITING, WARM):
            self.dismissed.add(rank.slot)
            return
        if kind == "host" and rank.doing in (WAITING, "voting"):
            self.say_only(rank, "hosting", message["generation"], next(self.meetings))
        elif rank.doing == HELD and kind == "vote":
            rank.hold_at = None
            if self.is_whole(rank):
                rank.doing = "voting"
                self.say_only(rank, "voted")
            else:
                self.say_broken(rank)
        elif rank.doing == HELD:
            self.obey(rank, message)
            if kind == "pause":
                self.say_only(rank, "at", rank.step, rank.round)
            if rank.hold_at is None or rank.hold_at > rank.step:
                rank.doing = TRAINING
        elif rank.doing == "voting" and kind in ("form", "standby", "resume"):
            rank.place, rank.doing = message, VOTED
            self.votes.setdefault((rank.group, rank.step), {})[rank.slot] = kind != "resume"
        elif rank.doing in (WAITING, WARM) and kind in ("form", "standby"):
            self.go(rank, message)
        elif rank.doing == MEETING and kind == "give_up":
            self.say_broken(rank)
        else:
            self.obey(rank, message)

    def vote_is_over(self, rank):
        votes = self.votes.get((rank.group, rank.step), {})
        return len(votes) == len(self.groups[rank.group]) or any(
            self.ranks[slot].doing in (DEAD, WAITING) for slot in self.groups[rank.group]
        )

    def second_vote(self, rank):
        votes = self.votes[rank.group, rank.step]
        message, rank.place = rank.place, None
        one_died = any(self.ranks[slot].doing == DEAD for slot in self.groups[rank.group])
        if len(votes) < len(self.groups[rank.group]) or (one_died and self.random.random() < 0.5):
            self.say_broken(rank)
        elif all(votes.values()):
            self.go(rank, message)
        else:
            rank.doing = TRAINING
            if message["type"] != "resume":
                self.say_only(rank, "stayed", message["generation"])

    def go(self, rank, message):
        rank.group = None
        if message["type"] == "standby":
            rank.doing = WAITING
            self.say(rank, "stands_by", rank.generation)
            return
        rank.doing, rank.place = MEETING, message
        self.come.setdefault(message["port"], set()).add(rank.slot)

    def can_meet(self, rank):
        come = self.come[rank.place["port"]]
        late = self.agents_lost and not any(other.doing == VOTED for other in self.living())
        return (
            late
            or len(come) == rank.place["world"]
            or any(self.ranks[slot].doing in (DEAD, WAITING) for slot in come)
        )

    def meet(self, rank):
        port, world = rank.place["port"], rank.place["world"]
        come = [self.ranks[slot] for slot in sorted(self.come[port])]
        if port not in self.groups:
            if len(come) < world or any(other.doing != MEETING for other in come):
                self.say_broken(rank)
                return
            self.groups[port] = [other.slot for other in come]
            assert any(other.state for other in come), "newcomers met among themselves"
            for other in come:  # each of them has the state, and will notice that
                other.group, other.step = port, max(each.step for each in come)
                other.generation, other.state = rank.place["generation"], True
        if any(other.doing == DEAD for other in come) and self.random.random() < 0.5:
            self.say_broken(rank)  # it was in the last vote when the other one died
            return
        rank.place, rank.doing, rank.formed = None, TRAINING, rank.generation
        self.say(rank, "formed", rank.generation)

    def say_broken(self, rank):
        rank.group, rank.place, rank.hold_at = None, None, None
        rank.doing = WAITING
        self.say(rank, "broken", "the group failed", rank.generation)

    def say(self, rank, *message):
        rank.said = message
        self.say_only(rank, *message)

    def say_only(self, rank, *message):
        if rank.connected:
            rank.outbox.append(message)

    # -- what must hold --------------------------------------------------------------------------

    def check(self):
        gang = self.gang
        if gang.phase in (FORMING, PLACING):
            for slot in gang._senders:
                assert self.ranks[slot].state, "a newcomer without the state would be a sender"
        training = {
            rank.group
            for rank in self.living()
            if rank.doing == TRAINING and self.is_whole(rank) and rank.slot not in self.dismissed
        }
        assert len(training) <= 1, f"generations {training} train at the same time"


@st.composite
def stories(draw):
    members = draw(st.integers(1, 4))
    leavers = draw(st.sets(st.integers(0, members - 1), max_size=members - 1))
    newcomers = draw(st.integers(0 if leavers else 1, 3))
    deaths = draw(st.sets(st.integers(0, members + newcomers - 1), max_size=3))
    when = {slot: draw(st.integers(0, 60)) for slot in deaths}
    called_off = draw(st.one_of(st.none(), st.integers(0, 40)))
    once_more = draw(st.booleans())  # shrink as soon as the first resize has ended
    agent_lost = draw(st.one_of(st.none(), st.integers(0, 60)))
    return members, leavers, newcomers, when, called_off, agent_lost, once_more


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(stories(), st.integers(0, 2**32))
@example((3, {0}, 0, {2: 1}, None, 0, True), 1_073_741_824)  # a pause of an agent that was lost
def test_a_resize_ends_whatever_happens_and_nobody_loses_the_state(story, seed):
    random = Random(seed)
    members, leavers, newcomers, deaths, called_off, agent_lost, once_more = story
    ranks = Ranks(list(range(members)), random)
    new = list(range(members, members + newcomers))
    for slot in new:
        ranks.ranks[slot] = Rank(slot, None, False)
        ranks.ranks[slot].outbox.append(("ready",))
    ranks.gang.resize(new, sorted(leavers))
    quiet = 0
    for event in range(2000):
        for slot in [slot for slot, at in deaths.items() if at == event]:
            if ranks.ranks[slot].doing != DEAD:
                ranks.kill(slot)
        if event == agent_lost:
            ranks.lose_agent()
        gang = ranks.gang
        if event == called_off:
            gang.call_off("something more urgent")
        if (
            once_more
            and ranks.outcomes
            and gang.phase == SETTLED
            and len(gang.members) > 1
            and ranks.all_connected()
        ):
            once_more = False
            ranks.outcomes.clear()
            gang.resize([], gang.members[1:])
        ranks.check()
        possible = ranks.possible()
        over = (
            gang.phase == SETTLED
            and event > 70
            and ranks.all_connected()
            and not ranks.dismissed & {rank.slot for rank in ranks.living()}
        )
        quiet = quiet + 1 if over else 0
        if ranks.lost or quiet > 40 or not possible:
            break
        random.choice(possible)()
    if ranks.lost:
        return
    assert gang.has_state
    assert gang.phase == SETTLED, (gang.phase, {r.slot: r.doing for r in ranks.living()})
    assert ranks.outcomes or agent_lost is not None
    training = sorted(r.slot for r in ranks.living())
    assert sorted(gang.members) == training, "who lives is a member, and who is a member lives"
    assert all(r.doing == TRAINING and ranks.is_whole(r) for r in ranks.living())
    if not deaths and called_off is None and agent_lost is None and not story[-1]:
        assert ranks.outcomes == [None]
        assert training == sorted((set(range(members)) - leavers) | set(new))


def test_a_state_that_can_not_be_handed_over_is_told_as_the_reason_whoever_says_so_first():
    for own_first in (True, False):
        outcomes = []
        gang = Gang([0], lambda slot, message: None, outcomes.append, list, park=list)
        gang.resize([1], [])
        gang.ready(1)
        gang.holds(0, 5, 1)
        gang.voted(0)
        gang.hosting(0, 1, 4000)
        said = [(0, "connection closed", False), (1, "ValueError: no such group", True)]
        for slot, error, own in reversed(said) if own_first else said:
            gang.broken(slot, error, 1, own=own)
        gang.hosting(0, 2, 4001)
        gang.formed(0, 2)
        assert outcomes == ["the state could not be handed over: ValueError: no such group"]


@pytest.mark.parametrize("ends_first", [True, False])
def test_newcomers_are_dismissed_once_nobody_is_left_who_has_the_state(ends_first):
    outcomes, dismissed = [], set()
    gang = Gang([0], lambda slot, message: None, outcomes.append, dismissed.update, park=list)
    gang.resize([1, 2], [])
    gang.ready(1)
    gang.ready(2)
    gang.holds(0, 5, 1)
    gang.voted(0)
    gang.hosting(0, 1, 4000)
    if ends_first:
        gang.ended(0)
    gang.broken(1, "a rank is gone", 0)
    assert not dismissed
    gang.broken(2, "a rank is gone", 0)
    if not ends_first:
        assert not dismissed
        gang.ended(0)
    assert (dismissed, gang.phase, len(outcomes)) == ({1, 2}, SETTLED, 1)
