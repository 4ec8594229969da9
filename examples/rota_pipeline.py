"""Train a small GPT in stages, a device each, whose micro-batches overlap: one program drives them.

Each stage does a forward and a backward in turn (1F1B).
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, gelu, layer_norm, scaled_dot_product_attention

from rota import flow

WORDS, CONTEXT, WIDTH, HEADS, BLOCKS = 128, 32, 64, 4, 4
BATCH, MICRO = 32, 8  # samples of a step, and the parts that they are cut into
SHAPES = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))  # of a block
SIZES = tuple(rows * columns for rows, columns in SHAPES)
TABLE, HEAD = (WORDS + CONTEXT) * WIDTH, WIDTH * WORDS


def load_data():
    """The source of the top-level stdlib modules as ASCII codes."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    source = "".join(module.read_text(encoding="utf-8") for module in modules)
    return torch.frombuffer(bytearray(source.encode("ascii", "replace")), dtype=torch.uint8)


def draw(text):
    """Inputs and targets (BATCH, CONTEXT): the targets are the inputs' next characters."""
    starts = torch.randint(len(text) - CONTEXT, (BATCH, 1))
    chunk = text[starts + torch.arange(CONTEXT + 1)].long()
    return chunk[:, :-1], chunk[:, 1:]


def initial_weights(stages):
    """A vector for each stage: the first has the embeddings too, the last the head."""
    sizes = [sum(SIZES) * BLOCKS // stages] * stages
    sizes[0] += TABLE
    sizes[-1] += HEAD
    return [0.1 * torch.randn(size) for size in sizes]


def blocks(w, x):
    """Transformer blocks, as many as there are weights for."""
    for vector in w.view(-1, sum(SIZES)):
        parts = zip(vector.split(SIZES), SHAPES, strict=True)
        qkv, out, up, down = (part.view(shape) for part, shape in parts)
        heads = (layer_norm(x, (WIDTH,)) @ qkv).unflatten(-1, (3, HEADS, -1))
        mixed = scaled_dot_product_attention(*heads.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + mixed.transpose(1, 2).flatten(2) @ out
        x = x + gelu(layer_norm(x, (WIDTH,)) @ up) @ down
    return x


def first(w, characters):
    table = w[:TABLE].view(WORDS + CONTEXT, WIDTH)
    return blocks(w[TABLE:], table[characters] + table[WORDS:])


def last(w, x, targets):
    """What a micro-batch adds to the mean loss of its batch."""
    words = layer_norm(blocks(w[:-HEAD], x), (WIDTH,)) @ w[-HEAD:].view(WIDTH, WORDS)
    return cross_entropy(words.flatten(0, 1), targets.flatten()) / MICRO


# Functions on devices keep nothing from call to call: a backward computes its forward again.


def first_backward(w, characters, dy):
    w.requires_grad_()
    return torch.autograd.grad(first(w, characters), [w], dy)


def blocks_backward(w, x, dy):
    w.requires_grad_(), x.requires_grad_()
    return torch.autograd.grad(blocks(w, x), [w, x], dy)


def last_backward(w, x, targets):
    w.requires_grad_(), x.requires_grad_()
    loss = last(w, x, targets)
    return *torch.autograd.grad(loss, [w, x]), loss


def add(a, b):
    return a + b


def sgd(w, momentum, dw):
    momentum = 0.9 * momentum + dw
    return w - 0.1 * momentum, momentum


class Pipeline:
    """Stages on slices of a client. The methods with buffers are traced, as programs."""

    def __init__(self, client, stages):
        self.slices = [client.slice(1) for _ in range(stages)]
        middle = stages - 2
        self.forward = self.compiled([first, *[blocks] * middle])
        self.backward = self.compiled([first_backward, *[blocks_backward] * middle, last_backward])
        self.add, self.sgd = self.compiled([add] * stages), self.compiled([sgd] * stages)

    def compiled(self, functions):
        return [each.function(f) for each, f in zip(self.slices, functions, strict=False)]

    def put(self, weights):
        return [each.put(w) for each, w in zip(self.slices, weights, strict=True)]

    def put_batch(self, x, y):
        parts = [self.slices[0].put(part) for part in x.chunk(MICRO)]
        return parts + [self.slices[-1].put(part) for part in y.chunk(MICRO)]

    def gradients(self, *buffers):
        """The mean loss and the gradients, of the weights of all stages and a batch."""
        end = len(self.slices) - 1
        weights, targets = buffers[: end + 1], buffers[-MICRO:]
        x = [list(buffers[end + 1 : -MICRO]), *([] for _ in range(end))]  # of each stage
        y, dx, dw, loss = {}, {}, {}, None
        for tick in range(MICRO + end):
            for s in range(end):
                if 0 <= tick - s < MICRO:
                    y[s] = self.forward[s](weights[s], x[s][tick - s])
            for s in reversed(range(end + 1)):
                if (m := tick - end) >= 0:
                    given = dx[s + 1] if s < end else targets[m]
                    made, *more = self.backward[s](weights[s], x[s][m], given)
                    dw[s] = self.add[s](dw[s], made) if m else made
                    if s > 0:
                        dx[s] = more[0]
                    if s == end:
                        loss = self.add[s](loss, more[1]) if m else more[1]
                if s > 0 and 0 <= tick - s + 1 < MICRO:
                    x[s].append(y[s - 1].to(self.slices[s]))
        return loss, *(dw[s] for s in range(end + 1))

    def step(self, *buffers):
        """The mean loss, the new weights, the new momenta."""
        n = len(self.slices)
        weights, momenta, batch = buffers[:n], buffers[n : 2 * n], buffers[2 * n :]
        loss, *dw = self.gradients(*weights, *batch)
        new = [self.sgd[s](weights[s], momenta[s], dw[s]) for s in range(n)]
        return loss, *(w for w, _ in new), *(momentum for _, momentum in new)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--stages", type=int, default=2, choices=[2, 4])
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = load_data()
    weights = initial_weights(args.stages)
    with flow.local(args.stages) as client:
        pipeline = Pipeline(client, args.stages)
        step = client.program(pipeline.step)
        state = pipeline.put(weights) + pipeline.put([torch.zeros_like(w) for w in weights])
        for number in range(1, args.steps + 1):
            loss, *state = step(*state, *pipeline.put_batch(*draw(text)))
            if number % 10 == 0:
                print(f"step {number} loss {loss.result().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
