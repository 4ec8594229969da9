"""The examples of programs that drive several devices do what one process does."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from rota import flow

EXAMPLES = Path(__file__).parents[3] / "examples"
pytestmark = pytest.mark.process


@pytest.fixture
def pipelines(monkeypatch):
    """The modules of both pipelines, which workers find as well."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))
    names = ("plain_pipeline", "rota_pipeline")
    yield [import_module(name) for name in names]
    for name in names:
        del sys.modules[name]


@pytest.mark.parametrize("stages", [2, 4])
def test_gradients_of_a_pipeline_are_those_of_one_process(pipelines, stages):
    plain, rota = pipelines
    torch.manual_seed(0)
    weights = [w.double() for w in rota.initial_weights(stages)]
    x, y = rota.draw(torch.randint(128, (1000,)))
    with flow.local(stages) as client:
        pipeline = rota.Pipeline(client, stages)
        gradients = client.program(pipeline.gradients)
        loss, *found = gradients(*pipeline.put(weights), *pipeline.put_batch(x, y))
        loss, found = loss.result(), [each.result() for each in found]
    whole = [w.requires_grad_() for w in weights]
    hidden = plain.first(whole[0], x)
    for w in whole[1:-1]:
        hidden = plain.blocks(w, hidden)
    expected = plain.last(whole[-1], hidden, y) * plain.MICRO
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    for one, w in zip(found, whole, strict=True):
        assert (one - w.grad).abs().max() <= 1e-12 * w.grad.abs().max()


def test_weights_after_steps_of_a_pipeline_are_those_of_one_process(pipelines):
    _, rota = pipelines
    torch.manual_seed(0)
    weights = [w.double() for w in rota.initial_weights(2)]
    batches = [rota.draw(torch.randint(128, (1000,))) for _ in range(3)]
    with flow.local(2) as client:
        pipeline = rota.Pipeline(client, 2)
        step = client.program(pipeline.step)
        state = pipeline.put(weights) + pipeline.put([0 * w for w in weights])
        for x, y in batches:
            _, *state = step(*state, *pipeline.put_batch(x, y))
        found = [each.result() for each in state[:2]]
    own = [w.requires_grad_() for w in weights]
    optimizer = torch.optim.SGD(own, lr=0.1, momentum=0.9)
    for x, y in batches:
        optimizer.zero_grad()
        (rota.last(own[1], rota.first(own[0], x), y) * rota.MICRO).backward()
        optimizer.step()
    for one, w in zip(found, own, strict=True):
        torch.testing.assert_close(one, w.detach(), rtol=1e-10, atol=1e-12)
