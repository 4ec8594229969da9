import pytest

from rota.errors import InputError
from rota.policy.scaling import allowed_sizes, sizes_every
from rota.policy.scaling.sizes import above, below
from rota.request.jobfile import parse_job


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("any", (3, 4, 5, 6, 7, 8)),
        ("pow2", (3, 4, 8)),
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


@pytest.mark.parametrize(("least", "most"), [(1, 8), (3, 8), (4, 9), (2, 2)])
def test_a_job_file_and_a_scaler_mean_the_same_by_powers_of_two(least, most):
    fields = {"run": "true", "resources": {"gpus": f"{least}..{most}"}}
    if least < most:
        fields["elastic"] = {"sizes": "pow2"}
    elastic = parse_job(fields, workdir="/tmp").elastic
    of_file = elastic.sizes if elastic is not None else (least,)
    assert allowed_sizes("pow2", least, most) == of_file
