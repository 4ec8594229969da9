"""Work that jobs of given signatures do together on one GPU, as measured by probes."""

from collections.abc import Iterable, Mapping

from rota.model.view import View

MOST_KNOWN = 500  # combinations remembered; beyond that the one measured longest ago is forgotten
SURE_AFTER = 2  # measurements after which a combination counts as bad: one may be chance


class SignatureGains:
    """Mean measured work of combinations of signatures: the sum, relative to each job alone.

    ``mark`` is what :meth:`mark` gave before. Jobs without a known signature are left out.
    What was measured ``on`` one GPU type says nothing of others.
    """

    def __init__(self, mark: Mapping[str, list[float]]) -> None:
        self._known = dict(mark)

    def mark(self) -> dict[str, list[float]]:
        """The measurements, for the next decision: combination -> (number, mean gain)."""
        return self._known

    def learn(self, signatures: Iterable[str], gain: float, on: str = "") -> None:
        """A pack of these signatures has been measured."""
        key = _key(signatures, on)
        if key is None:
            return
        times, mean = self._known.pop(key, (0, 0.0))
        self._known[key] = [times + 1, mean + (gain - mean) / (times + 1)]
        while len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def gain(self, signatures: Iterable[str], on: str = "") -> float | None:
        """The work that these signatures do together; None if they were not measured."""
        known = self._known.get(_key(signatures, on) or "")
        return known[1] if known else None

    def is_sure(self, signatures: Iterable[str], on: str = "") -> bool:
        """True if they were measured so often that a bad result need not be checked again."""
        known = self._known.get(_key(signatures, on) or "")
        return known is not None and known[0] >= SURE_AFTER


def signature_of(view: View, row: int) -> str:
    """Signature of jobs that behave alike; for trials of a search at least the search; else ""."""
    trial = view.spec[row].trial
    return view.signature(row) or ("" if trial is None else f"search {trial.sweep.name}")


def of_one_search(view: View, rows: Iterable[int]) -> bool:
    """True if all are trials of one search: they run the same program."""
    trials = [view.spec[row].trial for row in rows]
    names = {None if trial is None else trial.sweep.name for trial in trials}
    return len(names) == 1 and None not in names


def _key(signatures: Iterable[str], on: str) -> str | None:
    named = sorted(signatures)
    return " + ".join(named) + (f" on {on}" if on else "") if all(named) else None
