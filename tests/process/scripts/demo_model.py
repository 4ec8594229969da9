"""Train one of the demo's models with an elastic loader: demo_model.py FOLDER NAME STEPS.

FOLDER holds the examples, of which the model, its data and its optimiser's settings are taken.
"""

import importlib
import sys

import torch
import torch.nn.functional as F

import rota.train

folder, name, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.path.insert(0, folder)
example = importlib.import_module(f"rota_{name}")
torch.set_num_threads(1)
torch.manual_seed(0)


def parts(device):
    """The model, its optimiser, how many samples there are, and the loss of some of them."""
    if name.startswith("char"):
        text, _ = example.load_data(device)
        model = example.GPT() if name == "char_gpt" else example.LSTM()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        starts = len(text) - example.CONTEXT
        return (
            model,
            optimizer,
            starts,
            lambda net, i: example.cross_entropy(net, *example.windows(text, i)),
        )
    if name == "recsys_mf":
        (users, items, values), _ = example.load_data(device)
        model = example.MatrixFactorisation()
        optimizer = torch.optim.AdamW(model.parameters(), lr=7e-3)
        return (
            model,
            optimizer,
            len(values),
            lambda net, i: F.mse_loss(net(users[i], items[i]), values[i]),
        )
    x, _, y, _ = example.load_data(device)
    model = example.ViT() if name == "digits_vit" else example.build_model()
    if name == "digits_mlp":
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer, len(x), lambda net, i: F.cross_entropy(net(x[i]), y[i])


with rota.train.session() as s:
    model, optimizer, num_samples, loss_of = parts(s.device)
    model, optimizer = s.prepare(model, optimizer)
    s.loader(range(num_samples), batch_size=16, shards=2)
    same = torch.arange(256)  # the loss of a few samples says more if they are the same ones
    for step in s.steps(steps):
        if step % 5 == 0:
            with torch.no_grad():
                now = loss_of(model, same).item()
            s.report(loss=now)
            if step == 0:
                s.report(first_loss=now)
        for indices in s.next_batch():
            loss_of(model, indices).backward()
        optimizer.step()
        optimizer.zero_grad()
