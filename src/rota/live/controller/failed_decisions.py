"""Keeps the inputs of decisions at which a policy failed, for whoever mends the policy."""

import contextlib
import json
import logging
import re
from pathlib import Path
from traceback import format_exception
from typing import Any

from rota.model.allocation import Allocation
from rota.model.job import JobState
from rota.model.setting import setting_text
from rota.model.state.state import ClusterState
from rota.policy.base import Policy

MOST_FILES = 20
MOST_JOBS = 500  # of one file: those named by the error come first
MOST_BYTES = 1 << 20
MOST_TRACE = 20_000  # characters of a traceback, its end

log = logging.getLogger("rota.controller")


class FailedDecisions:
    """Files ``decision-SEQ.json`` in a folder, the latest ``MOST_FILES``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(
        self, state: ClusterState, name: str, policy: Policy, now_s: float, error: Exception
    ) -> str:
        """Write down the decision that comes next. Returns the name of the file.

        The name is "" if the folder takes no file, which is logged.
        """
        try:
            about = {
                "policy": name,
                "settings": {key: setting_text(each) for key, each in policy.settings.items()},
            }
            text = _told(state, about, now_s, error)
            self._folder.mkdir(exist_ok=True, mode=0o700)
            path = self._folder / f"decision-{state.decision_seq + 1}.json"
            path.write_text(text)
            path.chmod(0o600)
            for old in sorted(self._folder.glob("decision-*.json"), key=_number)[:-MOST_FILES]:
                old.unlink(missing_ok=True)
        except (OSError, ValueError, TypeError, RecursionError) as why:
            log.error("the input of the failed decision could not be kept: %s", why)
            return ""
        return path.name


def without_digits(text: str) -> str:
    """An error's text without the numbers in which the same error differs each time."""
    return re.sub(r"[0-9]+", "", text)


def _number(path: Path) -> int:
    with contextlib.suppress(ValueError):
        return int(path.stem.rpartition("-")[2])
    return -1


def _told(state: ClusterState, about: dict[str, Any], now_s: float, error: Exception) -> str:
    named = getattr(error, "rows", ())
    rows = [row for row in named if row in state.active]
    rows += [row for row in sorted(state.active) if row not in rows]
    told: dict[str, Any] = {
        "seq": state.decision_seq + 1,
        "after_events": state.events,
        "at_s": now_s,
        **about,
        "error": str(error),
        "named_jobs": [state.spec[row].job_id for row in named if row < len(state.spec)],
        "traceback": "".join(format_exception(error))[-MOST_TRACE:],
        "nodes": [node._asdict() for node in state.offered],
        "policy_mark": state.policy_mark,
        "stage_marks": state.stage_marks,
        "jobs_left_out": max(0, len(rows) - MOST_JOBS),
        "jobs": [_job(state, row) for row in rows[:MOST_JOBS]],
    }
    text = json.dumps(told, indent=1, default=repr)
    while len(text) > MOST_BYTES and told["jobs"]:
        half = len(told["jobs"]) // 2
        told["jobs_left_out"] += len(told["jobs"]) - half
        del told["jobs"][half:]
        text = json.dumps(told, indent=1, default=repr)
    return text[:MOST_BYTES]


def _job(state: ClusterState, row: int) -> dict[str, Any]:
    places = {"target": state.target[row], "held": state.held[row], "home": state.home[row]}
    elastic = state.spec[row].elastic
    return {
        "row": row,
        "id": state.spec[row].job_id,
        "state": JobState(state.state[row]).name,
        "num_gpus": state.num_gpus[row],
        "elastic": None if elastic is None else elastic._asdict(),
        "sizes": state.sizes(row),
        "movable": bool(state.movable[row]),
        "portable": bool(state.portable[row]),
        "mark": state.marks[row],
    } | {what: _parts(place) for what, place in places.items()}


def _parts(place: Allocation | None) -> list[list[int]] | None:
    """(node, mask of GPUs) of an allocation."""
    return None if place is None else [list(part) for part in place.parts]
