"""A training by layer whose weights, in double precision, rank 0 saves.

python burst_on_gpus.py OUT
"""

import os
import sys

import torch
from torch import nn

import rota.train

torch.manual_seed(0)
os.environ.setdefault("ROTA_DEVICE", os.environ.get("LOCAL_RANK", "0"))
data = torch.randn(120, 3, 8, 8, dtype=torch.float64)
labels = torch.randint(5, (120,))
model = nn.Sequential(
    nn.Conv2d(3, 6, 3, padding=1, bias=False),
    nn.BatchNorm2d(6),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(6 * 64, 20),
    nn.ReLU(),
    nn.Linear(20, 5),
).double()
with rota.train.session() as s:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = s.prepare(model, optimizer, reduction="burst", plan={"0": 2, "4": 1})
    loader = s.loader(torch.utils.data.TensorDataset(data, labels), batch_size=30)
    for _ in s.epochs(5):
        for batch in loader:
            for x, y in batch:
                nn.functional.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    if s.rank == 0:
        weights = {name: each.cpu() for name, each in model.module.state_dict().items()}
        torch.save(weights, sys.argv[1])
