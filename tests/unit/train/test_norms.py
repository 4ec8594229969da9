"""Squared norms of gradients are those of what an optimiser makes of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rota.predict.gradient_noise import GradientNoise, Squares
from rota.train.gradients import Gradients
from rota.train.norms import EVERY, FIRST, WARM_STEPS, Norms


class Trained:
    """A model whose batches are taken up in parts, as on one rank."""

    def __init__(self, net, optimizer, *others):
        self.net, self.optimizer = net, optimizer
        self.norms = Norms(lambda: [optimizer, *others])
        self.gradients = Gradients(list(net.parameters()), list(net.buffers()), self.norms)
        self.number = FIRST

    def batch(self, parts, scale=1.0):
        """What is measured where the parts' gradients are these, a list of tensors each."""
        gradients, count = self.gradients, len(parts)
        gradients.begin(1.0, alone=count == 1, number=self.number)
        for shard, grads in enumerate(parts):
            for parameter, grad in zip(self.net.parameters(), grads, strict=True):
                parameter.grad = None if grad is None else grad.clone()
            gradients.take(shard, 1 / count)
        gradients.reduce([list(range(count))], 0, self.number)
        gradients.give(count, scale)
        self.number += 1
        return gradients.squares


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


def random_parts(net, count, generator):
    return [
        [torch.randn(p.shape, generator=generator) for p in net.parameters()] for _ in range(count)
    ]


def flat(grads):
    return torch.cat([grad.reshape(-1) for grad in grads])


def expected(parts, divisor=1.0):
    scaled = torch.stack([flat(grads) for grads in parts]) / divisor
    of_parts = scaled.square().sum(1).mean().item()
    return pytest.approx((of_parts, scaled.mean(0).square().sum().item()), rel=1e-5)


def adam(net):
    return torch.optim.AdamW(net.parameters(), lr=1e-3, eps=1e-3)


def test_gradients_are_divided_as_adam_divides_them_once_that_has_taken_some_steps():
    own = net()
    trained = Trained(own, adam(own))
    generator, seen = torch.Generator().manual_seed(1), []
    for number in range(3 * EVERY):
        parts = random_parts(own, 4, generator)
        state = [trained.optimizer.state[p] for p in own.parameters()]
        squares = trained.batch(parts)
        divisor = 1.0
        if number >= WARM_STEPS:
            mean = flat([each["exp_avg_sq"] for each in state]) / (1 - 0.999**number)
            divisor = mean.sqrt() + 1e-3
        if squares is not None:
            assert squares[:2] == expected(parts, divisor)
            assert squares[2:] == (4, 1.0, False)
            seen.append((number, trained.norms.unit))
        trained.optimizer.step()
    assert seen == [(0, 0), (EVERY, 4), (2 * EVERY, 4)]


@pytest.mark.parametrize("count", [1, 2])
def test_the_first_batches_are_all_measured_and_later_ones_now_and_then(count):
    own = net()
    trained = Trained(own, torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9))
    trained.number = 0
    generator, seen = torch.Generator().manual_seed(2), []
    for number in range(FIRST + 4 * EVERY):
        parts = random_parts(own, count, generator)
        squares = trained.batch(parts)
        if squares is not None:
            seen.append(number - FIRST)
            assert trained.gradients.measured_in == (0, 1 if number < FIRST else EVERY)
            assert count == 1 or squares[:2] == expected(parts)
        trained.optimizer.step()
    later = [0, EVERY, 2 * EVERY, 3 * EVERY] if count == 2 else [0, 1, 2 * EVERY, 2 * EVERY + 1]
    assert seen == [*range(-FIRST, 0), *later]


def test_rmsprop_and_parameters_of_their_own_options_count_too():
    own = net()
    groups = [{"params": own[0].parameters()}, {"params": own[1].parameters(), "eps": 0.5}]
    trained = Trained(own, torch.optim.RMSprop(groups, lr=1e-3, eps=1e-3))
    generator = torch.Generator().manual_seed(3)
    for _ in range(EVERY):
        trained.batch(random_parts(own, 2, generator))
        trained.optimizer.step()
    means = [trained.optimizer.state[p]["square_avg"] for p in own.parameters()]
    divisor = torch.cat([flat(means[:2]).sqrt() + 1e-3, flat(means[2:]).sqrt() + 0.5])
    parts = random_parts(own, 2, generator)
    assert trained.batch(parts)[:2] == expected(parts, divisor)


def test_a_gradient_scaler_that_was_prepared_is_taken_out():
    own = net()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(()))
    trained = Trained(own, torch.optim.SGD(own.parameters(), lr=0.1), scaler)
    parts = random_parts(own, 2, torch.Generator().manual_seed(4))
    scaled = [[1024 * grad for grad in grads] for grads in parts]
    assert trained.batch(scaled)[:2] == expected(parts)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_an_overflow_is_seen_as_one_in_several_parts_and_in_one(value):
    own = net()
    trained = Trained(own, torch.optim.SGD(own.parameters(), lr=0.1))
    generator = torch.Generator().manual_seed(5)
    broken = random_parts(own, 2, generator)
    broken[1][0][0, 0] = value
    assert not trained.batch(broken).finite
    trained.number = FIRST
    assert not trained.batch(broken[1:]).finite
    assert trained.batch(random_parts(own, 1, generator))[2:] == (1, 1.0, False)


def test_two_batches_in_one_part_each_are_compared_with_each_other():
    own = net()
    trained = Trained(own, torch.optim.SGD(own.parameters(), lr=0.1))
    generator = torch.Generator().manual_seed(6)
    for turn in range(2):
        one, other = random_parts(own, 2, generator)
        trained.number = FIRST + 2 * EVERY * turn
        assert trained.batch([one])[2] == 1
        both = trained.batch([other])
        assert both[:2] == expected([one, other])
        assert both[2:] == (2, 2.0, True)
        assert trained.batch([one]) is None  # not before the next pair


def test_a_parameter_without_a_gradient_and_a_frozen_one_have_none_to_measure():
    own = net()
    trained = Trained(own, torch.optim.SGD(own.parameters(), lr=0.1))
    parts = random_parts(own, 2, torch.Generator().manual_seed(7))
    for grads in parts:
        grads[1] = None
    there = [[grads[0], *grads[2:]] for grads in parts]
    assert trained.batch(parts)[:2] == expected(there)
    trained.number = FIRST
    own[0].weight.requires_grad_(False)
    for grads in parts:
        grads[0] = None
    assert trained.batch(parts)[:2] == expected([grads[2:] for grads in parts])


def test_the_noise_of_a_real_model_agrees_with_a_direct_estimate_from_single_samples():
    """Signal and noise of a small classifier, against all of its samples' gradients one by one."""
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(512, 6, generator=generator)
    y = (x.sum(1) + torch.randn(512, generator=generator) > 0).long()
    own = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    for parameter in own.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)

    def gradient(samples):
        loss = F.cross_entropy(own(x[samples]), y[samples])
        return torch.autograd.grad(loss, list(own.parameters()))

    singles = torch.stack([flat(gradient([i])) for i in range(512)])
    sqr = singles.mean(0).square().sum().item()
    initial = 8
    var = singles.var(0, unbiased=False).sum().item() / initial

    trained = Trained(own, torch.optim.SGD(own.parameters(), lr=0.0))
    found = {parts: GradientNoise() for parts in (4, 1)}
    for parts, noise in found.items():
        for _ in range(3000 if parts > 1 else 1500):
            picks = torch.randint(512, (parts, initial), generator=generator)
            grads = [singles[pick].mean(0).split([48, 8, 16, 2]) for pick in picks]
            shaped = [
                [g.view_as(p) for g, p in zip(grad, own.parameters(), strict=True)]
                for grad in grads
            ]
            trained.number = 0 if parts > 1 else trained.number % FIRST
            noise.observe(trained.batch(shaped, scale=float(parts)))
        assert noise.sqr == pytest.approx(sqr, rel=0.1)
        assert noise.var == pytest.approx(var, rel=0.05)
        assert noise.gain(16.0) == pytest.approx((var + sqr) / (var / 16 + sqr), rel=0.05)


def test_what_can_not_be_compared_is_no_pair():
    own = net()
    trained = Trained(own, torch.optim.SGD(own.parameters(), lr=0.1))
    one, other = random_parts(own, 2, torch.Generator().manual_seed(9))
    trained.batch([one])
    own[0].weight.requires_grad_(False)
    other[0] = None
    single = trained.batch([other])
    assert single == Squares(single.of_parts, single.of_parts, 1, 1.0)
