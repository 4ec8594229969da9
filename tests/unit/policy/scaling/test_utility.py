import pytest
from pytest import approx

from rota.errors import InputError
from rota.policy.scaling import DeadlineUtility, LinearUtility, StepUtility


def test_a_linear_utility_is_zero_at_its_end_and_negative_after():
    utility = LinearUtility(100, 3600)
    assert [utility.at(t) for t in (0, 1800, 3600, 7200)] == approx([100, 50, 0, -100])
    assert utility.begun(9999) is utility


def test_a_step_utility_holds_its_first_value_and_joins_its_points():
    utility = StepUtility([(50, 100), (0, 300)])
    assert [utility.at(t) for t in (0, 99, 100, 200, 300)] == approx([50, 50, 50, 25, 0])
    assert utility.at(400) == approx(-25)  # the last line goes on


def test_a_job_that_starts_late_adds_the_last_point():
    utility = StepUtility([(50, 100)])
    assert utility.at(900) == 50
    assert utility.begun(80).at(900) == 50
    late = utility.begun(300)
    assert [late.at(t) for t in (100, 200, 300, 500)] == approx([50, 25, 0, -50])


def test_a_deadline_falls_at_once_and_without_end():
    utility = DeadlineUtility(100, 3600)
    assert [utility.at(t) for t in (0, 3600, 5400, 7200, 10800)] == approx([100, 100, 50, 0, -100])
    assert DeadlineUtility(100, 3600, 4600).at(4600) == approx(0)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (StepUtility, ([],)),
        (StepUtility, ([[1, 2, 3]],)),
        (StepUtility, ([[1, 0]],)),
        (StepUtility, ([[1, 10], [2, 20]],)),
        (StepUtility, ([[2, 10], [1, 10]],)),
        (LinearUtility, (0, 1)),
        (LinearUtility, (True, 1)),
        (LinearUtility, ("much", 1)),
        (LinearUtility, (1, float("inf"))),
        (DeadlineUtility, (1, 10, 10)),
    ],
)
def test_a_utility_that_makes_no_sense_is_refused(kind, arguments):
    with pytest.raises(InputError, match="utility"):
        kind(*arguments)
