"""Words for the use of GPUs by a flow job, and for the turn that its next operation awaits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rota.model.job import JobState
from rota.model.state.state import ClusterState

NEXT = "its next operation"


def flow_of(
    state: ClusterState, row: int, now_s: float, progress: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """The report of a flow job's agent on its devices, with a ``sentence`` on what it waits for.

    ``progress`` is the job's latest report, by default the one in the log. JSON-able: the fields of
    :class:`rota.live.wire.messages.FlowUse`, and ``sentence``. None unless a flow job has reported,
    and runs or waits for the end of an operation to be suspended.
    """
    told = ((state.progress[row] if progress is None else progress) or {}).get("flow")
    if told is None or not state.spec[row].is_flow:
        return None
    awaited = told.get("awaited")
    if awaited is not None and state.state[row] in (JobState.RUNNING, JobState.SUSPENDING):
        return {**told, "sentence": awaited_text(awaited, now_s)}
    if state.state[row] != JobState.RUNNING:
        return None
    return {**told, "sentence": waits_text(told["waits"])}


def awaited_text(awaited: Mapping[str, Any], now_s: float) -> str:
    """``it leaves its GPUs once step: loss has ended, which has run on GPU 1 for 12 s``."""
    ran_s = max(0.0, now_s - awaited["since_s"])
    what = awaited["operation"] or "an operation"
    where = f"GPU {awaited['device']} for {ran_s:.0f} s"
    return f"it leaves its GPUs once {what} has ended, which has run on {where}"


def waits_text(waits: Mapping[str, Any]) -> str:
    """``its next operation waits for a turn on GPU 1 behind job 7``."""
    device, behind = waits.get("device"), waits.get("behind")
    if waits["what"] == "work":
        return "it has called no operation that is not done"
    if waits["what"] == "ready":
        return f"{NEXT} waits for its inputs"
    if waits["what"] == "nobody":
        return f"{NEXT} waits for nobody"
    where = "" if device is None else f" on GPU {device}"
    whom = f" behind job {behind}" if behind else ""
    return f"{NEXT} waits for a turn{where}{whom}"
