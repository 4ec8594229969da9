"""Commands as messages: what an agent has to know to carry one out, and which agent that is."""

from rota.live.controller.record import Record
from rota.live.wire import Message
from rota.model.commands import Command, Launch, Migrate, Resize, Resume, Retune, Stop
from rota.model.state.state import ClusterState

OWN_BATCH = (0, 0)  # a job goes back to it from what was chosen for it before


def command_message(record: Record, command: Command) -> Message:
    """The message that tells an agent to carry a command out; see :mod:`rota.live.wire`."""
    state, row = record.state, command.row
    spec, home = state.spec[row], state.home[row]
    message: Message = {
        "type": "command",
        "kind": type(command).__name__.lower(),
        "command_id": command.command_id,
        "epoch": state.epoch,
        "job_id": spec.job_id,
        "attempt": command.attempt,
        "origin": record.origin(row),
        "launch": record.launch_mark(row, command.attempt),
    }
    if isinstance(command, Launch | Resume | Migrate | Resize):
        message["gpus"] = [gpu for _, gpus in command.allocation.gpus() for gpu in gpus]
        batch = command.allocation.batch
        if batch is None and spec.adapt is not None and not isinstance(command, Launch):
            batch = OWN_BATCH
        message["batch"] = batch
    if isinstance(command, Retune):
        message["batch"] = command.batch or OWN_BATCH
    if isinstance(command, Launch) and spec.program is not None:
        program = spec.program._asdict() | {"env": dict(spec.program.env)}
        message |= {"program": program, "name": spec.name, "at_s": state.changed_s[row]}
        if spec.elastic is not None:
            message["max_gpus"] = spec.elastic.sizes[-1]
        if spec.adapt is not None:
            message["adapt"] = spec.adapt._asdict() | {"min_gpus": spec.num_gpus}
    if isinstance(command, Migrate) and home is not None:
        message["source"] = state.nodes[home.nodes()[0]].name
    return message


def node_of(state: ClusterState, command: Command) -> str | None:
    """The node whose agent carries a command out.

    That is where the job's GPUs are, or else its state; a stop goes to the state first, because a
    job that moves has its processes there, or none.
    """
    held, home = state.held[command.row], state.home[command.row]
    place = (home or held) if isinstance(command, Stop) else (held or home)
    return state.nodes[place.nodes()[0]].name if place else None
