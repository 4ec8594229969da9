import pytest

from rota.errors import InputError
from rota.policy.scaling import allowed_sizes, due, sizes_every
from rota.policy.scaling.sizes import above, below


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("any", (3, 4, 5, 6, 7, 8)),
        ("pow2", (4, 8)),
        ("divisors", (3, 4, 6, 8)),
        ([8, 4, 12, 4], (4, 8)),
    ],
)
def test_rules_name_sizes_within_the_range(rule, expected):
    assert allowed_sizes(rule, 3, 8, shards=24) == expected


@pytest.mark.parametrize(
    ("rule", "least", "most"),
    [
        ("any", 0, 4),
        ("any", 4, 3),
        ("pow3", 1, 4),
        ("divisors", 1, 4),
        ("pow2", 5, 7),
        ([0, 2], 1, 4),
        ([2.0], 1, 4),
    ],
)
def test_rules_that_leave_nothing_are_refused(rule, least, most):
    with pytest.raises(InputError, match="sizes"):
        allowed_sizes(rule, least, most)


def test_published_sizes_are_multiples_of_the_step():
    assert sizes_every(4, 4, 16) == (4, 8, 12, 16)
    for wrong in ((4, 2, 16), (4, 4, 18), (0, 4, 16)):
        with pytest.raises(InputError, match="multiples"):
            sizes_every(*wrong)


def test_neighbours_stay_within_the_list():
    assert [above((2, 4, 8), size) for size in (1, 2, 3, 8, 9)] == [2, 4, 4, 8, 8]
    assert [below((2, 4, 8), size) for size in (1, 2, 3, 8, 9)] == [2, 2, 2, 4, 8]


def test_a_decision_is_due_when_a_multiple_of_steps_is_passed():
    assert [steps for steps in range(1, 31) if due(steps, steps - 1)] == [10, 20, 30]
    assert due(27, 18)
    assert not due(29, 20)
    assert not due(20, 19, at_least=25)
