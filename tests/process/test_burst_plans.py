"""More plans, drawn at random, than `make test` has time for; and the loss of a rank."""

from functools import cache

import pytest
import torch

from support.burst_training import MODELS, furthest, one_process
from support.ranks import ranks

one = cache(one_process)


@pytest.fixture(scope="module")
def four():
    with ranks(4, "support.burst_training") as made:
        yield made


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", (3, 4, 5, 8))
def test_any_plan_trains_as_one_process_does(four, name, seed):
    dtype, within = (torch.float32, 1e-5) if seed % 3 == 2 else (torch.float64, 1e-12)
    even = bool(seed % 2)
    courses = four.run(
        2 + seed % 3, "support.burst_training", "on_ranks", name, dtype, 20, seed, even
    )
    assert max(furthest(one(name, dtype, 20), courses)) < within


@pytest.mark.sampled(2)
@pytest.mark.parametrize("where", ["before", "after", "backward"])
@pytest.mark.parametrize("victim", [0, 2])
def test_ranks_that_lose_one_end_with_an_error_and_do_not_wait(victim, where):
    with ranks(3, "support.burst_training") as three:
        three.begin(3, "support.burst_training", "loses_a_rank", victim, where)
        for rank in {0, 1, 2} - {victim}:
            said, _ = three.answer(rank)
            assert "PeerLost" in said
