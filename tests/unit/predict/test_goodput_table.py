"""The tables that an allocator chooses from, against a search through every batch."""

import itertools
import math
import random

import numpy as np
import pytest

from rota.predict.goodput import UNKNOWN_NOISE, BatchLimits, Goodput, Noise
from rota.predict.goodput_table import POINTS, TableCache, best_choice, canonical, tables
from rota.predict.step_time import StepTime

# The fit to all measured placements of BERT on T4 GPUs, published with Pollux.
BERT = StepTime(0.1692, 0.0586, 0.2871, 0.01118, 1.352, 0.01425, 1.90)


def a_model(random: random.Random) -> Goodput:
    terms = [term * random.uniform(0.3, 3) for term in BERT[:6]]
    if random.random() < 0.3:
        terms[4:] = [None, None]
    initial = random.randint(4, 60)
    limits = BatchLimits(
        initial,
        initial * random.randint(1, 40),
        random.randint(1, 4),
        random.randint(4, 64),
    )
    noise = Noise(random.choice([0.0, 1.0]), random.uniform(0.1, 300))
    return Goodput(StepTime(*terms, gamma=random.uniform(1, 10)), noise, limits)


def batches(limits: BatchLimits, gpus: int) -> list[tuple[int, int]]:
    """(batch per GPU, accumulation) that the published search tries, within all limits."""
    least = max(limits.initial, limits.least_per_gpu * gpus)
    found = []
    for i in range(POINTS):
        whole = least * max(limits.most / least, 1) ** (i / (POINTS - 1))
        parts = math.ceil(whole / gpus / limits.most_per_gpu - 1e-8)
        if gpus == 1 and whole > limits.initial + 1e-8:
            parts = max(parts, 2)
        batch = math.ceil(whole / gpus / parts - 1e-8)
        batch = min(batch, limits.most // (gpus * parts))
        if limits.least_per_gpu <= batch <= limits.most_per_gpu:
            found.append((batch, parts - 1))
    return found


def test_the_best_is_that_of_a_search_one_by_one():
    rng = random.Random(7)
    models = [a_model(rng) for _ in range(60)]
    shapes = [*canonical(4, 32), (2, 2), (3, 2), (64, 16), (999, 250)]
    table = tables(models, shapes)
    chosen = 0
    for row, model in enumerate(models):
        for column, (gpus, nodes) in enumerate(shapes):
            tried = batches(model.limits, gpus)
            goodputs = [model.goodput(gpus, nodes, *batch) for batch in tried]
            best = table.goodput[row, column]
            assert best == pytest.approx(max(goodputs, default=0.0), rel=1e-9)
            choice = (table.batch[row, column], table.accumulation[row, column])
            if best:
                chosen += 1
                assert choice in tried
                assert model.goodput(gpus, nodes, *choice) == pytest.approx(best, rel=1e-9)
            else:
                assert choice == (0, 0)
    assert 0 < chosen < len(models) * len(shapes)


def test_a_table_does_not_depend_on_the_jobs_beside():
    rng = random.Random(1)
    models = [a_model(rng) for _ in range(200)]  # several blocks
    shapes = canonical(4, 64)
    together = tables(models, shapes)
    for row in (0, 1, 17, 199):
        alone = tables([models[row]], shapes)
        for matrix, single in zip(together, alone, strict=True):
            np.testing.assert_array_equal(matrix[row], single[0])


def test_nothing_asked_is_nothing_told():
    assert tables([], [(1, 1)]).goodput.shape == (0, 1)
    model = Goodput(BERT, UNKNOWN_NOISE, BatchLimits(12))
    assert tables([model], []).batch.shape == (1, 0)


def test_jobs_are_offered_powers_of_two_of_a_node_and_whole_nodes():
    assert canonical(4, 16) == [(1, 1), (2, 1), (4, 1), (8, 2), (12, 3), (16, 4)]
    assert canonical(6, 12) == [(1, 1), (2, 1), (4, 1), (6, 1), (12, 2)]
    assert canonical(1, 3) == [(1, 1), (2, 2), (3, 3)]
    assert canonical(8, 4) == [(1, 1), (2, 1), (4, 1)]
    assert len(canonical(4, 64)) == 18


def test_large_jobs_are_offered_not_every_number_of_nodes():
    nodes = [nodes for _, nodes in canonical(4, 1000)]
    assert nodes[2:18] == list(range(1, 17))
    assert nodes[18:27] == [18, 20, 22, 24, 26, 28, 30, 32, 36]
    assert max(more / less for less, more in itertools.pairwise(nodes[10:])) <= 9 / 8
    assert len(nodes) < 60


def test_a_cache_says_what_a_fresh_table_says():
    rng = random.Random(3)
    shapes = canonical(4, 16)
    cache = TableCache(shapes)
    models = [a_model(rng) for _ in range(12)]
    for _ in range(20):
        for _ in range(rng.randint(0, 3)):
            models[rng.randrange(len(models))] = a_model(rng)
        rng.shuffle(models)
        asked = models[: rng.randint(0, len(models))] + models[:2]
        for cached, fresh in zip(cache.of(asked), tables(asked, shapes), strict=True):
            np.testing.assert_array_equal(cached, fresh)


def test_only_models_that_changed_are_worked_out(monkeypatch):
    import rota.predict.goodput_table as goodput_table

    asked: list[int] = []

    def counted(models, shapes):
        asked.append(len(models))
        return tables(models, shapes)

    cache = TableCache([(1, 1), (2, 1)])
    monkeypatch.setattr(goodput_table, "tables", counted)
    rng = random.Random(4)
    models = [a_model(rng) for _ in range(5)]
    cache.of(models)
    cache.of(models)
    cache.of([*models, models[0]])
    models[2] = models[2]._replace(noise=Noise(1.0, 1.0))
    cache.of(models)
    assert asked == [5, 1]
    cache.of(models[1:])
    cache.of(models)
    assert asked[-1] == 1, "what was not asked for is forgotten"


def test_what_a_cache_gave_stays_as_it_was():
    cache = TableCache([(1, 1)])
    rng = random.Random(5)
    first, second = a_model(rng), a_model(rng)
    given = cache.of([first])
    given.goodput[:] = -1
    assert cache.of([first, second]).goodput.min() >= 0


def test_choices_are_those_of_the_models_wherever_they_are_asked_for():
    rng = random.Random(6)
    cache = TableCache(canonical(4, 16))
    models = [a_model(rng) for _ in range(6)]
    cache.of(models[:4])
    shapes = [(1, 1), (3, 1), (8, 2), (5, 2)]
    asked = [(model, shape) for model in models for shape in shapes]
    assert cache.choices(asked) == [best_choice(model, *shape) for model, shape in asked]


def test_jobs_of_one_kind_have_the_table_that_each_has_alone():
    rng = random.Random(8)
    kinds = [a_model(rng) for _ in range(3)]
    models = [kinds[i % 3]._replace(noise=Noise(1.0, rng.uniform(0.1, 300))) for i in range(50)]
    together = tables(models, canonical(4, 64))
    for row, model in enumerate(models):
        for matrix, single in zip(together, tables([model], canonical(4, 64)), strict=True):
            np.testing.assert_array_equal(matrix[row], single[0])
