"""Train a tiny model with a framework under Rota, stop where the test wants, and keep the weights.

    integrations.py KIND --out DIR      KIND: plain, fabric, accelerate, lightning, trainer

The elastic kinds go on until the file ``stop`` in the folder names a step; they write down the
digest of the weights after every step. The others make 12 steps and wait before step 5 for ``go``.
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.nn.functional as F
from torch import nn

import rota.train

STEPS, GATE, KILLED_AT, EPOCH = 12, 5, 9, 4  # EPOCH: steps in one
WORDS, LENGTH, BATCH = 64, 16, 8

parser = argparse.ArgumentParser()
parser.add_argument("kind")
parser.add_argument("--out", type=Path)
parser.add_argument("--reduction")
parser.add_argument("--limit", type=int, help="stop at this step whatever the test says")
parser.add_argument("--die", action="store_true", help="end the first attempt after some steps")
options = parser.parse_args() if __name__ == "__main__" else None


def texts(count=EPOCH * BATCH):
    """``count`` random texts of LENGTH words."""
    return torch.randint(WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(1))


def digest(model):
    """A fingerprint of the weights: equal only if all bits are."""
    found = hashlib.sha256()
    for weight in model.state_dict().values():
        found.update(weight.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def gpt2(dropout=0.1):
    """A GPT-2 of 100 000 weights that nobody has trained."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    shape = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 2}
    drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    return GPT2LMHeadModel(GPT2Config(**shape, **drop, bos_token_id=0, eos_token_id=0))


class Encoder(nn.Module):
    """A small transformer for programs that do without transformers."""

    def __init__(self, dropout=0.1):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, 64)
        layer = nn.TransformerEncoderLayer(64, 2, 128, dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(64, WORDS)

    def forward(self, x):
        return self.out(self.layers(self.words(x)))


def loss_of(model, x):
    """How badly each word is guessed from the others (causality is not the point here)."""
    return F.cross_entropy(model(x).flatten(0, 1), x.roll(-1, 1).flatten())


def parts(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    return model, optimizer, scheduler


# -- the program owns the loop: these can be resized -----------------------------------------------


def plain(s):
    model, optimizer, scheduler = parts(Encoder())
    model, optimizer, scheduler = s.prepare(
        model, optimizer, scheduler, reduction=options.reduction
    )
    return elastic_loop(
        s, getattr(model, "module", model), model, optimizer, scheduler,
        backward=torch.Tensor.backward, clip=clip,
    )  # fmt: skip


def plain_gpt2(s):
    model, optimizer, scheduler = s.prepare(*parts(gpt2()))
    return elastic_loop(s, model, model, optimizer, scheduler, torch.Tensor.backward, clip)


def fabric(s):
    from lightning.fabric import Fabric

    from rota.train.lightning import ElasticStrategy

    fabric = Fabric(accelerator="cpu", strategy=ElasticStrategy(s))
    fabric.launch()
    net, optimizer, scheduler = parts(Encoder())
    model, optimizer = fabric.setup(net, optimizer)
    model, optimizer, scheduler = s.prepare(
        model, optimizer, scheduler, reduction=options.reduction
    )

    def clip_all(model):
        fabric.clip_gradients(model, optimizer, max_norm=1.0)

    def check():
        assert (fabric.global_rank, fabric.world_size) == (s.rank, s.world_size)
        assert fabric.is_global_zero == (s.rank == 0)
        ranks = fabric.all_gather(torch.tensor(s.rank))
        assert ranks.flatten().tolist() == list(range(s.world_size))
        assert fabric.all_reduce(torch.tensor(1.0), reduce_op="sum") == s.world_size
        assert fabric.all_reduce(torch.tensor(float(s.rank))) == (s.world_size - 1) / 2
        assert fabric.broadcast(s.rank) == 0
        fabric.barrier()

    return elastic_loop(s, net, model, optimizer, scheduler, fabric.backward, clip_all, check)


def accelerate(s):
    from rota.train.huggingface import ElasticAccelerator

    accelerator = ElasticAccelerator(s)
    net, optimizer, scheduler = parts(gpt2())
    prepared, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)
    model, optimizer, scheduler, _ = s.prepare(
        prepared, optimizer, scheduler, accelerator.scaler, reduction=options.reduction
    )

    def clip_all(model):
        accelerator.clip_grad_norm_(model.parameters(), 1.0)

    def check():
        assert accelerator.is_main_process == (s.rank == 0)
        assert accelerator.on_main_process(lambda: "ran")() == ("ran" if s.rank == 0 else None)
        assert accelerator.unwrap_model(prepared) is net

    return elastic_loop(s, net, model, optimizer, scheduler, accelerator.backward, clip_all, check)


def clip(model):
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def elastic_loop(s, net, model, optimizer, scheduler, backward, clip, check=lambda: None):
    loader = s.loader(texts(), batch_size=BATCH, shards=4)
    stop = options.limit
    for step in s.steps():
        for x in s.next_batch():
            loss = model(input_ids=x, labels=x).loss if is_gpt2(net) else loss_of(model, x)
            backward(loss)
        clip(model)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        s.report(loss=loss.item())
        if not s._member.rehearses:
            check()
            with open(options.out / f"digests{s._reports._slot}", "a") as file:
                file.write(f"{step} {digest(net)} {s.world_size}\n")
        if stop is None and (options.out / "stop").exists():
            stop = int((options.out / "stop").read_text())
        if stop is None:
            time.sleep(0.02)  # do not run far ahead of the test
        elif step + 1 >= stop:
            break
    assert len(loader) == EPOCH
    return net


def is_gpt2(net):
    return type(net).__name__.startswith("GPT2")


# -- the framework owns the loop: these can be suspended -------------------------------------------


def before_step(step):
    """Wait at the gate; end the first attempt where it is to end."""
    attempt = int(os.environ.get("ROTA_ATTEMPT", "0"))
    if attempt == 1 and step == GATE:
        (options.out / "at").touch()
        while not (options.out / "go").exists():
            time.sleep(0.002)
    if attempt == 1 and options.die and step == KILLED_AT:
        os._exit(3)


def checkpoints():
    return Path(os.environ.get("ROTA_CHECKPOINT_DIR", options.out / "checkpoints"))


def lightning(s):
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torch.utils.data import DataLoader

    from rota.train.lightning import RotaCallback

    class Words(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Encoder(dropout=0.0)

        def training_step(self, x, index):
            before_step(self.trainer.global_step)
            return loss_of(self.net, x)

        def configure_optimizers(self):
            _, optimizer, scheduler = parts(self.net)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    trainer = Trainer(
        accelerator="cpu",
        devices=s.world_size,
        max_epochs=STEPS * s.world_size // EPOCH,  # the ranks of a gang share an epoch
        accumulate_grad_batches=2,
        callbacks=[RotaCallback(s), ModelCheckpoint(checkpoints(), save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    words = Words()
    trainer.fit(words, DataLoader(texts(), batch_size=BATCH // 2), ckpt_path="last")
    return words.net


def trainer(s):
    from transformers import Trainer

    from rota.train.huggingface import RotaCallback, last_checkpoint, training_arguments

    class Gated(Trainer):
        def training_step(self, *args, **kwargs):
            before_step(self.state.global_step)
            return super().training_step(*args, **kwargs)

    arguments = training_arguments(
        s,
        output_dir=str(checkpoints()),
        per_device_train_batch_size=BATCH // 2,
        gradient_accumulation_steps=2,
        max_steps=STEPS,
        save_steps=3,
        logging_steps=2,
        report_to="none",
        disable_tqdm=True,
    )
    data = [{"input_ids": x, "labels": x} for x in texts()]
    loop = Gated(gpt2(), arguments, train_dataset=data, callbacks=[RotaCallback(s)])
    loop.train(resume_from_checkpoint=last_checkpoint(checkpoints()))
    return loop.model


def main():
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    with rota.train.session() as s:
        net = globals()[options.kind](s)
        (options.out / f"rank{s.rank}.json").write_text(
            json.dumps({"digest": digest(net), "steps": s._progress.step, "world": s.world_size})
        )
        if s.rank == 0:
            torch.save(net.state_dict(), options.out / "weights.pt")


if __name__ == "__main__":
    main()
