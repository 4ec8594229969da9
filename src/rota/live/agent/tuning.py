"""Changes an attempt's batches while it runs."""

import contextlib
import logging
from collections.abc import Callable

from rota.errors import AgentError
from rota.live.agent.attempt_report import Account
from rota.live.agent.states import State
from rota.live.wire import Message

OWN = [0, 0]  # the batch that the job has by itself

log = logging.getLogger("rota.agent")


class Tuning:
    """The batch that one attempt was told to have.

    Rank 0 is told, and passes it on with the gradients of its next batch, so that all change after
    the same batch. The first answer holds for all ranks. Until it comes, the wanted batch is in the
    attempt's record, so that an agent that takes over repeats the request.

    ``resizes`` is True if the ranks are about to change.
    """

    def __init__(self, attempt: Account, resizes: Callable[[], bool]) -> None:
        self._attempt = attempt
        self._resizes = resizes
        self._command_id: int | None = None
        self._batch: list[int] | None = attempt.record.batch

    def tune(self, command_id: int, batch: list[int] | None) -> None:
        """Have each rank take ``batch[0]`` samples at once, and accumulate ``batch[1]`` times more.

        Without ``batch`` the job chooses by itself. ``done`` follows. Raises AgentError.
        """
        attempt = self._attempt
        if attempt.state != State.ADOPTED:  # else rank 0 is told when all are back
            if attempt.state != State.RUNNING or self._resizes():
                raise AgentError(f"job {attempt.job_id} can't change its batch now; ask again")
            if not attempt.cooperates:
                raise AgentError(f"not all ranks of job {attempt.job_id} are connected; ask again")
        self._command_id = command_id
        self._want(batch or OWN)

    def keep(self, batch: list[int] | None) -> None:
        """Apply such batches once the attempt runs with the ranks that it is about to have."""
        self._command_id = None
        self._want(batch)

    def again(self) -> None:
        """Repeat the request to rank 0, if that has changed, or now knows batches."""
        if self._batch is not None and self._attempt.state == State.RUNNING and not self._resizes():
            for rank in self._attempt.members[:1]:
                rank.send({"type": "tune", "batch": self._batch})

    def heard(self, message: Message) -> None:
        """A rank's answer: the batches from now on, or the reason why they are not changed."""
        attempt, batch, refusal = self._attempt, message["batch"], message["refusal"]
        if refusal is not None and batch != OWN:
            log.warning("job %s has no batch of %d, %d: %s", attempt.job_id, *batch, refusal)
            refused = {"batch": batch, "gpus": len(attempt.members), "error": refusal}
            attempt.record.refused = refused
            self._save()
            attempt.notify(attempt.about("refused") | refused)
        if self._batch != batch:
            return
        command_id, self._command_id = self._command_id, None
        self._want(None)
        if command_id is None:
            return  # another command asked for it
        if refusal is not None:
            attempt.failed(command_id, refusal)
        else:
            attempt.done(command_id, batch=batch)

    def report(self) -> Message | None:
        """The last batch that was refused, for a controller; None if none was."""
        refused = self._attempt.record.refused
        return self._attempt.about("refused") | refused if refused else None

    def _want(self, batch: list[int] | None) -> None:
        self._batch = batch
        if self._attempt.record.batch != batch:
            self._attempt.record.batch = batch
            self._save()
        self.again()

    def _save(self) -> None:
        with contextlib.suppress(OSError):  # only lost if this agent ends, too
            self._attempt.save(durable=False)
