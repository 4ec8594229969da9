"""EASY: first in, first out with backfilling that does not delay the head of the line."""

from collections.abc import Callable
from math import inf

from rota.model.notes import Notes
from rota.model.plan import Plan
from rota.model.view import View
from rota.policy.base import Policy, Setting, not_negative, to_instant
from rota.policy.information import DECLARED
from rota.policy.stages.reservation import Backfill
from rota.policy.stages.selection import finish, walk


class EasyBackfill(Policy):
    """Order of arrival with a reservation for the first that does not fit, which others keep to.

    The head of the line starts when jobs that run have reached their time limits, at the latest.
    Others pass it if they end before by theirs, or leave it the GPUs that it needs.
    """

    name = "easy-backfill"
    information = DECLARED
    composes = True
    preemptive = False
    SETTINGS = {
        "default_limit_s": Setting(
            not_negative, 0.0, "Seconds that count as the time limit of jobs without one; 0: none."
        )
    }

    def __init__(self, default_limit_s: float = 0.0) -> None:
        self.default_limit_s = default_limit_s

    def decide(self, view: View) -> Plan:
        """Start waiting jobs in order of arrival, and behind the first that waits whom it lets."""
        what_if, rows = view.what_if(), sorted(view.active)
        backfill = Backfill(ends_by_limits(view, self.default_limit_s))
        walk(self.stages, what_if, rows, keep=rows, backfill=backfill)
        return finish(self.stages, what_if, notes=Notes(reserved=backfill.note()))


def ends_by_limits(view: View, default_limit_s: float) -> Callable[[int], float]:
    """A function that says when the job of a row has run for its time limit, if it runs from now.

    A job without a limit has ``default_limit_s``; 0 lets it run for ever. One that has run for
    longer is taken to end now.
    """

    now_s, spec, since_s, service_s = view.now_s, view.spec, view.since_s, view.service_s

    def end_s(row: int) -> float:
        limit_s = spec[row].time_limit_s or default_limit_s
        if not limit_s:
            return inf
        begun_s = since_s[row] if since_s[row] >= 0 else now_s
        return to_instant(max(now_s, begun_s + limit_s - service_s[row]))

    return end_s
