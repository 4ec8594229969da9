"""Explains why a trial waits while other trials of its search run, from their reports."""

from rota.model.naming import jobs_text
from rota.model.state.state import ClusterState

MOST_NAMED = 3
NEED = "that it promises more than those of its search that go on"
PLACE = "its place among the tasks of its array"
TASK_ENDED = "a task of its array that goes on ended"
WOULD_START_IF = "it promised more than one of its search that goes on, or one of those ended"


def those_ahead(state: ClusterState, row: int) -> list[str]:
    """The ids of the running trials of its search."""
    return state.ids(_ahead(state, row))


def standing(state: ClusterState, row: int, now_s: float) -> str:
    """The reports of the trial and of the running trials; of many trials, the best values.

    Raises KeyError for a job that is no trial.
    """
    trial = state.spec[row].trial
    if trial is None:
        raise KeyError(row)
    if trial.sweep.is_array:
        return f"{jobs_text(those_ahead(state, row))} of the array go on"
    sign = 1 if trial.sweep.maximize else -1
    best = {each: _best(state, each, sign, now_s) for each in (row, *_ahead(state, row))}
    told = _told(best.pop(row), "it has")
    if not best:
        return told
    first = sorted(best, key=lambda each: (-sign * (best[each] or 0.0), each))
    first = [each for each in first if best[each] is not None][:MOST_NAMED]
    values = [_told(best[each], jobs_text(state.ids([each])) + " has") for each in first]
    others = len(best) - len(first)
    if others:
        values.append(f"{others} more {'goes' if others == 1 else 'go'} on")
    metric = f" of {trial.sweep.metric}" if trial.sweep.metric else ""
    return f"{told}{metric}; {', '.join(values)}"


def _ahead(state: ClusterState, row: int) -> list[int]:
    trial = state.spec[row].trial
    rows = state.sweeps.get(trial.sweep.name, ()) if trial is not None else ()
    return [r for r in rows if r in state.active and state.target[r] is not None]


def _best(state: ClusterState, row: int, sign: int, now_s: float) -> float | None:
    values = state.curves.curve(row, now_s) if state.curves is not None else ()
    return sign * max(sign * value for value in values) if values else None


def _told(value: float | None, who: str) -> str:
    return f"{who} told nothing yet" if value is None else f"{who} reached {value:.4g}"
