import pytest

from rota.errors import InputError
from rota.predict.core_design import best_design, next_cores
from rota.predict.core_points import CorePoint
from rota.predict.cpu_demand import CpuDemand, fit

CANDIDATES = (1, 2, 3, 4, 6, 8, 12, 16, 24)


@pytest.mark.parametrize(
    ("terms", "runs", "d", "a"),
    [
        (["1", "1/c"], 2, (1, 24), (1, 24)),
        (["1", "1/c"], 3, (1, 1, 24), (1, 24, 24)),
        (["1", "1/c", "c"], 3, (1, 4, 24), (1, 4, 24)),
        (["1", "1/c", "c"], 4, (1, 4, 6, 24), (1, 4, 6, 24)),
        (["1", "1/c", "c", "log c"], 4, (1, 2, 12, 24), (1, 2, 12, 24)),
    ],
)
def test_the_best_designs_are_those_that_were_worked_out_elsewhere(terms, runs, d, a):
    assert best_design(CANDIDATES, runs, terms, "D") == d
    assert best_design(CANDIDATES, runs, terms, "A") == a


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"criterion": "E"}, "criterion: 'E' must be one of A, D"),
        ({"terms": ["1", "c^2"]}, r"terms: \['1', 'c\^2'\] must be some of 1, 1/c, c, log c"),
        ({"candidates": [0, 4]}, "candidates: 0 cores must be above zero"),
        ({"runs": 1}, "1 runs at 9 numbers of cores do not tell 2 terms"),
        ({"candidates": [4, 4]}, "2 runs at 1 numbers of cores do not tell 2 terms"),
        ({"candidates": range(1, 100), "runs": 8}, "are .* designs; give fewer candidates"),
    ],
)
def test_a_design_that_cannot_be_is_refused(change, words):
    given = {"candidates": CANDIDATES, "runs": 2, "terms": ["1", "1/c"], "criterion": "D"}
    with pytest.raises(InputError, match=words):
        best_design(**given | change)


def probed(demand, candidates=range(1, 25), share=3, gpu_type="", known=()):
    """The numbers of cores that the sequential design asks for."""
    points = list(known)
    asked = []
    while (cores := next_cores(points, list(candidates), share, gpu_type)) is not None:
        points.append(CorePoint(cores, demand.step_s(cores, gpu_type), gpu_type))
        asked.append(cores)
    return asked, points


def test_most_cores_come_first_then_the_share_then_about_the_knee():
    true = CpuDemand({"": 0.5}, 3.0, gamma=6.0)
    asked, points = probed(true)
    assert asked[:2] == [24, 3]
    assert len(asked) == 3
    assert asked[2] == pytest.approx(6, abs=1)  # the GPU takes as long as the CPU with 6 cores
    found, _ = fit(points)
    assert found.demand.step_s(9) == pytest.approx(true.step_s(9), rel=0.05)


def test_a_job_that_cores_do_not_help_is_measured_with_fewer_than_its_share():
    assert probed(CpuDemand({"": 1.0}, 0.0))[0] == [24, 3, 1]


def test_a_job_much_slower_with_less_than_its_share_is_not_measured_there():
    for gamma in (1.0, 3.0, 10.0):
        asked, _ = probed(CpuDemand({"": 0.3}, 3.0, gamma=gamma))
        assert min(asked) == 3


def test_on_another_gpu_type_one_point_with_most_cores_is_enough():
    demand = CpuDemand({"v100": 0.5, "a100": 0.25}, 3.0, gamma=6.0)
    _, known = probed(demand, gpu_type="v100")
    asked, points = probed(demand, gpu_type="a100", known=known)
    assert asked == [24]
    found, _ = fit(points)
    assert found.demand.step_s(9, "a100") == pytest.approx(demand.step_s(9, "a100"), rel=0.05)


def test_points_that_cannot_be_fitted_are_measured_again():
    assert next_cores([CorePoint(24, float("nan"))], [1, 3, 24], 3) == 24
    assert next_cores([CorePoint(24, 1.0), CorePoint(3, 0.0)], [1, 3, 24], 3) == 3


def test_no_more_than_four_numbers_are_measured_whatever_comes_out():
    points = []
    for step_s in (1.0, 0.2, 5.0, 0.1, 3.0):
        cores = next_cores(points, list(range(1, 25)), 3)
        if cores is not None:
            points.append(CorePoint(cores, step_s))
    assert len(points) == len({point.cores for point in points}) <= 4


@pytest.mark.parametrize("candidates", [[3], [3, 3.1]])
def test_a_job_with_no_choice_is_measured_once(candidates):
    assert len(probed(CpuDemand({"": 1.0}, 3.0), candidates)[0]) == 1


def test_without_candidates_nothing_can_be_measured():
    with pytest.raises(InputError, match="no number of cores to measure at"):
        next_cores([], [], 3)
