"""This rank as a member of its gang: how it holds at a step, and how it changes groups.

The agent coordinates; the ranks decide. A change of members begins like a suspension: all ranks
hold at one boundary. They vote in their process group, and vote once more when each has been told
its new place: nobody leaves the old group unless all have seen that all have seen (Or et al.,
*Resource Elasticity in Distributed Deep Learning*, MLSys 2020). What happens after that can fail
without loss: the members of before have the state, and are told to meet again without the others.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from rota.errors import GangError
from rota.live.wire import Message
from rota.model.presence import Presence
from rota.train.link import Link
from rota.train.world import LOOPBACK, World

if TYPE_CHECKING:
    import torch

    from rota.train.device import DeviceState
    from rota.train.replica import Replica

PATIENCE_S = 60.0  # how long a rank without a group waits for an agent
STOPPED_S = 1.0  # a look for an agent takes less, unless this process was stopped
FIXED_BATCHES = (
    "the program has no batches that can be changed: it needs batch: {mode: adapt} in its job "
    "file, and batches from s.loader(...)"
)
AGENT_GONE = "its agent is gone, and the gang can't meet again without one"


class HandoverError(RuntimeError):
    """The state can't be serialised or restored here."""


class Member:
    """One rank's side of the agreement. ``link`` is None for a program that runs without Rota."""

    def __init__(self, world: World, link: Link | None) -> None:
        self.world = world
        self.link = link
        self.replica: Replica | None = None
        self.device: torch.device | None = None
        self.settle: Callable[[], object] = lambda: None  # called among those that had the state
        self.gather: Callable[[], object] = lambda: None  # called before ranks leave each other
        self.moved: Callable[[], object] = lambda: None  # called in a new world
        self.formed: Callable[[], object] = lambda: None  # called when all have met there
        self.step_aside: Callable[[], object] = lambda: None  # called before it leaves its group
        self.seated: Callable[[Message], object] = lambda _: None  # called with its seat, or none
        self.state: DeviceState | None = None
        self.tune: Callable[[int, int], object] | None = None  # called with how batches are to be
        self.rehearses = os.environ.get("ROTA_NEWCOMER") == "1"
        self.can_return = False  # True if the running loop would take this rank back from standby
        self._parked = False
        self.patience_s = float(os.environ.get("ROTA_GROUP_TIMEOUT_S", PATIENCE_S))
        self._gang = False
        self._round: int | None = None  # the pause that this rank answers
        self._hold_at: int | None = None  # the step to hold at, while one is asked for

    # -- holding at a boundary -----------------------------------------------------------------

    def obey(self, message: Message, step: int) -> None:
        """Note where to hold, a hold called off, new batches, or other cores, as the agent says."""
        if message["type"] == "tune":
            self._tune(message["batch"])
        elif message["type"] == "pause":
            self._gang, self._hold_at = message["gang"], step
            self._round = message.get("round")
        elif message["type"] == "run_to" and self._hold_at is not None:
            self._hold_at = max(self._hold_at, message["step"])
        elif message["type"] == "resume":
            self._hold_at = None
        elif message["type"] == "cpus":
            self.world.cores.millicores = message["millicores"]

    def _tune(self, batch: list[int]) -> None:
        if self.tune is not None:
            self.tune(*batch)
        elif self.link is not None:
            self.link.send({"type": "tuned", "batch": batch, "refusal": FIXED_BATCHES})

    @property
    def is_asked_to_hold(self) -> bool:
        """True if a hold is asked for, at this boundary or a later one."""
        return self._hold_at is not None

    def must_hold(self, step: int) -> bool:
        """True if this rank must hold at this boundary."""
        return self._hold_at is not None and step >= self._hold_at

    def agree(self, step: int) -> str | None:
        """Hold here until all ranks do: ``offload`` or ``vote``, or None to continue for now.

        The agent answers once every rank holds at the same step, or with ``run_to``, a step that
        another rank has begun already. If the agent is lost meanwhile, the hold is called off.
        """
        assert self.link is not None
        if not self._gang:
            self._hold_at = None
            return "offload"
        self.link.send({"type": "at", "step": step, "round": self._round})
        while self.link.connected:
            message = self.link.wait()
            if message is None:
                continue
            if message["type"] in ("offload", "vote"):
                self._hold_at = None
                return str(message["type"])
            if message["type"] == "turns" and message["round"] == self._round:
                self._hold_at = None
                self.seated(message)
            self.obey(message, step)
            if message["type"] == "pause":  # one was called off, and another has begun
                self.link.send({"type": "at", "step": step, "round": self._round})
            if self._hold_at is None or self._hold_at > step:
                return None
        self._hold_at = None
        return None

    # -- another world -------------------------------------------------------------------------

    def change(self) -> None:
        """Vote, then do as the agent says: change groups, stand by, or continue as before."""
        link, failure = self._agent(), None
        try:
            self.world.agree(True, at_once=True)
            self.gather()
            link.send({"type": "voted"})
            place = self._await_vote()
            agreed = self.world.agree(place is not None, at_once=True)
        except RuntimeError as error:
            failure = str(error)
        if failure is not None:
            self.recover(failure)
        elif place is not None and agreed:
            self._go(place)
        elif place is not None:
            link.send({"type": "stayed", "generation": place["generation"]})

    def _await_vote(self) -> Message | None:
        """The place that this rank is to vote for; None if called off, or if the agent is lost."""
        link = self._agent()
        while link.connected:
            message = link.wait()
            if message is None or self._hosts(message):
                continue
            if message["type"] == "resume":
                return None
            if message["type"] in ("form", "standby"):
                return message
        return None

    def join(self) -> None:
        """Wait until the others let this rank in, or in again, and take over their state."""
        self.rehearses = False
        self.world.leave()
        if self._parked and self.state is not None:
            self.state.offload()
        self._await_place({"type": "ready"})

    def recover(self, error: str) -> None:
        """After the group broke: wait until the agent says which ranks are left, and meet them.

        Call it after the exception has been handled: its frames keep the group open, and the other
        ranks would not notice the failure. Raises GangError if there is no agent.
        """
        if self.link is None:
            raise GangError(
                f"rank {self.world.rank} of {self.world.size} lost its peers, and there is no "
                f"agent to tell who is left: {error}"
            )
        self._meet_again(error)

    def _meet_again(self, error: str, *, own: bool = False) -> None:
        """Leave the broken group, so that its others notice, and wait for a place in another.

        ``own`` is True if this rank failed, and False if it lost its peers.
        """
        generation = self.world.generation
        self.step_aside()
        self.world.abandon()
        broken = {"type": "broken", "generation": generation, "error": error[:500], "own": own}
        self._await_place(broken)

    def _await_place(self, state: Message) -> None:
        """Report this rank's state to this agent and any later one, then obey."""
        link = self._agent()
        presence = Presence(STOPPED_S)  # a rank that was stopped could hear no agent
        told, deadline = -1, presence.at(time.monotonic()) + self.patience_s
        while True:
            if link.connected and told != link.connections:
                told = link.connections
                link.send(state)
            message, now_s = link.wait(), presence.at(time.monotonic())
            if link.connected:
                deadline = now_s + self.patience_s
            elif now_s > deadline:
                raise GangError(AGENT_GONE)
            if message is None or self._hosts(message):
                continue
            if message["type"] in ("form", "leave", "standby", "park"):
                self._go(message)
                return
            self.obey(message, 0)  # at any boundary

    def _hosts(self, message: Message) -> bool:
        if message["type"] != "host":
            return False
        self.world.address = message.get("address", LOOPBACK)
        port = self.world.host()
        self._agent().send({"type": "hosting", "port": port, "generation": message["generation"]})
        return True

    def _go(self, message: Message) -> None:
        """Take the place that the agent has assigned."""
        self.step_aside()
        if message["type"] == "leave" or (message["type"] == "park" and not self.can_return):
            self._leave()
        if message["type"] == "standby":  # with the state, until the others have met
            self.world.leave()
            self._stand_by()
            return
        assert self.device is not None
        if message["type"] == "park":
            # As a newcomer does, it leaves the loop over batches, and joins where that begins.
            self.rehearses = self._parked = True
            self.world.stand_alone(self.device)
            return
        if self._parked:
            self._parked = False
            if self.state is not None:
                self.state.restore(None)
        failure, own = None, False
        try:
            address = (message["host"], message["port"])
            self.world.hosts = frozenset(message.get("hosts", ()))
            place = (message["generation"], message["rank"], message["world"])
            self.world.form(*place, address, self.device, self._given_up)
            self._exchange(message["senders"])
            self.moved()
            if len(message["senders"]) == self.world.size:
                self.settle()
            self.world.agree(True, at_once=False)
        except RuntimeError as error:
            failure, own = str(error), isinstance(error, HandoverError)
        if failure is not None:
            self._meet_again(failure, own=own)
            return
        self._agent().send({"type": "formed", "generation": self.world.generation})
        self.formed()

    def _stand_by(self) -> None:
        """Keep the state until the agent says that the others have met, or are lost.

        Without an agent this rank counts as lost, which is no error: the others have continued.
        """
        try:
            self._await_place({"type": "standing_by", "generation": self.world.generation})
        except GangError:
            os.kill(os.getpid(), signal.SIGKILL)

    def _given_up(self) -> bool:
        """True if the agent has said that not all will come to the meeting place."""
        for message in self._agent().poll():
            if message["type"] == "leave":
                self._leave()
            if message["type"] == "give_up":
                return True
            self.obey(message, 0)
        return False

    def _exchange(self, senders: list[int]) -> None:
        """Send the state from the ranks that have it to the others; each sender sends a part."""
        receivers = [rank for rank in range(self.world.size) if rank not in senders]
        if not receivers or self.replica is None:
            return
        try:
            if self.world.rank in senders:
                self.replica.send(receivers, senders.index(self.world.rank), len(senders))
            else:
                self.replica.receive(senders)
        except RuntimeError:
            raise  # a rank is lost
        except Exception as error:  # from a state_dict, or from the program's own values
            raise HandoverError(f"{type(error).__name__}: {error}") from None

    def share_state(self) -> None:
        """At the start: all ranks take over the state of rank 0. Raises RuntimeError."""
        if self.world.size > 1:
            self._exchange([0])

    def _leave(self) -> NoReturn:
        self.world.leave()
        raise SystemExit(0)

    def _agent(self) -> Link:
        if self.link is None:
            raise GangError(AGENT_GONE)
        return self.link
