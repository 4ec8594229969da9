"""Train a mixture of experts on two devices, among which a router on a third one chooses."""

import argparse

import torch

from rota import flow

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


def send(w, x):
    gate, places = route(w, x)
    return gate, places, torch.einsum("sec,si->eci", places, x)


def judge(gate, places, outputs, y):
    """The loss, and its gradients by the router's gates and the experts' outputs."""
    gate.requires_grad_(), outputs.requires_grad_()
    loss = loss_of(gate, places, outputs, y)
    return loss, *torch.autograd.grad(loss, [gate, outputs])


def train_router(w, x, dgate):
    w.requires_grad_()
    gate, _ = route(w, x)
    return w.detach() - 0.2 * torch.autograd.grad(gate, w, dgate)[0]


def train_experts(up, down, inputs, doutputs):
    up.requires_grad_(), down.requires_grad_()
    dup, ddown = torch.autograd.grad(experts(up, down, inputs), [up, down], doutputs)
    return up.detach() - 0.2 * dup, down.detach() - 0.2 * ddown


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    with flow.local(3) as client:
        many, one = client.slice(2), client.slice(1)
        sends, judges, trains_router = map(one.function, (send, judge, train_router))
        computes, trains = (many.function(f, out=flow.Split(0)) for f in (experts, train_experts))

        @client.program
        def step(w, up, down, x, y):
            gate, places, inputs = sends(w, x)
            inputs = inputs.to(many, flow.Split(0))  # to each expert its samples
            outputs = computes(up, down, inputs).to(one, flow.Replicated())
            loss, dgate, doutputs = judges(gate, places, outputs, y)
            up, down = trains(up, down, inputs, doutputs.to(many, flow.Split(0)))
            return loss, trains_router(w, x, dgate), up, down

        w, up, down = initial_weights()
        weights = [one.put(w), many.put(up, flow.Split(0)), many.put(down, flow.Split(0))]
        for number in range(1, args.steps + 1):
            loss, *weights = step(*weights, *map(one.put, draw()))
            if number % 10 == 0:
                print(f"step {number} loss {loss.result().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
