"""News: the events that users and administrators can be told of, and who asked to be told."""

from typing import Any, NamedTuple

from rota.model.events import (
    AttemptLost,
    Event,
    JobFinished,
    JobLaunched,
    JobResumed,
    JobSuspended,
    NodeJoined,
    NodeLost,
    PolicyFailed,
    SweepEnded,
)
from rota.model.job import MET_BY, JobSpec

JOB_NEWS = (
    "started",
    "suspended",
    "resumed",
    "attempt_lost",
    "succeeded",
    "failed",
    "cancelled",
    "ended",
)
CLUSTER_NEWS = ("node_joined", "node_lost", "sweep_ended", "policy_failed")
TOLD = (  # the kinds of events that are news
    JobLaunched,
    JobSuspended,
    JobResumed,
    AttemptLost,
    JobFinished,
    NodeJoined,
    NodeLost,
    SweepEnded,
    PolicyFailed,
)
_WORDS = {
    JobLaunched: "started",
    JobSuspended: "suspended",
    JobResumed: "resumed",
    AttemptLost: "attempt_lost",
    NodeJoined: "node_joined",
    NodeLost: "node_lost",
    SweepEnded: "sweep_ended",
    PolicyFailed: "policy_failed",
}
MAX_TEXT = 2000  # characters of a message that a job or a search ended with


class News(NamedTuple):
    """What an event tells: its own ``word``, ``words`` under which it can be asked for, and facts.

    ``sentence`` is for people. ``facts`` are JSON-able.
    """

    word: str
    words: tuple[str, ...]
    sentence: str
    facts: dict[str, Any]


def row_of(event: Event) -> int | None:
    """The job that an event of TOLD is about; None if it is about a node or a search."""
    row: int | None = getattr(event, "row", None)
    return row


def news_of(event: Event, spec: JobSpec | None) -> News:
    """The news in an event of TOLD; ``spec`` is the job that it is about, if any."""
    if isinstance(event, NodeJoined | NodeLost):
        did = "joined" if isinstance(event, NodeJoined) else "is lost"
        word = _WORDS[type(event)]
        return News(word, (word,), f"node {event.name} {did}", {"node": event.name})
    if isinstance(event, SweepEnded):
        message = event.message[:MAX_TEXT]
        sentence = f"sweep {event.name} has ended: {event.outcome}{_after(message)}"
        facts = {"name": event.name, "outcome": event.outcome, "message": message}
        return News("sweep_ended", ("sweep_ended",), sentence, {"sweep": facts})
    if isinstance(event, PolicyFailed):
        name, error = event.policy.partition(" ")[0], event.error[:MAX_TEXT]
        sentence = f"policy {name} fails, and a fallback decides: {error}"
        about = {"name": name, "error": error, "file": event.file}
        return News("policy_failed", ("policy_failed",), sentence, {"policy": about})
    assert spec is not None
    job: dict[str, Any] = {
        "id": spec.job_id,
        "name": spec.name,
        "user": spec.user,
        "queue": spec.vc,
        "tags": list(spec.tags),
    }
    who = f"job {spec.job_id} ({spec.name}) of {spec.user}"
    if isinstance(event, JobFinished):
        word = next((each for each, states in MET_BY.items() if event.outcome in states), "ended")
        words = ("cancelled" if word == "ended" else word, "ended")
        message = event.message[:MAX_TEXT]
        job |= {"state": event.outcome.name, "exit_code": event.exit_code, "message": message}
        sentence = f"{who} has ended: {event.outcome.name}{_after(message)}"
        return News(words[0], words, sentence, {"job": job})
    word = _WORDS[type(event)]
    if isinstance(event, AttemptLost):
        job |= {"attempt": event.attempt, "message": event.error[:MAX_TEXT]}
        lost = f"{who} has lost attempt {event.attempt}{_after(event.error[:MAX_TEXT])}"
        return News(word, (word,), lost, {"job": job})
    return News(word, (word,), f"{who} was {word}", {"job": job})


def _after(message: str) -> str:
    return f": {message}" if message else ""
