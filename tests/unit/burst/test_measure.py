"""Measured layers: what a profile has of them, and what is told of those that can't be measured."""

import copy
from itertools import count

import pytest
import torch
from torch import nn

from rota.burst.layers.measure import batches_of, measured
from rota.burst.layers.trace import layered
from rota.burst.planner.costs import Costs
from rota.burst.planner.frontier import Frontier
from rota.errors import InputError
from support.models import FAMILIES, ResNet, images, vgg

pytestmark = pytest.mark.usefixtures("one_thread")


def measure(model, inputs, batch=4, budget_s=0.0, **options):
    split = layered(model, inputs)
    return measured(model, split, inputs, batch, name="small", budget_s=budget_s, **options)


def clock_of(step_s):
    """A clock that is read often, and goes on by ``step_s`` each time."""
    readings = count()
    return lambda: next(readings) * step_s


@pytest.mark.parametrize("family", FAMILIES)
def test_a_measured_model_can_be_planned(family):
    make, inputs = FAMILIES[family]
    model = make()
    graph = measure(model, inputs(2), batch=6, budget_s=60.0, clock=clock_of(4.0))
    assert graph.parameters == sum(each.numel() for each in model.parameters())
    assert (graph.least_batch, graph.most_batch) == (1, 6)
    assert all(time.forward_s > 0.0 for layer in graph.layers for time in layer.times)
    assert {layer.tied_to for layer in graph.layers} == (
        {None, "words"} if family == "transformer" else {None}
    )
    frontier = Frontier(Costs(graph, 6, 3))
    assert frontier.fastest().step_s > 0.0


def test_sizes_are_those_of_a_sample():
    graph = measure(vgg(), images(4))
    sizes = {layer.name: (layer.output_values, layer.activation_values) for layer in graph.layers}
    # The first layer keeps the image and what its ReLU yields, the pool where its maxima were.
    assert sizes["0"] == (8 * 8 * 8, 3 * 8 * 8 + 8 * 8 * 8)
    assert sizes["2"] == (8 * 4 * 4, 2 * 8 * 4 * 4)
    assert sizes["10"] == (5, 32)
    assert [layer.inputs for layer in graph.layers][:2] == [(), ("0",)]


def test_frozen_parameters_are_not_reduced():
    model = vgg()
    model[0].requires_grad_(False)
    graph = measure(model, images(4))
    assert graph.layers[0].parameters == 0
    assert graph.layers[0].times[0].backward_s == 0.0
    assert graph.layers[2].times[0].backward_s > 0.0


def test_measuring_leaves_the_model_as_it_was():
    model = ResNet().eval()
    model.fc.bias.grad = torch.ones(5)
    before = copy.deepcopy(model.state_dict())
    measure(model, images(2))
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not model.training and not model.fc.training
    assert torch.equal(model.fc.bias.grad, torch.ones(5)) and model.fc.weight.grad is None


def test_the_most_needed_batches_come_first():
    assert batches_of(32, 32) == [32, 1, 16, 8, 4, 2]
    assert batches_of(30, 30) == [30, 1, 16, 8, 4, 2, 15, 10, 6, 5, 3]
    assert batches_of(30, 12) == [12, 1, 8, 4, 2, 10, 6, 5, 3]
    assert batches_of(1, 1) == [1]


def test_a_short_budget_leaves_out_batches_and_rounds_but_not_the_ends():
    told = []
    graph = measure(vgg(), images(), 8, budget_s=1.0, clock=clock_of(0.3), tell=told.append)
    assert [time.batch for time in graph.layers[0].times] == [1, 8]
    assert told == ["batch 8", "batch 1"]


def test_a_batch_that_does_not_fit_is_told_with_one_that_may():
    def loss(out):
        if len(out) > 4:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return out.mean()

    with pytest.raises(InputError, match="memory is over with 8 samples on a GPU; give --most 4"):
        measure(vgg(), images(), 8, loss=loss)
    graph = measure(vgg(), images(), 8, loss=loss, at_most=4)
    assert graph.most_batch == 4


def test_a_loss_is_measured_with_the_last_layer():
    seen = []

    def loss(out):
        seen.append(len(out))
        return out.square().sum()

    measure(vgg(), images(), 4, loss=loss)
    assert set(seen) >= {1, 4}
    with pytest.raises(InputError, match="the loss function yields Tensor; it takes the model's"):
        measure(vgg(), images(), 4, loss=lambda out: out)


def test_a_batch_that_normalisation_refuses_is_left_out():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    told = []
    graph = measure(model, torch.randn(4, 3), 4, budget_s=60.0, clock=clock_of(4), tell=told.append)
    assert graph.least_batch == 2
    assert "batch 1 is left out: BatchNorm needs several values of a channel" in told


def test_a_model_that_takes_one_batch_alone_is_told():
    def loss(out):
        return (out - torch.zeros(4, 5)).square().mean() / out.view(4, 5).shape[0]

    with pytest.raises(InputError, match=r"fails in training with 1 samples \(shape"):
        measure(vgg(), images(), 4, loss=loss)
