"""The fit of step times, on points made by known models and on points that nobody can fit."""

import math
import random

import numpy as np
import pytest

from rota.predict.fit_error import FitError
from rota.predict.step_points import Point, usable
from rota.predict.step_slopes import ORDER, Places
from rota.predict.step_time import StepTime
from rota.predict.throughput_fit import START, Objective, fit

BERT = StepTime(0.1692, 0.0586, 0.2871, 0.01118, 1.352, 0.01425, 1.90)
SHAPES = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 4), (2, 8), (4, 16), (8, 32)]
PLACES = [(nodes, gpus, batch) for nodes, gpus in SHAPES for batch in (4, 8, 12)]


def point(nodes: int, gpus: int, batch: int, model: StepTime = BERT, times: float = 1.0) -> Point:
    compute_s, step_s = model.compute_s(batch), model.step_s(gpus, nodes, batch)
    return Point(nodes, gpus, batch, compute_s * times, step_s * times)


def noisy(count: int, seed: int, model: StepTime = BERT, places=PLACES) -> list[Point]:
    rng = random.Random(seed)
    chosen = [rng.choice(places) for _ in range(count)]
    return [point(*place, model, rng.lognormvariate(0, 0.03)) for place in chosen]


def furthest(model: StepTime, points: list[Point]) -> float:
    """The largest relative error of the steps."""
    return max(abs(model.step_s(p.gpus, p.nodes, p.batch) / p.step_s - 1) for p in points)


def test_a_known_model_is_found_again():
    found, warnings = fit([point(*place) for place in PLACES])
    assert warnings == ()
    assert furthest(found.step_time, [point(*place) for place in PLACES]) < 0.01
    for name in ("alpha_c", "beta_c", "alpha_n"):
        assert getattr(found.step_time, name) == pytest.approx(getattr(BERT, name), rel=0.05)
    assert found.step_time.gamma == pytest.approx(BERT.gamma, rel=0.1)


@pytest.mark.parametrize("times", [1e-4, 1e-2, 1.0, 1e2])
@pytest.mark.parametrize("seed", range(8))
def test_steps_may_last_any_time(times, seed):
    scaled = StepTime(*(term * times for term in BERT[:6]), BERT.gamma)
    points = noisy(12, seed, scaled)
    found, warnings = fit(points)
    assert warnings == ()
    assert furthest(found.step_time, points) < 0.2


def test_the_gradient_is_that_of_the_loss():
    objective = Objective([*noisy(9, 1), Point(2, 6, 5, None, 2.0)])
    rng = random.Random(2)
    for _ in range(20):
        terms = np.array([start * rng.uniform(0.3, 3) for start in START])
        terms[6] = rng.uniform(1.1, 9)
        _, gradient = objective.value(terms)
        for at, name in enumerate(ORDER):
            step = np.zeros(7)
            step[at] = 1e-6 * terms[at]
            ahead, behind = objective.value(terms + step)[0], objective.value(terms - step)[0]
            slope = (ahead - behind) / (2 * step[at])
            assert gradient[at] == pytest.approx(slope, rel=1e-4, abs=1e-7), name


def test_the_loss_is_the_published_one():
    points = [Point(1, 1, 8, 1.0, 1.1), Point(2, 4, 8, 1.5, 3.0)]
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = terms = (
        0.2,
        0.1,
        1.0,
        0.02,
        0.5,
        0.03,
        2.0,
    )
    compute_s = alpha_c + 8 * beta_c
    step_s = (compute_s**gamma + (alpha_n + 2 * beta_n) ** gamma) ** (1 / gamma)
    steps = [math.log(compute_s / 1.1), math.log(step_s / 3.0)]
    computing = [math.log(compute_s / 1.0), math.log(compute_s / 1.5)]
    loss = sum(math.hypot(*errors) / math.sqrt(2) for errors in (steps, computing))
    loss += 1e-3 * (gamma - 1) ** 2
    loss += 1e-2 * ((beta_n / alpha_n) ** 2 + (beta_r / alpha_r) ** 2)
    assert Objective(points).value(np.array(terms))[0] == pytest.approx(loss, rel=1e-7)


def test_the_model_of_many_points_is_that_of_one():
    terms = np.array([getattr(BERT, name) for name in ORDER])
    slopes = Places(PLACES).slopes(terms)
    for at, (nodes, gpus, batch) in enumerate(PLACES):
        step_s = BERT.step_s(gpus, nodes, batch)
        assert math.exp(slopes.log_step[at]) == pytest.approx(step_s, rel=1e-6)
        assert math.exp(slopes.log_compute[at]) == pytest.approx(BERT.compute_s(batch))


# -- what was never measured -----------------------------------------------------------------------


def test_one_batch_size_is_half_constant_and_half_per_sample():
    found, _ = fit([Point(1, 1, 10, 1.0, 1.0)])
    assert found.step_time.alpha_c == pytest.approx(0.5)
    assert found.step_time.beta_c == pytest.approx(0.05, rel=1e-3)


def test_after_one_gpu_alone_exchange_costs_nothing():
    found, _ = fit([point(1, 1, 4), point(1, 1, 12)])
    assert found.step_time[2:6] == (None, None, None, None)
    assert found.step_time.step_s(16, 4, 8) == found.step_time.compute_s(8)


def test_after_two_gpus_more_of_them_cost_nothing_more():
    found, _ = fit([point(1, 1, 4), point(1, 2, 12)])
    assert found.step_time.alpha_r > 0
    assert found.step_time.beta_r is None
    assert found.step_time.beta_n is None


def test_between_nodes_exchange_is_a_tenth_slower_until_it_is_measured():
    found, _ = fit([point(1, 1, 4), point(1, 2, 12), point(1, 4, 8)])
    model = found.step_time
    assert model.alpha_n == pytest.approx(1.1 * model.alpha_r)
    assert model.beta_n == pytest.approx(1.1 * model.beta_r)


def test_exchange_between_nodes_alone_says_nothing_of_that_within():
    found, _ = fit([point(1, 1, 4), point(2, 8, 12), point(4, 16, 8)])
    assert found.step_time.alpha_n > 0
    assert found.step_time.alpha_r is None


def test_steps_may_be_timed_without_their_computing():
    points = [each._replace(compute_s=None) for each in noisy(24, 3)]
    found, warnings = fit(points)
    assert warnings == ()
    assert furthest(found.step_time, points) < 0.2
    gangs = [each for each in points if each.gpus > 1]
    found, warnings = fit(gangs)
    assert warnings == ()
    assert furthest(found.step_time, gangs) < 0.2


# -- what can't be right ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Point(1, 2, 8, 1.0, math.nan), "2 GPUs on 1 node, batch 8: the step took nan s"),
        (Point(1, 2, 8, 0.0, 1.0), "computing took 0.0 s"),
        (Point(1, 2, 8, 1.0, -1.0), "the step took -1.0 s"),
        (Point(1, 1, 8, 1.0, math.inf), "1 GPU on 1 node, batch 8: the step took inf s"),
        (Point(1, 2, 8, 1.0, 1e9), "the step took 1000000000.0 s"),
        (Point(1, 2, 8, 1e-9, 1.0), "computing took 1e-09 s"),
        (Point(1, 2, 8, 9.0, 1.0), "computing took 9 s of a step of 1 s"),
        (Point(3, 2, 8, 1.0, 1.0), "2 GPUs on 3 nodes, batch 8: fewer GPUs than nodes"),
        (Point(1, 0, 8, 1.0, 1.0), "GPUs: 0"),
        (Point(0, 1, 8, 1.0, 1.0), "nodes: 0"),
        (Point(1, 1, math.nan, 1.0, 1.0), "batch: nan"),
    ],
)
def test_what_can_not_be_is_left_out_and_told(wrong, said):
    alone, warnings = fit([wrong])
    assert alone is None
    assert said in warnings[0]
    good = noisy(6, 1)
    among, warnings = fit([*good, wrong])
    assert said in warnings[0]
    assert among.step_time == fit(good)[0].step_time


def test_of_no_points_there_is_no_model_and_no_warning():
    assert fit([]) == (None, ())


@pytest.mark.parametrize("ratio", [0.05, 1000.0])
@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("places", [PLACES[::3], PLACES[:8], PLACES[::2]])
def test_one_that_contradicts_the_others_is_left_out(places, at, ratio):
    points, _ = usable([point(*place) for place in places])
    wrong = points[at]._replace(
        step_s=points[at].step_s * ratio, compute_s=points[at].compute_s * ratio
    )
    found, warnings = fit([*points[:at], wrong, *points[at + 1 :]])
    assert found.points == (*points[:at], *points[at + 1 :])
    assert len(warnings) == 1
    assert warnings[0].startswith(f"measurements left out: {wrong}: ")
    assert furthest(found.step_time, points) < 0.5


def test_of_two_that_contradict_each_other_none_is_left_out():
    points = [Point(1, 1, 8, 0.1, 0.1), Point(1, 1, 8, 50.0, 50.0)]
    found, warnings = fit(points)
    assert found.points == tuple(points)
    assert warnings[0].startswith("measurements contradict each other: 1 GPU on 1 node, batch 8")
    assert found.error.relative([(1, 1, 8)])[0] > 1


def test_many_wrong_points_are_named_in_part():
    _, warnings = fit([Point(1, 1, batch, 0.0, 0.0) for batch in range(1, 9)])
    assert warnings[0].endswith("; and 5 more")


def test_a_little_more_computing_than_step_is_two_clocks():
    kept, dropped = usable([Point(1, 1, 8, 1.1, 1.0)])
    assert dropped == []
    assert kept == [Point(1, 1, 8, 1.0, 1.0)]


@pytest.mark.parametrize("seed", range(30))
def test_nothing_measured_raises(seed):
    rng = random.Random(seed)
    odd = [math.nan, math.inf, 0.0, -1.0, 1e-7, 1e-5, 1.0, 1e3, 86_400.0, 1e308]
    points = [
        Point(
            rng.choice([0, 1, 1, 2, 10**9]),
            rng.choice([-1, 1, 2, 4, 10**9]),
            rng.choice([0, 1, 7, 10**12]),
            rng.choice([None, *odd]),
            rng.choice(odd),
        )
        for _ in range(rng.randint(0, 30))
    ]
    found, _ = fit(points)
    if found is not None:
        places = [(1, 1, 1), (2, 8, 64)]
        assert all(math.isfinite(found.step_time.step_s(k, n, m)) for n, k, m in places)
        assert all(math.isfinite(error) for error in found.error.relative(places))


def test_what_was_measured_alike_is_fitted_once(monkeypatch):
    searches = []
    plain = Objective.minimum
    monkeypatch.setattr(
        Objective, "minimum", lambda self, start: searches.append(start) or plain(self, start)
    )
    points = noisy(7, 91)
    first, second = fit(points), fit(list(points))
    assert first == second
    assert len(searches) == 1
    assert fit(points[1:])[0].points != first[0].points


def test_how_far_off_a_fit_may_be_is_worked_out_only_when_asked_for(monkeypatch):
    asked = []
    plain = FitError.of.__func__
    monkeypatch.setattr(
        FitError, "of", classmethod(lambda cls, *told: asked.append(told) or plain(cls, *told))
    )
    found, _ = fit(noisy(7, 92))
    assert not asked
    assert found.error.relative([(1, 1, 8)])[0] > 0
    assert asked
