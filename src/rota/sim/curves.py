"""Learning curves of simulated trials: recorded ones, revealed as far as each has come."""

from collections.abc import Mapping, Sequence

from rota.model.state.state import ClusterState


class RecordedCurves:
    """Reports of trials: the values of their job's recorded curve, evenly over its work."""

    def __init__(self, state: ClusterState, curves: Mapping[str, Sequence[float]]) -> None:
        self._state = state
        self._curves = curves
        self._told: dict[int, Sequence[float]] = {}  # by row, the latest answer

    def curve(self, row: int, now_s: float) -> Sequence[float]:
        """The values of the reports that the work done by ``now_s`` comes to."""
        state = self._state
        curve = self._curves.get(state.spec[row].job_id, ())
        part = state.work(row, now_s) / state.duration_s[row]
        reports = int(part * len(curve) + 1e-9)
        told = self._told.get(row, ())
        if len(told) != reports:
            self._told[row] = told = curve[:reports]
        return told
