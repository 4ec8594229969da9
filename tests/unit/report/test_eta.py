"""ETAs: ranges from the past, and how they came true."""

import random

import pytest

from rota.model.events import (
    AttemptLost,
    JobFinished,
    JobLaunched,
    JobResumed,
    JobSubmitted,
    JobSuspended,
    NodeUnreachable,
    ResumeRequested,
    SuspendRequested,
    WorkerReported,
)
from rota.model.job import BACKGROUND, Dependency, JobState, Share
from rota.model.notes import Reserved
from rota.model.turns import Turns
from rota.policy.registry import create
from rota.report.eta import KINDS, LEAST, Past, Range, eta_of, eta_sentence, steps_left
from rota.testing.builders import job, simulation, twenty_jobs
from support.driven import DrivenCluster


class Log:
    """Events of jobs that a past notes as they are told, one job after another."""

    def __init__(self):
        self.past, self.rows = Past(), 0

    def job(self, *, at=0.0, waits=0.0, runs=10.0, outcome=JobState.SUCCEEDED, told=(), **spec):
        """A job that waits, runs and ends; ``told`` are (seconds after its start, progress)."""
        row, self.rows = self.rows, self.rows + 1
        start_s = at + waits
        self.past.note(JobSubmitted(at, job(row, at=at, **spec)))
        self.past.note(JobLaunched(start_s, row, 1))
        for after_s, progress in told:
            self.past.note(WorkerReported(start_s + after_s, row, progress))
        self.past.note(JobFinished(start_s + runs, row, outcome))


def outermost_first(count):
    """The numbers below ``count``, each of which lies between all that come before it."""
    return [number for low in range(count // 2) for number in (low, count - 1 - low)]


def halfway(step_time_s=1.0):
    return {"step": 50, "total": 100, "step_time_s": step_time_s}


def test_nothing_is_foretold_before_ten_jobs_have_started():
    log = Log()
    for waits in range(LEAST - 1):
        log.job(waits=waits)
    assert log.past.start(job(), 0.0) is None
    log.job(waits=LEAST - 1)
    assert log.past.start(job(), 0.0) == Range(0.0, 8.0, 10)


def test_a_start_is_foretold_from_waits_that_took_longer():
    log = Log()
    for waits in outermost_first(100):
        log.job(waits=waits)
    # 51 to 99 are 49 waits: a tenth of them is up to 55, nine tenths up to 95.
    assert log.past.start(job(), 50.0) == Range(5.0, 45.0, 49)
    assert log.past.start(job(), 95.0) == Range(1.0, None, 4)  # too few for an upper end
    assert log.past.start(job(), 99.0) is None  # none took longer


def test_jobs_of_the_same_queue_and_size_count_first_and_then_those_of_the_size():
    log = Log()
    for _ in range(LEAST):
        log.job(waits=1.0, vc="small", gpus=1)
        log.job(waits=100.0, vc="large", gpus=8)
        log.job(waits=10.0, vc="large", gpus=1)
    waits_s = {
        ("small", 1): 1.0,
        ("large", 1): 10.0,
        ("large", 7): 100.0,  # as eight GPUs
        ("none", 8): 100.0,
    }
    for (vc, gpus), wait_s in waits_s.items():
        assert log.past.start(job(0, gpus, vc=vc), 0.0) == Range(wait_s, wait_s, LEAST)
    assert log.past.start(job(0, 2, vc="none"), 0.0) == Range(1.0, 100.0, 30)


def test_an_end_is_foretold_from_jobs_of_that_name_and_then_from_those_of_its_owner():
    log = Log()
    for _ in range(LEAST):
        log.job(runs=5.0, user="ann", name="eval")
        log.job(runs=50.0, user="ann", name="train")
        log.job(runs=500.0, user="bob", name="train")
    assert log.past.end(job(user="ann", name="train"), 10.0) == Range(40.0, 40.0, LEAST)
    assert log.past.end(job(user="ann", name="new"), 0.0) == Range(5.0, 50.0, 20)
    assert log.past.end(job(user="eve"), 0.0) == Range(5.0, 500.0, 30)


def test_the_latest_past_counts():
    log = Log()
    for waits in [100.0] * 500 + [1.0] * 500:
        log.job(waits=waits)
    assert log.past.start(job(), 0.0) == Range(1.0, 1.0, 500)


def test_jobs_that_wait_for_others_or_their_owners_are_no_past_and_background_jobs_neither():
    past = Past()
    for row in range(30):
        more = {"share": Share(BACKGROUND)} if row < 10 else {}
        more |= {"depends_on": (Dependency("x", "ended"),)} if row >= 20 else {}
        past.note(JobSubmitted(0.0, job(row, **more)))
        if 10 <= row < 20:
            past.note(SuspendRequested(1.0, row))
        past.note(JobLaunched(9.0, row, 1))
    assert past.start(job(), 0.0) is None


def test_a_pause_is_foretold_from_pauses_and_lost_attempts_are_none():
    past = Past()
    for row in range(LEAST):
        past.note(JobSubmitted(0.0, job(row)))
        past.note(JobLaunched(0.0, row, 1))
        past.note(JobSuspended(10.0, row, 9.0))
        past.note(JobResumed(40.0, row))
        past.note(AttemptLost(50.0, row, 1, "gone"))
        past.note(JobLaunched(90.0, row, 2))
    assert past.resume(job(), 0.0) == Range(30.0, 30.0, LEAST)
    assert past.error("resume") == {"told": 0, "within": None, "missed_s": None}


def test_progress_alone_foretells_an_end_until_ten_such_jobs_have_ended():
    log = Log()
    assert log.past.end_by_progress(halfway(), 0.5) == Range(50.0, 100.0, 0)
    for _ in range(LEAST):  # each takes half as long again as its progress says
        log.job(runs=125.0, told=[(20.0, {"step": 1, "total": 100}), (50.0, halfway())])
    assert log.past.end_by_progress(halfway(), 1.0) == Range(50.0, 75.0, LEAST)
    # That early ones were late does not make later ones later, if these take less than they say.
    for _ in range(500):
        log.job(runs=90.0, told=[(50.0, halfway())])
    assert log.past.end_by_progress(halfway(), 1.0) == Range(pytest.approx(40.0), 50.0, 500)


def test_the_error_tells_how_many_came_within_and_how_far_off_the_others_were():
    log = Log()
    for waits in range(LEAST):
        log.job(waits=waits)
    for waits in (0.0, 4.0, 8.0, 10.0, 18.0):  # of 0 to 8, and of 0 to 9 at last
        log.past.note(JobSubmitted(0.0, job(log.rows)))
        log.past.note(JobLaunched(waits, log.rows, 1))
        log.rows += 1
    assert log.past.error("start") == {"told": 5, "within": 0.6, "missed_s": (2.0 + 9.0) / 2}


def test_ranges_that_are_missed_make_the_next_ones_wider_and_those_that_hold_narrower_again():
    log = Log()
    for waits in outermost_first(100):
        log.job(waits=waits)
    assert log.past.start(job(), 0.0) == Range(9.0, 89.0, 100)
    log.job(waits=1000.0)  # 9.6 % are left out on either side of the 101 waits, and not 10 %
    assert log.past.start(job(), 0.0) == Range(9.0, 91.0, 101)
    for _ in range(30):
        log.job(waits=1000.0)
        log.job(waits=-1000.0)
    assert log.past.start(job(), 0.0) == Range(0.0, 1000.0, 161)
    for _ in range(300):
        log.job(waits=50.0)
    assert log.past.start(job(), 0.0) == Range(16.0, 84.0, 461)


def test_four_fifths_of_the_ranges_hold_where_the_past_is_like_the_present():
    log, rng = Log(), random.Random(7)
    for n in range(600):
        log.job(at=n, waits=rng.expovariate(0.1), runs=rng.lognormvariate(3.0, 1.0))
    errors = log.past.errors()
    assert set(errors) == set(KINDS)
    for kind in ("start", "end"):
        assert errors[kind]["told"] == 200
        assert 0.7 < errors[kind]["within"] < 0.9


def test_the_error_says_so_when_the_present_is_not_like_the_past():
    log = Log()
    for n in range(100):
        log.job(at=n, waits=1.0)
    for n in range(200):
        log.job(at=100 + n, waits=10.0 * n)
    assert log.past.error("start")["within"] < 0.1


def test_the_same_log_makes_the_same_past_in_a_simulation():
    simulated = simulation(twenty_jobs(), create("las"), "2x4")
    simulated.state.log = []
    simulated.run()
    pasts = [Past(), Past()]
    for past in pasts:
        assert list(past.noting(simulated.state.log)) == simulated.state.log
    assert pasts[0].errors() == pasts[1].errors()
    assert pasts[0].errors()["start"]["told"] > 0


class Live(DrivenCluster):
    """A driven cluster with the past of its events."""

    def __init__(self, *jobs, past=None, **more):
        super().__init__(**more)
        self.past = past or Past()
        self.state.observers.append(self.past.note)
        for spec in jobs:
            self.happens(JobSubmitted, spec)

    def eta(self, row, progress=None, turns=None):
        return eta_of(self.past, self.state, row, self.now_s, progress or {}, turns)


def test_a_cluster_without_a_past_says_so():
    cluster = Live(job(0), job(1), cluster="1x1")
    cluster.settle()
    for row, what in enumerate(("end", "start")):
        told = cluster.eta(row)
        assert (told["what"], told["low_s"], told["high_s"], told["basis"]) == (what, *[None] * 3)
        assert eta_sentence(told).startswith("not known: ")
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    assert cluster.eta(0) is None


def test_a_running_job_ends_by_its_progress_and_a_sentence_tells_the_error():
    cluster = Live(job(0))
    cluster.settle()
    cluster.passes(100.0)
    told = cluster.eta(0, halfway(step_time_s=60.0))
    assert (told["low_s"], told["high_s"], told["basis"]) == (3000.0, 3000.0, "progress")
    text = "ends in 50 min, by its progress; no past estimate to judge it by"
    assert eta_sentence(told) == text
    told["error"] = {"told": 40, "within": 0.8, "missed_s": 12.0}
    assert eta_sentence(told).endswith(
        "32 of the last 40 estimates were right; half of the others were off by 12 s at most"
    )


def test_a_turn_is_no_sooner_and_a_reservation_no_later_than_it_says():
    cluster = Live(job(0), job(1), cluster="1x1")
    cluster.settle()
    turns = Turns((0,), ((0,),), ((1,),), 30.0)
    told = cluster.eta(1, turns=turns)
    assert (told["low_s"], told["high_s"], told["basis"]) == (30.0, None, "turns")
    cluster.state.notes.reserved = Reserved(1, 90.0, (0,))
    told = cluster.eta(1, turns=turns)
    assert (told["low_s"], told["high_s"], told["basis"]) == (30.0, 90.0, "reservation")
    log = Log()
    for waits in range(100, 1100, 100):
        log.job(waits=waits)
    assert eta_of(log.past, cluster.state, 1, 0.0, {})["high_s"] == 90.0


def test_a_job_that_its_owner_keeps_back_has_no_eta():
    cluster = Live(job(0), cluster="1x1")
    cluster.happens(SuspendRequested, 0)
    assert cluster.eta(0)["why"] == "its owner keeps it back"
    cluster.happens(ResumeRequested, 0)
    assert cluster.eta(0)["why"].startswith("it was kept back for a while")


def test_a_job_that_pauses_before_another_try_has_no_eta():
    cluster = Live(job(0), cluster="1x1")
    cluster.settle()
    cluster.happens(AttemptLost, 0, 1, "exit code 3", 0.0, True, cluster.now_s + 60.0, 3)
    why = "its last try failed, and the next one is yet to begin"
    assert cluster.eta(0)["why"] == why


def test_a_job_whose_state_is_on_a_node_that_is_away_has_no_eta():
    cluster = Live(job(0), cluster="1x1")
    cluster.settle()
    cluster.happens(SuspendRequested, 0)
    cluster.settle()
    cluster.happens(NodeUnreachable, "node0", 60.0)
    cluster.happens(ResumeRequested, 0)
    cluster.settle()
    assert cluster.eta(0)["why"] == "it waits for the node that holds it"


def test_a_flow_job_that_is_idle_has_no_eta():
    cluster = Live(job(0), cluster="1x1")
    cluster.happens(SuspendRequested, 0, "", True)
    why = "its next call brings it back, which nobody can foretell"
    assert cluster.eta(0)["why"] == why


@pytest.mark.parametrize(
    "progress",
    [
        {"step": 1, "total": float("nan"), "step_time_s": 1.0},
        {"step": 1, "total": 10**400, "step_time_s": 1.0},
        {"step": 1, "total": 5, "step_time_s": float("inf")},
        {"step": "1", "total": 5, "step_time_s": 1.0},
        {"total": 5, "step_time_s": 1.0},
        {},
    ],
)
def test_what_is_no_number_foretells_nothing(progress):
    assert Past().end_by_progress(progress, 1.0) is None


def test_steps_left_go_by_samples_where_batches_vary():
    told = {"step": 10, "samples": 100, "total_samples": 300}
    assert steps_left(told) == 20.0
    assert steps_left(told | {"adaptation": {"size": 50}}) == 4.0
    assert steps_left(told | {"adaptation": {"size": float("nan")}}) == 20.0
