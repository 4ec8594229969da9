"""Resizes attempts, and handles the loss of a rank."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterable
from typing import Any

from rota.errors import AgentError
from rota.live.agent.abroad import FarRank
from rota.live.agent.attempt_report import Account
from rota.live.agent.gang import COUPLED_STEP_S, WARMING, Gang
from rota.live.agent.launching import Starter
from rota.live.agent.pulses import Pulses
from rota.live.agent.rank import Rank
from rota.live.agent.states import State
from rota.live.wire import Message
from rota.live.wire.places import is_far, node_and_gpu
from rota.model.ending import signal_name
from rota.model.presence import Presence

STANDBY_S = 600.0  # a rank that left is kept so long, to come back at once
WARM_UP_TIMEOUT_S = 120.0  # a newcomer that needs longer is given up
LEAVE_S = 1.0  # for ranks that are not needed any more to end by themselves
LOOK_EVERY_S = 0.25  # at the pulses of the ranks
LATE_LOOK_S = 5.0  # twice as long between two looks: the agent stood still

log = logging.getLogger("rota.agent")


class Elastic:
    """The changing members of an attempt whose job may have more or fewer GPUs.

    ``watch`` is given each rank that has been started, ``check_end`` is called when all that were
    to be started have been. ``settled`` is told of each change that has ended: which command asked
    for it, None if none did; the error, None if it went well; why in words; how many ranks were
    lost.
    """

    def __init__(
        self,
        attempt: Account,
        starter: Starter,
        watch: Callable[[Rank], object],
        check_end: Callable[[], object],
        settled: Callable[[int | None, str | None, str, int], object],
    ) -> None:
        self._attempt = attempt
        self._starter = starter
        self._watch = watch
        self._check_end = check_end
        self._tell_settled = settled
        record = attempt.record
        self.gang = Gang(
            record.members,
            self._send,
            self._settled,
            self._dismiss,
            self._park,
            record.generation,
            attempt.address_of,
        )
        self._gpu_of: dict[int, int] = {}
        self.moved()
        self._command_id: int | None = None
        self._replaced: set[int] = set()  # stragglers that somebody else is taking over from
        self._lagging = ""  # the rank that a newcomer replaces, in words
        self._hung: set[int] = set()  # slots that were killed because others waited for them
        self._losses: list[str] = []  # since the members were last written down, in words
        self.lost: set[int] = set()  # slots that were killed, and that the others survived
        self.dismissed: set[int] = set()
        self._standby: dict[int, bool] = {}  # slots that may come back, and whether they are ready
        self._standby_ends: dict[int, asyncio.TimerHandle] = {}
        self._returned: set[int] = set()  # slots that stood by until the resize that is under way
        self._pulses = Pulses(attempt.folder)
        self._presence = Presence(LATE_LOOK_S)
        self._num_resizes = 0
        self.launching = 0  # launches of newcomers that are under way

    # -- commands ------------------------------------------------------------------------------

    def resize(self, command_id: int | None, gpus: list[int]) -> None:
        """Change to one rank on each of ``gpus``; ``done`` follows. Raises AgentError."""
        attempt, gang = self._attempt, self.gang
        if attempt.state != State.RUNNING or gang.busy:
            raise AgentError(f"job {attempt.job_id} is {self._doing()}, and can't be resized now")
        if not attempt.cooperates:
            why = attempt.crowd or "not all its ranks are connected; ask again"
            raise AgentError(f"job {attempt.job_id} can't be resized now: {why}")
        self._check(gpus)
        keep = [slot for slot in gang.members if self._gpu_of[slot] in gpus]
        kept = {self._gpu_of[slot] for slot in keep}
        new_gpus = [gpu for gpu in gpus if gpu not in kept]
        if not keep:
            raise AgentError("a resize keeps at least one of the GPUs: the others get its state")
        leavers = [slot for slot in gang.members if slot not in keep]
        if new_gpus or leavers:
            self._start(new_gpus, leavers)
        self._command_id = command_id
        if not gang.busy:
            self._settled(None)

    def replace(self, slot: int) -> None:
        """Let a newcomer on the same GPU replace a rank that lags behind."""
        if not self._attempt.cooperates:
            return  # a rank has lost its agent; it is found again when all are back
        self._replaced.add(slot)
        self._lagging = f"rank {self._rank_of(slot)} lagged behind"
        self._log(f"{self._lagging}: process {slot} is to be replaced")
        with contextlib.suppress(AgentError):  # a full disk; it lags behind at the next look, too
            self._start([self._gpu_of[slot]], [slot])
            return
        self._lagging = ""
        self._replaced.discard(slot)

    def _return(self, gpus: list[int]) -> dict[int, int]:
        """Slots that stand by for these GPUs, as far as there are any."""
        attempt, found = self._attempt, {}
        ready = [slot for slot, is_ready in self._standby.items() if is_ready]
        movable = attempt.record.visible is None
        for gpu in gpus:
            slot = next((s for s in ready if self._gpu_of[s] == gpu), None)
            if slot is None and movable and not is_far(gpu):
                at_home = [s for s in ready if self._gpu_of[s] in gpus]
                slot = next((s for s in ready if s not in at_home), None)
            if slot is None:
                continue
            ready.remove(slot)
            self._end_standby(slot)
            self._returned.add(slot)
            found[gpu] = slot
            (request,) = self._requests([slot], [gpu])
            if request["cpus"]:
                attempt.world.bind(attempt.ranks[slot].worker, request["cpus"])
            attempt.ranks[slot].signal(signal.SIGCONT)  # it may have been frozen, like the others
            self._gpu_of[slot] = gpu
        return found

    def moved(self) -> None:
        """Update the members' GPUs after a move."""
        record = self._attempt.record
        self._gpu_of.update(zip(record.members, record.gpus, strict=False))

    def call_off(self, error: str) -> None:
        """Call off a resize if that is still possible."""
        self.gang.call_off(error)

    def disband(self) -> None:
        """End standing by: all processes of the attempt end."""
        self._dismiss(list(self._standby))

    def _check(self, gpus: list[int]) -> None:
        most, shards = self._attempt.record.max_world, self._attempt.shards
        if shards is None:
            raise AgentError(
                "the job's program has no s.loader(...), so that its batches can't be shared out "
                "anew among more or fewer ranks"
            )
        if not 1 <= len(gpus) <= min(most, shards) or len(set(gpus)) != len(gpus):
            raise AgentError(
                f"{len(gpus)} GPUs are not a size for this job: it takes 1 to {min(most, shards)} "
                f"(at most {most} GPUs, {shards} virtual shards)"
            )

    def _doing(self) -> str:
        if self.gang.busy:
            return "having a slow rank replaced" if self._lagging else "being resized"
        return self._attempt.state

    def _start(self, gpus: list[int], leavers: list[int]) -> None:
        attempt = self._attempt
        back = self._return(gpus) if not self._replaced.intersection(leavers) else {}
        gpus = [gpu for gpu in gpus if gpu not in back]
        first = len(attempt.ranks)
        slots = list(range(first, first + len(gpus)))
        far = {str(s): node_and_gpu(g)[0] for s, g in zip(slots, gpus, strict=True) if is_far(g)}
        self._write_down(first + len(slots), far)
        for slot, gpu in zip(slots, gpus, strict=True):
            attempt.ranks.append(attempt.new_rank(slot))
            self._gpu_of[slot] = gpu
        self._num_resizes += 1
        self.gang.resize([*back.values(), *slots], leavers, ready=back.values())
        if slots:
            self._later(WARM_UP_TIMEOUT_S, self._give_up, self._num_resizes)
            self.launching += 1
            attempt.spawn(self._launch(slots, gpus))

    def _write_down(self, slots: int, far: dict[str, int]) -> None:
        """Record the slots, and which are far, before any is forked. Raises AgentError."""
        record = self._attempt.record
        before, record.slots = record.slots, slots
        record.far |= far
        try:
            self._attempt.save(durable=False)
        except OSError as error:
            record.slots = before
            self._stand_by_again()
            raise AgentError(f"the resize could not be written down: {error}") from None

    async def _launch(self, slots: list[int], gpus: list[int]) -> None:
        try:
            await self._fork_all(slots, gpus)
        finally:
            self.launching -= 1
        if self._attempt.ended is None:
            self._check_end()  # the end may have waited for this

    async def _fork_all(self, slots: list[int], gpus: list[int]) -> None:
        attempt = self._attempt
        try:
            await attempt.abroad.open_to(gpus)
            requests = self._requests(slots, gpus)
            for slot, request in zip(slots, requests, strict=True):
                self._refuse_if_over(slot)
                await attempt.ranks[slot].start(self._starter.fork, request)
        except (AgentError, OSError, ValueError) as error:
            for slot in slots:
                await attempt.ranks[slot].abandon()
                attempt.ranks[slot].gone = attempt.ranks[slot].survived = True
            if not self.dismissed.intersection(slots):  # else the resize was called off before
                self.dismissed.update(slots)
                self.gang.call_off(f"a newcomer could not be started: {error}")
            return
        for slot in slots:
            self._watch(attempt.ranks[slot])
        if self.dismissed.intersection(slots):  # called off while they were being started
            self._dismiss(slots)

    def _requests(self, slots: list[int], gpus: list[int]) -> list[dict[str, Any]]:
        attempt, step = self._attempt, self._attempt.progress.get("step", 0)
        return self._starter.requests(attempt.record, attempt.folder, slots, gpus, step=step)

    def _refuse_if_over(self, slot: int) -> None:
        if self._attempt.stopping or self._attempt.ended is not None or slot in self.dismissed:
            raise AgentError("the resize is over")

    def _give_up(self, number: int) -> None:
        if self._num_resizes == number and self.gang.phase == WARMING:
            self.gang.call_off(f"the newcomers were not warm within {WARM_UP_TIMEOUT_S:.0f} s")

    # -- what the ranks do ---------------------------------------------------------------------

    def heard(self, slot: int, message: Message) -> None:
        """Handle a rank's message about its gang."""
        gang, kind = self.gang, message["type"]
        if kind == "ready" and slot in self._standby:
            self._standby[slot] = True
        elif kind == "ready":
            gang.ready(slot)
        elif kind == "standing_by":
            gang.stands_by(slot, int(message["generation"]))
        elif kind == "at":
            gang.holds(slot, int(message["step"]), message.get("round"))
            self._later(COUPLED_STEP_S, gang.advance_holders)
        elif kind == "voted":
            gang.voted(slot)
        elif kind == "stayed":
            gang.stayed(slot, int(message["generation"]))
        elif kind == "hosting":
            gang.hosting(slot, int(message["generation"]), int(message["port"]))
        elif kind == "formed":
            gang.formed(slot, int(message["generation"]))
        elif kind == "broken":
            own = message.get("own") is True
            gang.broken(slot, str(message["error"]), int(message["generation"]), own=own)

    def ended(self, rank: Rank) -> bool:
        """Handle the end of a process. True if the attempt continues without it."""
        slot, gang = rank.index, self.gang
        expected = slot in self.dismissed or slot not in gang.members
        gang.ended(slot)
        self._end_standby(slot)
        if not gang.members and not gang.busy:  # training is over
            self._dismiss(list(self._standby))
        if expected:
            self.dismissed.add(slot)
            return True
        code = rank.exit["code"] if rank.exit is not None else -int(signal.SIGKILL)
        if code < 0 and gang.has_state and not self._attempt.stopping:
            self.lost.add(slot)
            hung = slot in self._hung
            how = "hung and was killed" if hung else f"was killed by {signal_name(-code)}"
            self._losses.append(f"rank {self._rank_of(slot)} {how}")
            self._log(f"{self._losses[-1]} (process {slot}); the others go on without it")
            return True
        return False

    def _rank_of(self, slot: int) -> int:
        """The rank that a slot had when the members were last written down."""
        members: list[int] = self._attempt.record.members
        return members.index(slot) if slot in members else len(members)

    def _log(self, line: str) -> None:
        log.info("job %s.%s: %s", self._attempt.job_id, self._attempt.number, line)

    def look(self) -> None:
        """Read the pulses: kill a rank that hangs, replace one that lags behind."""
        attempt, gang = self._attempt, self.gang
        if attempt.ended is None:
            self._later(LOOK_EVERY_S, self.look)  # first: whatever comes of this one
        if attempt.state == State.RUNNING and not attempt.crowd:  # sessions would share a pulse
            step_s = attempt.progress.get("step_time_s") or 0.0
            now_s = attempt.world.monotonic_s()
            self._note_standstill(now_s)
            hung, straggler = self._pulses.look(gang.members, now_s, step_s, gang.awaited)
            if hung is not None:
                if hung not in self._hung:
                    self._log(f"rank {self._rank_of(hung)} hangs, and is killed (process {hung})")
                self._hung.add(hung)
                attempt.ranks[hung].signal(signal.SIGKILL)
            elif straggler is not None and not gang.busy and straggler not in self._replaced:
                self.replace(straggler)
        else:
            self._pulses.forget()

    def _note_standstill(self, now_s: float) -> None:
        """Watch the ranks anew if this agent or the ranks of this node stood still.

        Ranks stand still while the node's lease is over. After that each has its whole time again
        before it counts as hung.
        """
        absent_s, lease = self._presence.absent_s, self._attempt.world.lease
        self._presence.at(now_s)
        if self._presence.absent_s != absent_s or (lease is not None and lease.left_s <= 0):
            self._pulses.forget()

    def _send(self, slot: int, message: Message) -> None:
        self._attempt.ranks[slot].send(message)

    def _dismiss(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.dismissed.add(slot)
            self._end_standby(slot)
            rank = self._attempt.ranks[slot]
            if isinstance(rank, FarRank):  # its node may be none of the job's by then
                rank.survived = True  # it counts as gone at once, and the others go on
                rank.let_go()
                continue
            rank.send({"type": "leave"})
            # Also if the attempt has ended by then: nothing of it may be left.
            self._attempt.world.later(LEAVE_S, rank.signal, signal.SIGKILL)

    def _park(self, slots: Iterable[int]) -> None:
        """Let ranks that have left stand by, to be the first to come back."""
        for slot in slots:
            if slot in self._replaced or isinstance(self._attempt.ranks[slot], FarRank):
                self._dismiss([slot])
                continue
            self._send(slot, {"type": "park"})
            self._stand_by(slot, is_ready=False)

    def _stand_by(self, slot: int, *, is_ready: bool) -> None:
        """Let a slot stand by for some time, to be the first to come back."""
        self._standby[slot] = is_ready
        self._standby_ends[slot] = self._later(STANDBY_S, self._dismiss, [slot])

    def _end_standby(self, slot: int) -> None:
        self._standby.pop(slot, None)
        if (timer := self._standby_ends.pop(slot, None)) is not None:
            timer.cancel()

    def _stand_by_again(self) -> None:
        """Ranks that were to come back and were not needed return to standing by."""
        for slot in self._returned - set(self.gang.members) - self.dismissed:
            self._stand_by(slot, is_ready=True)
        self._returned.clear()

    def _settled(self, error: str | None) -> None:
        """A change has ended: write the members down, and tell the controller."""
        attempt, gang = self._attempt, self.gang
        causes, num_lost = self._causes(error), len(self._losses)
        self._losses, self._lagging = [], ""
        if error is not None:
            self._log(f"a change of members has ended with {len(gang.members)}: {error}")
        if gang.members:  # else the last members stay, from whom the next agent learns the end
            attempt.record.members = list(gang.members)
            leaders = attempt.record.leaders
            leaders += [slot for slot in gang.members[:1] if slot != leaders[-1]]
            attempt.record.generation = gang.generation
            attempt.record.gpus = [self._gpu_of[slot] for slot in gang.members]
        with contextlib.suppress(OSError):  # an agent that comes after this one asks the ranks
            attempt.save(durable=False)
        self._stand_by_again()
        self._replaced.difference_update(gang.members)  # these have not been replaced
        command_id, self._command_id = self._command_id, None
        self._pulses.forget()
        self._tell_settled(command_id, error, "; ".join(causes), num_lost)

    def _causes(self, error: str | None) -> list[str]:
        """Descriptions of what caused a change that no command asked for."""
        if not self._lagging:
            return self._losses
        done = "was replaced" if error is None else f"could not be replaced: {error}"
        return [*self._losses, f"{self._lagging} and {done}"]

    def _later(
        self, seconds: float, call: Callable[..., object], *arguments: Any
    ) -> asyncio.TimerHandle:
        """Call a function later, also while the job is suspended."""

        def fire() -> None:
            if self._attempt.ended is None:
                call(*arguments)

        return self._attempt.world.later(seconds, fire)
