"""Suspends and continues attempts: at a step boundary, or else where the process is."""

import contextlib
from copy import copy

from rota.errors import AgentError
from rota.live.agent.attempt_report import Account
from rota.live.agent.checkpointing import Checkpointing
from rota.live.agent.elastic import Elastic
from rota.live.agent.gang import COUPLED_STEP_S, agree_on_step, let_go_on
from rota.live.agent.method import RESTART
from rota.live.agent.rank import Rank
from rota.live.agent.record import json_of
from rota.live.agent.restarting import Restarting
from rota.live.agent.seat import FlowSeat
from rota.live.agent.spill_to_arena import Vacating
from rota.live.agent.states import State
from rota.live.agent.tuning import Tuning
from rota.live.wire import Message

BOUNDARY_TIMEOUT_S = 10.0  # a job that reaches no boundary for so long, or for so many of
BOUNDARY_TIMEOUT_STEPS = 5  # its steps if that is more, is stopped where it is
STOP_POLL_S = 0.001
STOP_TIMEOUT_S = 5.0  # for processes to stop; one that waits for a disk takes that long


class Pausing:
    """The suspensions of one attempt, whose ``state`` it changes."""

    def __init__(
        self,
        attempt: Account,
        tuning: Tuning,
        checkpointing: Checkpointing,
        restarting: Restarting,
        vacating: Vacating,
        elastic: Elastic | None,
        seat: FlowSeat | None,
    ) -> None:
        self._attempt = attempt
        self._tuning = tuning
        self._checkpointing = checkpointing
        self._restarting = restarting
        self._vacating = vacating
        self._elastic = elastic
        self._seat = seat
        self._command_id: int | None = None
        self._steps: dict[int, int] = {}  # of the ranks that hold at a boundary
        self._round = 0  # counts down: what answers a resize, whose rounds count up, must not count
        self._vacates = False
        self._stops = False  # True while it is suspended by stopping its processes

    # -- commands ------------------------------------------------------------------------------

    def suspend(self, command_id: int, *, vacate: bool = False) -> None:
        """Pause the attempt; ``done`` follows when its devices are free. Raises AgentError.

        With ``vacate`` its processes are to end, too, if they can; ``done`` follows then.
        """
        attempt = self._attempt
        if attempt.state == State.SUSPENDED:
            self._command_id, self._vacates = command_id, vacate
            self._answer()
            return
        if attempt.state == State.SUSPENDING:
            self._command_id, self._vacates = command_id, vacate  # the answer follows
            return
        if attempt.state != State.RUNNING:
            raise AgentError(f"job {attempt.job_id} is {attempt.state}, and can't be suspended now")
        if self._elastic is not None:
            self._elastic.call_off("the job is to be suspended")
            if self._elastic.gang.busy:
                raise AgentError(f"job {attempt.job_id} is being resized; ask again")
        if self._seat is not None and self._seat.is_moving:
            raise AgentError(f"job {attempt.job_id} is being resized; ask again")
        # Not before: a command under way awaits its own answer.
        self._command_id, self._vacates = command_id, vacate
        attempt.record.fallback = None
        attempt.asked_end = {}
        attempt.become(State.SUSPENDING)
        self._stops = False
        if self._seat is not None:
            self._seat.pause(self._has_left_gpus)
            return
        if not attempt.cooperates:
            self.freeze()
            return
        gang = len(attempt.members) > 1
        self._steps.clear()
        self._round -= 1
        for rank in attempt.members:
            rank.suspended = None
            rank.send({"type": "pause", "gang": gang, "round": self._round})
        steps_s = BOUNDARY_TIMEOUT_STEPS * (attempt.progress.get("step_time_s") or 0.0)
        ran_s = attempt.world.now_s() - attempt.record.launched_s
        steps_s = min(steps_s, ran_s)
        attempt.after(max(BOUNDARY_TIMEOUT_S, steps_s), self.freeze)
        if gang:
            attempt.after(COUPLED_STEP_S, self._advance_holders)

    def resume(self, command_id: int, gpus: list[int], cores: list[int]) -> None:
        """Continue on these devices; ``done`` follows when every rank runs."""
        attempt = self._attempt
        attempt.resume_id = command_id
        if attempt.state == State.RUNNING:
            attempt.done(command_id)
            return
        if attempt.state == State.ENDING:
            return  # its end follows
        if attempt.state == State.RESUMING:
            return  # the answer follows
        if attempt.is_vacated:
            self._vacating.returning.bring_back(gpus)
            self._note_move()
            return
        self._vacating.call_off("the job is to go on")
        if self._checkpointing.taken:
            self._checkpointing.put_back(gpus, self._is_put_back)
            return
        before = copy(attempt.record)
        attempt.record.gpus = gpus
        attempt.record.suspended_s = None
        if self._seat is None:  # else it may turn out that it can't go on
            attempt.carries_out(command_id, is_final=False)
        try:
            attempt.save(durable=False)
        except OSError as error:  # the next agent would take it for suspended
            attempt.record = before
            raise AgentError(
                f"the record of job {attempt.job_id} can't be written: {error.strerror}"
            ) from None
        self._note_move()
        attempt.become(State.RESUMING)
        attempt.unstopped = 0
        if self._seat is not None:
            self._seat.go_on(self._is_on_gpus)
            return
        members = attempt.members
        for position, rank in enumerate(members):
            if cores and rank.alive:
                own = [cores[position]] if len(cores) == len(members) else cores
                attempt.world.bind(rank.worker, own)
            rank.go_on()
            if rank.suspended is not None:
                self.go_on(rank)
        self.check_resumed()

    def stay(self, command_id: int) -> None:
        """Take an attempt that has come from another node for this one's; it stays suspended.

        Raises AgentError if that can't be written down: then the other node still has it.
        """
        attempt = self._attempt
        attempt.resume_id = command_id
        if attempt.state != State.SUSPENDED:
            raise AgentError(f"job {attempt.job_id} is {attempt.state}, and does not wait here")
        if attempt.record.parked != command_id:
            before = copy(attempt.record)
            attempt.record.source, attempt.record.parked = None, command_id
            try:
                attempt.save()
            except OSError as error:
                attempt.record = before
                raise AgentError(
                    f"the record of job {attempt.job_id} can't be written: {error.strerror}"
                ) from None
        attempt.done(command_id)
        attempt.tell_memory()
        attempt.at_rest()

    # -- what the ranks say --------------------------------------------------------------------

    def holds(self, slot: int, step: int, round_: int | None) -> None:
        """A rank holds at a boundary, as asked in this round or an earlier one."""
        if round_ != self._round:
            return  # it was asked once more meanwhile, and will answer that, too
        self._steps[slot] = step
        self.check_held()

    def is_suspended(self, rank: Rank, message: Message) -> None:
        """A rank has freed its device."""
        attempt = self._attempt
        rank.suspended = message
        waits = attempt.state == State.SUSPENDING and not self._stops
        if waits and all(r.suspended for r in attempt.members if r.alive):
            # What has no session does not stop by itself.
            stopped_s = max(r.suspended["stopped_s"] for r in attempt.members if r.suspended)
            self._stop(stopped_s, frozen=False)
        else:
            self.rejoined(rank)

    def rejoined(self, rank: Rank) -> None:
        """A rank waits at a boundary for permission to continue: it is back, or missed it."""
        attempt = self._attempt
        if self._vacating.returning.under_way:
            self._vacating.returning.came(rank.index)
        elif attempt.state in (State.RUNNING, State.RESUMING):
            self.go_on(rank)
        elif attempt.state == State.SUSPENDED and all(each.suspended for each in attempt.members):
            attempt.at_rest()  # a new agent knows of it only now

    def go_on_all(self) -> None:
        """Let all ranks continue: they are back, and hold at one boundary."""
        for rank in self._attempt.members:
            self.go_on(rank)
        self.check_resumed()  # at once if none of them waits at a boundary

    def check_held(self) -> None:
        """Bring all ranks that still run to one boundary; then let them suspend."""
        if self._stops:
            return
        ranks = {rank.index: rank for rank in self._attempt.members if rank.alive}
        if agree_on_step(self._steps, ranks, self._send):
            for rank in ranks.values():
                rank.send({"type": "offload"})

    def check_resumed(self) -> None:
        """Complete a continuation once no rank is suspended any more."""
        attempt = self._attempt
        if attempt.state != State.RESUMING or attempt.is_vacated:
            return
        if self._seat is not None and self._seat.is_moving:
            return
        if not any(rank.suspended for rank in attempt.ranks if not rank.survived):
            attempt.become(State.RUNNING)
            attempt.done(attempt.resume_id)
            self._tuning.again()
            attempt.tell_memory()

    def go_on(self, rank: Rank) -> None:
        """Let a rank that holds at a boundary continue on its present device."""
        record = self._attempt.record
        device = None
        if record.movable and not self._attempt.spans:
            device = self._attempt.device_index(record.members.index(rank.index))
        rank.send({"type": "resume", "device": device})

    # -- flow jobs -----------------------------------------------------------------------------

    def _has_left_gpus(self) -> None:
        """The workers of a flow job have left their GPUs."""
        if self._attempt.state == State.SUSPENDING:
            self._suspended(self._attempt.world.now_s())

    def _is_on_gpus(self, error: str | None) -> None:
        """The workers of a flow job have their GPUs, or can't have them."""
        attempt = self._attempt
        if attempt.state != State.RESUMING:
            return
        if error is None:
            self.check_resumed()
            return
        attempt.record.suspended_s = attempt.world.now_s()
        attempt.become(State.SUSPENDED)
        attempt.save_if_there_is_room()
        attempt.failed(attempt.resume_id, error)

    # -- inside --------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Suspend the attempt without its help, by its method, if it is to be suspended."""
        attempt = self._attempt
        if attempt.state != State.SUSPENDING or self._restarting.leaving or self._stops:
            return
        if self._seat is not None:
            return
        for rank in attempt.ranks:
            rank.send({"type": "resume", "device": None})  # no longer asked to stop by itself
        if attempt.method.kind == RESTART:
            self._leave()
        elif self._checkpointing.is_method:
            attempt.cancel_timers()
            self._checkpointing.take(self._is_stopped)
        else:
            self._stop(attempt.world.now_s(), frozen=True)

    def _stop(self, stopped_s: float, *, frozen: bool) -> None:
        """Stop all processes, or those without a session; then the attempt is suspended."""
        self._stops = True
        deadline_s = self._attempt.world.boottime_s() + STOP_TIMEOUT_S
        self._look_whether_stopped(stopped_s, frozen, deadline_s)

    def _look_whether_stopped(self, stopped_s: float, frozen: bool, deadline_s: float) -> None:
        attempt = self._attempt
        if attempt.state != State.SUSPENDING or attempt.stopping:
            return
        late = attempt.world.boottime_s() > deadline_s
        stopped = [
            # The GPU of one on a machine that does not answer is not free.
            rank.stop(0 if frozen else rank.session) or (late and not rank.is_far)
            for rank in attempt.ranks
        ]
        if all(stopped):
            self._suspended(stopped_s, frozen=frozen)
        else:
            again = (self._look_whether_stopped, stopped_s, frozen, deadline_s)
            attempt.after(STOP_POLL_S, *again)

    def _leave(self) -> None:
        """Ask the processes to end."""
        attempt = self._attempt
        attempt.cancel_timers()
        try:
            self._restarting.leave()
        except OSError as error:
            attempt.become(State.RUNNING)
            attempt.failed(self._command_id, f"its record can't be written: {error.strerror}")

    def _is_stopped(self, stopped_s: float, error: str | None) -> None:
        self._suspended(stopped_s, frozen=True, error=error)

    def _is_put_back(self, error: str | None) -> None:
        if error is None:
            self.check_resumed()
        else:
            self._attempt.failed(self._attempt.resume_id, error)

    def _note_move(self) -> None:
        if self._elastic is not None:
            self._elastic.moved()

    def has_left(self, asked_s: float) -> None:
        """The processes were asked to end, and have ended."""
        self._suspended(asked_s)

    def _suspended(
        self, stopped_s: float, *, frozen: bool = False, error: str | None = None
    ) -> None:
        attempt = self._attempt
        attempt.cancel_timers()
        attempt.become(State.SUSPENDED)
        attempt.record.suspended_s = stopped_s
        if error is not None:
            attempt.record.fallback = error
        attempt.unstopped = sum(rank.unstopped for rank in attempt.ranks)
        # What is in a device's memory can't follow the job to another one.
        on_device = attempt.record.visible is not None and (frozen or self._others_hold())
        attempt.record.stays = on_device
        attempt.record.frozen = frozen
        attempt.record.keeps = self._keeps()
        attempt.tell_registration()
        with contextlib.suppress(OSError):  # the next agent lets it go on, and it is asked again
            attempt.save(durable=False)  # after a power cut there is nothing to adopt
        self._answer()
        attempt.tell_memory()
        attempt.at_rest()

    def _others_hold(self) -> bool:
        """True if processes without a session have device memory."""
        others = (pid for rank in self._attempt.ranks for pid in rank.below(rank.session))
        return not self._attempt.holders().isdisjoint(others)

    def _keeps(self) -> str | None:
        """A rank's reason for which its process can't end while suspended."""
        if self._seat is not None:
            return self._attempt.record.keeps
        suspended = (rank.suspended for rank in self._attempt.members if rank.suspended)
        return next((each["keeps"] for each in suspended if each.get("keeps")), None)

    def _answer(self) -> None:
        """Report that the attempt is suspended; vacate it before, if asked to."""
        attempt, command_id = self._attempt, self._command_id
        if command_id is None:
            return  # an agent before this one was asked, and its controller asks again
        stopped_s = attempt.record.suspended_s
        if not self._vacates:
            attempt.done(command_id, stopped_s=stopped_s, **attempt.asked_end)
            return

        def vacated(error: str | None) -> None:
            if attempt.state not in (State.ENDED, State.LOST):
                vacated = {"vacated": json_of(attempt.record.vacated), "kept": error}
                told = vacated | attempt.asked_end
                attempt.done(command_id, stopped_s=stopped_s, **told)

        self._vacating.vacate(vacated)

    def _advance_holders(self) -> None:
        """Advance the holders: a rank may be in a step that it can't complete without them."""
        attempt = self._attempt
        if attempt.state != State.SUSPENDING or all(rank.suspended for rank in attempt.members):
            return
        let_go_on(self._steps, [rank.index for rank in attempt.members if rank.alive], self._send)
        attempt.after(COUPLED_STEP_S, self._advance_holders)

    def _send(self, slot: int, message: Message) -> None:
        self._attempt.ranks[slot].send(message)
