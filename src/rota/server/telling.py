"""Events as callers of the API are told of them: with job ids and node names, and no secrets.

A caller is told neither the policy's memory nor what a request holds beyond its outline: the values
of environment variables, the command line and the files of a search may be secrets.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any

from rota.live.controller.record import Record
from rota.model.allocation import Allocation
from rota.model.events import (
    CommandSent,
    DecisionTaken,
    Event,
    JobSubmitted,
    SweepSubmitted,
)
from rota.model.job import JobSpec
from rota.model.reason import CODES, Reason


class Teller:
    """Tells events with the names of jobs and nodes of ``record``; usable from any thread."""

    def __init__(self, record: Record) -> None:
        self._record, self._state = record, record.state

    def tell(self, seq: int, event: Event) -> dict[str, Any]:
        """The event of this number, which the state has applied, as a JSON-able dict."""
        if isinstance(event, JobSubmitted):
            job_id: str | None = event.spec.job_id
        else:
            row = event.command.row if isinstance(event, CommandSent) else None
            row = getattr(event, "row", row)
            job_id = None if row is None else self._id(row)
        lines = self._record.lines.of(seq)
        return {
            "seq": seq,
            "at_s": event.at_s,
            "kind": type(event).__name__,
            "job_id": job_id,
            "data": self._data(event),
            "lines": [{"job_id": self._id(row), "line": line} for row, line in lines],
        }

    def _data(self, event: Event) -> dict[str, Any]:
        tell = _DATA.get(type(event))
        if tell is not None:
            told: dict[str, Any] = tell(self, event)
            return told
        return self._fields(event, "at_s", "row")

    def _fields(self, value: Any, *but: str) -> dict[str, Any]:
        return {
            name: self._plain(each) for name, each in value._asdict().items() if name not in but
        }

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Allocation):
            return [
                {"node": self._state.nodes[node].name, "gpus": list(gpus)}
                for node, gpus in value.gpus()
            ]
        if isinstance(value, Enum):
            return value.name
        if isinstance(value, tuple):
            if hasattr(value, "_asdict"):
                return self._fields(value)
            return [self._plain(each) for each in value]
        return value

    def _id(self, row: int) -> str:
        return self._state.spec[row].job_id

    def _submission(self, event: JobSubmitted) -> dict[str, Any]:
        spec: JobSpec = event.spec
        sizes = spec.elastic.sizes if spec.elastic is not None else (spec.num_gpus,)
        trial = spec.trial
        return {
            "name": spec.name,
            "user": spec.user,
            "queue": spec.vc,
            "priority": spec.priority,
            "tags": list(spec.tags),
            "num_gpus": spec.num_gpus,
            "min_gpus": sizes[0],
            "max_gpus": sizes[-1],
            "gpu_types": list(spec.gpu_types),
            "background": spec.is_background,
            "time_limit_s": spec.time_limit_s,
            "sweep": None if trial is None else {"name": trial.sweep.name, "number": trial.number},
        }

    def _decision(self, event: DecisionTaken) -> dict[str, Any]:
        return {
            "number": event.seq,
            "policy": event.policy,
            "allocations": {
                self._id(row): self._plain(each) for row, each in event.allocations.items()
            },
            "reasons": {
                self._id(row): Reason(code).name if code in CODES else str(code)
                for row, code in event.reasons.items()
            },
            "cores": {
                self._id(row): None if millicores is None else millicores / 1000
                for row, millicores in (event.cpus or {}).items()
            },
            "wake_at_s": event.wake_at_s,
            "fallback": event.fallback or None,
        }

    def _command(self, event: CommandSent) -> dict[str, Any]:
        command = event.command
        return {"command": type(command).__name__} | self._fields(command, "row", "epoch")

    def _search(self, event: SweepSubmitted) -> dict[str, Any]:
        return {"name": event.name, "user": event.user}


_DATA: dict[type, Callable[[Teller, Any], dict[str, Any]]] = {
    JobSubmitted: Teller._submission,
    DecisionTaken: Teller._decision,
    CommandSent: Teller._command,
    SweepSubmitted: Teller._search,
}
