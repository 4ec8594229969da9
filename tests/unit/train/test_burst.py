"""Sessions whose models have layers on ranks of their own."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from rota.errors import InputError
from rota.train import session
from support.ranks import ranks


@pytest.fixture(scope="module")
def three():
    with ranks(3, "support.burst_training") as made:
        yield made


def run(pool, world, reduction, plan=None, evaluates_on=0):
    return pool.run(world, "support.burst_training", "in_a_session", reduction, plan, evaluates_on)


@pytest.mark.process
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("plan", [None, {"0": 1, "2": 2}], ids=["on all ranks", "by layer"])
def test_a_session_trains_as_one_rank_does(three, world, plan):
    [(expected, _)] = run(three, 1, "tree")
    (weights, shape), *_ = run(three, world, "burst", plan)
    assert shape == (50, 3)
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.process
def test_a_rank_that_lacks_layers_says_where_to_evaluate(three):
    *_, (_, said) = run(three, 3, "burst", {"2": 1}, evaluates_on=2)
    assert "rank 2 does not keep all layers" in said
    assert "evaluate on rank 0 (if s.rank == 0: ...)" in said


@pytest.mark.process
def test_a_rank_that_has_all_layers_evaluates_as_it_likes(three):
    *_, (_, said) = run(three, 3, "burst", None, evaluates_on=2)
    assert said == (50, 3)


def parts():
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def data():
    return TensorDataset(torch.zeros(8, 4), torch.zeros(8, 1))


def test_batches_that_the_program_cuts_itself_are_refused():
    with pytest.raises(InputError, match=r"needs batches from s.loader"), session() as s:
        s.prepare(*parts(), reduction="burst")
        next(s.steps(1))


def test_a_plan_for_another_reduction_is_refused():
    with pytest.raises(InputError, match="plan is for reduction='burst', not for 'ddp'"):
        session().prepare(*parts(), reduction="ddp", plan={"0": 1})


def test_a_plan_that_is_neither_a_path_nor_a_dict_is_refused():
    with pytest.raises(InputError, match="plan is a int; give the path of a profile"):
        session().prepare(*parts(), reduction="burst", plan=3)


def test_a_profile_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none.json"):
        session().prepare(*parts(), reduction="burst", plan=tmp_path / "none.json")


def test_a_gradient_scaler_is_refused():
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(InputError, match=r"takes no gradient scaler.*use bfloat16"):
        session().prepare(*parts(), scaler, reduction="burst")


def test_learning_rates_by_the_noise_of_gradients_are_refused():
    with pytest.raises(InputError, match=r"reduction='burst'.*leave reduction out"), session() as s:
        s.prepare(*parts(), reduction="burst")
        s.loader(data(), batch_size_per_rank=2, lr_scaling="adascale")
        next(iter(s.epochs(1)))
