"""Train, and in each step print a line and write a checkpoint, until the file ``enough`` is there.

A byte for each step is added to ``steps``; both files are in the folder that is given.
"""

import sys
import time
from pathlib import Path

import torch

import rota.train

folder = Path(sys.argv[1])
model = torch.nn.Linear(100, 100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with rota.train.session() as s:
    s.prepare(model, optimizer)
    for step in s.steps():
        model(torch.randn(4, 100)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step)
        s.checkpoint()
        with open(folder / "steps", "ab") as steps:
            steps.write(b".")
        if (folder / "enough").exists():
            break
        time.sleep(0.01)  # its pace
