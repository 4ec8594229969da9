"""Notes: a policy's messages to people about its plan. Unlike its memory, they are read."""

from __future__ import annotations

from typing import NamedTuple

from rota.model.probe import Probe

MOST_WARNINGS = 20  # of one job
MOST_CHARS = 1000  # of a sentence


class DesiredNodes(NamedTuple):
    """The ``desired`` number of nodes, and the present ``utility`` of the jobs' GPUs.

    Utility is the sum of the jobs' speedups over one GPU, divided by the number of GPUs.
    ``below_since_s`` is the time since which the utility of the desired nodes has been too low;
    None if it is not.
    """

    desired: int
    utility: float
    below_since_s: float | None = None


class Packed(NamedTuple):
    """Jobs that share a GPU, and their total work relative to that of turns on it.

    ``gain`` is None while it is being measured.
    """

    rows: tuple[int, ...]
    gain: float | None


class Reserved(NamedTuple):
    """The job of ``row``, which waits, has GPUs set aside: at ``at_s`` at the latest it starts.

    That holds if jobs end within their time limits; then the jobs of ``awaited`` have ended. None
    where no time can be told: not all of those have a time limit.
    """

    row: int
    at_s: float | None
    awaited: tuple[int, ...]


class Undone(NamedTuple):
    """A background job slowed the steps of the foreground job of ``beside`` by ``slowdown``.

    That is a factor beyond its ``limit``, so it lost its GPU there; it is not tried there again
    before ``again_s``. With 95 % confidence the factor is from ``low`` to ``high``; None: in logs
    from before intervals.
    """

    beside: int
    slowdown: float
    limit: float
    again_s: float
    low: float | None = None
    high: float | None = None


class Notes(NamedTuple):
    """The notes of one plan. Whatever a plan does not mention stays as an earlier one noted it.

    By row: ``why`` a job has as many GPUs as it has, a sentence; ``warnings``, all sentences that
    hold now, none of them to take back earlier ones; ``probes`` that have ended now; ``packs``,
    None for a job that shares its GPU no longer. ``nodes`` is the number of nodes that the policy
    wants now; None if it asks for none. ``reserved`` says for whom GPUs are set aside now; None:
    for nobody. ``why_cpus`` a job has as many CPU cores as it has, a sentence by row. ``undone`` is
    the last undone trial of a background job.

    Sentences may quote what jobs reported: their first ``MOST_CHARS`` characters are told, and of
    each job's warnings the first ``MOST_WARNINGS``.
    """

    why: dict[int, str] = {}
    warnings: dict[int, tuple[str, ...]] = {}
    probes: dict[int, tuple[Probe, ...]] = {}
    packs: dict[int, Packed | None] = {}
    nodes: DesiredNodes | None = None
    reserved: Reserved | None = None
    why_cpus: dict[int, str] = {}
    undone: dict[int, Undone] = {}


def fault_in(notes: Notes) -> str:
    """Describes what is wrong with a policy's notes; "" if nothing is."""
    if type(notes) is not Notes:
        return f"its notes are {notes!r:.100}, no Notes"
    for what, told in (("GPUs", notes.why), ("CPU cores", notes.why_cpus)):
        for row, sentence in told.items():
            if not _is_sentence(sentence):
                return f"why row {row} has its {what} is {sentence!r:.100}, no text"
    for row, warnings in notes.warnings.items():
        if type(warnings) is not tuple or not all(map(_is_sentence, warnings)):
            return f"the warnings of row {row} are {warnings!r:.100}, no tuple of texts"
    for row, probes in notes.probes.items():
        if type(probes) is not tuple or any(type(probe) is not Probe for probe in probes):
            return f"the probes of row {row} are {probes!r:.100}, no tuple of Probes"
    for row, packed in notes.packs.items():
        if packed is not None and type(packed) is not Packed:
            return f"the pack of row {row} is {packed!r:.100}, no Packed"
    for row, undone in notes.undone.items():
        if type(undone) is not Undone:
            return f"the undone trial of row {row} is {undone!r:.100}, no Undone"
    if notes.nodes is not None and type(notes.nodes) is not DesiredNodes:
        return f"the nodes wanted are {notes.nodes!r:.100}, no DesiredNodes"
    if notes.reserved is not None and type(notes.reserved) is not Reserved:
        return f"what is reserved is {notes.reserved!r:.100}, no Reserved"
    return ""


def _is_sentence(text: object) -> bool:
    return isinstance(text, str)
