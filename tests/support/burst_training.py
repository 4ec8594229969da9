"""Trainings of small models, by the runtime on some ranks or in one process.

No parameter has a gradient that is zero but for rounding: AdamW would make steps of it. So there is
no bias before batch normalisation, nor in attention's keys.
"""

import os
import random
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import rota.train
from rota.burst.layers.trace import layered, whole
from rota.burst.planner.plan import Group
from rota.burst.runtime.elsewhere import away
from rota.burst.runtime.runtime import Runtime
from rota.errors import InputError


class Vgg(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
        )
        self.classifier = nn.Sequential(
            nn.Linear(8 * 16, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 5)
        )

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


class Block(nn.Module):
    def __init__(self, into, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.down = None
        if stride > 1:
            self.down = nn.Sequential(
                nn.Conv2d(into, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.down is None else self.down(x)))


class Resnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.Sequential(Block(4, 4, 1), Block(4, 8, 2))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Inception(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.one = nn.Conv2d(4, 3, 1)
        self.three = nn.Sequential(nn.Conv2d(4, 3, 1), nn.ReLU(), nn.Conv2d(3, 4, 3, padding=1))
        self.pooled = nn.Conv2d(4, 2, 1)
        self.head = nn.Linear(9 * 16, 5)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        pooled = self.pooled(F.avg_pool2d(x, 3, stride=1, padding=1))
        x = torch.cat([self.one(x), self.three(x), pooled], 1)
        return self.head(F.max_pool2d(x, 2).flatten(1))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        n, t, w = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(n, t, w))


class Transformer(nn.Module):
    """Its last layer has the weights of the first one."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.place = nn.Parameter(torch.randn(1, 6, 8) * 0.1)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(4))
        self.attend = nn.ModuleList(Attention(8, 2) for _ in range(2))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(2)
        )
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) + self.place
        for at in range(2):
            x = x + self.attend[at](self.norms[2 * at](x))
            x = x + self.feed[at](self.norms[2 * at + 1](x))
        return self.head(x)


class Checkpointed(nn.Module):
    """Its blocks run again in the backward pass, and normalise again."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(Block(4, 4, 1) for _ in range(2))
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = self.stem(x)
        for at, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=bool(at))
        return self.head(x.mean((2, 3)))


class Experts(nn.Module):
    """A rank whose samples need not all experts is ready to reduce these later than others."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(27) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(27, 27, bias=False) for _ in range(2))
        self.experts = nn.ModuleList(nn.Linear(27, 3000, bias=False) for _ in range(4))
        self.head = nn.Linear(3000, 5)

    def forward(self, x):
        x = x[:, :, :3, :3].flatten(1)
        chosen = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = torch.tanh(layer(norm(x)))
        found = x.new_zeros(len(x), 3000)
        for number, expert in enumerate(self.experts):
            at = (chosen == number).nonzero().flatten()
            if len(at):
                found = found.index_copy(0, at, expert(x[at]))
        return self.head(found)


class Functional(nn.Module):
    """Normalises by torch's function, without a module."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, bias=False), nn.Linear(4, 5)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x):
        kept = (self.mean, self.var)
        x = torch.batch_norm(self.conv(x), None, None, *kept, self.training, 0.1, 1e-5, False)
        return self.head(x.relu().mean((2, 3)))


class Normed(nn.Module):
    """Normalises in every way that torch has, and by a function with a bias alone."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 4, 3, bias=False) for _ in range(5))
        self.norms = nn.ModuleList(
            (
                nn.BatchNorm2d(4),
                nn.BatchNorm2d(4, affine=False),
                nn.BatchNorm2d(4, track_running_stats=False),
                nn.GroupNorm(2, 4),
            )
        )
        self.bias = nn.Parameter(torch.randn(4))
        self.head = nn.Linear(20, 5)

    def forward(self, x):
        found = [norm(conv(x)) for norm, conv in zip(self.norms, self.convs[:4], strict=True)]
        found.append(F.batch_norm(self.convs[4](x), None, None, None, self.bias, training=True))
        return self.head(torch.cat(found, 1).relu().mean((2, 3)))


ODD = {
    "checkpointed": Checkpointed,
    "experts": Experts,
    "functional": Functional,
    "normed": Normed,
}
MODELS = {"vgg": Vgg, "resnet": Resnet, "inception": Inception, "transformer": Transformer}
FROZEN = {
    "vgg": ("features.0",),
    "resnet": ("stem", "blocks.1.conv2"),
    "inception": ("stem", "norm"),
    "transformer": ("place", "norms.0"),
}


def made(name, dtype):
    """The model, some of its parameters frozen, and its batches of inputs and targets."""
    torch.manual_seed(7)
    model = (MODELS | ODD)[name]().to(dtype)
    for parameter, value in model.named_parameters():
        if parameter.startswith(FROZEN.get(name, ())):
            value.requires_grad_(requires_grad=False)
    if name == "transformer":
        x, y = torch.randint(0, 11, (3, 30, 6)), torch.randint(0, 11, (3, 30, 6))
    else:
        size = 8 if name in ("vgg", "inception") else 6
        x, y = torch.randn(3, 30, 3, size, size, dtype=dtype), torch.randint(0, 5, (3, 30))
    return model, x, y


def batches(x, y, steps):
    """Full batches, and each third one short."""
    for step in range(steps):
        samples = 13 if step % 3 == 2 else 30
        yield x[step % 3, :samples], y[step % 3, :samples]


def loss_of(output, target):
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


def stepped(model):
    """Clips, steps and zeroes the gradients; returns their norm."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    optimizer.register_step_pre_hook(lambda *_: away(model.parameters()))

    def step():
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()
        optimizer.step()
        optimizer.zero_grad()
        return norm

    return step


class Course(NamedTuple):
    """Gradients of the first step, norms of all, and the state at the end; by name."""

    first: dict[str, torch.Tensor]
    norms: list[float]
    end: dict[str, torch.Tensor]


def one_process(name, dtype, steps):
    """The course of a training in one process."""
    model, x, y = made(name, dtype)
    step, first, norms = stepped(model), None, []
    for inputs, targets in batches(x, y, steps):
        loss_of(model(inputs), targets).backward()
        if first is None:
            first = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        norms.append(step())
    return Course(first, norms, {n: v.clone() for n, v in model.state_dict().items()})


def random_groups(pieces, ranks, seed):
    """Groups of 1 to ``ranks`` ranks, some of them without rank 0."""
    draw = random.Random(seed)
    groups = []
    for _ in pieces:
        if groups and draw.random() < 0.5:
            groups.append(groups[-1])
            continue
        size = draw.randint(1, ranks)
        first = 0 if draw.random() < 0.5 else draw.randint(0, ranks - size)
        groups.append(Group(first, size))
    return groups


def share_of(samples, rank, ranks, *, even):
    """This rank's part of a batch; if not ``even``, most are rank 1's, and the last has none."""
    if even:
        return slice(samples * rank // ranks, samples * (rank + 1) // ranks)
    ends = [0, 2, samples, samples, samples] if ranks > 2 else [0, 2, samples]
    return slice(ends[rank], ends[rank + 1])


def on_ranks(name, dtype, steps, seed, even):
    """The course on this rank, without what it does not keep; seed 0 is data parallelism."""
    model, x, y = made(name, dtype)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pieces, output, _ = (whole if name in ODD else layered)(model, x[0, :2])
    groups = random_groups(pieces, ranks, seed) if seed else [Group(0, ranks)] * len(pieces)
    runtime = Runtime(pieces, output, groups)
    step, first, norms = stepped(model), None, []
    for inputs, targets in batches(x, y, steps):
        own = share_of(len(inputs), rank, ranks, even=even)
        loss_of(runtime.step(inputs[own]), targets[own]).backward()
        runtime.complete()
        kept = {n: p.grad for n, p in model.named_parameters() if type(p.grad) is torch.Tensor}
        first = first or {n: grad.clone() for n, grad in kept.items()}
        norms.append(step())
    end = {n: p.detach().clone() for n, p in model.named_parameters() if n in kept}
    if rank == 0:
        end |= {n: b.clone() for n, b in model.named_buffers()}
    runtime.close()
    return Course(first, norms, end)


def loses_a_rank(victim, where):
    """Trains on; the victim ends in the third step: before it, in a layer, or before its end."""
    model, x, y = made("vgg", torch.float64)
    rank = dist.get_rank()
    pieces, output, _ = layered(model, x[0, :2])
    groups = [Group(0, 3), Group(0, 2), Group(1, 2), Group(0, 1), Group(0, 3), Group(0, 3)]
    runtime = Runtime(pieces, output, groups)
    for step, (inputs, targets) in enumerate(batches(x, y, 6)):
        ends = rank == victim and step == 2
        if ends and where == "before":
            os._exit(9)
        own = share_of(len(inputs), rank, 3, even=True)
        if ends and where == "backward":
            model.classifier[4].weight.register_hook(lambda _: os._exit(9))
        loss = loss_of(runtime.step(inputs[own]), targets[own])
        if ends and where == "after":
            os._exit(9)
        loss.backward()
        runtime.complete()


def skips_backward():
    """One rank comes to the end of a batch without the backward pass of the others."""
    model, inputs = nn.Linear(4, 2), torch.ones(3, 4)
    runtime = Runtime(*whole(model, inputs)[:2], [Group(0, dist.get_world_size())])
    output = runtime.step(inputs)
    if dist.get_rank() == 0:
        output.sum().backward()
    runtime.complete()


def takes_other_layers_than_others():
    """Which layer normalises depends on the rank."""

    class Norms(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.BatchNorm1d(4) for _ in range(2))

        def forward(self, x):
            return self.norms[dist.get_rank() if len(x) > 3 else 0](x)

    model, inputs = Norms(), torch.randn(4, 4)
    Runtime(*whole(model, inputs)[:2], [Group(0, dist.get_world_size())]).step(inputs)


def has_several_gradients():
    """A layer runs in several reentrant checkpoints; its reduction begins after the first."""

    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.wide = nn.Linear(4, 4), nn.Linear(4, 4 << 16)

        def forward(self, x):
            x = self.into(x)
            for _ in range(2):
                x = checkpoint(lambda x: self.wide(x)[:, :4], x, use_reentrant=True)
            return x

    model, inputs = Again(), torch.randn(4, 4)
    runtime = Runtime(*whole(model, inputs)[:2], [Group(0, dist.get_world_size())])
    runtime.step(inputs).sum().backward()


def has_sparse_gradients():
    """An embedding whose gradient has some rows."""
    model = nn.Embedding(5, 2, sparse=True)
    Runtime(*whole(model, torch.zeros(2, 3, dtype=torch.long))[:2], [Group(0, 2)])


def has_hooks_for_gradients():
    """A hook steps the optimiser before the ranks have added up what they have."""
    model = nn.Linear(4, 2)
    model.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    Runtime(*whole(model, torch.ones(2, 4))[:2], [Group(0, 2)])


def in_a_session(reduction, plan, evaluates_on):
    """Weights after two epochs of 50 samples in batches of 16; what one rank says of evaluating."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    model, x = model.double(), torch.randn(50, 6, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    said = None
    with rota.train.session() as s:
        wrapped, optimizer = s.prepare(model, optimizer, reduction=reduction, plan=plan)
        loader = s.loader(TensorDataset(x, x.sum(1).long() % 3), batch_size=16)
        for _ in s.epochs(2):
            for batch in loader:
                for inputs, targets in batch:
                    loss_of(wrapped(inputs), targets).backward()
                nn.utils.clip_grad_norm_(wrapped.parameters(), 0.2)
                optimizer.step()
                optimizer.zero_grad()
        if rank == evaluates_on:
            try:
                with torch.no_grad():
                    said = tuple(wrapped(x).shape)
            except InputError as error:
                said = str(error)
    return {n: p.detach().clone() for n, p in model.named_parameters()}, said


class Steps(nn.Module):
    """Goes through the steps of a sequence, at a rate."""

    def __init__(self):
        super().__init__()
        self.into, self.on, self.rate = nn.Linear(3, 4), nn.Linear(4, 4), 1.0

    def forward(self, x):
        state = self.into(x[:, 0])
        for step in range(1, x.size(1)):
            state = torch.tanh(self.on(state) * self.rate) + self.into(x[:, step])
        return state


def changed_in_a_session(rate, steps):
    """What a session with a plan says of a second batch with another rate or number of steps."""
    os.environ |= {"RANK": str(dist.get_rank()), "WORLD_SIZE": str(dist.get_world_size())}
    model = Steps()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(8, steps, 3))
    try:
        with rota.train.session() as s:
            wrapped, optimizer = s.prepare(model, optimizer, reduction="burst", plan={"on": 1})
            loader = s.loader(data, batch_size=4)
            for _ in s.epochs(1):
                for number, batch in enumerate(loader):
                    for (inputs,) in batch:
                        wrapped(inputs if number else inputs[:, :2]).mean().backward()
                    model.rate = rate
                    optimizer.step()
    except InputError as error:
        return str(error)
    return None


def furthest(one, courses):
    """The largest difference of courses on ranks from one process: gradients, norms, weights.

    Those of gradients and norms are relative to the largest value.
    """
    worst = [0.0, 0.0, 0.0]
    for first, norms, end in courses:
        for name, grad in first.items():
            scale = one.first[name].abs().max()
            worst[0] = max(worst[0], ((grad - one.first[name]).abs().max() / scale).item())
        worst[1] = max(worst[1], *(abs(a - b) / b for a, b in zip(norms, one.norms, strict=True)))
        for name, value in end.items():
            difference = (value.double() - one.end[name].double()).abs().max().item()
            worst[2] = max(worst[2], difference)
    assert courses[0].first.keys() == one.first.keys()
    return worst
