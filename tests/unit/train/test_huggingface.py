"""How Accelerate and Trainer are kept to the devices of the job, and where Trainer goes on."""

import json
from types import SimpleNamespace

import pytest
import torch
from accelerate.state import AcceleratorState, DistributedType, PartialState
from transformers import TrainingArguments
from transformers.trainer_callback import TrainerControl, TrainerState
from transformers.training_args import ParallelMode

from rota.errors import GangError, InputError
from rota.train import session
from rota.train.huggingface import (
    ElasticAccelerator,
    RotaCallback,
    _follow,
    last_checkpoint,
    training_arguments,
)

OTHER_GPU = torch.device("cuda", 1)


@pytest.fixture(autouse=True)
def fresh_state():
    """Accelerate keeps its view of the world for as long as the process lives."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def second_of_two(monkeypatch):
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)


def test_accelerate_sees_one_process_and_prints_on_rank_0_only(second_of_two, capsys):
    accelerator = ElasticAccelerator(session())
    assert (accelerator.num_processes, accelerator.use_distributed) == (1, False)
    assert not accelerator.is_main_process
    assert not accelerator.is_local_main_process
    assert accelerator.on_main_process(lambda: "ran")() is None
    accelerator.print("not on this rank")
    assert capsys.readouterr().out == ""
    assert accelerator.device == torch.device("cpu")


def test_accumulating_gradients_is_left_to_the_pieces_of_a_batch():
    with pytest.raises(InputError, match=r"gradient_accumulation_steps=4 must be 1 .* s\.loader"):
        ElasticAccelerator(session(), gradient_accumulation_steps=4)


def test_an_accelerator_that_comes_too_late_is_an_error():
    PartialState(cpu=True).distributed_type = DistributedType.MULTI_CPU
    with pytest.raises(InputError, match="before any Accelerator, PartialState or TrainingArg"):
        ElasticAccelerator(session())


def test_arguments_of_a_job_of_one_process_are_for_one_device(monkeypatch, tmp_path):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    arguments = training_arguments(session(), output_dir=str(tmp_path), report_to="none")
    assert arguments.parallel_mode == ParallelMode.NOT_PARALLEL
    assert (arguments.device, arguments.n_gpu) == (torch.device("cpu"), 0)


def test_arguments_may_be_of_a_class_of_its_own(tmp_path):
    class Own(TrainingArguments):
        pass

    arguments = training_arguments(session(), Own, output_dir=str(tmp_path), max_steps=3)
    assert (type(arguments), arguments.max_steps) == (Own, 3)


def test_steps_samples_and_what_is_logged_are_reported():
    model = torch.nn.Linear(2, 2)
    parts = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    parts["train_dataloader"] = None
    arguments = SimpleNamespace(
        train_batch_size=8, gradient_accumulation_steps=2, world_size=1, device="cpu"
    )
    state, control = TrainerState(global_step=3, max_steps=9), TrainerControl()
    with session() as s:
        callback = RotaCallback(s)
        callback.on_train_begin(arguments, state, control, **parts)
        callback.on_step_end(arguments, state, control, **parts)
        logs = {"loss": 2.5, "learning_rate": 0.1, "samples": 7, "note": "text"}
        callback.on_log(arguments, state, control, logs=logs, **parts)
        told = s._progress.message()
    assert (told["step"], told["total"], told["samples"]) == (4, 9, 4 * 16)
    assert (told["loss"], told["metrics"]) == (2.5, {"learning_rate": 0.1})


def test_the_last_checkpoint_is_the_newest_whole_one(tmp_path):
    assert last_checkpoint(tmp_path / "missing") is None
    assert last_checkpoint(tmp_path) is None
    for step in (5, 10, 15, 20):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for step in (5, 10):
        state = json.dumps({"global_step": step})
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    (tmp_path / "checkpoint-15" / "trainer_state.json").write_text('{"global_st')
    (tmp_path / "checkpoint-best").mkdir()
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")


def test_a_trainer_of_one_device_follows_the_job_to_another_gpu(tmp_path):
    arguments = training_arguments(session(), output_dir=str(tmp_path), report_to="none")
    batches = SimpleNamespace(device=torch.device("cpu"))
    _follow(OTHER_GPU, arguments, batches)
    assert (arguments.device, batches.device) == (OTHER_GPU, OTHER_GPU)
    assert PartialState().device == OTHER_GPU


def test_a_trainer_that_uses_ddp_can_not_follow():
    arguments = SimpleNamespace(device="cuda:0", parallel_mode=ParallelMode.DISTRIBUTED)
    with pytest.raises(GangError, match="DistributedDataParallel can't leave cuda:0"):
        _follow(OTHER_GPU, arguments, None)
