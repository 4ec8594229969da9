"""Train a multilayer perceptron on handwritten digits, from checkpoints of the program's own.

It is asked to leave by SIGTERM: it saves, and goes on from there when it is started again. Rota
tells it the folder and nothing else; without Rota it is the current one.
"""

import argparse
import os
import signal
import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

CHECKPOINT = os.path.join(os.environ.get("ROTA_CHECKPOINT_DIR", "."), "digits.pt")
SAVE_EVERY = 500


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the data order")
    return parser.parse_args()


def save(step, model, optimizer):
    """Write the state after ``step`` steps: the file is whole, or the one before it."""
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, CHECKPOINT + ".new")
    os.replace(CHECKPOINT + ".new", CHECKPOINT)


def load(model, optimizer):
    """The number of steps that were done before, whose outcome is taken over."""
    if not os.path.exists(CHECKPOINT):
        return 0
    state = torch.load(CHECKPOINT)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    print(f"goes on after step {state['step']}", flush=True)
    return state["step"]


def main():
    torch.set_num_threads(1)
    args = parse_args()
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))  # looked at between two steps
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    for step in range(load(model, optimizer), args.steps):
        generator = torch.Generator().manual_seed(args.seed + step)  # the same batch as ever
        batch = torch.randint(len(images), (args.batch_size,), generator=generator)
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % SAVE_EVERY == 0 or asked:
            save(step + 1, model, optimizer)
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
        if asked:
            print(f"leaves after step {step + 1}", flush=True)
            sys.exit(0)
    print(f"done after {args.steps} steps", flush=True)


if __name__ == "__main__":
    main()
