"""Learning rates follow the size of batches that grow with the gang."""

import math

import pytest
import torch
from torch import nn

from rota.train.lr_scaling import LrScaling


def grown(rule, parts=4):
    lr_scaling = LrScaling(rule)
    lr_scaling.parts = parts
    return lr_scaling


@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_rules_multiply_by_what_they_say(rule, factor):
    assert grown(rule).factor == factor
    assert grown(rule, parts=1).factor == 1


def test_a_step_sees_the_multiplied_rate_and_nothing_else_does():
    weight = nn.Parameter(torch.tensor([1.0]))
    other = nn.Parameter(torch.tensor([1.0]))
    groups = [{"params": [weight]}, {"params": [other], "lr": 0.01}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    lr_scaling = grown("linear", parts=3)
    lr_scaling.follow(optimizer)
    weight.grad, other.grad = torch.ones(1), torch.ones(1)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([1 - 0.3]))
    torch.testing.assert_close(other.detach(), torch.tensor([1 - 0.03]))
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]
    scheduler.step()
    lr_scaling.parts = 1
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([1 - 0.3 - 0.05]))
    assert scheduler.get_last_lr() == [0.05, 0.005]


def test_a_step_that_fails_leaves_the_rate_as_it_was():
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    grown("linear", parts=3).follow(optimizer)

    def fails():
        raise FloatingPointError("not finite")

    with pytest.raises(FloatingPointError):
        optimizer.step(fails)
    assert optimizer.param_groups[0]["lr"] == 0.1
    weight.grad = torch.ones(1)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([1 - 0.3]))


def squares(gradients):
    """What :meth:`LrScaling.complete` is told of the gradients of the parts."""
    return gradients.square().sum(1).mean().item(), gradients.mean(0).square().sum().item()


def test_the_gain_is_that_of_the_true_signal_and_noise():
    """(sigma^2 + mu^2) / (sigma^2 / S + mu^2): AdaScale's definition, here 3 of 4."""
    generator = torch.Generator().manual_seed(0)
    signal, length = 1.0, 100
    noise = 8.0  # so that (8 + 1) / (8 / 4 + 1) = 3
    lr_scaling = grown("adascale")
    for _ in range(4000):
        parts = torch.randn(4, length, generator=generator) * math.sqrt(noise / length)
        lr_scaling.complete(1.0, squares(parts + math.sqrt(signal / length)))
    assert lr_scaling.gain == pytest.approx(3, rel=0.02)
    assert lr_scaling.scaled_steps == pytest.approx(3 * 4000, rel=0.02)


def test_equal_parts_gain_nothing_and_opposite_ones_all_there_is():
    one = grown("adascale")
    one.complete(1.0, squares(torch.ones(4, 3)))
    assert one.gain == pytest.approx(1)
    other = grown("adascale")
    other.complete(1.0, squares(torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])))
    assert other.gain == pytest.approx(4)
    assert grown("adascale").gain == 1  # nothing has been measured
    nothing = grown("adascale")
    nothing.complete(1.0, (0.0, 0.0))
    assert nothing.gain == 1


def test_an_overflow_is_no_measurement():
    lr_scaling = grown("adascale")
    lr_scaling.complete(1.0, (4.0, 1.0))
    before = lr_scaling.gain
    lr_scaling.complete(1.0, (math.inf, math.nan))
    assert lr_scaling.gain == before


def test_steps_count_by_the_parts_that_were_worked_through():
    lr_scaling = grown("sqrt", parts=2)
    lr_scaling.complete(1.0, None)
    lr_scaling.complete(0.25, None)
    assert lr_scaling.scaled_steps == 2.5
    newcomer = LrScaling("sqrt")
    newcomer.load(lr_scaling.state())
    assert newcomer.scaled_steps == 2.5


def test_a_newcomer_knows_the_gain():
    lr_scaling = grown("adascale")
    lr_scaling.complete(1.0, (3.0, 1.0))
    newcomer = grown("adascale")
    newcomer.load(lr_scaling.state())
    assert newcomer.gain == lr_scaling.gain > 1
