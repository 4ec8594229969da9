"""Learning rates follow the size of batches that grow with the gang."""

import math

import pytest
import torch
from torch import nn

from rota.errors import InputError
from rota.predict.gradient_noise import Squares
from rota.train.lr_scaling import BY_OPTIMIZER, LrScaling, check_rule, rule_for


def grown(rule, parts=4, **options):
    lr_scaling = LrScaling(rule, **options)
    lr_scaling.scale = float(parts)
    return lr_scaling


@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_rules_multiply_by_what_they_say(rule, factor):
    assert grown(rule).factor(rule) == factor
    assert grown(rule, parts=1).factor(rule) == 1


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
    lr_scaling.scale = 1.0
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
    of_mean = gradients.mean(0).square().sum().item()
    return Squares(gradients.square().sum(1).mean().item(), of_mean, len(gradients), 4.0)


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
    nothing.complete(1.0, Squares(0.0, 0.0, 4, 4.0))
    assert nothing.gain == 1


def test_an_overflow_is_no_measurement():
    lr_scaling = grown("adascale")
    lr_scaling.complete(1.0, Squares(4.0, 1.0, 4, 4.0))
    before = lr_scaling.gain
    steps = lr_scaling.scaled_steps
    lr_scaling.complete(1.0, Squares(math.inf, math.nan, 4, 4.0))
    assert lr_scaling.gain == before
    assert lr_scaling.scaled_steps == steps  # the scaler leaves the step out


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
    lr_scaling.complete(1.0, Squares(3.0, 1.0, 4, 4.0))
    newcomer = grown("adascale")
    newcomer.load(lr_scaling.state())
    assert newcomer.gain == lr_scaling.gain > 1


def test_adamscale_is_the_root_of_the_gain():
    lr_scaling = grown("adamscale")
    assert lr_scaling.factor("adamscale") == 1  # nothing has been measured
    lr_scaling.complete(1.0, Squares(1.0, 0.25, 4, 4.0))
    assert lr_scaling.gain == pytest.approx(4)
    assert lr_scaling.factor("adamscale") == pytest.approx(2)


def test_legw_warms_up_for_as_many_epochs_as_the_batch_is_larger():
    """From 0 to sqrt(S) over S times the warm-up, in steps with the initial batch."""
    lr_scaling = grown("legw", warmup_steps=10)
    seen = []
    for _ in range(12):
        lr_scaling.complete(1.0, None)  # each is worth four
        seen.append(lr_scaling.factor("legw"))
    assert seen[:10] == pytest.approx([0.2 * n for n in range(1, 11)])
    assert seen[10:] == [2, 2]
    assert grown("legw").factor("legw") == 2


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        (torch.optim.SGD, "adascale"),
        (torch.optim.Adam, "adamscale"),
        (torch.optim.AdamW, "adamscale"),
        (torch.optim.RMSprop, "adamscale"),
    ],
)
def test_the_rule_that_nobody_chose_is_the_one_for_the_optimizer(optimizer, rule):
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = optimizer([weight], lr=0.1)
    assert rule_for(optimizer) == rule
    lr_scaling = grown(BY_OPTIMIZER)
    lr_scaling.complete(1.0, Squares(1.0, 0.25, 4, 4.0))
    lr_scaling.follow(optimizer)
    seen = []
    optimizer.register_step_pre_hook(lambda own, *_: seen.append(own.param_groups[0]["lr"]))
    optimizer.step()
    assert seen == [pytest.approx(0.1 * (4 if rule == "adascale" else 2))]


def test_steps_count_by_their_gain_where_batches_are_chosen_whatever_the_rule():
    lr_scaling = grown("linear", counts_gains=True)
    assert lr_scaling.measures
    lr_scaling.complete(1.0, Squares(1.0, 0.5, 4, 4.0))
    assert lr_scaling.scaled_steps == pytest.approx(lr_scaling.gain)
    assert 1 < lr_scaling.gain < 4


def test_what_is_measured_in_another_unit_does_not_mix():
    """As when Adam's running means have begun to say something."""
    lr_scaling = grown("adamscale")
    for _ in range(5):
        lr_scaling.complete(1.0, Squares(4e6, 4e6, 4, 4.0), unit=0)
    lr_scaling.complete(1.0, Squares(4.0, 2.0, 4, 4.0), unit=3)
    assert lr_scaling.noise.sqr == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    ("rule", "warmup_epochs", "words"),
    [
        ("cubic", 0, "'cubic' must be one of none, linear, sqrt, legw, adascale, adamscale"),
        ("legw", -1, "warmup_epochs=-1 must be a number from 0"),
        ("legw", math.nan, "warmup_epochs=nan must be a number from 0"),
        ("sqrt", 3, "warmup_epochs=3 is for lr_scaling='legw', and that is 'sqrt'"),
    ],
)
def test_rules_that_make_no_sense_are_refused(rule, warmup_epochs, words):
    with pytest.raises(InputError, match=words):
        check_rule(rule, warmup_epochs)
