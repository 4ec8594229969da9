"""Checkpoints on a full disk: training goes on, and they are written when there is room."""

import errno
import os

import pytest
import torch
from torch import nn

from rota.live.wire import WAITING
from rota.train import checkpoint
from rota.train.pulse import Pulse
from rota.train.session import Session
from support.small_disk import fill, small_disk

MIB = 1 << 20


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A disk with room for one checkpoint and the draft of another, beside a few files."""
    with small_disk(tmp_path / "disk", 8 * MIB) as disk:
        monkeypatch.setenv("ROTA_CHECKPOINT_DIR", str(disk))
        monkeypatch.setattr(checkpoint, "AGAIN_S", 0.0)
        yield disk


class Training:
    """Steps of a model of 1 MiB; ``at`` has what to do in a step, before its checkpoint."""

    def __init__(self, steps=6, checkpoints=range(100), at=None):
        torch.manual_seed(1)
        model = nn.Linear(512, 512)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.done = []
        with Session() as s:
            s.prepare(model, optimizer)
            self.progress = s._progress
            for step in s.steps(steps):
                generator = torch.Generator().manual_seed(step)
                model(torch.randn(2, 512, generator=generator)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                self.done.append(step)
                if at and step in at:
                    at[step]()
                if step in checkpoints:
                    s.checkpoint()
        self.weights = model.weight.detach()


def saved_step(disk):
    return torch.load(disk / "rota.pt", weights_only=False)["plain"]["step"]


def test_it_goes_on_with_the_checkpoint_of_before_and_writes_it_when_there_is_room(disk, capfd):
    undisturbed = Training(10, checkpoints=()).weights
    seen = []

    def look():
        seen.append((saved_step(disk), sorted(os.listdir(disk))))

    Training(5, [1, 2], {2: lambda: fill(disk), 3: look, 4: (disk / "filler").unlink})
    assert seen == [(2, ["filler", "rota.pt"])]
    assert saved_step(disk) == 5, "the boundary after the last step found room"
    first, second = capfd.readouterr().err.splitlines()
    assert first == (
        "rota: after 3 steps the checkpoint can't be written: No space left on device; make room "
        "on its disk; training goes on, and it is tried again every 0 s"
    )
    assert second == "rota: the checkpoint is written, after 5 steps"
    resumed = Training(10, checkpoints=())
    assert resumed.done == [5, 6, 7, 8, 9]
    assert resumed.progress.unsaved is None
    assert torch.equal(resumed.weights, undisturbed)


def test_what_there_is_no_room_for_is_not_begun(disk):
    Training(2, [0])
    used = os.statvfs(disk).f_bavail
    fill(disk, leave_bytes=MIB // 2)
    told = []
    with Session() as s:
        model = nn.Linear(512, 512)
        s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        before = os.statvfs(disk).f_bavail
        s.checkpoint()
        told.append(os.statvfs(disk).f_bavail)
        (disk / "filler").unlink()
    assert told == [before]
    assert os.statvfs(disk).f_bavail == used


def test_a_training_that_has_ended_waits_until_its_checkpoint_is_written(disk, monkeypatch, capfd):
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            (disk / "filler").unlink()

    monkeypatch.setattr(checkpoint.time, "sleep", sleep)
    Training(3, [2], {2: lambda: fill(disk)})
    assert len(slept) == 3
    assert saved_step(disk) == 3
    assert "training has ended, and waits until its checkpoint" in capfd.readouterr().err


def test_a_training_that_fails_does_not_wait(disk, monkeypatch):
    monkeypatch.setattr(checkpoint.time, "sleep", lambda _: pytest.fail("it waits"))

    def fails():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Training(3, [1], {1: lambda: fill(disk), 2: fails})
    assert not (disk / "rota.pt").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_room_that_is_gone_while_it_is_written_is_owed_too(disk, number):
    """torch complains about its file then, and forgets why it is not whole."""

    def full(state, file):
        try:
            raise OSError(number, os.strerror(number))
        finally:
            raise RuntimeError("unexpected pos 704 vs 598")

    with pytest.MonkeyPatch.context() as patch:
        at = {1: lambda: patch.setattr(torch, "save", full), 2: patch.undo}
        Training(3, [1], at)
    assert saved_step(disk) == 3


def test_what_else_torch_complains_of_is_not_hidden(disk, monkeypatch):
    def fails(state, file):
        raise RuntimeError("on purpose")

    monkeypatch.setattr(torch, "save", fails)
    with pytest.raises(RuntimeError, match="on purpose"):
        Training(3, [1])


def test_a_full_disk_that_the_training_copes_with_is_no_cause_of_what_torch_complains_of(
    disk, monkeypatch
):
    def fails(state, file):
        raise RuntimeError("can't pickle this")

    monkeypatch.setattr(torch, "save", fails)
    model = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="can't pickle this"), Session() as s:
        s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in s.steps(1):
            try:
                raise OSError(errno.ENOSPC, "no room for a file of its own")
            except OSError:
                s.checkpoint()
                pytest.fail("it is taken for a full disk")


def test_a_pulse_without_room_is_felt_by_nobody(tmp_path):
    with small_disk(tmp_path / "disk", MIB) as disk:
        fill(disk)
        pulse = Pulse(str(disk / "pulse"))
        pulse.enter(WAITING)
        (disk / "filler").unlink()
        pulse = Pulse(str(disk / "pulse"))
        fill(disk)
        pulse.enter(WAITING)
        assert (disk / "pulse").read_bytes() != bytes(32)
