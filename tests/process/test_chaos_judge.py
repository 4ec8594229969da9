"""The judge of the chaos test sees each promise that is broken, and none that is kept."""

import pytest

from rota.model.allocation import Allocation
from rota.model.commands import Launch, Resume
from rota.model.events import (
    AttemptLost,
    CommandSent,
    JobFinished,
    JobLaunched,
    JobResumed,
    JobSubmitted,
    JobSuspended,
    StopRequested,
    SuspendRequested,
)
from rota.model.job import JobSpec, JobState

from .chaos.draw import Job, Plan
from .chaos.drive import Asked, Found, Kill
from .chaos.judge import OF_A_JOB, _submissions, stories

GPU = Allocation(((0, 1),))
JOB = Job("job", "trained", "train.py", {"resources": {"gpus": 1}}, steps=3, draw="stream")


def line(at_s, what, n=None, attempt=1, life="a", **more):
    who = {"job": "job", "id": "1", "attempt": attempt, "rank": 0, "life": life}
    if what == "step":
        more.setdefault("weights", n * 10)
    return {**who, "pid": 5, "born": 6, "at_s": at_s, "what": what, "n": n, **more}


def launch(at_s, attempt=1):
    return CommandSent(at_s, Launch(attempt, 0, attempt, 1, GPU))


STARTS = [JobSubmitted(1.0, JobSpec("1", 1, 1.0, name="job")), launch(2.0), JobLaunched(3.0, 0, 1)]
RUNS = [line(3.0, "begin"), line(4.0, "step", 0), line(5.0, "step", 1), line(6.0, "step", 2)]
ENDS = line(7.0, "end", 0, weights=30, steps=3)
KILL = Kill(5.5, "worker", 5, "1", 1, "rank0")
SHIM = KILL._replace(role="shim")


def found(ledger, events, outcome="SUCCEEDED", code=0, kills=(), asked=(), job=JOB, **show):
    """A run of one job, as far as a judge of jobs looks at it."""
    plan = Plan(0, 1.0, "fifo-backfill", 1, 1, "1GiB", (job,), ())
    show = {"id": "1", "state": outcome, "exit_code": code, "message": "", "attempt": 1} | show
    show.setdefault("progress", {"step": job.steps})
    reference = {"stream": {0: 0, 1: 10, 2: 20, 3: 30}}
    handed_in = Asked(0.5, "submit", "job", 1.0)
    return Found(
        *(plan, ledger, reference, events, [show], [], {}, list(kills)),
        *([handed_in, *asked], []),
    )


def ended(at_s=7.0, outcome=JobState.SUCCEEDED, code=0):
    return JobFinished(at_s, 0, outcome, code)


def words_of(run):
    words = list(_submissions(run))
    for story in stories(run):
        words += [each for check in OF_A_JOB for each in check(run, story)]
    return words


AGAIN = [
    *STARTS,
    AttemptLost(5.6, 0, 1, "its processes vanished"),
    launch(6.0, 2),
    JobLaunched(6.1, 0, 2),
]


def second(lines, shift_s=10.0):
    """The same lines by a second attempt."""
    return [each | {"attempt": 2, "life": "b", "at_s": each["at_s"] + shift_s} for each in lines]


WHOLE = [*RUNS, ENDS]
SUSPENDED = [
    JobSuspended(4.2, 0, 4.2),
    CommandSent(4.9, Resume(2, 0, 1, 1, GPU)),
    JobResumed(4.95, 0),
]

KEPT = {
    "it runs to its end": found(WHOLE, [*STARTS, ended()]),
    "its worker is killed": found(
        RUNS[:3], [*STARTS, ended(6.0, JobState.FAILED, -9)], "FAILED", -9, [KILL]
    ),
    "its shim is killed and it begins anew": found(
        [*RUNS[:3], *second(WHOLE)], [*AGAIN, ended(17.0)], kills=[SHIM], attempt=2
    ),
    "it is killed after its end was written, and begins anew": found(
        [*RUNS, ENDS | {"at_s": 5.4}, *second(WHOLE)],
        [*AGAIN, ended(17.0)],
        kills=[SHIM],
        attempt=2,
    ),
    "it is still while it is suspended": found(WHOLE, [*STARTS, *SUSPENDED, ended()]),
    "it is cancelled": found(
        RUNS[:2],
        [*STARTS, StopRequested(4.5, 0), ended(4.6, JobState.CANCELLED, -15)],
        "CANCELLED",
        -15,
        asked=[Asked(4.4, "cancel", "job", 4.5)],
    ),
}

KEPT["its shim is killed as it is cancelled, after it was last heard of"] = found(
    RUNS[:3],
    [*STARTS, StopRequested(4.0, 0), AttemptLost(4.0, 0, 1, "its processes vanished")],
    "CANCELLED",
    None,
    [SHIM],
    [Asked(3.9, "cancel", "job", 4.0)],
)

BROKEN = {
    "it ran when the log does not say so": found(WHOLE, [*STARTS[:2], ended()]),
    "it is told to have run for 1.5 s": found(WHOLE, [*STARTS, ended()], run_s=1.5),
    "is there 0 times": found([], []),
    "is there 2 times": found(WHOLE, [*STARTS, STARTS[0], ended()]),
    "was refused": found(
        WHOLE, [*STARTS, ended()], asked=[Asked(0.6, "submit", "job", 0.7, "no room")]
    ),
    "it has ended 0 times": found(WHOLE, STARTS),
    "it has ended 2 times": found(WHOLE, [*STARTS, ended(), ended()]),
    "attempt 1 was there when attempt 2 was": found(
        [*RUNS[:3], *second(WHOLE), line(20.0, "beat")], [*AGAIN, ended(17.0)], kills=[SHIM]
    ),
    "one rank at the same time": found(
        [*RUNS, line(6.1, "beat", life="b"), ENDS], [*STARTS, ended()]
    ),
    "its program ran as job 2": found([*RUNS, ENDS | {"id": "2"}], [*STARTS, ended()]),
    "ran without a command": found([line(1.5, "begin"), *WHOLE], [*STARTS, ended()]),
    "and went on": found([*WHOLE, line(8.0, "step", 3)], [*STARTS, ended()]),
    "it was suspended, and went on": found(
        [*RUNS[:2], line(4.55, "beat"), *RUNS[2:], ENDS], [*STARTS, *SUSPENDED, ended()]
    ),
    "its user suspended it": found(WHOLE, [STARTS[0], SuspendRequested(1.5, 0), *STARTS[1:]]),
    "stands behind": found(WHOLE, [*STARTS, *SUSPENDED[::-1], ended()]),
    "came step 2": found([*RUNS[:2], RUNS[3], ENDS], [*STARTS, ended()]),
    "came step 1": found([*RUNS[:3], RUNS[2], RUNS[3], ENDS], [*STARTS, ended()]),
    "began with step 1": found([RUNS[0], *RUNS[2:], ENDS], [*STARTS, ended()]),
    "its weights are not those": found(
        [*RUNS[:3], RUNS[3] | {"weights": 21}, ENDS], [*STARTS, ended()]
    ),
    "not all ranks came to their ends": found(RUNS, [*STARTS, ended()]),
    "its program ended with {3}": found([*RUNS, ENDS | {"n": 3}], [*STARTS, ended()]),
    "it FAILED with 1": found(RUNS, [*STARTS, ended(7.0, JobState.FAILED, 1)], "FAILED", 1),
    "it FAILED with -9": found(RUNS, [*STARTS, ended(7.0, JobState.FAILED, -9)], "FAILED", -9),
    "nobody had asked": found(
        RUNS, [*STARTS, ended(7.0, JobState.CANCELLED, -15)], "CANCELLED", -15
    ),
    "it ended as TIMEOUT": found(
        RUNS, [*STARTS, ended(7.0, JobState.TIMEOUT, -15)], "TIMEOUT", -15, run_s=2.0
    ),
    "it is LOST after 1 losses": found(
        RUNS, [*STARTS, ended(7.0, JobState.LOST, None)], "LOST", None, [SHIM]
    ),
    "nothing was killed of attempt 1": found(
        RUNS, [*STARTS, ended(7.0, JobState.LOST, None)], "LOST", None
    ),
    "and nothing was killed of it": found(
        [*RUNS[:3], *second(WHOLE)], [*AGAIN, ended(17.0)], attempt=2
    ),
    "came to its end and was lost": found(
        [*WHOLE, *second(WHOLE)], [*AGAIN, ended(17.0)], attempt=2
    ),
    "it SUCCEEDED after 3 steps": found(WHOLE, [*STARTS, ended()], progress={"step": 1}),
    "nobody knows why": found(
        [*RUNS[:3], *second(WHOLE)],
        [each for each in AGAIN if not isinstance(each, AttemptLost)],
        attempt=2,
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_a_promise_that_is_kept_is_not_told(case):
    assert words_of(KEPT[case]) == []


@pytest.mark.parametrize("case", BROKEN)
def test_a_promise_that_is_broken_is_told(case):
    assert any(case in words for words in words_of(BROKEN[case])), words_of(BROKEN[case])
