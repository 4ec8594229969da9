import pytest

from rota.errors import JobFileError
from rota.model.job import MAX_BACKOFF_S, Retries
from rota.request.retries import retries_fields, retries_of


@pytest.mark.parametrize(
    ("value", "retries"),
    [
        (None, None),
        (0, None),
        (3, Retries(3, ("failed", "node_failure"), 10.0)),
        ("3", Retries(3)),
        ({"max": 2, "on": "out_of_memory"}, Retries(2, ("out_of_memory",))),
        ({"max": 2, "on": [137, "exit-3", 137]}, Retries(2, ("exit-137", "exit-3"))),
        ({"max": 1, "backoff": "5m"}, Retries(1, backoff_s=300.0)),
    ],
)
def test_retries_are_a_number_or_a_mapping(value, retries):
    assert retries_of(value) == retries
    if retries is not None:
        assert retries_of(retries_fields(retries)) == retries


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (-1, ["retries.max", "-1", "from 0 to 1000"]),
        ([3], ["retries.max", "[3]"]),
        ({"on": ["failed"]}, ["retries", "max is missing"]),
        ({"max": 1, "onn": []}, ["'onn'", "did you mean retries.on?"]),
        ({"max": 1, "on": []}, ["retries.on", "name causes", "leave it out"]),
        ({"max": 1, "on": ["node_failur"]}, ["retries.on: 'node_failur'", "node_failure?"]),
        ({"max": 1, "on": [0]}, ["retries.on: 'exit-0'", "exit-1 to exit-255"]),
        ({"max": 1, "on": [True]}, ["retries.on: True", "failed, out_of_memory"]),
        ({"max": 1, "backoff": "soon"}, ["retries.backoff", "soon", "30s"]),
    ],
)
def test_retries_that_cannot_be_are_refused(value, words):
    with pytest.raises(JobFileError) as failure:
        retries_of(value)
    assert all(word in str(failure.value) for word in words), failure.value


def test_each_pause_is_twice_as_long_as_the_one_before_up_to_an_hour():
    retries = Retries(9, backoff_s=10.0)
    assert [retries.pause_s(n) for n in range(3)] == [10.0, 20.0, 40.0]
    assert retries.pause_s(500) == MAX_BACKOFF_S
    assert Retries(9, backoff_s=7200.0).pause_s(3) == 7200.0
