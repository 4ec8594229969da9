"""A training of a chosen size that logs, at every step, the device memory that its process holds.

python train_on_gpu.py WIDTH STEPS OUT
"""

import json
import sys
import time
from pathlib import Path

import torch

import rota.train

torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
width, steps, out = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])

with rota.train.session() as s:
    generator = torch.Generator().manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = s.prepare(model, optimizer)
    for _ in s.steps(steps):
        x = torch.randn(64, width, generator=generator).to(s.device)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        s.report(loss=loss.item(), samples=64)
        with out.with_suffix(".jsonl").open("a") as file:
            free, total = torch.cuda.mem_get_info(s.device)
            used = {"at_s": time.time(), "own": torch.cuda.memory_reserved(), "all": total - free}
            file.write(json.dumps(used) + "\n")
torch.save({name: value.cpu() for name, value in model.state_dict().items()}, out)
