"""The marks that a session writes, seen from outside of it."""

import time

import pytest
import torch

import rota.train
from rota.share.marks import (
    BACKWARD,
    FORWARD,
    IDLE,
    LOAD,
    NOBODY,
    OPTIMISE,
    OTHER,
    REDUCE,
)
from rota.share.page import PageReader
from rota.train.segments import first_tensor


@pytest.fixture
def page(tmp_path, monkeypatch):
    path = tmp_path / "page"
    monkeypatch.setenv("ROTA_MARKS", str(path))
    reader = PageReader(path)
    yield lambda: reader.read(time.monotonic())
    reader.close()


class Samples(torch.utils.data.Dataset):
    """Notes the segment in which it is read."""

    def __init__(self, look):
        self.look, self.seen = look, []

    def __len__(self):
        return 32

    def __getitem__(self, index):
        self.seen.append(self.look())
        return torch.ones(4)


class Layer(torch.nn.Linear):
    def __init__(self, look):
        super().__init__(4, 1)
        self.look, self.seen = look, []

    def forward(self, x):
        self.seen.append(self.look())
        return super().forward(x)


def segment_of(page):
    return lambda: page().mark.segment


def test_each_segment_of_a_step_with_a_loader_is_marked(page):
    look = segment_of(page)
    data, model = Samples(look), Layer(look)
    with rota.train.session() as s:
        assert look() == IDLE
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = s.prepare(model, optimizer)
        seen = []
        model.weight.register_hook(lambda _: seen.append(look()))
        loader = s.loader(data, batch_size=8, shards=2)
        for _ in s.epochs(2):
            for batch in loader:
                for x in batch:
                    assert look() == FORWARD
                    model(x).sum().backward()
                    assert look() == BACKWARD
                assert look() == OPTIMISE
                optimizer.step()
                assert look() == OPTIMISE
                with s.evaluate():
                    assert look() == OTHER
                    model(torch.ones(1, 4))
                    assert look() == OTHER
                assert look() == OPTIMISE
        mark = page().mark
        assert mark.segment == LOAD
        assert mark.steps == 8 - 1  # the first one began another epoch: its cut was not known
    assert set(data.seen) == {LOAD}
    assert set(seen) == {BACKWARD}
    assert set(model.seen) == {FORWARD, OTHER}
    assert all(mark.done_s[each] > 0 for each in (LOAD, FORWARD, BACKWARD, REDUCE, OPTIMISE))
    assert page() == NOBODY


def test_a_loop_of_the_programs_own_is_marked_by_its_model_and_optimizer(page):
    look = segment_of(page)
    with rota.train.session() as s:
        model = Layer(look)
        model, optimizer = s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in s.steps(3):
            assert look() == LOAD
            for _ in range(2):
                loss = model(torch.ones(2, 4)).sum()
                assert look() == FORWARD
                loss.backward()
                assert look() == BACKWARD
            optimizer.step()
            assert look() == OPTIMISE


class Wrapped(torch.optim.Optimizer):
    """As Accelerate wraps an optimiser: what torch's class begins with is missing."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups, self.state = optimizer.param_groups, optimizer.state
        self.state_dict, self.load_state_dict = optimizer.state_dict, optimizer.load_state_dict

    def step(self, closure=None):
        return self.optimizer.step(closure)


@pytest.mark.parametrize("attached", [False, True])
def test_the_step_of_an_optimiser_that_a_framework_wrapped_is_marked(page, attached):
    look, model = segment_of(page), torch.nn.Linear(4, 1)
    optimizer = Wrapped(torch.optim.SGD(model.parameters(), lr=0.1))
    with rota.train.session() as s:
        if attached:
            s.attach(model, [optimizer], ranks=1)
            steps = range(2)
        else:
            s.prepare(model, optimizer)
            steps = s.steps(2)
        for _ in steps:
            model(torch.ones(1, 4)).sum().backward()
            assert look() == BACKWARD
            optimizer.step()
            assert look() == OPTIMISE


@pytest.mark.parametrize(
    ("text", "limit"), [("1.3", 1.3), ("1.0", 1.0), ("", 1.1), ("0.9", 1.1), ("x", 1.1)]
)
def test_the_limit_is_that_of_the_environment(page, monkeypatch, text, limit):
    monkeypatch.setenv("ROTA_MAX_SLOWDOWN", text)
    with rota.train.session():
        assert page().mark.limit == limit


def test_without_a_page_no_hook_is_set(monkeypatch):
    monkeypatch.delenv("ROTA_MARKS", raising=False)
    with rota.train.session() as s:
        model = torch.nn.Linear(2, 2)
        s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert not model._forward_hooks
        assert not model._forward_pre_hooks


def test_the_first_tensor_with_a_gradient_is_found_in_what_models_return():
    wanted, other = torch.ones(1, requires_grad=True), torch.ones(1)
    outputs = [wanted, (other, wanted), [None, {"a": other, "b": (wanted,)}], {"loss": wanted}]
    assert all(first_tensor(output) is wanted for output in outputs)
    assert first_tensor((other, None, 3)) is None
