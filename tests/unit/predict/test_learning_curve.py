from math import exp, inf

import pytest

from rota.predict.learning_curve import NOISE_REPORTS, Outlook, Promise, Shape


def outlook_of(curves, target=inf):
    return Outlook(map(Shape, curves), target)


def rising(end, reports=8, steep=0.3):
    """A curve that nears its end as training curves do."""
    return [end * (1 - exp(-steep * n)) for n in range(1, reports + 1)]


def test_a_curve_that_still_rises_promises_more_than_a_flat_one_at_the_same_height():
    rises, flat = [0.1, 0.3, 0.5, 0.6], [0.6, 0.6, 0.6, 0.6]
    outlook = outlook_of([rises, flat, [0.65] * 8])
    assert outlook.promise(Shape(rises)).rate > 2 * outlook.promise(Shape(flat)).rate


def test_the_one_ahead_promises_more_than_one_behind_of_the_same_shape():
    best, behind = rising(0.9), rising(0.5)
    outlook = outlook_of([best, behind])
    assert outlook.promise(Shape(best)).chance > 0.2
    assert outlook.promise(Shape(behind)).chance < 0.01


def test_a_training_that_has_made_all_its_reports_promises_nothing():
    curve = rising(0.9, reports=10)
    outlook = outlook_of([curve])
    assert outlook.promise(Shape(curve), whole=10) == Promise(0.0, 0.0)
    assert outlook.promise(Shape(curve[:5]), whole=10).chance > 0


def test_nearer_goals_come_at_a_higher_rate_than_far_ones():
    curve = rising(0.9, reports=8)
    near, far = outlook_of([curve], target=curve[-1] + 0.01), outlook_of([curve], target=0.99)
    assert near.goal < far.goal
    assert near.promise(Shape(curve)).rate > far.promise(Shape(curve)).rate


def test_the_goal_is_a_little_above_the_best_so_far_and_never_beyond_the_target():
    curves = [[0.2, 0.5, 0.6], [0.1, 0.1, 0.1]]
    assert 0.6 < outlook_of(curves).goal < 0.75
    assert outlook_of(curves, target=0.605).goal == 0.605
    assert outlook_of([]).goal == -inf


@pytest.mark.parametrize(("factor", "offset"), [(100.0, 0.0), (0.001, 7.0), (1.0, -50.0)])
def test_what_a_curve_promises_does_not_depend_on_the_unit_of_the_metric(factor, offset):
    curves = [rising(0.9), rising(0.7, 5), [0.1, 0.12, 0.1, 0.11, 0.1], [0.3]]
    plain = outlook_of(curves)
    scaled = [[factor * value + offset for value in curve] for curve in curves]
    other = outlook_of(scaled)
    for curve, same in zip(curves, scaled, strict=True):
        assert other.promise(Shape(same)).rate == pytest.approx(
            plain.promise(Shape(curve)).rate, rel=1e-6
        )


def test_a_noisy_search_needs_more_than_a_lucky_value_to_go_on():
    smooth, noisy = [0.50, 0.51, 0.52, 0.53], [0.50, 0.58, 0.46, 0.55]
    assert outlook_of([noisy]).goal - max(noisy) > 5 * (outlook_of([smooth]).goal - max(smooth))


def test_new_trainings_promise_less_the_more_others_have_disappointed():
    outlook = outlook_of([[0.1]])
    nobody = outlook.unseen([])
    many = outlook.unseen([Promise(0.0, 0.0)] * 50)
    assert nobody.chance == 0.5
    assert many.chance == pytest.approx(0.5 / 51)
    assert many.rate < nobody.rate


def test_where_all_values_are_equal_nobody_is_to_become_better():
    outlook = outlook_of([[0.5, 0.5, 0.5], [0.5]])
    assert outlook.promise(Shape([0.5, 0.5, 0.5])) == Promise(0.0, 0.0)
    assert outlook.promise(Shape([0.5])) == Promise(0.0, 0.0)
    assert outlook.unseen([Promise(0.0, 0.0)] * 2).rate > 0


def test_how_noisy_values_are_is_told_by_the_last_reports_of_a_long_curve():
    smooth = [0.5 + n * 1e-5 for n in range(NOISE_REPORTS)]
    jumps = [float(n % 2) for n in range(2 * NOISE_REPORTS)]
    assert outlook_of([jumps + smooth])._noise == outlook_of([[0.0, 1.0, 1.0, *smooth]])._noise
    assert outlook_of([smooth + jumps])._noise > 10 * outlook_of([jumps + smooth])._noise
