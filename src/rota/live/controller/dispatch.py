"""Commands as messages: what an agent needs to carry one out, and which agent gets it.

And what agents of other nodes need to have processes of a gang.
"""

from collections.abc import Callable
from typing import Any

from rota.live.controller.record import Record
from rota.live.controller.recovery import placement
from rota.live.wire import Message
from rota.live.wire.places import place_of
from rota.model.allocation import Allocation
from rota.model.commands import (
    Command,
    Launch,
    Migrate,
    Park,
    Resize,
    Resume,
    Retune,
    SetCpus,
    Stop,
    Suspend,
)
from rota.model.job import JobSpec, Program
from rota.model.state.state import ClusterState

OWN_BATCH = (0, 0)  # a job goes back to it from what was chosen for it before


def command_message(record: Record, command: Command) -> Message:
    """The message for an agent that is to carry a command out; see :mod:`rota.live.wire`."""
    return {
        "type": "command",
        "kind": type(command).__name__.lower(),
        "command_id": command.command_id,
        "epoch": record.state.epoch,
        "job_id": record.state.spec[command.row].job_id,
        "attempt": command.attempt,
        "origin": record.origin(command.row),
        "launch": record.launch_mark(command.row, command.attempt),
        **FIELDS[type(command)](record, command),
    }


def _of_a_launch(record: Record, command: Launch) -> Message:
    spec = record.state.spec[command.row]
    program = _program(spec)
    fields: Message = {
        **_places(record, command),
        **_job(record, command.row),
        "batch": command.allocation.batch,
        "background": spec.is_background,
        "max_slowdown": spec.max_slowdown,
        "millicores": _share(command.allocation, command.millicores),
        "at_s": record.state.changed_s[command.row],
    }
    if spec.is_flow:
        memory_bytes = None if spec.memory_gb is None else round(spec.memory_gb * 1e9)
        limits = {"memory_bytes": memory_bytes, "idle_s": program.idle_s}
        fields["flow"] = {"weight": spec.weight, **limits}
    return fields


def guest_message(record: Record, row: int, node: int) -> Message:
    """The message that tells the agent of another node of an attempt than its first of it.

    That agent has processes of the attempt for the agent of the first node, its ``host``.
    """
    state, place = record.state, placement(record.state, row)
    assert place is not None, "a gang is somewhere"
    return {
        "type": "guest",
        "job_id": state.spec[row].job_id,
        "attempt": state.attempt[row],
        "origin": record.origin(row),
        "launch": record.launch_mark(row, state.attempt[row]),
        "host": state.nodes[place.nodes()[0]].name,
        "gpus": list(dict(place.gpus())[node]),
        "millicores": _share(place, state.held_cpus.get(row), node),
        **_job(record, row),
    }


def _job(record: Record, row: int) -> Message:
    """The fields that starting a process of a job takes, wherever it is."""
    spec = record.state.spec[row]
    told: Message = {"program": _program_of(record, row, _program(spec)), "name": spec.name}
    if spec.elastic is not None:
        told["max_gpus"] = spec.elastic.sizes[-1]
    if spec.adapt is not None:
        told["adapt"] = spec.adapt._asdict() | {"min_gpus": spec.num_gpus}
    return told


def _program(spec: JobSpec) -> Program:
    assert spec.program is not None, "an agent runs live jobs alone"
    return spec.program


def _share(place: Allocation | None, millicores: int | None, node: int | None = None) -> int | None:
    """The part of a job's cores that it may use on one of its nodes, by default the first."""
    if place is None or millicores is None:
        return millicores
    return dict(place.shares(millicores))[place.nodes()[0] if node is None else node]


def _program_of(record: Record, row: int, program: Program) -> dict[str, Any]:
    told = program._asdict() | {"env": record.environment(row) | dict(program.env)}
    if program.snapshot:
        told["workdir"] = ""  # an agent that knows no snapshots must not run in what it has there
    return told


def _of_a_return(record: Record, command: Resume | Migrate) -> Message:
    millicores = _share(command.allocation, command.millicores)
    return {**_of_other_gpus(record, command), "millicores": millicores}


def _of_a_resize(record: Record, command: Resize) -> Message:
    millicores = _share(command.allocation, record.state.held_cpus.get(command.row))
    return {**_of_other_gpus(record, command), "millicores": millicores}


def _of_cores(record: Record, command: SetCpus) -> Message:
    return {"millicores": _share(record.state.held[command.row], command.millicores)}


def _of_other_gpus(record: Record, command: Resume | Migrate | Resize) -> Message:
    batch = command.allocation.batch
    if batch is None and record.state.spec[command.row].adapt is not None:
        batch = OWN_BATCH
    return {**_places(record, command), "batch": batch}


def _of_a_migration(record: Record, command: Migrate) -> Message:
    return {**_of_a_return(record, command), "source": _source(record, command)}


def _of_a_parking(record: Record, command: Park) -> Message:
    return {**_places(record, command), "source": _source(record, command)}


def _source(record: Record, command: Migrate | Park) -> str:
    home = record.state.home[command.row]
    assert home is not None, "a job whose state moves is suspended"
    return record.state.nodes[home.nodes()[0]].name


def _places(record: Record, command: Launch | Resume | Migrate | Park | Resize) -> Message:
    """The GPUs, and if they are on several nodes these: see :mod:`rota.live.wire.places`."""
    parts, nodes = command.allocation.gpus(), record.state.nodes
    gpus = [place_of(at, gpu) for at, (_, gpus) in enumerate(parts) for gpu in gpus]
    if len(parts) == 1:
        return {"gpus": gpus}
    names = [nodes[index].name for index, _ in parts]
    return {"gpus": gpus, "nodes": [{"name": n, "address": record.reach(n)} for n in names]}


# What the message of each kind of command has beside what all have.
FIELDS: dict[type, Callable[[Record, Any], Message]] = {
    Launch: _of_a_launch,
    Suspend: lambda record, command: {},
    Resume: _of_a_return,
    Migrate: _of_a_migration,
    Park: _of_a_parking,
    Resize: _of_a_resize,
    Retune: lambda record, command: {"batch": command.batch or OWN_BATCH},
    SetCpus: _of_cores,
    Stop: lambda record, command: {},
}


def node_of(state: ClusterState, command: Command) -> str | None:
    """The node whose agent carries a command out.

    That is where the job's GPUs are, or else its state; a stop goes to the state first, because a
    job that moves has its processes there, or none. The node that is to have a state fetches it.
    """
    if isinstance(command, Park):
        return state.nodes[command.allocation.nodes()[0]].name
    held, home = state.held[command.row], state.home[command.row]
    place = (home or held) if isinstance(command, Stop) else (held or home)
    return state.nodes[place.nodes()[0]].name if place else None
