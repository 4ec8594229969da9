"""Gandiva's sweeps: the trials of a search take turns by what they promise (section 3.3)."""

from collections.abc import Callable, Sequence
from math import inf

from rota.policy.gandiva.promises import shares
from rota.policy.gandiva.signatures import SignatureGains, signature_of
from rota.policy.gandiva.turn import Part, Turn
from rota.policy.gandiva.verdicts import Verdicts

SMALL = 0.5  # part of a GPU's time: a trial that uses no more may share it from the beginning


class Sweeps(Part):
    """The trials that must wait because others promise more, and the weights of the others."""

    def __init__(
        self,
        turn: Turn,
        gains: SignatureGains,
        verdicts: Verdicts,
        goes_on: Callable[[int], bool],
    ) -> None:
        super().__init__(turn)
        self._gains = gains
        self._verdicts = verdicts
        self._goes_on = goes_on  # tells if a job's turn is not over yet
        self.waiting: set[int] = set()

    def weigh(self) -> None:
        """Part each search's weight among its trials; those that are to wait live nowhere."""
        view = self._view
        for rows in view.sweeps.values():
            most = max(1, int(self._set["trials"] * self._room(rows) / view.num_gpus[rows[0]]))
            for row, part in shares(view, rows, most).items():
                weight = view.priority[row] * part
                if not part:
                    if not self._goes_on(row):
                        self._send_away(row)
                elif weight != self._notes[row].weight(view.priority[row]):
                    self._charges.reweigh(row, weight)

    def _send_away(self, row: int) -> None:
        self.waiting.add(row)
        if self._notes[row].home:
            self._notes[row].leave()

    # -- small trials --------------------------------------------------------------------------

    def _room(self, rows: Sequence[int]) -> int:
        """GPUs for the trials of a search, each counted as often as small ones may share it.

        So often as they do more work than with one less, and once more in all while it is not
        known what that would do. The first small one that is active stands for all.
        """
        view, sizes = self._view, self._servers.sizes
        one = next((row for row in rows if row in view.active and self._is_small(row)), None)
        if one is None or self._set["pack"] == "off":
            return view.total_gpus
        types = {node: view.nodes[node].gpu_type for node in sizes}
        found = {gpu_type: self._per_gpu(one, node) for node, gpu_type in types.items()}
        room = sum(size * found[types[node]][0] for node, size in sizes.items())
        return room + any(more for _, more in found.values())

    def _is_small(self, row: int) -> bool:
        view = self._view
        if view.num_gpus[row] > 1 or len(view.sizes(row)) > 1 or view.must_stay(row):
            return False
        util = view.usage(row).gpu_util
        return util is not None and util <= SMALL

    def _per_gpu(self, row: int, node: int) -> tuple[int, bool]:
        """The number of such trials that do most work on a GPU; True if one more is to be tried."""
        use, gpu_type = self._view.usage(row), self._view.nodes[node].gpu_type
        memory_gb = inf if use.memory_gb is None else use.memory_gb
        signature, util = signature_of(self._view, row), use.gpu_util or 0.0
        number, gain = 1, 1.0
        while self._verdicts.fits((number + 1) * memory_gb, ((node, 1),)):
            more = self._gains.gain([signature] * (number + 1), gpu_type)
            if more is None:
                return number, (number + 1) * util <= 1
            if not self._verdicts.pays(more, gain):
                break
            number, gain = number + 1, more
        return number, False
