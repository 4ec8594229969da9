"""Train a mixture of experts, among which a router chooses, in one process."""

import argparse

import torch

EXPERTS, CAPACITY, SAMPLES, INPUTS, HIDDEN = 4, 96, 256, 3, 16


def draw():
    """Inputs (SAMPLES, INPUTS), the last of them 1, and targets: one function on each side."""
    x = 2 * torch.rand(SAMPLES, INPUTS) - 1
    x[:, -1] = 1
    return x, torch.where(x[:, 1] > 0, (4 * x[:, 0]).sin(), x[:, 0] ** 2)


def initial_weights():
    """Of the router and of all experts."""
    up, down = torch.randn(EXPERTS, INPUTS, HIDDEN), 0.3 * torch.randn(EXPERTS, HIDDEN, 1)
    return torch.randn(INPUTS, EXPERTS), up, down


def route(w, x):
    """How sure the router is of each sample's expert, and where the sample goes, by 0 and 1.

    A place of an expert has one sample; beyond CAPACITY samples have none. Shapes do not depend on
    who goes where: (SAMPLES,) and (SAMPLES, EXPERTS, CAPACITY).
    """
    gate, chosen = (x @ w).softmax(-1).max(-1)
    own = chosen[:, None] == torch.arange(EXPERTS)
    place = own.cumsum(0) * own - 1
    return gate, (place[..., None] == torch.arange(CAPACITY)).to(x.dtype)


def experts(up, down, inputs):
    """As many experts as there are weights for: (experts, CAPACITY, 1)."""
    return (inputs @ up).relu() @ down


def loss_of(gate, places, outputs, y):
    found = gate * torch.einsum("sec,eco->s", places, outputs)
    return (found - y).square().mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    w, up, down = weights = [each.requires_grad_() for each in initial_weights()]
    optimizer = torch.optim.SGD(weights, lr=0.2)
    for step in range(1, args.steps + 1):
        x, y = draw()
        gate, places = route(w, x)
        inputs = torch.einsum("sec,si->eci", places, x)
        loss = loss_of(gate, places, experts(up, down, inputs), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
