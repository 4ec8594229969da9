import os

import pytest

from rota.live.agent import devices
from rota.live.agent.devices import Devices, discover, visible_ids


def test_without_gpus_there_is_a_slot_per_core_and_more_share_them_in_turn(monkeypatch):
    monkeypatch.setattr(devices, "count_gpus", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 1})
    assert discover(None) == Devices("cpu", 2, (1, 3))
    assert discover(1) == Devices("cpu", 1, (1,))
    assert discover(5) == Devices("cpu", 5, (1, 3, 1, 3, 1))
    assert discover(5).cores_of([4, 1]) == [1, 3]
    assert discover(2, 3) == Devices("cpu", 2, (3, 1))


def test_no_more_gpus_are_offered_than_there_are(monkeypatch):
    monkeypatch.setattr(devices, "count_gpus", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert discover(None) == Devices("cuda", 4, ids=("0", "1", "2", "3"))
    assert discover(2) == Devices("cuda", 2, ids=("0", "1"))
    assert discover(2, 1) == Devices("cuda", 2, ids=("1", "2"))
    assert discover(9).num_gpus == 4
    assert discover(None).cores_of([0]) == []


def test_gpus_that_are_hidden_from_the_agent_are_not_offered(monkeypatch):
    monkeypatch.setattr(devices, "count_gpus", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert discover(None) == Devices("cuda", 2, ids=("3", "1"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert discover(1).kind == "cpu"


@pytest.mark.parametrize(
    ("setting", "ids"),
    [
        (None, ("0", "1")),
        ("1", ("1",)),
        (" 1 , 0 ", ("1", "0")),
        ("-1", ()),
        ("0,-1,1", ("0",)),
        ("7", ()),
        ("GPU-8932f937,1", ("GPU-8932f937", "1")),
    ],
)
def test_the_setting_is_read_as_cuda_reads_it(setting, ids):
    assert visible_ids(2, setting) == ids
