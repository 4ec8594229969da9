"""The goodput, for users, of a job whose batches the scheduler chooses."""

from typing import Any

from rota.model.allocation import Allocation
from rota.model.decide.live_limits import most_gpus
from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.predict.goodput_curve import Curve, Present, Told, goodput_curve
from rota.predict.step_time import fewest_nodes


def told_by(state: ClusterState, row: int, now_s: float, progress: dict[str, Any]) -> Told | None:
    """Facts about a job's goodput; None for a job that chooses its own batches.

    ``progress`` is the job's latest report.
    """
    spec = state.spec[row]
    if spec.adapt is None:
        return None
    view = View(state, now_s, None)
    kind, known = view.signature(row), state.profiles.jobs if state.profiles is not None else ()
    others = (each for each in sorted(known) if each != row and view.signature(each) == kind)
    return Told(
        view.measured(row) or (),
        tuple(view.measured(each) or () for each in others) if kind else (),
        view.noise(row),
        view.batch_range(row),
        _shapes(state, row),
        _present(state.held[row], progress.get("adaptation") or {}),
    )


def describe(told: Told | None) -> dict[str, Any] | None:
    """The curve, JSON-able: see :func:`rota.predict.goodput_curve.goodput_curve`.

    It takes milliseconds, and the first one loads SciPy; it needs nothing but what it is given.
    """
    if told is None:
        return None
    curve = goodput_curve(told)
    return {
        "curve": [row._asdict() for row in curve.rows],
        "missing": curve.missing or None,
        "now": _now(curve, told.present),
        "noise_known": curve.noise_scale is not None,
        "noise_scale": curve.noise_scale,
        "warnings": list(curve.warnings),
    }


def _now(curve: Curve, present: Present | None) -> dict[str, Any] | None:
    if present is None or curve.now is None:
        return None
    return present._asdict() | curve.now._asdict()


def _shapes(state: ClusterState, row: int) -> tuple[tuple[int, int], ...]:
    """(GPUs, nodes) that the job may have: its sizes as far as the cluster goes, and its present.

    On a cluster that is too small for any of them, its least.
    """
    spec, held = state.spec[row], state.held[row]
    nodes = sorted((node.num_gpus for node in state.nodes if node.alive), reverse=True)
    most = most_gpus(state, spans=spec.spans_nodes)
    sizes = spec.elastic.sizes if spec.elastic is not None else (spec.num_gpus,)
    shapes = {size: fewest_nodes(nodes, size) for size in sizes if size <= most}
    if held is not None:
        shapes[held.num_gpus] = len(held.parts)
    return tuple(sorted(shapes.items())) or ((sizes[0], max(1, fewest_nodes(nodes, sizes[0]))),)


def _present(held: Allocation | None, adaptation: dict[str, Any]) -> Present | None:
    """The job's present place, with the batch that it reported there, else the one it was given."""
    if held is None:
        return None
    told = adaptation.get("per_gpu"), adaptation.get("accumulation")
    is_here = adaptation.get("gpus") == held.num_gpus and all(type(each) is int for each in told)
    batch = told if is_here else held.batch
    return None if batch is None else Present(held.num_gpus, len(held.parts), *batch)
