"""Tiresias against a plain reference in fractions, which looks at everything at every event."""

from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rota.policy.registry import create
from rota.testing.builders import job, run

NOT_YET = Fraction(10**9)


class Attempt(NamedTuple):
    """What one simulation is given: jobs as (arrival, duration, GPUs), thresholds, knob, order."""

    jobs: tuple[tuple[int, int, int], ...]
    thresholds: tuple[int, ...]
    knob: int
    within: str


class Member:
    """A job in the reference."""

    def __init__(self, row, arrival, duration, gpus):
        self.row, self.arrival, self.left, self.gpus = row, arrival, Fraction(duration), gpus
        self.queue, self.ran, self.waits_from = 0, Fraction(0), Fraction(arrival)
        self.runs = self.began_here = self.preempted_here = False
        self.first_start = NOT_YET

    def promotion(self, knob):
        """When it is promoted if it never gets GPUs; None for never."""
        if not knob or not self.queue:
            return None
        return self.waits_from + self.ran * (1 + knob)

    def enter(self, queue):
        self.queue, self.began_here, self.preempted_here = queue, False, False

    def promote(self, now):
        self.enter(0)
        self.ran, self.waits_from = Fraction(0), now


class Reference:
    """One cluster whose GPUs are all alike, and a clock in fractions of a second."""

    def __init__(self, attempt, num_gpus):
        self.attempt, self.num_gpus = attempt, num_gpus
        rows = enumerate(sorted(attempt.jobs, key=lambda each: each[0]))
        self.coming = [Member(row, *each) for row, each in rows]
        self.queues = [[] for _ in range(len(attempt.thresholds) + 1)]
        self.now, self.decisions, self.preemptions = Fraction(0), 0, 0
        self.finish = {}

    @property
    def active(self):
        return [member for queue in self.queues for member in queue]

    def sinks_in(self, member):
        if member.queue == len(self.attempt.thresholds):
            return None
        return Fraction(self.attempt.thresholds[member.queue]) / member.gpus - member.ran

    def run(self):
        while self.coming or self.active:
            self.advance(min(self.times()))
            for queue in self.queues:
                queue[:] = [member for member in queue if not self.ends(member)]
            arrived = [member for member in self.coming if member.arrival <= self.now]
            del self.coming[: len(arrived)]
            self.move(arrived)
            self.decide()
        return [self.finish[row] for row in sorted(self.finish)]

    def times(self):
        yield from (Fraction(member.arrival) for member in self.coming[:1])
        for member in self.active:
            if member.runs:
                yield self.now + member.left
                sinks_in = self.sinks_in(member)
                if sinks_in is not None:
                    yield self.now + sinks_in
            elif (at := member.promotion(self.attempt.knob)) is not None:
                yield at

    def advance(self, to):
        assert to >= self.now
        for member in self.active:
            if member.runs:
                member.left -= to - self.now
                member.ran += to - self.now
        self.now = to

    def ends(self, member):
        if member.runs and not member.left:
            self.finish[member.row] = self.now
            return True
        return False

    def move(self, arrived):
        entering = list(arrived)
        for queue in self.queues:
            for member in list(queue):
                sinks_in, old = self.sinks_in(member), member.queue
                while sinks_in is not None and sinks_in <= 0:
                    member.enter(member.queue + 1)
                    sinks_in = self.sinks_in(member)
                if member.queue == old:
                    if not self.is_due(member, member.runs):
                        continue
                    member.promote(self.now)
                queue.remove(member)
                entering.append(member)
        for member in entering:
            self.queues[member.queue].append(member)

    def is_due(self, member, runs):
        at = member.promotion(self.attempt.knob)
        return not runs and at is not None and at <= self.now

    def order(self):
        if self.attempt.within == "entry":
            return self.active
        return sorted(self.active, key=lambda each: (each.queue, each.first_start, each.row))

    def decide(self):
        while True:
            free, runs = self.num_gpus, []
            for member in self.order():
                if member.gpus <= free:
                    free -= member.gpus
                    runs.append(member)
            due = [each for each in self.order() if self.is_due(each, each in runs)]
            if not due:
                break
            for member in due:
                self.queues[member.queue].remove(member)
                member.promote(self.now)
                self.queues[0].append(member)
        for queue in self.queues:
            began = [each for each in queue if each in runs and each.began_here]
            begin = [each for each in queue if each in runs and not each.began_here]
            stopped = [each for each in queue if each not in runs and each.began_here]
            waits = [each for each in queue if each not in runs and not each.began_here]
            before = [each for each in waits if each.preempted_here]
            others = [each for each in waits if not each.preempted_here]
            for member in begin:
                member.began_here, member.preempted_here = True, False
            for member in stopped:
                member.began_here, member.preempted_here = False, True
            queue[:] = began + begin + stopped + before + others
        for member in self.active:
            self.preemptions += member.runs and member not in runs
            member.runs = member in runs
            if member.runs and member.first_start == NOT_YET:
                member.first_start = self.now
        self.decisions += 1
        assert self.decisions < 5000


# Multiples of 12 divide by any gang without rounding.
JOBS = st.lists(
    st.tuples(
        st.integers(0, 8).map(lambda n: 12 * n),
        st.sampled_from([0, 0, 12, 24, 36, 60, 120, 300, 900]),
        st.sampled_from([1, 2, 3, 4]),
    ),
    min_size=1,
    max_size=9,
).map(tuple)
ATTEMPTS = st.builds(
    Attempt,
    JOBS,
    st.sampled_from([(60,), (48, 240), (120,)]),
    st.sampled_from([0, 1, 2, 8]),
    st.sampled_from(["entry", "first-start"]),
)
DUE_WHEN_PREEMPTED = ((0, 3000, 2), (1, 90, 4))
LATE = (*(((0, 890, 4),) * 9), (0, 10000, 2), (1, 2000, 4))


def settings_of(attempt):
    return {
        "thresholds": ",".join(map(str, attempt.thresholds)),
        "promote_knob": str(attempt.knob),
        "within": attempt.within,
    }


@given(ATTEMPTS)
@example(Attempt(DUE_WHEN_PREEMPTED, (100,), 2, "entry"))
@example(Attempt(DUE_WHEN_PREEMPTED, (100,), 2, "first-start"))
@example(Attempt(LATE, (3600,), 8, "entry"))
@settings(max_examples=300, deadline=None)
def test_every_job_ends_when_the_reference_says_so(attempt):
    reference = Reference(attempt, 4)
    expected = reference.run()
    jobs = [job(i, gpus, at=at, lasts=lasts) for i, (at, lasts, gpus) in enumerate(attempt.jobs)]
    state, _ = run(jobs, create("tiresias", settings_of(attempt)), "1x4")
    assert list(state.finish_s) == pytest.approx([float(at) for at in expected], abs=1e-6)
    assert sum(state.preemptions) == reference.preemptions
