"""Gandiva's packing: jobs that share a GPU for as long as that does more work than turns."""

from collections.abc import Mapping
from typing import Any

from rota.model.view import Trial, View
from rota.policy.gandiva_jobs import Notes, Pack, left_s, look, rate, speed_alone
from rota.policy.gandiva_servers import Servers


class Packing:
    """Which jobs of one GPU are packed together, on trial or for good."""

    def __init__(
        self, view: View, servers: Servers, notes: Mapping[int, Notes], settings: Mapping[str, Any]
    ) -> None:
        self._view = view
        self._servers = servers
        self._notes = notes
        self._set = settings
        self._changed: set[int] = set()  # rows whose progress counts from now on

    def unit(self, row: int) -> tuple[int, ...]:
        """The job, with those that it is packed with."""
        pack = self._notes[row].pack
        return (row,) if pack is None else pack.rows

    def is_packed(self, row: int) -> bool:
        """Whether the job shares its GPU, if only with itself for the moment."""
        return self._notes[row].pack is not None

    def is_on_trial(self, unit: tuple[int, ...]) -> bool:
        """Whether it is not known yet what the pack is worth."""
        pack = self._notes[unit[0]].pack
        return pack is not None and pack.gain is None

    def gpu_of(self, row: int, trial: Trial) -> int:
        """The GPU that another job of its pack has in ``trial``; -1 if none has one."""
        for other in self.unit(row):
            target = trial.target(other)
            if other != row and target is not None and target.shared:
                return target.parts[0][1].bit_length() - 1
        return -1

    def ends_s(self) -> list[float]:
        """When the trials that are under way can be judged."""
        view = self._view
        times = []
        for row, notes in self._notes.items():
            if notes.pack is not None and notes.pack.gain is None:
                left = left_s(notes.seen, look(view, row), self._set["trial_s"])
                times.append(view.now_s + left)
        return times

    # -- trials --------------------------------------------------------------------------------

    def judge(self) -> None:
        """Keep packs that do more work than their jobs would in turns, and undo the others."""
        for row, notes in self._notes.items():
            pack = notes.pack
            if pack is not None and pack.gain is None and row == pack.rows[0]:
                gain = self._gain(pack)
                if gain is not None:
                    self._end_trial(pack, gain)

    def _gain(self, pack: Pack) -> float | None:
        """The work of all in the pack, relative to each alone; None if it is too early to tell."""
        gain = 0.0
        for row in pack.rows:
            notes = self._notes[row]
            now = rate(notes.seen, look(self._view, row), self._set["trial_s"])
            if now is None or not notes.alone:
                return None
            gain += now / notes.alone
        return gain

    def _end_trial(self, pack: Pack, gain: float) -> None:
        """Keep the pack, or take its newcomer out of it."""
        kept = gain > pack.beat * (1 + self._set["least_gain"])
        rest = tuple(row for row in pack.rows if row != pack.newcomer)
        before = Pack(rest, 2 * pack.beat - 1) if len(rest) > 1 else None
        for row in pack.rows:
            notes = self._notes[row]
            self._credit(row, len(pack.rows))
            notes.note(self._view.now_s, "pack", pack.beat, gain, kept)
            self._changed.add(row)
            if kept:
                notes.pack = Pack(pack.rows, gain)
            elif row == pack.newcomer:
                notes.pack = None
                notes.keep_apart(set(rest))
                self._servers.add(notes.home)
            else:
                notes.pack = before
                notes.keep_apart({pack.newcomer})

    def try_one(self) -> None:
        """On each node where jobs take turns, put the two together that use their GPU least."""
        crowded: dict[int, list[int]] = {
            node: []
            for node, size in self._servers.sizes.items()
            if self._servers.load[node] > size
        }
        for row, notes in self._notes.items():
            node = notes.home[0][0] if notes.home else -1
            if node in crowded and notes.home == ((node, 1),) and len(self._view.sizes(row)) == 1:
                crowded[node].append(row)
        for rows in crowded.values():
            if any(self.is_on_trial(self.unit(row)) for row in rows):
                continue
            pair = self._candidates(rows)
            if pair is not None:
                self._pack(*pair)

    def _candidates(self, rows: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The single job that uses its GPU least, and the GPU's worth of jobs that uses it least.

        Of those that were measured alone, are known to leave their GPU idle at times, fit the
        memory together, and have not failed together.
        """
        known = {self.unit(row) for row in rows if self._util(row) < 1 and self.alone(row)}
        units = sorted(known, key=lambda unit: (sum(map(self._util, unit)), unit))
        for single in units:
            if len(single) > 1 or self._view.must_stay(single[0]):
                continue
            apart = self._notes[single[0]].apart
            for other in units:
                if other != single and not apart & set(other) and self._fit(single + other):
                    return single, other
        return None

    def _util(self, row: int) -> float:
        util = self._view.usage(row).gpu_util
        return 1.0 if util is None else util

    def _fit(self, rows: tuple[int, ...]) -> bool:
        most = self._set["gpu_memory_gb"] * self._set["memory_fraction"]
        needed = [self._view.usage(row).memory_gb for row in rows]
        return not most or sum(gb or 0.0 for gb in needed) <= most

    def _pack(self, single: tuple[int, ...], other: tuple[int, ...]) -> None:
        rows = tuple(sorted(single + other))
        together = self._notes[other[0]].pack
        turns = 1.0 if together is None or together.gain is None else (together.gain + 1) / 2
        self._servers.remove(self._notes[single[0]].home)
        for row in rows:
            if self._notes[row].pack is not None:
                self._credit(row, len(other))
            else:
                self._notes[row].alone = self.alone(row)
            self._notes[row].pack = Pack(rows, None, single[0], turns)
            self._changed.add(row)

    def settle(self) -> None:
        """Leave those that have ended, or gone."""
        for row, notes in self._notes.items():
            pack = notes.pack
            if pack is None:
                continue
            left = tuple(other for other in pack.rows if self._is_with(other, row))
            if left != pack.rows:
                self._credit(row, len(pack.rows))
            if len(left) < 2:
                notes.pack = None
                self._changed.add(row)
            elif left != pack.rows:
                # Those who stay are no slower than they were: a newcomer has to beat that.
                was = pack.gain if pack.gain is not None else 2 * pack.beat - 1
                notes.pack = Pack(left, max(1.0, was * len(left) / len(pack.rows)))
                self._changed.add(row)

    def _is_with(self, other: int, row: int) -> bool:
        """Whether a job is still there, and in the same pack as another."""
        pack = self._notes[other].pack if other in self._notes else None
        return pack is not None and row in pack.rows

    def had(self, row: int) -> float:
        """Seconds per priority that a job has run, or is credited with; of a shared GPU a part."""
        notes, view = self._notes[row], self._view
        seconds = view.attained_s(row) / view.priority[row] + notes.credit
        if notes.pack is not None:
            seconds -= self._shared_s(row, len(notes.pack.rows)) / view.priority[row]
        return seconds

    def _credit(self, row: int, num_jobs: int) -> None:
        """A pack has come to its end: what the others had of the GPU is not this job's."""
        self._notes[row].credit -= self._shared_s(row, num_jobs) / self._view.priority[row]

    def _shared_s(self, row: int, num_jobs: int) -> float:
        """Of the run time since the pack began, what the others had of the GPU."""
        seen = self._notes[row].seen
        if seen is None:
            return 0.0
        return max(0.0, self._view.attained_s(row) - seen.ran_s) * (1 - 1 / num_jobs)

    # -- speeds --------------------------------------------------------------------------------

    def alone(self, row: int) -> float | None:
        """Steps a second of a job that has its GPUs for itself, or had before its trial."""
        if row in self._changed:  # who has left a pack in this decision was not alone until now
            return self._notes[row].alone
        return speed_alone(self._view, row, self._notes[row])

    def begin(self) -> None:
        """Where something has changed, measure from now on; a trial once all of it runs."""
        view = self._view
        for row, notes in self._notes.items():
            pack = notes.pack
            on_trial = pack is not None and pack.gain is None
            if (
                notes.seen is None
                or row in self._changed
                or (on_trial and pack is not None and any(view.since_s[r] < 0 for r in pack.rows))
            ):
                notes.seen = look(view, row)
