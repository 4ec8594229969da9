"""Train a small model with an elastic gang, in all ways that matter, and write down what happens.

In the folder --out: ``seenN`` (a line for each piece that slot N worked on: epoch, batch, samples),
``atS`` when rank 0 waits in step S for ``goS``, with the number of ranks, and ``atS.N`` when slot N
has come to that step, ``evaluated`` and ``end.pt`` (all of the state at the end). A file ``finish``
there has the number of the step that is to be the last one.
"""

import argparse
import json
import os
import random
import time
import traceback
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import rota.train

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--loop", choices=["steps", "epochs"], default="steps")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--samples", type=int, default=53)
parser.add_argument("--shards", type=int, default=4)
parser.add_argument("--lr-scaling", help="batches grow with the gang")
parser.add_argument("--adapt", action="store_true", help="batches as the agent wants them")
parser.add_argument("--per-rank", type=int, default=3, help="samples, in batches that grow")
parser.add_argument("--lr", type=float, default=0.05, help="of sgd")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--reduction", default="tree")
parser.add_argument("--ranks-of", action="append", help="LAYER=RANKS, for the reduction burst")
parser.add_argument("--profile", help="by which layers are planned for it instead")
parser.add_argument("--optimizer", choices=["sgd", "adam"], default="adam")
parser.add_argument("--model", choices=["full", "plain", "uneven"], default="full")
parser.add_argument("--amp", action="store_true", help="bfloat16, and a gradient scaler")
parser.add_argument("--gate", type=int, action="append", default=[], help="wait in this step")
parser.add_argument("--gate-in", choices=["step", "evaluate"], default="step")
parser.add_argument("--checkpoint-at", type=int, default=-1, help="in this step")
parser.add_argument("--stop-after", type=int, help="end with an error after this step")
parser.add_argument("--raise-in", type=int, help="the slot that fails in its third step")
parser.add_argument("--raise-in-rehearsal", action="store_true")
parser.add_argument("--cut", type=int, help="the slot that leaves each epoch after two batches")
parser.add_argument("--freeze-until", type=int, default=0, help="the epoch; the first layer")
parser.add_argument("--clean", action="store_true", help="no augmentation")
parser.add_argument("--slow", type=int, help="the slot that is slow")
parser.add_argument("--cores", type=float, help="a piece takes longer if there are more ranks")
parser.add_argument("--piece-s", type=float, default=0.03, help="how long if there are not")
parser.add_argument("--fits", type=int, help="more samples at once are too many for memory")
parser.add_argument("--no-loader", action="store_true")
options = parser.parse_args()
SLOT = int(os.environ.get("ROTA_SLOT", "0"))
BATCH = 12
EXCHANGE_S = 0.005  # of gradients among ranks, in what is told of steps with --cores


class Noisy(torch.utils.data.Dataset):
    """Samples with random augmentation from all the generators that programs use."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(options.samples, 6, generator=generator)
        self.y = torch.randint(3, (options.samples,), generator=generator)

    def __len__(self):
        return options.samples

    def __getitem__(self, index):
        if options.slow == SLOT:
            time.sleep(0.005)
        noise = 0.0 if options.clean else 0.1 * torch.randn(6) + 0.1 * random.random()
        return self.x[index] + noise, self.y[index], index


class Uneven(nn.Module):
    """A part of it takes no part in some shards."""

    def __init__(self):
        super().__init__()
        self.body, self.rare, self.never = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        out = self.body(x)
        return out + self.rare(x) if x[0, 0] > 0 else out


def build():
    if options.model == "uneven":
        return Uneven()
    if options.model == "plain":
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)
    )


def piece_s(world):
    """How long a piece takes that is to take as long as on so many cores."""
    return options.piece_s * max(1, world / options.cores)


def tell_planned_times(s):
    """Have steps take as long as they are meant to, by what is told of them.

    By these the scheduler chooses sizes and batches; what else the machine has to do is no matter.
    """
    note = s._progress.times.note

    def planned(cut, step_s, gradient_s, wait_s):
        world, _, accumulation = cut
        note(cut, (1 + accumulation) * piece_s(world) + EXCHANGE_S * (world > 1), piece_s(world))

    s._progress.times.note = planned


def gate(number, ranks):
    draft = options.out / f"at{number}.new"
    draft.write_text(str(ranks))
    draft.rename(options.out / f"at{number}")
    while not (options.out / f"go{number}").exists():
        time.sleep(0.002)


def is_last(step):
    finish = options.out / "finish"
    return finish.exists() and step >= int(finish.read_text())


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build()
    if options.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3, enabled=options.amp)
    with rota.train.session() as s:
        if options.cores:
            tell_planned_times(s)
        how = {"reduction": options.reduction}
        if options.ranks_of:
            pairs = (each.split("=") for each in options.ranks_of)
            how["plan"] = {layer: int(ranks) for layer, ranks in pairs}
        if options.profile:
            how["plan"] = options.profile
        wrapped, *_ = s.prepare(model, optimizer, scheduler, scaler, **how)
        if options.no_loader:
            for step in s.steps(options.steps):
                if step in options.gate:
                    gate(step, s.world_size)
            return
        sizes = {"batch_size": BATCH, "shards": options.shards}
        if options.lr_scaling:
            sizes = {"batch_size_per_rank": options.per_rank, "lr_scaling": options.lr_scaling}
        if options.adapt:
            sizes = {"batch_size": BATCH, "adapt": True}
        loader = s.loader(Noisy(), seed=3, num_workers=options.workers, **sizes)

        def train(step, batch):
            number = loader.position.batches
            newcomer = s._member.rehearses
            if step in options.gate and s.rank != 0 and not newcomer:
                (options.out / f"at{step}.{SLOT}").touch()
            for piece, (x, y, indices) in enumerate(batch):
                if step in options.gate and s.rank == 0 and not newcomer and piece == 0:
                    if options.gate_in == "evaluate":
                        with s.evaluate():
                            gate(step, s.world_size)
                    else:
                        gate(step, s.world_size)
                if newcomer and options.raise_in_rehearsal:
                    raise ValueError("no room here")
                if options.raise_in == SLOT and step == 3:
                    raise ValueError("this shard is rotten")
                if options.fits and len(x) > options.fits:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
                with open(options.out / f"seen{SLOT}", "a") as file:
                    place = [loader.position.epoch, number, indices.tolist(), newcomer]
                    file.write(json.dumps(place) + "\n")
                if options.cores:
                    time.sleep(piece_s(s.world_size))
                with torch.autocast("cpu", torch.bfloat16, enabled=options.amp):
                    loss = F.cross_entropy(wrapped(x), y)
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scheduler.step()
            s.report(loss=loss.item())
            s.save(trail=[*s.restore("trail", []), step])
            if step == options.checkpoint_at and not newcomer:
                s.checkpoint()
            if step == options.stop_after and not newcomer:
                os._exit(5)

        if options.loop == "steps":
            for step in s.steps(options.steps):
                train(step, s.next_batch())
                if is_last(step):
                    break
        else:
            for epoch in s.epochs(options.steps // -(-options.samples // BATCH)):
                if options.freeze_until:
                    model[0].requires_grad_(epoch >= options.freeze_until)
                for number, batch in enumerate(loader):
                    if options.cut == SLOT and number == 2:
                        break
                    train(loader.position.batches, batch)
        if s.rank == 0:
            state = s._training.replica.state() | {"world": s.world_size, "scaled": s.scaled_steps}
            torch.save(state, options.out / "end.pt")


try:
    main()
except SystemExit:
    os._exit(0)  # without taking torch apart, which takes a second of computation
except BaseException:
    traceback.print_exc()
    os._exit(1)
os._exit(0)
