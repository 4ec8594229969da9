"""Gradients and weights of any plan equal those of one process."""

from functools import cache

import pytest
import torch

from support.burst_training import MODELS, ODD, furthest, one_process

pytestmark = pytest.mark.process
STEPS = 20
WITHIN = {torch.float64: 1e-12, torch.float32: 1e-5}
one = cache(one_process)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("dtype", "world", "seed", "even"),
    [(torch.float64, 3, 7, True), (torch.float64, 4, 1, False), (torch.float32, 2, 0, True)],
    ids=["on 3 ranks", "on 4 ranks, unevenly", "data parallel, single precision"],
)
def test_a_plan_trains_as_one_process_does(four, name, dtype, world, seed, even):
    courses = four.run(world, "support.burst_training", "on_ranks", name, dtype, STEPS, seed, even)
    gradients, norms, weights = furthest(one(name, dtype, STEPS), courses)
    assert gradients < WITHIN[dtype]
    assert norms < WITHIN[dtype]
    assert weights < WITHIN[dtype]


@pytest.mark.parametrize("name", ODD)
def test_whatever_a_whole_model_does_it_trains_as_in_one_process(four, name):
    courses = four.run(2, "support.burst_training", "on_ranks", name, torch.float64, 6, 0, True)
    assert max(furthest(one(name, torch.float64, 6), courses)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_of_any_type_are_normalised_over_all_ranks(four, dtype):
    courses = four.run(2, "support.burst_training", "on_ranks", "normed", dtype, 1, 0, True)
    gradients, norms, _ = furthest(one("normed", dtype, 1), courses)
    assert max(gradients, norms) < 16 * torch.finfo(dtype).eps
    assert {value.dtype for _, _, end in courses for value in end.values()} <= {dtype, torch.int64}


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("skips_backward", "called backward for a batch, and another did not"),
        ("takes_other_layers_than_others", "at different layers of batch normalisation"),
        ("has_several_gradients", "give these use_reentrant=False"),
        ("has_sparse_gradients", "Embedding with sparse gradients"),
        ("has_hooks_for_gradients", "a parameter with a hook for its gradient"),
    ],
)
def test_ranks_that_do_different_things_say_so_and_do_not_wait(four, case, said):
    four.begin(2, "support.burst_training", case)
    for rank in (0, 1):
        assert said in four.answer(rank)[0]
