"""Learn to balance a pole: actors on two devices play, a learner trains on a third, at once.

The actors play with the last weights, while the learner trains on the games before.
"""

import argparse

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from rota import flow

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


def learn(w, momentum, states, pushes, ups):
    """New weights, the new momentum, and how long poles were up in the mean."""
    momentum = 0.9 * momentum + gradient_of(w, states, pushes, ups)
    return w - 0.5 * momentum, momentum, ups.sum(0).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    with flow.local(3) as client:
        actors, learner = client.slice(2), client.slice(1)
        play_games = actors.function(play, out=flow.Split(-1))  # half of the games on each
        train = learner.function(learn)

        def games_of(weights):
            noise = actors.put(torch.rand(4 + STEPS, GAMES), flow.Split(-1))
            return play_games(weights.to(actors), noise)

        w = learner.put(0.3 * torch.randn(sum(SIZES)))
        momentum = learner.put(torch.zeros(sum(SIZES)))
        games = games_of(w)
        for step in range(1, args.steps + 1):
            following = games_of(w)  # returns at once
            w, momentum, up = train(w, momentum, *games)  # the games come to the learner
            if step % 10 == 0:
                print(f"step {step} up for {up.result().item():.1f}", flush=True)
            games = following


if __name__ == "__main__":
    main()
