"""What live jobs tell of their training, as policies see it."""

import math

import pytest

from rota.errors import InputError
from rota.model.allocation import on_node
from rota.model.commands import Launch
from rota.model.events import (
    AttemptLost,
    CommandSent,
    CpusSet,
    JobLaunched,
    JobSubmitted,
    NodeJoined,
    WorkerReported,
)
from rota.model.job import Program
from rota.model.measured.adaptation import MOST_POINTS, read
from rota.model.measured.reports import BatchRange, GradientNoise, Learned, StepPoint
from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.store.codec import decode, encode
from rota.testing.builders import job

TOLD = {
    "initial": 12,
    "most": 48,
    "most_per_gpu": 16,
    "size": 24,
    "gpus": 2,
    "per_gpu": 6,
    "accumulation": 1,
    "scaled_steps": 30.0,
    "epoch_samples": 120,
    "sqr": 0.5,
    "var": 2.0,
    "steps": 4,
    "step_s": 0.5,
    "gradient_s": 0.2,
}


def told(at_s=1.0, **changes):
    return {"at_s": at_s, "step": 20, "samples": 240, "adaptation": TOLD | changes}


class Log:
    """A live job on two GPUs, and what has happened to it."""

    def __init__(self, shared=False):
        self.events = []
        self.state = ClusterState()
        place = on_node(0, 0b11).with_sharing(shared)
        program = Program("python train.py", "/work")
        self.add(
            NodeJoined(0.0, "n0", 2, "cpu", gpu_type="a100"),
            JobSubmitted(0.0, job("a", 2)._replace(program=program)),
            CommandSent(0.0, Launch(1, 0, 1, 0, place)),
            JobLaunched(0.0, 0, 1),
        )

    def add(self, *events):
        for event in events:
            self.state.apply(event)
            self.events.append(event)

    def tells(self, *reports):
        for report in reports:
            self.add(WorkerReported(report["at_s"], 0, report))
        return View(self.state, 100.0, None)


def test_a_job_that_has_told_nothing_is_unknown():
    view = Log().tells({"at_s": 1.0, "step": 3, "adaptation": None})
    found = (view.measured(0), view.noise(0), view.batch_range(0), view.learned(0))
    assert found == (None, None, None, None)


def test_a_report_tells_steps_noise_limits_and_progress():
    view = Log().tells(told())
    # A step of two gradients took 0.5 s: with one of them it would take 0.2 s less.
    assert view.measured(0) == (StepPoint(1, 2, 6, 0.2, pytest.approx(0.3), "a100"),)
    assert view.noise(0) == GradientNoise(0.5, 2.0)
    assert view.batch_range(0) == BatchRange(12, 48, 1, 16)
    assert view.learned(0) == Learned(30.0, 10.0, None)


def test_what_is_left_is_counted_in_samples_or_in_steps_of_the_present_batch():
    assert read(told() | {"total_samples": 360}).learned.total == 30.0 + (360 - 240) / 12
    assert read(told() | {"total": 26}).learned.total == 30.0 + 6 * 24 / 12
    assert read(told() | {"total_samples": 200}).learned.total == 30.0


def test_points_are_means_over_all_steps_there_and_others_stay():
    view = Log().tells(
        told(1.0, steps=1, accumulation=0),
        told(2.0, steps=3, accumulation=0, step_s=0.9, gradient_s=0.6),
        told(3.0, per_gpu=12, accumulation=0),
        told(4.0, steps=0, step_s=None, gradient_s=None),
    )
    first, second = view.measured(0)
    assert first == StepPoint(1, 2, 6, pytest.approx(0.5), pytest.approx(0.8), "a100")
    assert second[:3] == (1, 2, 12)


def test_points_of_other_gpu_types_are_others():
    log = Log()
    log.tells(told(1.0))
    log.add(
        AttemptLost(2.0, 0, 1, "gone"),
        NodeJoined(2.0, "n1", 2, gpu_type="t4"),
        CommandSent(3.0, Launch(2, 0, 2, 0, on_node(1, 0b11))),
        JobLaunched(3.0, 0, 2),
    )
    view = log.tells(told(4.0))
    assert [point.gpu_type for point in view.measured(0)] == ["a100", "t4"]


def test_where_cores_are_shared_out_steps_count_without_their_waits_for_data():
    starved = told(2.0, step_s=2.5, wait_s=2.0)
    assert Log().tells(starved).measured(0)[0].step_s == pytest.approx(2.3)
    log = Log()
    log.add(CpusSet(1.0, 0, 1000))
    view = log.tells(starved)
    assert view.measured(0) == (StepPoint(1, 2, 6, 0.2, pytest.approx(0.3), "a100"),)
    log.add(CpusSet(3.0, 0, 8000))
    log.tells(told(4.0, wait_s=0.0), told(5.0))  # the last one by a session that tells no waits
    (point,) = view.measured(0)
    assert point[3:5] == pytest.approx((0.2, 0.3))
    lie = log.tells(told(6.0, steps=1000, wait_s=1e9))
    assert lie.measured(0)[0].step_s == pytest.approx(0.2, rel=0.01)  # that of the gradient alone


def test_a_report_that_comes_again_counts_once():
    log = Log()
    report = told(1.0, accumulation=0)
    log.tells(report, told(1.0, accumulation=0, step_s=9.0) | {"cpu_s": 3.0})
    assert View(log.state, 9.0, None).measured(0)[0].step_s == 0.5


def test_noise_that_is_not_known_again_stays_as_it_was_told_also_in_the_next_attempt():
    log = Log()
    log.tells(told())
    log.add(AttemptLost(2.0, 0, 1, "gone"))
    view = log.tells(told(3.0, sqr=None, var=None, scaled_steps=0.0))
    assert view.noise(0) == GradientNoise(0.5, 2.0)
    assert view.learned(0).done == 0.0
    assert len(view.measured(0)) == 1


def test_steps_on_shared_gpus_are_left_out():
    view = Log(shared=True).tells(told())
    assert view.measured(0) == ()
    assert view.batch_range(0) is not None


def test_the_places_that_are_kept_are_limited():
    view = Log().tells(*(told(1.0 + n, per_gpu=1 + n) for n in range(MOST_POINTS + 5)))
    assert len(view.measured(0)) == MOST_POINTS


def test_the_log_tells_the_same_after_a_restart():
    log = Log()
    log.tells(told(1.0), told(2.0, per_gpu=8, step_s=0.7))
    again = ClusterState()
    for event in log.events:
        again.apply(decode(encode(event)))
    assert again.reports == log.state.reports
    assert View(again, 5.0, None).measured(0) == View(log.state, 5.0, None).measured(0)


def test_a_gpu_takes_one_sample_at_least_unless_the_job_says_more():
    assert read({"adaptation": TOLD}).batches == BatchRange(12, 48, 1, 16)
    assert read({"adaptation": TOLD | {"least_per_gpu": 4}}).batches == BatchRange(12, 48, 4, 16)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"least_per_gpu": 0}, "adaptation.least_per_gpu: 0 is no whole number above 0"),
        ({"initial": None}, "adaptation.initial: None is no whole number above 0"),
        ({"initial": True}, "adaptation.initial: True is no whole number above 0"),
        ({"most": 3}, "adaptation.most: 3 is below the initial batch of 12"),
        ({"most_per_gpu": 0}, "adaptation.most_per_gpu: 0 is no whole number above 0"),
        ({"gpus": 1.5}, "adaptation.gpus: 1.5 is no whole number above 0"),
        ({"sqr": math.nan}, "adaptation.sqr: nan is no number from 0"),
        ({"sqr": 10**400}, f"adaptation.sqr: {10**400!r:.80} is no number from 0"),
        ({"var": -1.0}, "adaptation.var: -1.0 is no number from 0"),
        ({"scaled_steps": "far"}, "adaptation.scaled_steps: 'far' is no number from 0"),
        ({"step_s": 0.0}, "adaptation.step_s: 0.0 s is no time for a step"),
        ({"step_s": None}, "adaptation.step_s: None s is no time for a step"),
        ({"step_s": 1e7}, "adaptation.step_s: 10000000.0 s is no time for a step"),
        ({"step_s": math.inf}, "adaptation.step_s: inf is no number from 0"),
        ({"gradient_s": 0.6}, "adaptation.gradient_s: 0.6 s is more than the whole step's 0.5 s"),
    ],
)
def test_what_can_not_be_is_named_and_left_out(changes, words):
    with pytest.raises(InputError) as error:
        read(told(**changes))
    assert str(error.value) == words
    view = Log().tells(told(1.0), told(2.0, **{"var": 7.0} | changes))
    assert view.noise(0) == GradientNoise(0.5, 2.0)
    assert len(view.measured(0)) == 1


def test_what_is_no_report_at_all_is_left_out():
    view = Log().tells({"at_s": 1.0, "adaptation": [1]}, {"at_s": math.nan, "adaptation": TOLD})
    assert view.batch_range(0) is None
