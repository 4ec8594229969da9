"""A background training for the tests of mechanisms: its gate is told a page, if there is one."""

import sys

import torch

import rota.train

torch.set_num_threads(1)

with rota.train.session() as s:
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    model, optimizer = s.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    for step in s.steps(int(sys.argv[2])):
        optimizer.zero_grad()
        for _ in range(20):
            model(torch.ones(64, 64)).square().mean().backward()
        optimizer.step()
        with open(sys.argv[1], "w") as told:
            told.write(f"{step + 1:9d}")
