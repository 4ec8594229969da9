"""Gandiva's expectations of a pack: before it is made, and to be kept."""

from collections.abc import Iterable
from typing import NamedTuple

from rota.policy.gandiva.servers import Home
from rota.policy.gandiva.signatures import SignatureGains, of_one_search
from rota.policy.gandiva.turn import Part, Turn


class Unit(NamedTuple):
    """A job, or jobs that are packed, with what they use of a GPU in sum."""

    rows: tuple[int, ...]
    util: float  # the sum of their parts, each from 0 to 1
    memory_gb: float  # infinite if not known of one
    signatures: tuple[str, ...]
    measured: bool  # True if the speed of each of them alone is known


class Verdicts(Part):
    """Decides which jobs may share a GPU, by their memory and by measurements of signatures."""

    def __init__(self, turn: Turn, gains: SignatureGains) -> None:
        super().__init__(turn)
        self._gains = gains
        # By signatures, place, and whether all are of one search; looked up once in a decision.
        self._expected: dict[tuple[tuple[str, ...], str, bool], float | None] = {}

    def place_of(self, row: int) -> str:
        """The type of the GPU where a job lives, with their number if it is a gang.

        What packs were measured to do counts for jobs at such a place alone.
        """
        node, gpus = self._notes[row].home[0]
        gpu_type = self._view.nodes[node].gpu_type
        return gpu_type if gpus == 1 else f"{gpus} {gpu_type}".rstrip()

    def may_join(self, one: Unit, other: Unit) -> bool:
        """True if nothing speaks against putting a job to these."""
        if not self.fits(one.memory_gb + other.memory_gb, self._notes[other.rows[0]].home):
            return False
        if not self._notes[one.rows[0]].apart.isdisjoint(other.rows):
            return False
        gain = self.predicted(one, other)
        if not ((one.measured and other.measured) or self.is_settled(one, other)):
            return False
        turns = self.turns(other.rows)
        return gain is None or self.pays(gain, self.to_beat(one.rows + other.rows, turns))

    def is_settled(self, one: Unit, other: Unit) -> bool:
        """True if trials of one search need no probe, as others of it have had theirs."""
        known = self._gains.gain(one.signatures + other.signatures, self.place_of(other.rows[0]))
        return known is not None and of_one_search(self._view, one.rows + other.rows)

    def to_beat(self, rows: Iterable[int], turns: float) -> float:
        """The work that a pack has to do more than: ``turns`` of its newcomer and the others.

        In a search the newcomer could wait instead, so there it is what the others do.
        """
        return 2 * turns - 1 if of_one_search(self._view, rows) else turns

    def fits(self, needed_gb: float, home: Home) -> bool:
        """True if jobs that need so much memory, infinite if not known, may share a GPU there."""
        node = self._view.nodes[home[0][0]]
        has_gb = self._set["gpu_memory_gb"] or node.memory_gb
        if not has_gb:
            # A job that runs out of memory is lost.
            return not (node.has_device_memory or self._view.has_device_memory)
        return needed_gb <= has_gb * float(self._set["memory_fraction"])

    def predicted(self, one: Unit, other: Unit) -> float | None:
        """The work of a pack, as that of like packs; None if it has to be tried."""
        signatures, on = one.signatures + other.signatures, self.place_of(other.rows[0])
        alike = of_one_search(self._view, one.rows + other.rows)
        if (signatures, on, alike) not in self._expected:
            gain = self._gains.gain(signatures, on)
            sure = gain is not None and (alike or self._gains.is_sure(signatures, on))
            speeds = self._view.pair(one.rows[0], other.rows[0]) if len(signatures) == 2 else None
            if gain is None and speeds is not None:  # measured under another policy, or before
                gain = sum(speeds)
            trusted = gain is not None and (sure or self.pays(gain, 1.0))
            self._expected[signatures, on, alike] = gain if trusted else None
        return self._expected[signatures, on, alike]

    def pays(self, gain: float, turns: float) -> bool:
        """True if so much work is more than what turns do, by more than chance."""
        return gain > turns * (1 + float(self._set["least_gain"]))

    def turns(self, unit: tuple[int, ...]) -> float:
        """The work that turns on one GPU do: of a job alone, and of these."""
        pack = self._notes[unit[0]].pack
        return 1.0 if pack is None or pack.gain is None else (pack.gain + 1) / 2
