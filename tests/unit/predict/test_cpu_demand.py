from math import exp, inf, isinf, nan
from random import Random
from statistics import fmean

import pytest

from rota.predict.core_points import CorePoint
from rota.predict.cpu_demand import CpuDemand, fit
from rota.workload.catalog import find, load

COUNTS = (1, 2, 3, 4, 6, 8, 12, 24)


def points(demand, counts, gpu_type=""):
    return [CorePoint(c, demand.step_s(c, gpu_type), gpu_type) for c in counts]


# -- the model -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fixed_s", "by_core_s", "cores", "ratio"),
    [(1, 63, (7, 14), 0.55), (3, 14, (7, 14), 0.80), (1, 36, (4, 24), 0.25)],
)
def test_the_ratios_of_sads_abstract_follow_from_steps_that_do_not_overlap(
    fixed_s, by_core_s, cores, ratio
):
    demand = CpuDemand({"": 0.0}, by_core_s, fixed_s)
    few, many = (demand.speed(each) for each in cores)
    assert few / many == pytest.approx(ratio)


def test_the_more_gpu_and_cpu_overlap_the_nearer_a_step_is_to_the_longer_of_them():
    one, four, ten = (CpuDemand({"": 2.0}, 6.0, gamma=gamma).step_s(3) for gamma in (1, 4, 10))
    assert (one, four) == (4.0, pytest.approx(2 * 2**0.25))
    assert 2 < ten < four < one


def test_a_job_waits_for_data_for_what_a_step_takes_beyond_the_gpu():
    demand = CpuDemand({"": 2.0}, 6.0)
    assert demand.waits(3) == pytest.approx(0.5)
    assert CpuDemand({"": 2.0}, 0.0).waits(3) == 0


@pytest.mark.parametrize("gamma", [1.0, 3.0, 10.0])
def test_at_the_knee_a_step_is_5_percent_longer_than_with_all_cores_of_the_world(gamma):
    demand = CpuDemand({"": 2.0}, 6.0, 0.1, gamma=gamma)
    assert demand.step_s(demand.knee()) == pytest.approx(1.05 * demand.step_s(1e12))


def test_a_faster_gpu_has_its_knee_at_more_cores():
    for gamma in (1.0, 2.0, 10.0):
        demand = CpuDemand({"slow": 2.0, "fast": 1.0}, 6.0, 0.05, gamma=gamma)
        assert demand.knee("fast") > demand.knee("slow")


def test_a_job_that_never_saturates_has_no_knee_and_one_that_needs_no_cores_has_it_at_none():
    assert isinf(CpuDemand({"": 0.0}, 6.0).knee())
    assert CpuDemand({"": 1.0}, 0.0).knee() == 0
    assert CpuDemand({"": 0.0}, 0.0).knee() == 0


def test_the_knee_of_a_job_that_cores_slow_down_comes_before_its_best_number():
    demand = CpuDemand({"": 1.0}, 4.0, each_s=0.25)  # best at 4 cores
    assert demand.knee() < 4
    assert demand.step_s(demand.knee()) == pytest.approx(1.05 * demand.step_s(4))


# -- fits ------------------------------------------------------------------------------------------


def test_steps_without_overlap_are_recovered_from_two_points():
    found, warnings = fit([CorePoint(1, 14.0), CorePoint(24, 2.5)])
    demand = found.demand
    assert demand.gpu_s[""] + demand.fixed_s == pytest.approx(2, abs=1e-9)
    assert demand.by_core_s == pytest.approx(12, abs=1e-9)
    assert demand.step_s(8) == pytest.approx(3.5, abs=1e-9)
    assert sum((demand.step_s(p.cores) - p.step_s) ** 2 for p in found.points) < 1e-9
    assert not warnings


@pytest.mark.parametrize("gamma", [1.0, 2.0, 4.0, 8.0])
def test_every_term_is_recovered_from_points_without_noise(gamma):
    true = CpuDemand({"": 0.5}, 3.0, 0.02 if gamma > 1 else 0.0, gamma=gamma)
    found, _ = fit(points(true, COUNTS))
    assert found.demand.gamma == pytest.approx(gamma, rel=1e-3)
    assert found.demand.gpu_s[""] == pytest.approx(0.5, rel=1e-3)
    assert found.demand.by_core_s == pytest.approx(3, rel=1e-3)
    assert found.demand.fixed_s == pytest.approx(true.fixed_s, abs=1e-3)


@pytest.mark.parametrize("counts", [(24, 3, 6), (24, 3, 7, 1)])
def test_curves_that_overlap_are_predicted_from_a_few_points(counts):
    true = CpuDemand({"": 0.5}, 3.0, gamma=5.0)
    found, _ = fit(points(true, counts))
    for cores in range(1, 25):
        assert found.demand.step_s(cores) == pytest.approx(true.step_s(cores), rel=0.02)


@pytest.mark.parametrize("model", [name for name, each in load().items() if each.core_curves])
def test_published_curves_are_met_within_5_percent_on_average(model):
    for curve in find(model).core_curves:
        found, _ = fit([CorePoint(c, 1 / curve.speed(c)) for c in COUNTS])
        off = [abs(found.demand.step_s(c) * curve.speed(c) - 1) for c in range(1, 25)]
        assert fmean(off) < 0.05


def test_another_gpu_type_costs_one_point():
    true = CpuDemand({"v100": 0.5, "a100": 0.25}, 3.0, gamma=5.0)
    known = points(true, (24, 3, 6), "v100")
    found, _ = fit([*known, *points(true, [24], "a100")])
    for cores in range(1, 25):
        predicted = found.demand.step_s(cores, "a100")
        assert predicted == pytest.approx(true.step_s(cores, "a100"), rel=0.02)
    assert found.demand.knee("a100") > found.demand.knee("v100")
    assert found.errors([24], "t4") == [inf]


def test_steps_of_equal_length_on_any_cores_need_no_core():
    found, warnings = fit([CorePoint(c, 1.0) for c in (24, 3, 1)])
    assert found.demand.step_s(1) == pytest.approx(1)
    assert found.demand.knee() < 1
    assert not warnings


def test_a_job_that_cores_slow_down_has_a_fit_and_a_warning():
    true = CpuDemand({"": 1.0}, 4.0, each_s=0.1)
    found, warnings = fit(points(true, (1, 3, 8, 24)))
    assert found.demand.each_s == pytest.approx(0.1)
    assert found.demand.step_s(5) == pytest.approx(true.step_s(5))
    assert warnings == (
        "more cores make steps longer: 24 cores took 1.6 times as long as 8 cores; "
        "24 cores took 1.4 times as long as 3 cores",
    )


def test_a_job_that_never_saturates_has_a_fit_and_a_warning():
    found, warnings = fit([CorePoint(c, 12 / c) for c in (3, 24)])
    assert found.demand.step_s(12) == pytest.approx(1)
    assert warnings == ("speed does not saturate: up to 24 cores, more make steps shorter",)


def test_points_that_contradict_each_other_are_told():
    told = [CorePoint(3, 1.0), CorePoint(3, 3.0), CorePoint(24, 1.0)]
    found, warnings = fit(told)
    assert found is not None
    (warning,) = (each for each in warnings if "contradict" in each)
    assert "3 cores: " in warning


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (CorePoint(4, 0.0), "4 cores: the step took 0.0 s"),
        (CorePoint(4, nan), "4 cores: the step took nan s"),
        (CorePoint(4, -1.0, "v100"), "4 cores on v100: the step took -1.0 s"),
        (CorePoint(4, inf), "4 cores: the step took inf s"),
        (CorePoint(4, 1e9), "4 cores: the step took 1000000000.0 s"),
        (CorePoint(0, 1.0), "0 cores: no number of cores from 0.01 to 4096"),
        (CorePoint(nan, 1.0), "nan cores: no number of cores"),
        (CorePoint(-3, 1.0), "-3 cores: no number of cores"),
        (CorePoint(1e9, 1.0), "1e+09 cores: no number of cores"),
    ],
)
def test_points_that_cannot_be_are_left_out_by_name(point, words):
    good = [CorePoint(1, 14.0), CorePoint(24, 2.5)]
    found, (warning,) = fit([*good, point])
    assert warning.startswith(f"measurements left out: {words}")
    assert found == fit(good)[0]


def test_one_number_of_cores_tells_nothing_of_others():
    assert fit([]) == (None, ())
    found, warnings = fit([CorePoint(3, 1.0), CorePoint(3, 1.1), CorePoint(6, 1.0, "a100")])
    assert found is None
    assert warnings == ("speed by cores is unknown: each GPU type was measured once, at 3, 6",)


# -- how sure a prediction is ----------------------------------------------------------------------


def test_predictions_are_unsure_between_two_points_and_sure_once_the_knee_is_measured():
    true = CpuDemand({"": 0.5}, 3.0, gamma=5.0)
    two, _ = fit(points(true, (24, 3)))
    three, _ = fit(points(true, (24, 3, 6)))
    assert two.errors([6])[0] > 0.1
    assert two.errors([24])[0] < 0.05
    assert max(three.errors(range(3, 25))) < 0.05


def test_a_new_gpu_type_is_unsure_where_its_only_point_saw_the_cpu_alone():
    true = CpuDemand({"v100": 0.5, "a100": 0.25}, 3.0, gamma=5.0)
    known = points(true, (24, 3, 6), "v100")
    at_most, _ = fit([*known, *points(true, [24], "a100")])
    at_share, _ = fit([*known, *points(true, [3], "a100")])
    assert at_most.errors([24], "a100")[0] < 0.05
    assert at_share.errors([24], "a100")[0] > 0.3
    assert at_share.errors([3], "a100")[0] < 0.06


def test_errors_are_about_as_large_as_they_are_told_to_be():
    true, chance = CpuDemand({"": 0.5}, 3.0, gamma=5.0), Random(7)
    ratios = []
    for _ in range(30):
        noisy = [
            p._replace(step_s=p.step_s * exp(chance.gauss(0, 0.03))) for p in points(true, COUNTS)
        ]
        found, _ = fit(noisy)
        off = [found.demand.step_s(c) / true.step_s(c) - 1 for c in range(1, 25)]
        told = found.errors(range(1, 25))
        ratios.append(fmean(each**2 for each in off) / fmean(each**2 for each in told))
    assert 0.3 < fmean(ratios) < 1.5
