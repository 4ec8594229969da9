"""What Fabric is told of the gang, and how the callback counts and follows."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from rota.errors import GangError, InputError
from rota.train import session
from rota.train.lightning import ElasticStrategy, RotaCallback, _follow

OTHER_GPU = torch.device("cuda", 1)


def trainer(**more):
    """As much of a Trainer as the callback looks at."""
    usual = {"optimizers": [], "world_size": 1, "global_step": 0, "accumulate_grad_batches": 2}
    return SimpleNamespace(
        **usual | {"strategy": SingleDeviceStrategy(), "estimated_stepping_batches": 7} | more
    )


def test_importing_the_library_loads_no_framework_and_no_torch():
    code = (
        "import sys, rota.train; "
        "print({'torch', 'lightning', 'accelerate', 'transformers'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


def test_the_strategy_knows_what_the_session_knows(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    strategy = ElasticStrategy(session())
    assert (strategy.global_rank, strategy.local_rank, strategy.world_size) == (2, 2, 3)
    assert not strategy.is_global_zero


def test_collectives_of_a_process_alone_give_back_what_they_get():
    strategy = ElasticStrategy(session())
    value = torch.tensor([1.0, 2.0])
    assert strategy.all_reduce(value) is value
    assert strategy.all_gather(value) is value
    assert strategy.broadcast("word") == "word"
    strategy.barrier()


def test_a_step_is_an_optimiser_step_and_has_the_samples_of_all_its_batches_and_ranks():
    module, batch = LightningModule(), torch.zeros(4, 3)
    with session() as s:
        callback, loop = RotaCallback(s), trainer(world_size=2)
        callback.on_train_start(loop, module)
        for index in range(5):
            loop.global_step = (index + 1) // 2  # two batches are accumulated
            callback.on_train_batch_end(loop, module, {"loss": torch.tensor(0.5)}, batch, index)
        assert callback.state_dict() == {"steps": 2, "samples": 2 * 2 * 4 * 2}
        told = s._progress.message()
    assert (told["step"], told["total"], told["samples"], told["loss"]) == (2, 7, 32, 1.0)


def test_a_batch_that_does_not_tell_its_size_and_a_step_without_loss_are_no_errors():
    module = LightningModule()
    with session() as s:
        callback, loop = RotaCallback(s), trainer(estimated_stepping_batches=float("inf"))
        callback.on_train_start(loop, module)
        loop.global_step = 1
        callback.on_train_batch_end(loop, module, None, "text", 0)
        told = s._progress.message()
    assert (told["step"], told["total"], told["samples"], told["loss"]) == (1, None, 0, None)


def test_what_is_logged_at_a_validation_is_reported_but_for_the_check_before_training():
    logged = {"val_acc": torch.tensor(0.5), "bins": torch.ones(2), "loss": torch.tensor(9.0)}
    with session() as s:
        callback = RotaCallback(s)
        callback.on_validation_end(trainer(sanity_checking=True, callback_metrics=logged), None)
        assert s._progress.message()["metrics"] == {}
        callback.on_validation_end(trainer(sanity_checking=False, callback_metrics=logged), None)
        told = s._progress.message()
    assert (told["metrics"], told["loss"]) == ({"val_acc": 0.5}, None)


def test_counts_go_on_where_a_checkpoint_left_them():
    with session() as s:
        callback = RotaCallback(s)
        callback.load_state_dict({"steps": 5, "samples": 80})
        callback.on_train_start(trainer(global_step=5), LightningModule())
        assert (s._progress.step, s._progress.samples) == (5, 80)


def test_a_trainer_that_trains_on_other_ranks_than_the_job_has_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("ROTA_AGENT_SOCKET", os.fspath(tmp_path / "nobody"))
    with session() as s, pytest.raises(InputError, match="trains on 2 ranks, and the job has 1"):
        RotaCallback(s).on_train_start(trainer(world_size=2), LightningModule())


def test_the_strategy_of_one_device_follows_the_job_to_another_gpu():
    moved = []
    loop = trainer()
    _follow(OTHER_GPU, loop, SimpleNamespace(to=moved.append))
    assert (loop.strategy.root_device, moved) == (OTHER_GPU, [OTHER_GPU])
    _follow(OTHER_GPU, loop, SimpleNamespace(to=moved.append))
    assert len(moved) == 1


def test_ddp_can_not_follow_the_job_to_another_gpu():
    strategy = DDPStrategy(parallel_devices=[torch.device("cuda", 0)])
    strategy.cluster_environment = SimpleNamespace(local_rank=lambda: 0)
    with pytest.raises(GangError, match="DDPStrategy can't leave cuda:0"):
        _follow(OTHER_GPU, trainer(strategy=strategy), None)
