"""The contract of CUDA checkpoints on a driver that is none; tests/gpu has it on a real one."""

import subprocess
import time

import pytest

from rota.errors import AgentError, ArenaError, pip_install
from rota.live.agent.cuda_checkpoint import FAILED, RUNNING, Checkpoints, NvidiaDriver, exchange
from support.checkpoint_contract import CheckpointContract, FakeDriver


@pytest.fixture
def driver():
    return FakeDriver()


@pytest.fixture
def pids(driver):
    """Two processes that seem to use CUDA."""
    sleeping = [subprocess.Popen(["sleep", "60"], env={"USES_CUDA": "1"}) for _ in range(2)]
    while not all(driver.uses_gpu(process.pid) for process in sleeping):
        time.sleep(0.001)  # one that has just been executed shows no environment for a moment
    yield [process.pid for process in sleeping]
    for process in sleeping:
        process.kill()
        process.wait()


class TestFakeDriver(CheckpointContract):
    pass


@pytest.mark.parametrize("verb", ["lock", "checkpoint"])
def test_what_can_not_be_taken_is_as_before(driver, pids, verb):
    driver.errors[verb] = "no"
    with pytest.raises(AgentError, match="no"):
        Checkpoints(driver, ["0"]).take(lambda: pids)
    assert [driver.state(pid) for pid in pids] == [RUNNING] * 2


def test_the_second_process_fails_and_the_first_is_brought_back(driver, pids, monkeypatch):
    checkpoint = driver.checkpoint

    def fail_second(pid):
        if pid == pids[1]:
            raise AgentError("no")
        checkpoint(pid)

    monkeypatch.setattr(driver, "checkpoint", fail_second)
    with pytest.raises(AgentError, match="no"):
        Checkpoints(driver, ["0"]).take(lambda: pids)
    assert [driver.state(pid) for pid in pids] == [RUNNING] * 2
    assert [verb for verb, _, _ in driver.calls if verb == "restore"] == ["restore"]


def test_what_can_not_be_undone_is_lost(driver, pids):
    driver.errors = {"checkpoint": "no", "unlock": "never"}
    with pytest.raises(ArenaError, match="no; and it could not be undone"):
        Checkpoints(driver, ["0"]).take(lambda: pids)


def test_a_process_that_begins_to_use_the_gpu_meanwhile_is_taken_too(driver, pids):
    answers = [pids[:1], pids, pids]
    assert Checkpoints(driver, ["0"]).take(lambda: answers.pop(0))
    assert {pid for verb, pid, _ in driver.calls if verb == "checkpoint"} == set(pids)


def test_processes_that_use_the_gpu_and_have_no_state_are_no_checkpoint(driver, pids, monkeypatch):
    monkeypatch.setattr(driver, "state", lambda pid: None)
    with pytest.raises(AgentError, match="the driver can't tell"):
        Checkpoints(driver, ["0"]).take(lambda: pids)


def test_a_restoration_that_changes_nothing_can_be_tried_again(driver, pids):
    node = Checkpoints(driver, ["0", "1"])
    node.take(lambda: pids)
    driver.errors["restore"] = "busy"
    with pytest.raises(AgentError, match="busy"):
        node.put_back(pids, [0], [1])
    driver.errors.clear()
    node.put_back(pids, [0], [1])
    assert [driver.state(pid) for pid in pids] == [RUNNING] * 2


@pytest.mark.parametrize("breaks", [True, False])
def test_a_restoration_that_can_not_be_tried_again_loses_the_state(driver, pids, breaks):
    node = Checkpoints(driver, ["0"])
    node.take(lambda: pids)
    driver.breaks = breaks
    driver.errors["restore" if breaks else "unlock"] = "broken"
    with pytest.raises(ArenaError, match="broken"):
        node.put_back(pids, [0], [0])
    if breaks:
        assert driver.state(pids[0]) == FAILED
        with pytest.raises(ArenaError, match="could not restore"):
            node.put_back(pids, [0], [0])


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (["a"], ["b"], {"a": "b", "b": "a", "c": "c", "d": "d"}),
        (["a", "b"], ["b", "c"], {"a": "b", "b": "c", "c": "a", "d": "d"}),
        (["a", "b"], ["c", "d"], {"a": "c", "b": "d", "c": "a", "d": "b"}),
        (["a", "b"], ["b", "a"], {"a": "b", "b": "a", "c": "c", "d": "d"}),
    ],
)
def test_every_gpu_stands_for_one(before, now, expected):
    assert exchange("abcd", before, now) == expected


def test_gpus_are_known_by_number_or_by_uuid(driver, pids):
    first, second = driver.uuids()
    node = Checkpoints(driver, [f"GPU-{second}", "0"])
    node.take(lambda: pids[:1])
    node.put_back(pids[:1], [0], [1])
    assert driver.restored_on == [{second: first, first: second}]


def test_parts_of_gpus_are_refused():
    assert "MIG" in str(Checkpoints(FakeDriver(), ["MIG-1"]).refusal)


def test_a_machine_without_a_driver_says_so(monkeypatch):
    monkeypatch.setattr("rota.live.agent.cuda_checkpoint.driver_version", lambda: 550)
    assert NvidiaDriver().refusal() == (
        "its driver is of version 550, and CUDA checkpoints take 570"
    )


def test_a_machine_without_cuda_core_says_so(monkeypatch):
    monkeypatch.setattr("rota.live.agent.cuda_checkpoint.driver_version", lambda: 570)
    monkeypatch.setitem(__import__("sys").modules, "cuda.core.checkpoint", None)
    assert pip_install("cuda") in str(NvidiaDriver().refusal())
