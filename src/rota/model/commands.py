"""Commands to a driver about a job. Imperative; carried out late, partly, or never.

``command_id`` is unique in a cluster's life, ``attempt`` counts the job's starts from nothing, and
``epoch`` counts the controller's lives: an agent refuses commands of a lower epoch.
"""

from typing import NamedTuple

from rota.model.allocation import Allocation
from rota.model.job import JobState


class Launch(NamedTuple):
    """Start the job's processes on these GPUs, all of them or none.

    ``millicores``, here as in other commands, are the CPU cores that the job may use as a whole, in
    thousandths, split over its nodes as its GPUs are; None: as many as it likes.
    """

    command_id: int
    row: int
    attempt: int
    epoch: int
    allocation: Allocation
    millicores: int | None = None


class Suspend(NamedTuple):
    """Pause the job, keep its state on its node, and free its GPUs."""

    command_id: int
    row: int
    attempt: int
    epoch: int


class Resume(NamedTuple):
    """Let a suspended job continue on these GPUs of the node(s) where its state lies."""

    command_id: int
    row: int
    attempt: int
    epoch: int
    allocation: Allocation
    millicores: int | None = None


class Migrate(NamedTuple):
    """Move a suspended job's state to the node(s) of these GPUs, and continue it there."""

    command_id: int
    row: int
    attempt: int
    epoch: int
    allocation: Allocation
    millicores: int | None = None


class Park(NamedTuple):
    """Move a suspended job's state to the node of these GPUs, where the job waits without any.

    The GPUs are named, not held: they become the job's home, and others may have them.
    """

    command_id: int
    row: int
    attempt: int
    epoch: int
    allocation: Allocation


class Resize(NamedTuple):
    """Change a running job to these GPUs, some of which it has already, with a rank on each."""

    command_id: int
    row: int
    attempt: int
    epoch: int
    allocation: Allocation


class SetCpus(NamedTuple):
    """Let a running job use so many CPU cores; ``millicores`` as in :class:`Launch`."""

    command_id: int
    row: int
    attempt: int
    epoch: int
    millicores: int | None


class Retune(NamedTuple):
    """Change a running job to another batch, on the GPUs that it has.

    ``batch`` as in :class:`~rota.model.allocation.Allocation`.
    """

    command_id: int
    row: int
    attempt: int
    epoch: int
    batch: tuple[int, int] | None


class Stop(NamedTuple):
    """End the job's processes: ask, wait a moment, then kill."""

    command_id: int
    row: int
    attempt: int
    epoch: int


Command = Launch | Suspend | Resume | Migrate | Park | Resize | Retune | SetCpus | Stop


class Rule(NamedTuple):
    """The job states in which a command can be sent, and its effect on the job.

    Until the command is answered the job stays ``becoming``, or is asked to stop meanwhile.
    """

    sent_to: JobState
    becoming: JobState
    overtakes: tuple[type, ...] = ()  # commands on their way that this kind replaces
    refusal: str = ""  # the action that is impossible in other states; "": sending the command


RULES: dict[type, Rule] = {
    Launch: Rule(JobState.PENDING, JobState.STARTING),
    # A change of batch waits for a whole step; cores that a job loses anyway need not be set.
    Suspend: Rule(JobState.RUNNING, JobState.SUSPENDING, overtakes=(Retune, SetCpus)),
    Resume: Rule(JobState.SUSPENDED, JobState.SUSPENDED),
    Migrate: Rule(JobState.SUSPENDED, JobState.MIGRATING),
    Park: Rule(JobState.SUSPENDED, JobState.MIGRATING),
    Resize: Rule(JobState.RUNNING, JobState.RUNNING, refusal="resized"),
    Retune: Rule(JobState.RUNNING, JobState.RUNNING, refusal="retuned"),
    SetCpus: Rule(JobState.RUNNING, JobState.RUNNING, refusal="given CPU cores"),
    Stop: Rule(
        JobState.STOPPING,
        JobState.STOPPING,
        overtakes=(Suspend, Resume, Migrate, Park, Resize, Retune, SetCpus),
    ),
}


def may_follow(outstanding: Command | None, command: Command) -> bool:
    """True if a command can be sent while another is on its way."""
    return outstanding is None or type(outstanding) in RULES[type(command)].overtakes
