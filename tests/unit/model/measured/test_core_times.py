"""Step times by CPU cores, as profiles of a job and of its kind know them."""

import pytest

from rota.model.allocation import of_parts, on_node
from rota.model.measured.core_times import core_times, telling
from rota.model.measured.cpu_points import CpuPlace, CpuPoint
from rota.model.measured.phase_times import PhaseTime
from rota.model.measured.profile import Profile
from rota.model.measured.reports import CoreTime

PLACE = CpuPlace("v100", 1, 1, "train", 3000, 2, None)
ONE_GPU = on_node(0, 1)


def profile(*measured):
    """A profile that has measured these (place, seconds of a step, steps)."""
    found = Profile()
    for place, step_s, steps in measured:
        point = found.cpu_points.setdefault(place, CpuPoint())
        point.timed(PhaseTime(place.phase, steps, step_s, None, 0.0, place.workers))
    return found


def test_times_are_told_by_gpu_type_and_cores():
    k80 = PLACE._replace(gpu_type="k80")
    known = profile((PLACE, 0.5, 10), (PLACE._replace(millicores=1000), 0.9, 10), (k80, 2.0, 10))
    assert core_times([known], ONE_GPU, "train") == (
        CoreTime("k80", 3000, 2.0),
        CoreTime("v100", 1000, 0.9),
        CoreTime("v100", 3000, 0.5),
    )


@pytest.mark.parametrize(
    "other",
    [
        PLACE._replace(phase="evaluate"),
        PLACE._replace(num_gpus=2),
        PLACE._replace(num_nodes=2),
        PLACE._replace(batch=(32, 1)),
        PLACE._replace(millicores=None),  # nobody held the job to any number
    ],
)
def test_measurements_under_other_conditions_are_left_out(other):
    assert core_times([profile((other, 0.5, 10))], ONE_GPU, "train") == ()


def test_conditions_are_those_of_the_place_that_is_asked_about():
    gang = PLACE._replace(num_gpus=2, num_nodes=2, batch=(32, 1))
    place = of_parts(((0, 1), (1, 1))).with_batch((32, 1))
    assert core_times([profile((gang, 0.5, 10))], place, "train") == (CoreTime("v100", 3000, 0.5),)


def test_what_the_job_has_measured_itself_goes_before_its_kind():
    own = profile((PLACE, 0.5, 10))
    kind = profile((PLACE, 9.0, 10), (PLACE._replace(millicores=1000), 0.9, 10))
    assert [each.step_s for each in core_times([own, kind], ONE_GPU, "train")] == [0.9, 0.5]
    assert [each.step_s for each in core_times([kind, own], ONE_GPU, "train")] == [0.9, 9.0]


def test_times_with_different_numbers_of_loader_workers_are_averaged_by_reports():
    known = profile((PLACE, 0.5, 10), (PLACE, 0.5, 10), (PLACE._replace(workers=8), 0.2, 10))
    (found,) = core_times([known], ONE_GPU, "train")
    assert found.step_s == pytest.approx((2 * 0.5 + 0.2) / 3)


def test_use_without_step_times_tells_no_time():
    known = Profile()
    known.cpu_points[PLACE] = CpuPoint()
    assert core_times([known], ONE_GPU, "train") == ()
    assert core_times([], ONE_GPU, "train") == ()


FEW, MANY = PLACE._replace(millicores=1000), PLACE._replace(millicores=6000)


@pytest.mark.parametrize(
    ("place", "step_s", "is_told"),
    [
        (PLACE, 0.5, True),
        (PLACE, 0.6, True),  # noise
        (PLACE, 0.7, False),
        (PLACE, 0.35, False),
        (MANY, 0.25, True),  # as fast as it has cores
        (MANY, 0.15, False),
        (MANY, 0.5, True),  # cores are worth nothing to it
        (MANY, 0.7, False),
        (FEW, 1.5, True),
        (FEW, 2.0, False),
        (FEW, 0.3, False),
        (MANY._replace(gpu_type="k80"), 9.0, True),
        (MANY._replace(phase="evaluate"), 9.0, True),
    ],
)
def test_a_job_that_can_not_be_of_its_kind_is_told_of_by_itself(place, step_s, is_told):
    kind, own = profile((PLACE, 0.5, 10)), profile((place, step_s, 10))
    assert telling(kind, own, ONE_GPU, "train") == ([kind, own] if is_told else [own])


def test_without_a_kind_or_measurements_of_its_own_there_is_nothing_to_compare():
    kind, own = profile((PLACE, 0.5, 10)), Profile()
    assert telling(kind, own, ONE_GPU, "train") == [kind, own]
    assert telling(kind, None, ONE_GPU, "train") == [kind]
    assert telling(None, own, ONE_GPU, "train") == [own]
    assert telling(None, None, ONE_GPU, "train") == []
