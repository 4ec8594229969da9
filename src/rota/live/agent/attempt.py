"""One attempt of a job on this node: its processes, and how they are paused and continued.

What must outlive the agent is on disk in the attempt's folder: ``attempt.json`` (written before
anything is started), ``rankN.pid`` and ``rankN.exit`` (written by the shim of each rank).
"""

import asyncio
import logging
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rota.errors import AgentError, shortage_of
from rota.live.agent.abroad import FarRank
from rota.live.agent.attempt_report import Account
from rota.live.agent.checkpointing import Checkpointing
from rota.live.agent.elastic import Elastic
from rota.live.agent.ending import Ending, has_failed
from rota.live.agent.gang import SETTLED, WARMING
from rota.live.agent.grace import LOOK_S, Grace
from rota.live.agent.launching import Starter
from rota.live.agent.method import grace_of
from rota.live.agent.pausing import Pausing
from rota.live.agent.processes import LOOK_AGAIN_S, tag_of
from rota.live.agent.rank import Rank
from rota.live.agent.record import LastAnswer, Record
from rota.live.agent.restarting import Restarting
from rota.live.agent.restore_from_arena import Returning
from rota.live.agent.seat import FlowSeat
from rota.live.agent.spill_to_arena import Vacating
from rota.live.agent.states import State
from rota.live.agent.tuning import Tuning
from rota.live.agent.world import World
from rota.live.wire import Message
from rota.live.wire.places import is_far

STOPPED_EARLY = "it was told to end before it had started"
LONGEST_PAUSE_S = 1.0  # between looks at what was killed and does not die

log = logging.getLogger("rota.agent")


class Holding(Protocol):
    """Has all ranks of an attempt hold at one boundary, in a ``round`` of its own."""

    round: str

    def holds(self, slot: int, step: int) -> None:
        """A rank holds after so many steps."""


class Attempt(Account):
    """The processes of one attempt. Each event is passed to the part that handles it.

    No part knows this class. Each part knows the account and the parts made before it, and reports
    upward by functions that it is given. ``arenas`` is the folder, in host memory, that the state
    is written to.
    """

    def __init__(
        self,
        record: Record,
        folder: Path,
        notify: Callable[[Message], None],
        starter: Starter,
        arenas: Path,
        world: World | None = None,
        seat: Callable[[Account], FlowSeat] | None = None,
    ) -> None:
        super().__init__(record, folder, notify, world or World())
        self.abroad.sessions = self
        self.hold: Holding | None = None  # for its ranks to hold at one boundary, and go on
        self.seat = seat(self) if seat is not None and record.flow is not None else None
        self.ending = Ending(self, self.check_end, over=lambda: self.vacating.closed())
        self.tuning = Tuning(self, self._resizes)
        self.checkpointing = Checkpointing(self, self.ending)
        watch, check_end = self.watch, self.check_end
        self.elastic = None
        if record.max_world > 1:
            self.elastic = Elastic(self, starter, watch, check_end, self._settled)
        restarting = Restarting(
            self, self.ending, check_end, left=lambda asked_s: self.pausing.has_left(asked_s)
        )
        returning = Returning(
            self, self.ending, starter, watch, check_end, back=lambda: self.pausing.go_on_all()
        )
        self.vacating = Vacating(
            self, self.ending, restarting, returning, arenas, spilled=self._disband
        )
        self.pausing = Pausing(
            self,
            self.tuning,
            self.checkpointing,
            restarting,
            self.vacating,
            self.elastic,
            self.seat,
        )

    # -- starting and adopting -------------------------------------------------------------------

    async def launch(self, fork: Callable[[dict[str, Any]], Any], requests: list[Any]) -> None:
        """Start every rank, or none: if one fails, those started are killed. Raises AgentError."""
        try:
            for rank, request in zip(self.ranks, requests, strict=True):
                self._refuse_if_stopping()
                await rank.start(fork, request)
            self._refuse_if_stopping()
        except (AgentError, OSError) as error:
            for rank in self.ranks:
                await rank.abandon()
            why = shortage_of(error) or error
            raise AgentError(f"job {self.job_id} could not be started: {why}") from None
        self.record.launched_s = self.world.now_s()
        self._find_launch()
        self.become(State.RUNNING)
        for rank in self.ranks:
            self.watch(rank)
        if self.elastic is not None:
            self.elastic.look()

    def _find_launch(self) -> None:
        """Note when the last process of the launch began, unless a command was answered since."""
        record = self.record
        began = [rank.claimed_at_s for rank in self.ranks if not rank.is_far]
        if record.answer is None and record.command_id is not None and began and all(began):
            record.launched_s = max(began)
            record.answer = LastAnswer(record.command_id, record.launched_s)

    def _refuse_if_stopping(self) -> None:
        if self.stopping:
            raise AgentError(STOPPED_EARLY)

    def adopt(self) -> None:
        """Take over processes that an earlier agent started, or find out how they ended.

        A pause or a continuation that was cut short is called off: the attempt runs, and the
        controller repeats its command.
        """
        self.was_rebooted = self.record.boot_id not in (None, self.world.boot_id())
        self.record.boot_id = self.world.boot_id()
        self.progress = self.last_report()
        for rank in self.ranks:
            if self.was_rebooted:
                rank.find_after_reboot()
            else:
                rank.find()
            if rank.alive:
                self.watch(rank)
            self._clear_away(rank)
        self._find_launch()
        for rank in self.ranks:  # a resize that was cut short has left newcomers, or their ends
            if rank.index not in self.record.members:
                rank.survived = True
                rank.signal(signal.SIGKILL)
                if isinstance(rank, FarRank):  # its node may be none of the job's any more
                    rank.let_go()
            elif not rank.alive and self.elastic is not None and not rank.never_started:
                rank.survived = self.elastic.ended(rank)
        if self.is_vacated:
            self.vacating.adopt()
            self.was_rebooted = False  # its arenas are on the disk, or it is lost by now
        elif self.record.suspended_s is not None:
            self.become(State.SUSPENDED)
        else:
            cooperates = self.record.suspension == "boundary" and self.seat is None
            self.become(State.ADOPTED if cooperates else State.RUNNING)
            for rank in self.ranks:
                rank.go_on()
        self.checkpointing.adopt()
        if self.seat is not None:
            self.seat.adopt()
        if self.elastic is not None:
            self.elastic.look()
        if not all(rank.alive for rank in self.members):
            self.check_end()

    def settle(self) -> None:
        """Treat an adopted attempt as running; ranks that report otherwise are told to continue."""
        if self.state == State.ADOPTED:
            self.become(State.RUNNING)
            for rank in self.ranks:
                if rank.suspended is not None:
                    self.pausing.go_on(rank)
            self.tuning.again()

    def watch(self, rank: Rank) -> None:
        """Wait for the end of a rank that has been started."""
        rank.watch(partial(self._shim_ended, rank))

    # -- the end -----------------------------------------------------------------------------------

    def _shim_ended(self, rank: Rank) -> None:
        rank.close()
        rank.gone = True
        rank.read_exit()
        self._clear_away(rank)
        expected = self.is_vacated and rank.index in self.record.members
        # All others wait for one that never started, unless they have trained without it.
        waited_for = rank.never_started and not self.progress
        if self.elastic is not None and not (expected or waited_for) and self.elastic.ended(rank):
            rank.survived = True
        self.check_end()

    def check_end(self) -> None:
        """Once a rank has failed, end the whole gang; once no rank is left, end the attempt.

        Ranks that were asked to end have their grace, however another one has ended.
        """
        if self.ended is not None:
            return
        if self.is_vacated:
            self.vacating.ended()
        elif any(rank.alive for rank in self.ranks):
            if not self.stopping and any(map(has_failed, self.ranks)):
                self.kill_ranks()
            elif self.state == State.SUSPENDING:
                self.pausing.check_held()
            else:
                self.pausing.check_resumed()  # the continuation may have waited for this rank alone
        elif self.elastic is not None and self.elastic.launching:
            return  # a newcomer may be about to start; it asks again
        elif self.seat is not None and not self.seat.dismissed:
            self.seat.dismiss(self.check_end)
        else:
            self.ending.conclude()

    def _clear_away(self, rank: Rank, pause_s: float = LOOK_AGAIN_S) -> None:
        """Kill what a vanished shim has left behind, since its gang may continue without it.

        A process that can't die because its disk does not answer is checked ever less often.
        """
        if rank.gone and self.world.kill_remains([], [tag_of(self.record.secret, rank.name)]):
            again = partial(self._clear_away, rank, min(2 * pause_s, LONGEST_PAUSE_S))
            self.world.later(pause_s, again)

    def stop(self, grace_s: float | None = None) -> None:
        """Ask the program of every rank to end, and kill what is left after the job's grace.

        ``grace_s`` takes the place of that grace.
        """
        if grace_s is not None:
            self.grace_s = grace_s
            self._kill_after(Grace(grace_s, self.world.monotonic_s()))
        if self.stopping:
            return
        self.stopping = True
        self.abroad.call_off(STOPPED_EARLY)
        if grace_s is None:
            grace_s = self.grace_s = grace_of(self.record.program)
            self._kill_after(Grace(grace_s, self.world.monotonic_s()))
        for rank in self.ranks:
            rank.ask_to_end(grace_s)
        if self.is_vacated:
            self.check_end()

    def _kill_after(self, grace: Grace) -> None:
        """Kill what is left of the attempt once a grace is over."""
        left_s = grace.left_s(self.world.monotonic_s())
        if left_s <= 0:
            self.kill_ranks()
        else:
            self.world.later(min(left_s, LOOK_S), self._kill_after, grace)

    def kill(self, why: str | None = None) -> None:
        """End the attempt now. With ``why`` it is lost for that reason, unless it has ended."""
        if why is not None and self.record.killed is None:
            self.record.killed = why
            self.save_if_there_is_room()
        if self.state == State.STARTING:
            self.stopping = True  # none of its processes is to be started any more
        self.abroad.call_off(STOPPED_EARLY)
        self.kill_ranks()
        for rank in self.ranks:
            if isinstance(rank, FarRank):
                rank.let_go()
        if self.is_vacated:
            self.stopping = True
            self.check_end()

    @property
    def can_hold(self) -> bool:
        """True if its ranks have sessions and train, and nothing else has them hold."""
        return self.state == State.RUNNING and self.cooperates and not self._resizes()

    @property
    def holds_for_resize(self) -> bool:
        """True if its ranks hold, or meet each other anew."""
        return self.elastic is not None and self.elastic.gang.phase not in (SETTLED, WARMING)

    def _resizes(self) -> bool:
        return self.elastic is not None and self.elastic.gang.busy

    def _disband(self) -> None:
        if self.elastic is not None:
            self.elastic.disband()

    def _is_ending(self) -> bool:
        """True if it was asked to end, or a program here has come to its end: others follow."""
        exits = [rank.exit for rank in self.ranks if not (rank.is_far or rank.survived)]
        return self.stopping or any(each is not None and each["code"] >= 0 for each in exits)

    def _settled(
        self, command_id: int | None, error: str | None, cause: str, lost_ranks: int
    ) -> None:
        """Report that a change of members has ended, with its error; ``command_id`` may be None."""
        if command_id is not None and error is not None:
            self.tuning.keep(None)  # the batch that was to come with it is for other ranks
        self.tuning.again()
        if self.record.gpus and all(map(is_far, self.record.gpus)):
            if not self._is_ending():  # else its end is told, and nothing before that
                self.kill("no rank is left on the node of its agent")
            return
        if command_id is not None and error is None:
            self.done(command_id, gpus=self.record.gpus)
            return
        if command_id is not None:
            self.failed(command_id, str(error))
        self.notify(self.size_report() | {"cause": cause, "lost_ranks": lost_ranks})
        self.tell_planned()

    def size_report(self) -> Message:
        """The GPUs that have ranks on them, for the controller."""
        told = {"gpus": self.record.gpus, "at_s": self.world.now_s()}
        if self.spans:
            told["nodes"] = [each["name"] for each in self.record.nodes]
        return self.about("resized") | told

    # -- what the workers say ------------------------------------------------------------------

    def joined(
        self, index: int, writer: asyncio.StreamWriter, hello: Message, session: int = 0
    ) -> None:
        """A rank opened a session, or found this agent after losing another.

        ``session`` is the process that did, if it is known.
        """
        rank = self.ranks[index]
        if not rank.opened(writer, session):
            self._check_sessions()
            self._make_do_without()
            return
        rank.suspended = hello if hello["suspended"] else None
        rank.seat, rank.seat_is_told = hello.get("seat"), True
        self._tell_cpus(rank)
        if rank.suspended is not None:
            self.pausing.rejoined(rank)
        self.pausing.check_resumed()
        if hello.get("shards") is not None:
            self.note_shards(hello)
        if [index] == self.record.members[:1]:
            self.note_model(hello.get("model"))
            self.note_cycle(hello.get("memory"))
            if hello.get("planned") is not None:
                self.note_planned(hello["planned"])
        if self.elastic is not None:
            self.elastic.gang.is_in(index, int(hello.get("generation", 0)))
        self._check_sessions()

    def _tell_cpus(self, rank: Rank) -> None:
        """Tell a session the cores that its job may use by now, if it is held to some."""
        if self.record.millicores is not None:
            rank.send({"type": "cpus", "millicores": self.record.millicores})

    def _check_sessions(self) -> None:
        """Determine whether the job stops by itself at a boundary.

        It does once every rank has one session. A rank with several sessions has none that speaks
        for all of it, so the job is suspended as if it had none.
        """
        crowded = next((rank for rank in self.ranks if rank.beside), None)
        before, self.crowd = self.crowd, self._crowd_of(crowded) if crowded is not None else ""
        if self.cooperates and self.record.suspension != "boundary":
            self.record.suspension = "boundary"
            self.save_if_there_is_room()
        elif self.crowd and self.record.suspension == "boundary":
            self.record.suspension = "process"
            self.save_if_there_is_room()
        if self.crowd and not before:
            log.info("job %s.%s: %s", self.job_id, self.number, self.crowd)
        if self.cooperates or self.crowd != before:
            self.tell_registration()
        if self.cooperates:
            self.settle()

    def _crowd_of(self, rank: Rank) -> str:
        """Names the rank that has several sessions."""
        members = self.record.members
        number = members.index(rank.index) if rank.index in members else rank.index
        return f"rank {number} has several sessions of rota.train at once"

    def _make_do_without(self) -> None:
        """Abandon actions that need the session's help, since a rank has several sessions."""
        self.vacating.call_off(self.crowd)
        if self.elastic is not None:
            self.elastic.call_off(self.crowd)
        self.pausing.freeze()  # if it was to hold at a boundary: not all of it would

    def left(self, index: int, writer: asyncio.StreamWriter) -> None:
        """A rank's connection closed."""
        rank = self.ranks[index]
        own = rank.closed(writer)
        if self.crowd:
            self._check_sessions()
        if not own:
            return
        if self.state not in (State.SUSPENDED, State.RESUMING):
            rank.suspended = None  # else it still waits, and comes back, or its process has ended
        self.vacating.call_off(f"rank {index} closed its connection")
        self.pausing.check_resumed()
        if self.elastic is None or len(self.members) < 2:
            self.pausing.freeze()  # if it was to hold at a boundary: none will come

    def heard(self, index: int, message: Message) -> None:
        """A message from a rank with a session."""
        rank = self.ranks[index]
        kind = message["type"]
        first = [index] == self.record.members[:1]
        if kind == "report":
            if first:
                self.note_progress(message)
        elif kind == "model":
            if first:
                self.note_model(message)
        elif kind == "memory":
            if first:
                self.note_cycle(message)
        elif kind == "planned":
            if first:
                self.note_planned(message)
        elif kind == "curve":
            self.curve.add(message["text"])
        elif kind == "elastic":
            self.note_shards(message)
            self.tuning.again()
        elif kind == "tuned":
            self.tuning.heard(message)
        elif kind == "failing":
            self.complaint = self.complaint or message["error"]
            self.goes_on = self.goes_on or message.get("again") is True
        elif kind == "at" and self.state == State.SUSPENDING:
            self.pausing.holds(index, message["step"], message.get("round"))
        elif kind == "at" and self.hold is not None and message.get("round") == self.hold.round:
            self.hold.holds(index, message["step"])
        elif kind == "seated":
            rank.seat, rank.seat_is_told = message["key"], True
        elif kind == "at" and not self._resizes():
            rank.send({"type": "resume", "device": None})
        elif kind == "suspended":
            self.pausing.is_suspended(rank, message)
        elif kind == "resumed":
            rank.suspended = None
            self._tell_cpus(rank)  # while it was suspended it heard nothing of them
            self.pausing.check_resumed()
        elif kind in ("written", "kept"):
            self.vacating.heard(index, message)
        elif self.elastic is not None:
            self.elastic.heard(index, message)
