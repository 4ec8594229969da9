"""Axes of sweeps: where values stand, which words stand where, what is left out."""

import pytest

from rota.report.sweep import read_sweep
from rota.report.sweepaxes import parameter_axis, shortened, step_axis, value_axis
from support.searches import recorded_sweep


def words(axis):
    return [text for _, text in axis.ticks]


def story(space):
    document = recorded_sweep(trials=0)
    document["request"]["sweep"]["space"] = space
    return read_sweep(document, 0.0)


def test_an_axis_of_values_has_round_words_and_some_room():
    axis = value_axis([0.1, 0.5, 0.9], maximize=True)
    assert not axis.log
    assert axis.low < 0.1 < 0.9 < axis.high
    assert words(axis) == ["0.2", "0.4", "0.6", "0.8"]
    assert 0 < axis.part(0.1) < axis.part(0.5) < axis.part(0.9) < 1


def test_values_far_apart_are_on_a_logarithmic_axis():
    axis = value_axis([1e-3, 1.0, 1e5], maximize=False)
    assert axis.log
    assert axis.part(1e-3) < axis.part(1.0) < axis.part(1e5)
    assert "1" in words(axis)


@pytest.mark.parametrize("maximize", [False, True])
def test_a_few_values_that_are_far_too_bad_are_left_out(maximize):
    sign = 1 if maximize else -1
    usual = [sign * (1 + n / 100) for n in range(100)]
    axis = value_axis([*usual, sign * -1e6], maximize)
    assert axis.high - axis.low < 2
    assert axis.low < min(usual[10:]) < max(usual[10:]) < axis.high
    assert axis.part(sign * -1e6) == (0 if maximize else 1)


@pytest.mark.parametrize("maximize", [False, True])
def test_one_value_that_is_far_better_is_never_left_out(maximize):
    far = 1e6 if maximize else -1e6
    axis = value_axis([*(n / 100 for n in range(100)), far], maximize)
    assert axis.low <= far <= axis.high


@pytest.mark.parametrize(
    "values",
    [
        [],
        [0.0],
        [0.7] * 5,
        [-3.0, -3.0],
        [1e308, -1e308],
        [5e-324, 1e308],
        [1e-300, 2e-300],
        [1e300, 1.0000001e300],
        [0.1, 0.1 + 1e-15],
    ],
)
@pytest.mark.parametrize("maximize", [False, True])
def test_any_values_have_an_axis_with_an_extent(values, maximize):
    axis = value_axis(values, maximize)
    assert axis.low < axis.high
    assert all(axis.low <= axis.high and 0 <= axis.part(value) <= 1 for value in values)
    assert len(axis.ticks) <= 20


def test_steps_are_linear_unless_most_curves_are_short():
    assert words(step_axis([80, 80, 81], 1)) == ["0", "20", "40", "60", "80"]
    short = step_axis([1, 1, 3, 81], 1)
    assert short.log
    assert words(short)[:2] == ["1", "2"]


def test_steps_from_zero_are_linear():
    assert not step_axis([1, 1, 1, 81], 0).log


def test_there_is_no_half_a_step():
    assert words(step_axis([3, 3], 1)) == ["0", "1", "2", "3"]


def test_parameters_stand_as_the_space_says():
    told = story(
        {
            "lr": {"log": [1e-4, 1e-1]},
            "momentum": {"range": [0.0, 1.0]},
            "width": {"int": [16, 128], "step": 16},
            "depth": {"int": [1, 1024], "log": True},
            "optimizer": {"choice": ["sgd", "adam"]},
        }
    )
    axis, places = parameter_axis("lr", told, [1e-4, 1e-2])
    assert axis.log
    assert places == pytest.approx([-4, -2])
    assert (axis.low, axis.high) == pytest.approx((-4, -1))
    axis, places = parameter_axis("momentum", told, [0.5])
    assert ((axis.low, axis.high), places) == ((0.0, 1.0), [0.5])
    axis, _ = parameter_axis("width", told, [32])
    assert (axis.low, axis.high) == (16, 128)
    assert all("." not in word for word in words(axis))
    assert parameter_axis("depth", told, [32])[0].log
    axis, places = parameter_axis("optimizer", told, ["adam", "sgd", "adam"])
    assert words(axis) == ["sgd", "adam"]
    assert places == [1, 0, 1]


def test_choices_of_different_kinds_are_told_apart():
    told = story({"x": {"choice": [1, True, "1", 1.5]}})
    axis, places = parameter_axis("x", told, [True, "1", 1])
    assert places == [1, 2, 0]
    assert words(axis) == ["1", "true", "1", "1.5"]


def test_a_parameter_outside_of_the_space_stands_by_its_values():
    axis, places = parameter_axis("seed", story({}), [3, 5, 4])
    assert (axis.low, axis.high, places) == (3, 5, [3, 5, 4])
    axis, places = parameter_axis("mode", story({}), ["b", None, "a"])
    assert words(axis) == ["a", "b", "-"]
    assert places == [1, 2, 0]


def test_values_beside_the_space_make_its_axis_longer():
    axis, _ = parameter_axis("lr", story({"lr": {"log": [1e-2, 1e-1]}}), [1e-4])
    assert axis.low == pytest.approx(-4)


def test_long_words_lose_their_middle():
    assert shortened("resnet") == "resnet"
    assert shortened("a_very_long_name_of_a_model") == "a_very.._model"


def test_of_few_values_none_is_left_out():
    assert value_axis([0.44, 0.97, 0.98], True).low < 0.44
    assert value_axis([0.02, 0.03, 0.56], False).high > 0.56
