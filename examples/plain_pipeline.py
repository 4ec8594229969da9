"""Train a small GPT with micro-batches, in one process."""

import argparse
import sysconfig
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, gelu, layer_norm, scaled_dot_product_attention

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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = load_data()
    weights = [w.requires_grad_() for w in initial_weights(2)]
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
    for step in range(1, args.steps + 1):
        x, y = draw(text)
        total = 0.0
        for inputs, targets in zip(x.chunk(MICRO), y.chunk(MICRO), strict=True):
            loss = last(weights[1], first(weights[0], inputs), targets)
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step} loss {total:.4f}", flush=True)


if __name__ == "__main__":
    main()
