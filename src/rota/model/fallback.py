"""The ways in which a live cluster takes decisions while its policy fails."""

from typing import NamedTuple

WITHOUT_MARKS = "without-marks"  # the policy, without what it remembered of the jobs in question
WITHOUT_MEMORY = "without-memory"  # the policy, without all that it remembered
IN_ORDER = "fifo-backfill"  # jobs that wait start in order of arrival where they fit
SENTENCES = {
    WITHOUT_MARKS: "it goes on without what it remembered of the jobs in question",
    WITHOUT_MEMORY: "it goes on without all that it remembered",
    IN_ORDER: "until it decides again, jobs start in order of arrival where they fit, and no job "
    "loses GPUs",
}


class Fallback(NamedTuple):
    """How the last decision was taken: ``by`` a way of SENTENCES, or "" by the policy as it is.

    ``error`` is the policy's, as it was told last. ``failures`` counts the decisions in a row that
    the policy has had no part in.
    """

    by: str = ""
    error: str = ""
    failures: int = 0

    def after(self, by: str) -> "Fallback":
        """How the next decision was taken, after this one."""
        if not by:
            return Fallback("", self.error)
        return Fallback(by, self.error, self.failures + 1 if by == IN_ORDER else 0)
