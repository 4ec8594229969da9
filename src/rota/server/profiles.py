"""The API's documents about profiles: JSON-able dicts made from the controller's state."""

from typing import Any

from rota.model.measured.profile import Profile
from rota.model.state.state import ClusterState


def kinds(state: ClusterState) -> list[dict[str, Any]]:
    """Every kind of jobs that is known, the one that was heard of last first."""
    known = state.profiles.by_signature if state.profiles is not None else {}
    return [{"kind": kind, **_figures(known[kind])} for kind in reversed(known)]


def of_job(state: ClusterState, row: int) -> dict[str, Any]:
    """Measurements of a job's kind, and of the job itself.

    ``certain`` is True if the job has reported enough to know its kind: until then it is assumed to
    be of the kind of the last job with its command.
    """
    profiles = state.profiles
    if profiles is None:
        return {"kind": None, "certain": False, "of_kind": None, "own": None}
    known, own = profiles.of_signature(state, row), profiles.of_job(row)
    return {
        "kind": profiles.signature(state, row) or None,
        "certain": profiles.is_certain(row),
        "of_kind": None if known is None else _figures(known),
        "own": None if own is None else _figures(own),
    }


def _figures(profile: Profile) -> dict[str, Any]:
    return {
        "command": profile.command,
        "model_bytes": profile.work.model_bytes or None,
        "batch": profile.work.batch or None,
        "jobs": profile.jobs,
        "told_s": profile.told_s or None,
        "device_util": profile.device_util.mean,
        "cpu_cores": profile.cpu_cores.mean,
        "least_bytes": profile.least_bytes,
        "most_bytes": profile.most_bytes,
        "speeds": [
            {
                **placement._asdict(),
                "step_s": speed.mean,
                "latest_s": speed.latest,
                "count": speed.count,
                "relative": profile.relative(placement) if placement.beside else 1.0,
            }
            for placement, speed in sorted(profile.speeds.items())
        ],
        "cpu_points": [
            {
                **place._asdict(),
                "step_s": point.step_s.mean,
                "wait_s": point.wait_s.mean,
                "wait_share": point.wait_share,
                "device_util": point.device_util.mean,
                "cpu_cores": point.cpu_cores.mean,
                "count": point.step_s.count or point.cpu_cores.count,
            }
            for place, point in profile.cpu_points.items()
        ],
    }
