"""How far off a fit says that it may be, against how far off it is."""

import random

import pytest

from rota.predict.step_points import Point
from rota.predict.step_time import StepTime
from rota.predict.throughput_fit import fit

CIFAR10 = StepTime(0.01732, 0.000702, 0.03159, 0.001086, 0.1209, 0.002406, 2.00)
NCF = StepTime(0.006924, 6.3e-7, 0.006192, 0.000152, 0.01817, 0.000428, 1.23)
YOLOV3 = StepTime(0.2355, 0.01506, 0.1705, 0.03237, 0.7807, 0.02253, 1.36)
MODELS = [(CIFAR10, (32, 128, 512)), (NCF, (512, 4096, 32768)), (YOLOV3, (4, 6, 8))]
SHAPES = [(1, 1), (1, 2), (1, 4), (2, 4), (2, 8), (4, 16), (8, 32), (16, 64)]


def measured(model: StepTime, places, rng: random.Random, noise: float = 0.05) -> list[Point]:
    points = []
    for nodes, gpus, batch in places:
        compute_s = model.compute_s(batch) * rng.lognormvariate(0, noise)
        step_s = model.step_s(gpus, nodes, batch) * rng.lognormvariate(0, noise)
        points.append(Point(nodes, gpus, batch, compute_s, max(step_s, compute_s)))
    return points


def test_errors_are_mostly_within_what_is_told():
    rng = random.Random(1)
    within = total = 0
    for model, batches in MODELS * 10:
        places = [(*shape, batch) for shape in SHAPES for batch in batches]
        found, _ = fit(measured(model, rng.sample(places, rng.randint(2, 12)), rng))
        errors = found.error.relative(places)
        for (nodes, gpus, batch), error in zip(places, errors, strict=True):
            ratio = found.step_time.step_s(gpus, nodes, batch) / model.step_s(gpus, nodes, batch)
            within += abs(ratio - 1) <= 2 * error
            total += 1
    assert within / total > 0.85


def test_no_error_is_below_five_percent():
    rng = random.Random(1)
    places = [(*shape, 128) for shape in SHAPES] * 5
    found, _ = fit(measured(CIFAR10, places, rng, noise=0.0))
    assert min(found.error.relative(places)) >= 0.05


def test_scattered_measurements_make_larger_errors():
    places = [(*shape, batch) for shape in SHAPES for batch in (32, 512)]
    quiet, _ = fit(measured(CIFAR10, places, random.Random(2), noise=0.01))
    loud, _ = fit(measured(CIFAR10, places, random.Random(2), noise=0.4))
    at = [(2, 8, 128)]
    assert loud.error.relative(at)[0] > 2 * quiet.error.relative(at)[0]


@pytest.mark.parametrize(("model", "batches"), MODELS)
def test_errors_grow_with_the_distance_from_what_was_measured(model, batches):
    middle = batches[1]
    found, _ = fit(measured(model, [(1, 1, batches[0]), (1, 1, middle)], random.Random(1), 0.01))
    there, pair, four, nodes, many = found.error.relative(
        [(1, 1, middle), (1, 2, middle), (1, 4, middle), (2, 8, middle), (16, 64, middle)]
    )
    assert there < 0.12
    assert there < pair < four < nodes < many


def test_a_measurement_there_makes_the_error_small():
    rng = random.Random(1)
    places = [(1, 1, 32), (1, 1, 512), (1, 2, 128)]
    before, _ = fit(measured(CIFAR10, places, rng, 0.01))
    after, _ = fit(measured(CIFAR10, [*places, (4, 16, 128)], rng, 0.01))
    at = [(4, 16, 128)]
    assert before.error.relative(at)[0] > 0.5
    assert after.error.relative(at)[0] < 0.15


def test_another_batch_is_less_certain_than_the_one_that_was_measured():
    found, _ = fit(measured(YOLOV3, [(1, 1, 8)], random.Random(1)))
    same, near, far = found.error.relative([(1, 1, 8), (1, 1, 6), (1, 1, 64)])
    assert same < near < far
