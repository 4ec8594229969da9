"""Steps that were measured on one type of GPU tell how long they take on another."""

import pytest

from rota.model.measured.reports import StepPoint
from rota.policy.pollux.type_speeds import TypeSpeeds
from rota.predict.step_points import is_usable


def steps(kind, times=1.0, *, gpus=(1,), batches=(4, 8)):
    """A sample takes 0.1 s and each step 0.2 s more; an exchange between GPUs 0.3 s."""
    return [
        StepPoint(
            1, n, batch, times * (0.2 + 0.1 * batch), times * (0.2 + 0.1 * batch + sync), kind
        )
        for n in gpus
        for batch in batches
        for sync in [0.3 if n > 1 else 0.0]
    ]


def learned(**told):
    speeds = TypeSpeeds()
    speeds.learn(told)
    return speeds


def test_what_was_measured_on_a_type_is_told_as_it_is():
    own = steps("slow")
    assert learned(a=own).on("a", "slow") == tuple(own)


def test_steps_on_more_gpus_follow_from_the_ratio_of_one():
    speeds = learned(a=[*steps("slow", gpus=(1, 2, 4)), *steps("fast", 0.25)])
    found = {(p.gpus, p.batch): p for p in speeds.on("a", "fast")}
    assert found[4, 8].step_s == pytest.approx(0.25 * 1.3, rel=0.02)
    assert found[4, 8].compute_s == pytest.approx(0.25 * 1.0, rel=0.02)
    assert found[1, 8] == steps("fast", 0.25)[1]
    assert {point.gpu_type for point in found.values()} == {"fast"}


def test_other_batches_tell_the_ratio_too():
    speeds = learned(a=[*steps("slow", gpus=(1, 2)), *steps("fast", 0.5, batches=(6,))])
    [two, _] = [p for p in speeds.on("a", "fast") if p.gpus == 2]
    assert two.compute_s == pytest.approx(0.5 * 0.6, rel=0.05)


def test_where_a_type_was_measured_others_tell_nothing_of_that_place():
    speeds = learned(a=[*steps("slow", gpus=(1, 2)), *steps("fast", 0.5, gpus=(2,))])
    assert [p.gpus for p in speeds.on("a", "fast")] == [2, 2, 1, 1]


def test_a_type_that_a_kind_was_never_on_is_as_fast_as_for_the_kind_that_gains_most():
    speeds = learned(
        gains=[*steps("slow"), *steps("fast", 0.2)],
        gains_little=[*steps("slow"), *steps("fast", 0.9)],
        new=steps("slow"),
        other=steps("fast"),
    )
    assert speeds.on("new", "fast")[0].step_s == pytest.approx(0.2 * 0.6, rel=0.02)
    assert speeds.on("other", "slow")[0].step_s == pytest.approx(0.6 / 0.9, rel=0.02)


def test_types_are_alike_until_somebody_was_on_both():
    speeds = learned(a=steps("slow"), b=steps("fast", 0.2))
    assert speeds.on("a", "fast")[0].step_s == steps("slow")[0].step_s
    assert speeds.on("b", "slow")[0].step_s == steps("fast", 0.2)[0].step_s


def test_measurements_that_cannot_be_make_no_ratio_and_are_left_out():
    wrong = StepPoint(1, 1, 8, 0.5, 0.0, "fast")
    speeds = learned(a=[*steps("slow"), wrong])
    assert [p.step_s for p in speeds.on("a", "fast")] == [p.step_s for p in steps("slow")]


def test_a_wrong_measurement_stands_in_no_way_of_a_right_one_of_the_same_place():
    right = steps("fast", 0.5)
    wrong = right[0]._replace(step_s=float("nan"))
    assert learned(a=[wrong, *right]).on("a", "fast") == tuple(right)


def test_a_wrong_measurement_becomes_no_right_one_on_another_type():
    endless = StepPoint(1, 4, 8, 1.0, 86_401.0, "slow")
    speeds = learned(a=[*steps("slow"), *steps("fast", 0.25), endless])
    assert speeds.on("a", "fast") == tuple(steps("fast", 0.25))


@pytest.mark.parametrize("times", [1e-9, 1e9])
def test_whatever_the_ratio_steps_on_another_type_can_be(times):
    [lie] = steps("fast", batches=(4,))
    lie = lie._replace(compute_s=max(1e-6, min(86_400.0, times)), step_s=min(86_400.0, 1.5 * times))
    lie = lie._replace(step_s=max(lie.compute_s, lie.step_s))
    speeds = learned(lies=[*steps("slow"), lie], new=steps("slow", gpus=(1, 4)))
    assert all(is_usable(point) for point in speeds.on("new", "fast"))


def test_nothing_is_known_of_a_group_that_told_nothing():
    assert learned(a=[]).on("a", "slow") == ()
