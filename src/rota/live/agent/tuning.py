"""How an attempt's batches are changed while it runs."""

from typing import TYPE_CHECKING

from rota.errors import AgentError
from rota.live.wire import Message

if TYPE_CHECKING:
    from rota.live.agent.attempt import Attempt


class Tuning:
    """The batch that one attempt was told to have.

    All ranks are told; rank 0 passes it on with the gradients of its next batch, so that all change
    behind the same one. Whoever hears of it first is believed: it holds for all then.
    """

    def __init__(self, attempt: "Attempt") -> None:
        self._attempt = attempt
        self._command_id: int | None = None
        self._batch: list[int] | None = None

    def tune(self, command_id: int | None, batch: list[int]) -> None:
        """Have a rank take ``batch[0]`` samples at once, and accumulate gradients ``batch[1]``
        times; ``done`` follows when it does. Raises AgentError."""
        attempt = self._attempt
        gang = attempt.elastic.gang if attempt.elastic is not None else None
        if attempt.state != "running" or (gang is not None and gang.busy):
            raise AgentError(f"job {attempt.job_id} can't change its batch now; ask again")
        if not attempt.cooperates:
            raise AgentError(f"not all ranks of job {attempt.job_id} are connected; ask again")
        self._command_id, self._batch = command_id, batch
        self.again()

    def again(self) -> None:
        """Tell the ranks once more: they may have become others."""
        if self._batch is not None:
            for rank in self._attempt.members:
                rank.send({"type": "tune", "batch": self._batch})

    def heard(self, message: Message) -> None:
        """A rank tells that batches are so from now on, or why not."""
        if self._batch != message["batch"]:
            return
        command_id, self._command_id, self._batch = self._command_id, None, None
        if message["refusal"] is not None:
            self._attempt.failed(command_id, message["refusal"])
        elif command_id is not None:
            self._attempt.done(command_id, batch=message["batch"])
