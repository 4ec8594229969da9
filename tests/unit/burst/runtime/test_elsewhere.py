"""Clipping finds the norm of gradients that other ranks have."""

import pytest
import torch
from torch import nn

from rota.burst.runtime.elsewhere import Elsewhere, away
from rota.errors import InputError


@pytest.fixture
def half():
    """Two parameters: the gradient of the first is here, that of the second is not."""
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3, 4))]
    parameters[0].grad = torch.tensor([3.0, 0.0])
    parameters[1].grad = Elsewhere(parameters[1], torch.tensor(4.0), (0, 1))
    return parameters


def test_clipping_counts_it(half):
    assert nn.utils.clip_grad_norm_(half, 2.5).item() == pytest.approx(5.0)
    assert half[0].grad.tolist() == pytest.approx([1.5, 0.0])
    assert half[1].grad.norm().item() == pytest.approx(2.0)


def test_a_gradient_set_to_zero_has_no_norm(half):
    torch.optim.SGD(half, lr=1.0).zero_grad(set_to_none=False)
    assert nn.utils.clip_grad_norm_(half, 2.5).item() == 0.0


def test_an_optimiser_steps_without_it(half):
    away(half)
    optimizer = torch.optim.AdamW(half, lr=1.0)
    optimizer.step()
    assert half[1].grad is None
    assert not half[1].any()


def test_what_needs_its_values_is_refused(half):
    with pytest.raises(InputError, match=r"shape \(3, 4\) lies on ranks \(0, 1\)"):
        half[1].grad.sum()
    with pytest.raises(InputError, match=r"norm inf .* clip by norm 2"):
        nn.utils.clip_grad_norm_(half, 1.0, norm_type=float("inf"))
