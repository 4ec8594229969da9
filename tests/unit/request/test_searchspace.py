"""Search spaces: what each dimension takes, and that contradictions are named."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import JobFileError
from rota.request.searchspace import (
    Choice,
    Numbers,
    check_params,
    grid_point,
    grid_size,
    parse_space,
    space_fields,
)


def dimension(**fields):
    return dict(parse_space({"x": fields}))["x"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"log": [1e-4, 1e-1]}, Numbers(1e-4, 1e-1, log=True)),
        ({"range": [0, 0.99]}, Numbers(0, 0.99)),
        ({"range": [0.1, 0.9], "step": 0.1}, Numbers(0.1, 0.9, 0.1)),
        ({"int": [16, 128]}, Numbers(16, 128, whole=True)),
        ({"int": [16, 128], "step": 16}, Numbers(16, 128, 16, whole=True)),
        ({"int": [1, 64], "log": True}, Numbers(1, 64, log=True, whole=True)),
        ({"int": [1.0, "64"], "log": False}, Numbers(1, 64, whole=True)),
        ({"choice": ["sgd", 1, 0.5, True]}, Choice(("sgd", 1, 0.5, True))),
        ({"choice": [1, True, "1"]}, Choice((1, True, "1"))),
    ],
)
def test_dimensions(fields, expected):
    assert dimension(**fields) == expected
    assert parse_space(json.loads(json.dumps(space_fields((("x", expected),))))) == (
        ("x", expected),
    )


def test_powers_of_ten_that_yaml_takes_for_text_are_numbers():
    assert dimension(log=["1e-4", "1E-1"]) == Numbers(1e-4, 0.1, log=True)
    assert dimension(choice=["1e-4", "1.0e-3", "e-4"]) == Choice((1e-4, 1e-3, "e-4"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lgo": [1, 2]}, ["x", "'lgo'", "did you mean sweep.space.x.log?"]),
        ({}, ["sweep.space.x", "give one of log, range, int, choice"]),
        ({"log": [1, 2], "choice": [1]}, ["give one of"]),
        ({"range": [0, 1], "log": True}, ["give one of"]),
        ({"log": [1, 2], "step": 1}, ["'step'"]),
        ({"choice": [1, 2], "step": 1}, ["'step'"]),
        ({"range": [1, 0]}, ["sweep.space.x.range", "[1, 0]", "smaller number first"]),
        ({"range": [1, 1]}, ["sweep.space.x.range", "smaller number first"]),
        ({"range": 3}, ["sweep.space.x.range", "least and the greatest"]),
        ({"range": [1, 2, 3]}, ["least and the greatest"]),
        ({"range": [0, float("inf")]}, ["sweep.space.x.range", "inf", "write a number"]),
        ({"range": [float("nan"), 1]}, ["nan", "write a number"]),
        ({"range": [0, 10**400]}, ["write a number"]),
        ({"range": [0, "much"]}, ["'much'", "write a number"]),
        ({"range": [False, True]}, ["False", "write a number"]),
        ({"range": [0, 1], "step": 2}, ["sweep.space.x.step", "larger than the range"]),
        ({"range": [0, 1], "step": 0}, ["sweep.space.x.step", "above 0"]),
        ({"range": [0, 1], "step": -0.1}, ["sweep.space.x.step", "above 0"]),
        ({"range": [0, 1e300], "step": 1e-300}, ["sweep.space.x.step", "steps"]),
        ({"log": [0, 1]}, ["sweep.space.x.log", "above 0"]),
        ({"log": [-1, 1]}, ["sweep.space.x.log", "above 0"]),
        ({"int": [0, 8], "log": True}, ["sweep.space.x.int", "above 0"]),
        ({"int": [1, 8], "log": True, "step": 2}, ["sweep.space.x.step", "log has no steps"]),
        ({"int": [1, 8], "log": "yes"}, ["sweep.space.x.log", "true or false"]),
        ({"int": [0.5, 8]}, ["sweep.space.x.int", "0.5", "whole number"]),
        ({"int": [1, 8], "step": 0.5}, ["sweep.space.x.step", "whole number"]),
        ({"int": [0, 2**60]}, ["sweep.space.x.int", "whole number"]),
        ({"choice": []}, ["sweep.space.x.choice", "write the values"]),
        ({"choice": "adam"}, ["sweep.space.x.choice", "write the values"]),
        ({"choice": ["a", "b", "a"]}, ["'a'", "twice"]),
        ({"choice": [1, 1.0]}, ["1.0", "twice"]),
        ({"choice": [None]}, ["None", "write text"]),
        ({"choice": [[1]]}, ["[1]", "write text"]),
        ({"choice": [float("nan")]}, ["nan", "write a number"]),
        ({"choice": ["a\0b"]}, ["NUL"]),
        ({"choice": ["x" * 1000]}, ["at most 500"]),
        ({"choice": list(range(2000))}, ["2000 values are too many"]),
    ],
)
def test_contradictions_are_named(fields, words):
    with pytest.raises(JobFileError) as caught:
        parse_space({"x": fields})
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("name", ["1x", "a-b", "", "a b", "é", 7, None, "x" * 65])
def test_a_parameter_has_a_name_that_a_program_can_use(name):
    with pytest.raises(JobFileError, match="names of parameters"):
        parse_space({name: {"range": [0, 1]}})


@pytest.mark.parametrize("value", [[1, 2], "x", 7, {"lr": [1, 2]}, {"lr": None}])
def test_a_space_is_parameters_with_dimensions(value):
    with pytest.raises(JobFileError, match=r"sweep\.space.*write"):
        parse_space(value)


def test_there_may_be_no_space_and_not_too_much_of_it():
    assert parse_space(None) == parse_space({}) == ()
    with pytest.raises(JobFileError, match="at most 100"):
        parse_space({f"x{number}": {"range": [0, 1]} for number in range(101)})


SPACE = parse_space(
    {
        "lr": {"log": [1e-3, 1e-1]},
        "momentum": {"range": [0, 0.9], "step": 0.3},
        "width": {"int": [16, 64], "step": 16},
        "optimizer": {"choice": ["sgd", True, 1]},
    }
)
PARAMS = {"lr": 0.01, "momentum": 0.3, "width": 32, "optimizer": "sgd"}


def test_params_come_in_the_order_of_the_space():
    assert check_params(SPACE, dict(reversed(PARAMS.items()))) == tuple(PARAMS.items())


@pytest.mark.parametrize(
    ("name", "value", "checked"),
    [
        ("momentum", 0, 0.0),
        ("momentum", 0.30000000000000004, 0.30000000000000004),
        ("width", 32.0, 32),
        ("optimizer", 1.0, 1),
        ("optimizer", True, True),
        ("lr", 0.1, 0.1),
    ],
)
def test_params_are_as_their_dimension_has_them(name, value, checked):
    result = dict(check_params(SPACE, PARAMS | {name: value}))[name]
    assert result == checked and type(result) is type(checked)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ([], ["params", "mapping"]),
        ({"lrr": 1}, ["'lrr'", "did you mean 'lr'?"]),
        ({3: 1}, ["3", "no such parameter"]),
        ({"lr": 1}, ["params.lr", "1", "0.001 to 0.1"]),
        ({"lr": "0.01"}, ["params.lr", "'0.01'"]),
        ({"lr": float("nan")}, ["params.lr", "nan"]),
        ({"lr": True}, ["params.lr", "True"]),
        ({"momentum": 0.4}, ["params.momentum", "steps of 0.3"]),
        ({"width": 16.5}, ["params.width", "whole number"]),
        ({"width": 17}, ["params.width", "steps of 16"]),
        ({"optimizer": "adam"}, ["params.optimizer", "'adam'", "'sgd'"]),
        ({"optimizer": False}, ["params.optimizer"]),
        ({"optimizer": [1]}, ["params.optimizer"]),
    ],
)
def test_params_outside_of_the_space_are_refused(params, words):
    with pytest.raises(JobFileError) as caught:
        check_params(SPACE, PARAMS | params if isinstance(params, dict) else params)
    for word in words:
        assert word in str(caught.value)


def test_a_missing_parameter_is_named():
    with pytest.raises(JobFileError, match="width is missing"):
        check_params(SPACE, {name: PARAMS[name] for name in PARAMS if name != "width"})


def test_without_a_space_any_params_will_do_that_a_job_can_be_given():
    assert check_params((), {"a": 1, "b": "x"}) == (("a", 1), ("b", "x"))
    for wrong in ({"a": None}, {"a-b": 1}, {"a": [1]}, {1: 1}, {f"x{n}": 1 for n in range(200)}):
        with pytest.raises(JobFileError):
            check_params((), wrong)


def test_a_grid_has_each_point_once():
    space = SPACE[1:]
    size = grid_size(space)
    points = [grid_point(space, index) for index in range(size)]
    assert size == 4 * 4 * 3
    assert len({json.dumps(point) for point in points}) == size
    assert points[0] == {"momentum": 0.0, "width": 16, "optimizer": "sgd"}
    assert points[1]["optimizer"] is True
    assert {point["momentum"] for point in points} == {0.0, 0.3, 0.6, 0.9}
    assert all(check_params(space, point) for point in points)


def test_a_continuous_dimension_makes_no_grid():
    assert grid_size(SPACE) is None
    assert grid_size(parse_space({"n": {"int": [1, 5]}})) == 5
    assert grid_size(parse_space({"n": {"int": [1, 6], "step": 2}})) == 3
    assert grid_size(parse_space({"n": {"int": [-(2**53), 2**53], "step": 2**50 + 1}})) == 16
    assert grid_size(parse_space({"n": {"range": [0.1, 0.7], "step": 0.1}})) == 7


numbers = st.floats(-1e6, 1e6) | st.integers(-(10**6), 10**6)
limits = st.tuples(numbers, numbers).filter(lambda pair: pair[0] < pair[1]).map(list)
wholes = (
    st.tuples(st.integers(1, 1000), st.integers(1, 1000))
    .filter(lambda pair: pair[0] < pair[1])
    .map(list)
)
values = st.text(max_size=20).filter(lambda t: "\0" not in t) | st.booleans() | numbers
dimensions = st.one_of(
    st.fixed_dictionaries({"range": limits}),
    st.fixed_dictionaries({"int": wholes}, optional={"log": st.booleans()}),
    st.fixed_dictionaries({"choice": st.lists(values, min_size=1, max_size=5)}),
)


@given(st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True), dimensions))
def test_a_space_comes_back_from_its_fields(fields):
    try:
        space = parse_space(fields)
    except JobFileError as error:
        assert "twice" in str(error) or "Unicode" in str(error)
    else:
        assert parse_space(json.loads(json.dumps(space_fields(space)))) == space
