"""The field ``depends_on`` of a job file: the jobs whose ends a job waits for."""

from collections.abc import Mapping
from typing import Any

from rota.errors import closest
from rota.model.job import MET_BY, Dependency
from rota.request.values import check_keys, job_of, refuse

FIELDS = ("job", "when")
MAX_DEPENDENCIES = 1000
EXAMPLE = "write a list such as [prepare] or [{job: prepare, when: ended}]"


def dependencies_of(value: Any) -> tuple[Dependency, ...]:
    """The jobs that are named, as text, and how each must end. Raises JobFileError."""
    if value is None:
        return ()
    listed = value if isinstance(value, list) else [value]
    if not listed or len(listed) > MAX_DEPENDENCIES:
        refuse("depends_on", value, f"{EXAMPLE}, of at most {MAX_DEPENDENCIES}, or leave it out")
    return tuple(dict.fromkeys(map(_dependency, listed)))


def dependencies_field(dependencies: tuple[Dependency, ...]) -> list[dict[str, str]]:
    """The JSON-able field from which :func:`dependencies_of` makes these very dependencies."""
    return [{"job": each.job_id, "when": each.when} for each in dependencies]


def _dependency(value: Any) -> Dependency:
    if not isinstance(value, Mapping):
        return Dependency(job_of("depends_on", value, EXAMPLE))
    check_keys(value, FIELDS, "depends_on.")
    if "job" not in value:
        refuse("depends_on", dict(value), f"job is missing; {EXAMPLE}")
    when = value.get("when", "succeeded")
    if not isinstance(when, str) or when not in MET_BY:
        close = closest(when, MET_BY) if isinstance(when, str) else None
        fix = f"did you mean {close}?" if close else f"write one of {', '.join(MET_BY)}"
        refuse("depends_on.when", when, fix)
    return Dependency(job_of("depends_on.job", value["job"], EXAMPLE), when)
