"""Learn to balance a pole in one process: games, and a training step on the games before."""

import argparse

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

GAMES, STEPS, HIDDEN = 64, 100, 32
SIZES = (4 * HIDDEN, HIDDEN, HIDDEN)


def logits(w, states):
    """For pushing to the right: of states (..., 4, games), (..., games)."""
    into, bias, out = w.split(SIZES)
    hidden = (into.view(HIDDEN, 4) @ states + bias[:, None]).tanh()
    return (out.view(1, HIDDEN) @ hidden).squeeze(-2)


def play(w, noise):
    """Games of a pole on a cart: states (STEPS, 4, games), pushes, and 1 until it has fallen.

    Random numbers come as ``noise`` (4 + STEPS, games), for the first states and the choices.
    """
    x, speed, angle, spin = 0.1 * (noise[:4] - 0.5)
    up = torch.ones_like(x)
    told = []
    for chance in noise[4:]:
        state = torch.stack([x, speed, angle, spin])
        push = (chance < logits(w, state).sigmoid()).to(x.dtype)
        told.append((state, push, up))
        sin, cos = angle.sin(), angle.cos()
        pushed = (20 * push - 10 + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * pushed) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        x, angle = x + 0.02 * speed, angle + 0.02 * spin
        speed, spin = speed + 0.02 * (pushed - 0.05 * turn * cos / 1.1), spin + 0.02 * turn
        up = up * ((x.abs() < 2.4) & (angle.abs() < 0.21))
    return [torch.stack(each) for each in zip(*told, strict=True)]


def gradient_of(w, states, pushes, ups):
    """The policy gradient (REINFORCE), against what games make from the same step on."""
    left = ups.flip(0).cumsum(0).flip(0)
    better = (left - left.mean(1, keepdim=True)) / (left.std(1, keepdim=True) + 1)
    w = w.detach().requires_grad_()
    chosen = binary_cross_entropy_with_logits(logits(w, states), pushes, reduction="none")
    return torch.autograd.grad((better * ups * chosen).sum() / ups.sum(), w)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    w = 0.3 * torch.randn(sum(SIZES))
    optimizer = torch.optim.SGD([w], lr=0.5, momentum=0.9)
    games = play(w, torch.rand(4 + STEPS, GAMES))
    for step in range(1, args.steps + 1):
        following = play(w, torch.rand(4 + STEPS, GAMES))
        w.grad = gradient_of(w, *games)
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} up for {games[2].sum(0).mean().item():.1f}", flush=True)
        games = following


if __name__ == "__main__":
    main()
