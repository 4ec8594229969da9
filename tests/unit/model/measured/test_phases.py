from random import Random

import pytest

from rota.model.measured.phases import Phases, Use

TRAIN, VALIDATE = Use(0.9, 1.04), Use(0.08, 3.87)


def switches(phases, uses):
    """Numbers of the samples at which a switch was reported."""
    return [number for number, use in enumerate(uses) if phases.add(use)]


def noisy(use, chance, spread=0.1):
    device, cores, step_s = use
    return Use(
        None if device is None else min(1.0, max(0.0, chance.gauss(device, 0.05))),
        None if cores is None else cores * chance.lognormvariate(0, spread),
        None if step_s is None else step_s * chance.lognormvariate(0, spread),
    )


@pytest.mark.parametrize("samples", [1, 3, 20])
def test_validation_is_reported_with_its_second_sample_and_training_again_likewise(samples):
    phases = Phases()
    told = [TRAIN] * samples + [VALIDATE] * 5 + [TRAIN] * 5 + [VALIDATE] * 2
    found = switches(phases, told)
    assert found == [samples + 1, samples + 6, samples + 11]
    assert phases.phase == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Use(0.9), Use(0.1)),
        (Use(cpu_cores=1.0), Use(cpu_cores=4.0)),
        (Use(step_s=0.2), Use(step_s=0.05)),
        (Use(0.5, 1.0, 0.2), Use(0.5, 1.0, 0.9)),
    ],
    ids=["device", "CPU", "steps", "steps alone of three"],
)
def test_any_signal_alone_tells_a_switch(one, other):
    assert switches(Phases(), [one] * 4 + [other] * 3) == [5]


def test_no_single_sample_is_a_switch():
    phases = Phases()
    told = ([TRAIN] * 6 + [VALIDATE]) * 20
    assert switches(phases, told) == []


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_switch_and_hides_none(seed):
    chance = Random(seed)
    train, validate = Use(0.85, 2.0, 0.3), Use(0.1, 6.0, 0.08)
    told = [train] * 150 + [validate] * 30 + [train] * 150
    found = switches(Phases(), [noisy(use, chance) for use in told])
    assert found == [151, 181]


def test_a_slow_drift_is_no_switch():
    assert switches(Phases(), [Use(0.5, 1.0, 0.1 * 1.05**n) for n in range(100)]) == []


def test_a_job_that_switches_with_each_sample_is_not_reported_each_time():
    assert len(switches(Phases(), [TRAIN, VALIDATE] * 50)) <= 2


def test_other_cores_are_no_switch():
    phases = Phases()
    slow, fast = Use(0.2, 3.9, 0.5), Use(0.9, 12.0, 0.1)
    assert switches(phases, [slow] * 5) == []
    phases.cores_changed()
    assert switches(phases, [fast] * 5) == []
    assert phases.phase == 0


def test_a_phase_is_known_again_though_cores_changed_meanwhile():
    phases = Phases()
    assert switches(phases, [TRAIN] * 5 + [VALIDATE] * 3) == [6]
    phases.cores_changed()
    assert switches(phases, [Use(0.3, 15.0)] * 5 + [TRAIN] * 3) == [6]
    assert phases.phase == 0


@pytest.mark.parametrize("bad", [float("nan"), -1.0, float("inf"), None])
def test_figures_that_cannot_be_are_left_out(bad):
    phases = Phases()
    told = [Use(0.9, 1.04, 0.1), *[Use(bad, bad, bad)] * 5, Use(2.0, bad, 0.0)]
    assert switches(phases, told) == []
    assert switches(phases, [Use(0.08, 3.87, bad)] * 2) == [1]
