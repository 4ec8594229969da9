"""Sessions whose models have layers on ranks of their own."""

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from rota.errors import InputError
from rota.model.layer_graph import Layer, LayerGraph, LayerTime, Network
from rota.train import session
from rota.train.burst import BurstModel
from rota.train.reduction import Reduction
from rota.train.world import World
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


@pytest.mark.process
@pytest.mark.parametrize(
    ("rate", "steps", "expected"),
    [
        (1.0, 2, "None"),
        (0.5, 2, "rate of Steps was changed after the model was split into layers"),
        (1.0, 4, "its layers were found for samples of other shapes than 4x3; pad all"),
    ],
)
def test_layers_that_are_not_the_model_any_more_are_refused(three, rate, steps, expected):
    for said in three.run(2, "support.burst_training", "changed_in_a_session", rate, steps):
        assert expected in str(said)


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


NETWORK = Network(1e9, 1e-4)
TIMES = (LayerTime(1, 0.001, 0.002), LayerTime(8, 0.008, 0.016))
GRAPH = LayerGraph("one layer", [Layer("", TIMES, parameters=5, output_values=1)], network=NETWORK)
WITHOUT_LINKS = LayerGraph("one layer", GRAPH.layers)


def told_alone(plan, *, batch=8, most=4, listens=True, groups=1):
    """What a model on one rank tells of a plan in two steps of each of so many groups."""
    told = []
    model = BurstModel(nn.Linear(4, 1), World(), plan)
    model.batch_size, model.most_ranks = (lambda: batch), most
    model.tell = told.append if listens else None
    for _ in range(groups):
        model.wrap()
        for _ in range(2):
            assert model(torch.zeros(2, 4)).shape == (2, 1)
    return told


def test_the_only_rank_of_a_job_tells_once_what_more_ranks_would_do():
    (planned,) = told_alone(GRAPH)
    assert (planned.batch, planned.idle) == (8, (0.0,))
    assert planned.step_s[0] == pytest.approx(0.024)
    assert planned.step_s[1] == planned.step_s[2] > planned.step_s[3], "3 does not divide 8"
    assert len(told_alone(GRAPH, groups=3)) == 3


@pytest.mark.parametrize(
    "how",
    [
        {"plan": None},
        {"plan": {"": 1}},
        {"plan": WITHOUT_LINKS},
        {"plan": GRAPH, "listens": False},
        {"plan": GRAPH, "batch": 9},
    ],
    ids=["no plan", "sizes", "no links", "nobody listens", "a batch beyond the profile"],
)
def test_the_only_rank_tells_nothing_where_nothing_is_known(how):
    assert told_alone(**how) == []


def test_a_step_without_gradients_plans_nothing():
    told = []
    model = BurstModel(nn.Linear(4, 1), World(), GRAPH)
    model.batch_size, model.most_ranks, model.tell = (lambda: 8), 4, told.append
    with torch.no_grad():
        model(torch.zeros(2, 4))
    assert told == []


class Loaded(NamedTuple):
    """What a reduction asks of a loader."""

    batch_size: int = 8
    most_ranks: int = 6
    varies: bool = False


def listener(models=1, **loader):
    """The first model of a training that has told a reduction that somebody listens."""
    reduction = Reduction(World())
    reduction.tell = print
    for _ in range(models):
        reduction.ask("burst", GRAPH)
        reduction.wrapped.append(BurstModel(nn.Linear(4, 1), World(), GRAPH))
    reduction.with_loader(SimpleNamespace(**Loaded(**loader)._asdict()), None, None)
    return reduction.wrapped[0]


def test_steps_are_predicted_up_to_the_most_ranks_of_the_job_and_of_its_batches(monkeypatch):
    assert listener().most_ranks == 1
    monkeypatch.setenv("ROTA_MAX_WORLD", "4")
    assert listener().most_ranks == 4
    monkeypatch.setenv("ROTA_MAX_WORLD", "1000")
    assert listener().most_ranks == 6
    assert listener(most_ranks=1000).most_ranks == 256


def test_with_a_batch_that_grows_with_the_ranks_other_numbers_are_not_predicted():
    assert listener(varies=True).most_ranks == 0


def test_of_several_models_none_speaks_for_the_step():
    assert listener().tell is print
    assert listener(models=2).tell is None
