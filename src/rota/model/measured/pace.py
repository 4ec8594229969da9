"""Speed of an elastic job's work at its present size."""

from typing import NamedTuple

from rota.model.state.state import ClusterState


class Pace(NamedTuple):
    """A job's work by ``at_s``: steps done, work done, and work ``left`` if it reports that.

    Work is counted in samples if the job counts them, else in steps; the size has been the present
    one, without a pause, since ``since_s``.
    """

    since_s: float
    at_s: float
    steps: float
    work: float
    left: float | None


def pace_of(state: ClusterState, row: int, now_s: float) -> Pace | None:
    """The job's work by now; None if it does not run, or does not report."""
    since_s = state.since_s[row]
    if since_s < 0:
        return None
    if state.spec[row].simulated:  # a second of its work is a step
        done = state.work(row, now_s)
        return Pace(since_s, now_s, done, done, None)
    told = state.progress[row] or {}
    if told.get("at_s", 0.0) < since_s or told.get("step") is None:
        return None
    steps, samples = told["step"], told.get("samples") or 0
    total, total_samples = told.get("total"), told.get("total_samples")
    left = None
    if samples and total_samples is not None:
        left = max(0.0, total_samples - samples)
    elif total is not None:
        each = samples / steps if samples and steps else 1.0
        left = max(0.0, total - steps) * each
    return Pace(since_s, told["at_s"], steps, samples or steps, left)
