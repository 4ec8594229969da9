"""The ways in which a live cluster takes decisions while its policy fails."""

from typing import NamedTuple

WITHOUT_MARKS = "without-marks"  # the policy, without what it remembered of the jobs in question
WITHOUT_MEMORY = "without-memory"  # the policy, without all that it remembered
IN_ORDER = "fifo-backfill"  # jobs that wait start in order of arrival where they fit
AGAIN = (WITHOUT_MARKS, WITHOUT_MEMORY)  # the policy itself decides; else another one, by its name
_SENTENCES = {
    WITHOUT_MARKS: "it goes on without what it remembered of the jobs in question",
    WITHOUT_MEMORY: "it goes on without all that it remembered",
    IN_ORDER: "until it decides again, jobs start in order of arrival where they fit, and no job "
    "loses GPUs",
}


def sentence(by: str) -> str:
    """A clause that tells how decisions are taken, for a way of :class:`Fallback`."""
    return _SENTENCES.get(by, f"until it decides again, the policy {by} decides")


class Fallback(NamedTuple):
    """How the last decision was taken: ``by`` is a way of AGAIN, or the name of another policy.

    It is "" if the policy decided as it is.
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
        return Fallback(by, self.error, 0 if by in AGAIN else self.failures + 1)
