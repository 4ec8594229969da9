"""What a user is told of a job's goodput, worked out from what the job told."""

import math

import pytest

from rota.model.measured.reports import BatchRange, GradientNoise, StepPoint
from rota.predict.goodput import BatchLimits, Goodput, Noise
from rota.predict.goodput_curve import Present, Told, goodput_curve
from rota.predict.goodput_table import best_choice
from rota.predict.step_points import MOST_BATCHES, is_usable, pooled

# 0.1 s and 0.01 s a sample, and 0.05 s of exchange that nothing hides.
ALONE = tuple(StepPoint(1, 1, n, 0.1 + n / 100, 0.1 + n / 100) for n in (8, 16, 32))
PAIR = (StepPoint(1, 2, 8, 0.18, 0.23),)
NOISE = GradientNoise(1.0, 15.0)
LIMITS = BatchRange(16, 256, 1, 32)
SHAPES = ((1, 1), (2, 1), (4, 1))


def told(**more):
    return Told(ALONE + PAIR, (), NOISE, LIMITS, SHAPES)._replace(**more)


def test_a_curve_has_the_best_batch_of_each_number_of_gpus():
    curve = goodput_curve(told())
    assert [(row.gpus, row.nodes) for row in curve.rows] == [*SHAPES]
    assert curve.rows[0].goodput < curve.rows[1].goodput < curve.rows[2].goodput
    one = curve.rows[0]
    assert (one.per_gpu <= 32) and 16 <= one.per_gpu * (one.accumulation + 1) <= 256
    assert curve.noise_scale == 16 * 15.0
    assert (curve.missing, curve.warnings, curve.now) == ("", (), None)


def test_it_is_the_model_that_policies_choose_by():
    from rota.predict.step_points import Point
    from rota.predict.throughput_fit import fit

    found, _ = fit(Point(*point) for point in ALONE + PAIR)
    model = Goodput(found.step_time, Noise(*NOISE), BatchLimits(*LIMITS))
    curve = goodput_curve(told())
    best = [best_choice(model, *shape) for shape in SHAPES]
    assert [tuple(row[2:5]) for row in curve.rows] == best


def test_a_row_tells_whether_its_number_of_gpus_was_measured():
    by_kind = (StepPoint(1, 4, 8, 0.18, 0.25),)
    curve = goodput_curve(told(of_kind=(by_kind,), shapes=(*SHAPES, (8, 2))))
    assert [row.known for row in curve.rows] == [
        "measured",
        "measured",
        "by its kind",
        "predicted",
    ]
    assert curve.rows[3].error > curve.rows[0].error


def test_a_job_that_has_measured_nothing_has_its_kinds_curve():
    curve = goodput_curve(told(own=(), of_kind=(ALONE, PAIR)))
    assert [row.goodput for row in curve.rows] == [
        row.goodput for row in goodput_curve(told()).rows
    ]
    assert curve.rows[0].known == "by its kind"


def test_where_the_job_stands_is_worked_out_for_its_own_batch():
    curve = goodput_curve(told(present=Present(2, 1, 16, 0)))
    assert curve.now.efficiency == pytest.approx((240 + 16) / (240 + 32))
    assert curve.now.goodput < curve.rows[1].goodput
    best = curve.rows[1]
    at_best = goodput_curve(told(present=Present(2, 1, best.per_gpu, best.accumulation)))
    assert at_best.now.goodput == pytest.approx(best.goodput)


def test_without_noise_every_sample_counts_in_full():
    curve = goodput_curve(told(noise=None, present=Present(2, 1, 32, 0)))
    assert curve.noise_scale is None
    assert curve.now.efficiency == 1
    assert goodput_curve(told(noise=GradientNoise(0.0, 1.0))).noise_scale == math.inf


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"limits": None}, "it has told nothing of its batches"),
        ({"own": ()}, "it has timed no step"),
        ({"own": (StepPoint(1, 1, 8, 0.0, 0.0),)}, "no step that it has told of can be"),
        ({"limits": BatchRange(16, 8, 1, 8)}, "most batch: 8 is below the initial batch of 16"),
        ({"limits": BatchRange(16, 64, 1, 0)}, "most_per_gpu batch: 0 is no whole number"),
    ],
)
def test_without_a_curve_it_says_why(more, says):
    curve = goodput_curve(told(**more))
    assert curve.rows == ()
    assert says in curve.missing


def test_what_can_not_be_is_left_out_and_told():
    bad = StepPoint(1, 4, 8, 0.1, math.nan)
    curve = goodput_curve(told(own=(bad, *ALONE, *PAIR), noise=GradientNoise(math.nan, 1.0)))
    assert curve.rows[2].known == "predicted"
    assert "4 GPUs on 1 node, batch 8: the step took nan s" in curve.warnings[0]
    assert "gradient noise left out" in curve.warnings[1]


def test_a_size_that_no_batch_suits_is_worth_nothing():
    few = BatchRange(16, 16, 16, 16)
    assert [row.goodput > 0 for row in goodput_curve(told(limits=few)).rows] == [True, False, False]


@pytest.mark.parametrize("present", [(2, 1, 0, 0), (2, 1, 8, -1), (2, 1, 10**400, 0)])
def test_a_batch_that_can_not_be_is_no_standing(present):
    assert goodput_curve(told(present=Present(*present))).now is None


# -- putting points together ----------------------------------------------------------------------


def test_the_first_usable_point_of_a_place_and_batch_counts():
    bad, slow, fast = (StepPoint(1, 1, 8, s, s) for s in (-1.0, 2.0, 1.0))
    assert pooled([[bad], [slow, fast]]) == ((slow,), {1})
    assert pooled([[slow], [fast]]) == ((slow,), {0})


def test_of_a_place_only_some_batches_count():
    points = [StepPoint(1, 1, n, 1.0, 1.0) for n in range(1, 20)]
    other = StepPoint(1, 2, 1, 1.0, 1.0)
    assert pooled([points, [other]]).points == (*points[:MOST_BATCHES], other)


@pytest.mark.parametrize(
    "point",
    [(0, 1, 8, 1.0, 1.0), (1, 1, 0, 1.0, 1.0), (2, 1, 8, 1.0, 1.0), (1, 1, 10**400, 1.0, 1.0),
     (1, 1, 8, 1.0, math.inf), (1, 1, 8, math.nan, 1.0), (1, 1, 8, 9.0, 1.0), (1, 1, 8, 1.0, 1e9)],
)  # fmt: skip
def test_a_point_that_can_not_be_is_not_usable(point):
    assert is_usable(StepPoint(1, 1, 8, 1.0, 1.0))
    assert not is_usable(StepPoint(*point))
