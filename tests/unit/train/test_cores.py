"""The cores of a rank, and the loader workers that it gets for them."""

import os

import pytest

from rota.train.cores import MOST_WORKERS, Cores


@pytest.fixture
def cores(monkeypatch):
    """Cores of a process that is bound to eight, and was told nothing."""
    monkeypatch.delenv("ROTA_CPUS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    return Cores()


def test_without_a_share_the_ranks_divide_what_they_are_bound_to(cores):
    assert [cores.workers(ranks) for ranks in (1, 2, 3, 16)] == [8, 4, 2, 1]


@pytest.mark.parametrize(
    ("millicores", "ranks", "workers"),
    [(6000, 1, 6), (6500, 2, 3), (250, 1, 1), (16000, 1, 8), (16000, 4, 4)],
)
def test_a_share_is_that_of_all_ranks_and_ends_at_the_affinity(cores, millicores, ranks, workers):
    cores.millicores = millicores
    assert cores.workers(ranks) == workers


def test_a_machine_of_many_cores_does_not_have_as_many_workers(cores, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(256)))
    assert cores.workers(1) == MOST_WORKERS


@pytest.mark.parametrize(
    ("told", "millicores"), [("3", 3000), ("0", None), ("", None), ("all", None), ("²", None)]
)
def test_the_share_is_first_that_of_the_environment(monkeypatch, told, millicores):
    monkeypatch.setenv("ROTA_CPUS", told)
    assert Cores().millicores == millicores
