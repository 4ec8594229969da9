"""Coordinates the ranks of one attempt: they hold at one step, and become more or fewer.

No sockets and no clock in here: messages from the ranks come in, messages to them go out by
``send``. A *slot* is one process for as long as it lives; its *rank* is its place among the members
of the present generation.

A resize: newcomers warm up on their own (``warming``) while the members train; then all members
hold at one step (``holding``), vote, are told their places, and meet in a new process group
(``forming``), where the newcomers get the state. Up to the second vote a failure calls it off.
After it, as after the loss of a member, every living member says that its group is broken, and
those that have the state meet again (``broken``, ``forming``). Who is to go stands by with the
state until the others have met, in case that all of them are lost.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from rota.live.wire import Message

SETTLED, WARMING, HOLDING, VOTING, PLACING, FORMING, BROKEN = (
    "settled",
    "warming",
    "holding",
    "voting",
    "placing",
    "forming",
    "broken",
)
LOOPBACK = "127.0.0.1"
COUPLED_STEP_S = 0.05  # ranks that do not answer for so long may be waiting for one that holds


class Resize(NamedTuple):
    """A requested change of members: the newcomers and the leavers."""

    newcomers: tuple[int, ...]
    leavers: tuple[int, ...]
    ready: tuple[int, ...] = ()  # newcomers that stood by for this, and can do so again


class Gang:
    """The members of one attempt.

    ``send`` tells a slot something; ``settled`` is called with the error, or None, when a change
    has ended; ``dismiss`` with slots that are no longer needed; ``park`` with those that have left
    in good order, and may come back. ``address_of`` a slot is where the others find its process.
    """

    def __init__(
        self,
        members: Iterable[int],
        send: Callable[[int, Message], None],
        settled: Callable[[str | None], None],
        dismiss: Callable[[Iterable[int]], None],
        park: Callable[[Iterable[int]], None],
        generation: int = 0,
        address_of: Callable[[int], str] = lambda slot: LOOPBACK,
    ) -> None:
        self.members = list(members)  # in order of their ranks
        self.generation = generation
        self.phase = SETTLED
        self.steps: dict[int, int] = {}  # of those that hold at a boundary
        self._send = send
        self._settled = settled
        self._dismiss = dismiss
        self._park = park
        self._address_of = address_of
        self._resize: Resize | None = None
        self._ready: set[int] = set()  # newcomers that have warmed up
        self._round = 0  # of holding: an answer to a pause that was called off must not count
        self._votes: set[int] = set()
        self._places: list[int] = []  # the members to be, in order of their ranks
        self._meeting = LOOPBACK  # the address at which they meet
        self._senders: set[int] = set()  # members-to-be that have the state
        self._formed: set[int] = set()
        self._stateless: set[int] = set()  # newcomers that wait for others, without the state
        self._broken: dict[int, int] = {}  # members that reported it, with its generation
        self._trains_in: dict[int, int] = {}  # the generation that each member is known to be in
        self._parted: list[int] = []  # members of before that are to go, and still have the state
        self._standing_by: set[int] = set()  # leavers that reported that they stand by
        self._left = self.generation  # the generation that they have left, once they have said so
        self._before: list[int] = []  # the members when places were given out
        self._error = ""

    # -- asked for from above ------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """True if a change is under way."""
        return self.phase != SETTLED

    @property
    def has_state(self) -> bool:
        """True if a living process has the state of training."""
        return bool(self.members or self._formed or self._parted)

    @property
    def awaited(self) -> list[int]:
        """Members whose answer all other members are waiting for."""
        if self.phase == PLACING:
            return self._places[:1]
        if self.phase == BROKEN:
            slots = self.members or self._parted
            return [s for s in slots if s not in self._broken and s not in self._standing_by]
        return []

    def resize(
        self, newcomers: Iterable[int], leavers: Iterable[int], ready: Iterable[int] = ()
    ) -> None:
        """Begin a change of members; newcomers have just been started, or stand by (``ready``).

        If it is called off, those that stood by are neither dismissed nor parked.
        """
        self._resize = Resize(tuple(newcomers), tuple(leavers), tuple(ready))
        self._ready = set(ready)
        self.phase = WARMING
        self._check_ready()

    def call_off(self, error: str) -> None:
        """Call off a resize before its second vote; a later one runs its course."""
        if self.phase not in (WARMING, HOLDING, VOTING):
            return
        for slot in self.members:
            self._send(slot, {"type": "resume", "device": None})
        if (resize := self._resize) is not None:
            others = tuple(slot for slot in resize.newcomers if slot not in resize.ready)
            self._resize = resize._replace(newcomers=others)
        self._end_resize(error)

    # -- what the ranks say --------------------------------------------------------------------

    def ready(self, slot: int) -> None:
        """A newcomer has warmed up."""
        self._ready.add(slot)
        self._check_ready()

    def is_in(self, slot: int, generation: int) -> None:
        """A rank has found this agent, and reports the last generation that it joined.

        It may be newer than any known here, if an earlier agent died before recording it.
        """
        if slot in self.members:
            self._trains_in[slot] = generation
            self.generation = max(self.generation, generation)
            self._check_broken()

    def stands_by(self, slot: int, generation: int) -> None:
        """A member that is to go has left its group, that of ``generation``, and has the state."""
        if slot in self.members:
            self.call_off("a member is about to leave")
        if slot in self.members and self.phase in (SETTLED, BROKEN):
            # It left by order of an agent that did not live to write that down.
            self.members.remove(slot)
            self._parted.append(slot)
            self.phase = BROKEN
        if slot in self._parted:
            self._standing_by.add(slot)
            self._left = generation
            self._check_broken()

    def holds(self, slot: int, step: int, round_: int | None) -> None:
        """A member holds at a boundary, as asked in this round or an earlier one."""
        if self.phase == VOTING and round_ == self._round:
            return  # it has reported it before, and is about to vote
        if self.phase != HOLDING:
            self._send(slot, {"type": "resume", "device": None})
            return
        if round_ != self._round:
            return  # it was released meanwhile, and asked to hold again
        self.steps[slot] = step
        if agree_on_step(self.steps, self.members, self._send):
            self.phase = VOTING
            self._votes.clear()
            for member in self.members:
                self._send(member, {"type": "vote"})

    def advance_holders(self) -> None:
        """Advance the holders: a member may be in a step that it can't complete without them."""
        if self.phase == HOLDING:
            let_go_on(self.steps, self.members, self._send)

    def voted(self, slot: int) -> None:
        """A member has seen that all others hold at the same step."""
        if self.phase != VOTING or slot not in self.members:
            return
        self._votes.add(slot)
        if self._votes >= set(self.members):
            assert self._resize is not None
            stay = [slot for slot in self.members if slot not in self._resize.leavers]
            self._place(stay + list(self._resize.newcomers), senders=stay)

    def hosting(self, slot: int, generation: int, port: int) -> None:
        """The first of the new members has opened a meeting place."""
        if self.phase != PLACING or generation != self.generation or slot != self._places[0]:
            return
        self.phase = FORMING
        senders = [rank for rank, slot in enumerate(self._places) if slot in self._senders]
        place = {"type": "form", "generation": generation, "world": len(self._places)}
        place |= {"host": self._meeting, "port": port, "senders": senders}
        place["hosts"] = sorted({self._address_of(each) for each in self._places})
        for rank, slot in enumerate(self._places):
            self._send(slot, place | {"rank": rank})
        for slot in self.members:
            if slot not in self._places:
                self._parted.append(slot)
                self._send(slot, {"type": "standby", "generation": generation})
        self.members = [slot for slot in self.members if slot in self._places]

    def stayed(self, slot: int, generation: int) -> None:
        """The second vote has failed for all: nobody has left the previous group."""
        if self.phase != FORMING or generation != self.generation or self._resize is None:
            return
        self.members, self._parted = self._before, []
        self._standing_by.clear()
        self._end_resize("the ranks could not agree on the change")

    def formed(self, slot: int, generation: int) -> None:
        """A member has met the others, and has the state."""
        if self.phase in (SETTLED, BROKEN):
            self.is_in(slot, generation)
        if self.phase != FORMING or generation != self.generation or slot not in self._places:
            return
        self._formed.add(slot)
        self._trains_in[slot] = generation
        if self._formed >= set(self._places):
            self.members = list(self._places)
            self._end_resize(self._error or None)

    def broken(self, slot: int, error: str, generation: int, *, own: bool = False) -> None:
        """A member's group, of ``generation``, is broken, or its next group has failed.

        ``own`` is True if this slot failed, which says more than that it lost others.
        """
        if own and self.busy:
            self._error = f"the state could not be handed over: {error}"
        self._trains_in.pop(slot, None)
        if slot in self._parted:
            self._standing_by.add(slot)
            self._left = generation
            self._check_broken()
            return
        if slot not in self.members and slot not in self._formed:
            if generation < self.generation:
                self._stateless.add(slot)
                self._check_broken()
            return  # a newcomer without the state: it waits, and is dismissed when all is settled
        if self.phase in (HOLDING, VOTING, WARMING):
            self.call_off(error)
        elif self.phase == FORMING:
            self._give_up()
        elif self.phase == PLACING and self._resize is None:
            self._place(self._places, self._senders)  # it may not have received its place
            return
        elif self.phase == PLACING:
            self._abandon_placing(error)
        self.phase = BROKEN
        self._broken[slot] = generation
        self._error = self._error or error
        self._check_broken()

    def ended(self, slot: int) -> None:
        """A process is gone, for whatever reason."""
        resize, was_member = self._resize, slot in self.members
        placed = slot in self._places and self.phase in (PLACING, FORMING)
        for group in (self.members, self._places, self._parted, self._before):
            if slot in group:
                group.remove(slot)
        for known in (
            self._ready,
            self._formed,
            self._stateless,
            self._senders,
            self._standing_by,
        ):
            known.discard(slot)
        for said in (self.steps, self._broken, self._trains_in):
            said.pop(slot, None)
        if self.phase in (WARMING, HOLDING, VOTING):
            if was_member:
                self.call_off("a member ended")
            elif resize is not None and slot in resize.newcomers:
                self.call_off(f"a newcomer ended before it could join (process {slot})")
        elif placed and self.phase == FORMING:
            self._give_up()
        elif placed and resize is not None:
            self._abandon_placing("a rank ended before the others could meet it")
        elif placed and self._places:
            self._place(self._places, senders=self._places)
        if self.phase in (PLACING, FORMING) and not self.members and not self._formed:
            self.phase = BROKEN  # there is nobody left to say so
            self._error = self._error or "a rank ended before it had handed over the state"
        self._check_broken()

    # -- inside --------------------------------------------------------------------------------

    def _check_ready(self) -> None:
        if self.phase != WARMING or self._resize is None:
            return
        if self._ready >= set(self._resize.newcomers):
            self.phase = HOLDING
            self.steps.clear()
            self._round += 1
            for slot in self.members:
                self._send(slot, {"type": "pause", "gang": True, "round": self._round})

    def _check_broken(self) -> None:
        """Once all living members have reported it, those with the state meet again."""
        if self.phase != BROKEN or self._left_behind():
            return
        if any(slot not in self._broken for slot in self.members):
            return
        have_state = self.members + sorted(set(self._broken) - set(self.members))
        if not have_state and not self._formed and self._standing_by >= set(self._parted):
            have_state, self._parted = self._parted, []
            self._standing_by.clear()
        if not have_state:
            if self._resize is not None and not self.has_state and self._waits_in_vain():
                self._end_resize(self._error)
            return
        self.members = list(have_state)
        if self._resize is not None:  # the resize ends here, with the members that have the state
            self._dismiss(s for s in self._resize.newcomers if s not in have_state)
            self._resize = None
        self._place(have_state, senders=have_state)

    def _left_behind(self) -> bool:
        """True if the others have a newer group, so that the change is over except for leavers.

        An agent that died before recording it has led them there.
        """
        newest = max((self._trains_in.get(slot, -1) for slot in self.members), default=-1)
        behind = [slot for slot in self.members if self._broken.get(slot, newest) < newest]
        for slot in behind:
            self.members.remove(slot)
            del self._broken[slot]
        self._dismiss(behind)
        if (behind or self._left < newest) and not self._broken:
            self._end_resize(None)
            return True
        return False

    def _waits_in_vain(self) -> bool:
        """True if all that are left to meet are newcomers without the state."""
        return self._stateless >= set(self._places)

    def _abandon_placing(self, error: str) -> None:
        """Call off the change before any place was assigned: all members can continue."""
        self.phase = VOTING
        self.call_off(error)

    def _give_up(self) -> None:
        """Release ranks that may be waiting for others at the meeting place."""
        for slot in self._places:
            self._send(slot, {"type": "give_up", "generation": self.generation})

    def _place(self, places: Iterable[int], senders: Iterable[int]) -> None:
        self.generation += 1
        self.phase = PLACING
        self._places, self._senders = list(places), set(senders)
        self._before = list(self.members)
        self._formed.clear()
        self._stateless.clear()
        self._broken.clear()
        first, addresses = self._places[0], {self._address_of(each) for each in self._places}
        self._meeting = self._address_of(first) if len(addresses) > 1 else LOOPBACK
        host = {"type": "host", "generation": self.generation, "address": self._meeting}
        self._send(first, host)

    def _end_resize(self, error: str | None) -> None:
        newcomers = self._resize.newcomers if self._resize is not None else ()
        gone, self._parted = self._parted, []
        self._standing_by.clear()
        self._resize, self._error = None, ""
        self._places = []
        self._formed.clear()
        self.phase = SETTLED
        self._dismiss(slot for slot in newcomers if slot not in self.members)
        self._park(gone)
        self._settled(error)


def agree_on_step(
    steps: dict[int, int], slots: Iterable[int], send: Callable[[int, Message], None]
) -> bool:
    """Bring all ``slots`` to one boundary, the latest that any holds at. True if they all are."""
    slots = list(slots)
    if not steps:
        return False
    goal = max(steps.values())
    for slot in slots:
        if slot in steps and steps[slot] < goal:
            del steps[slot]
            send(slot, {"type": "run_to", "step": goal})
    return all(steps.get(slot) == goal for slot in slots)


def let_go_on(
    steps: dict[int, int], slots: Iterable[int], send: Callable[[int, Message], None]
) -> None:
    """Let ranks that hold take one more step, if others do not answer."""
    slots = list(slots)
    if steps and len(steps) < len(slots):
        for slot, step in list(steps.items()):
            send(slot, {"type": "run_to", "step": step + 1})
        steps.clear()
