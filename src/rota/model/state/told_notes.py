"""Policies' messages to people, from the notes of all plans so far."""

from __future__ import annotations

from collections.abc import Iterator

from rota.model.notes import MOST_WARNINGS, DesiredNodes, Notes, Packed, Reserved, Undone
from rota.model.probe import Probe


class ToldNotes:
    """The present notes, by row: see :class:`rota.model.notes.Notes`.

    ``warned`` has each kind of warning that a job ever had, as (time, words); it ends with a live
    job. ``probes`` are all that were made, also with jobs that have ended.
    """

    def __init__(self) -> None:
        self.why: dict[int, str] = {}
        self.why_cpus: dict[int, str] = {}
        self.warnings: dict[int, tuple[str, ...]] = {}
        self.warned: dict[int, dict[str, tuple[float, str]]] = {}
        self.probes: dict[int, list[Probe]] = {}
        self.packs: dict[int, Packed] = {}
        self.undone: dict[int, Undone] = {}
        self.nodes: DesiredNodes | None = None
        self.reserved: Reserved | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToldNotes) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> ToldNotes:
        """An independent copy of the notes."""
        twin = ToldNotes()
        twin.why, twin.warnings, twin.packs = dict(self.why), dict(self.warnings), dict(self.packs)
        twin.why_cpus, twin.undone = dict(self.why_cpus), dict(self.undone)
        twin.warned = {row: dict(told) for row, told in self.warned.items()}
        twin.probes = {row: list(probes) for row, probes in self.probes.items()}
        twin.nodes = self.nodes
        return twin

    def note(self, at_s: float, notes: Notes) -> Iterator[tuple[int, str]]:
        """Record ``notes``; yields the (row, warning) pairs of new kinds."""
        self.why |= notes.why
        self.why_cpus |= notes.why_cpus
        self.undone |= notes.undone
        for row, packed in notes.packs.items():
            if packed is None:
                self.packs.pop(row, None)
            else:
                self.packs[row] = packed
        for row, probes in notes.probes.items():
            # A log of before notes repeats the last ones at each change of a mark.
            known = self.probes.setdefault(row, [])
            recent = known[-len(probes) :]
            known += [probe for probe in probes if probe not in recent]
        self.nodes, self.reserved = notes.nodes, notes.reserved
        if notes.warnings:
            yield from self._warn(at_s, notes.warnings)

    def _warn(self, at_s: float, warnings: dict[int, tuple[str, ...]]) -> Iterator[tuple[int, str]]:
        from rota.model.warning import kind_of  # here: there is seldom a warning

        for row, sentences in warnings.items():
            if sentences:
                self.warnings[row] = sentences
            else:
                self.warnings.pop(row, None)
            told = self.warned.setdefault(row, {})
            for sentence in sentences:
                kind = kind_of(sentence)
                if kind not in told and len(told) < MOST_WARNINGS:
                    told[kind] = at_s, sentence
                    yield row, sentence

    def end(self, row: int, *, keep_warnings: bool) -> None:
        """A job has ended; a simulation reports its warnings later."""
        if self.why:
            self.why.pop(row, None)
        if self.why_cpus:
            self.why_cpus.pop(row, None)
        if self.warnings:
            self.warnings.pop(row, None)
        if self.packs:
            self.packs.pop(row, None)
        if self.undone:
            self.undone.pop(row, None)
        if self.warned and not keep_warnings:
            self.warned.pop(row, None)

    def forget(self) -> None:
        """Another policy decides from now on: the former one's notes are void."""
        self.why.clear()
        self.why_cpus.clear()
        self.warnings.clear()
        self.packs.clear()
        self.undone.clear()
        self.nodes = self.reserved = None
