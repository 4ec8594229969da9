"""The log by which a client tells what it has run."""

import pytest

from rota.flow import page
from rota.flow.page import Log


@pytest.fixture
def log(tmp_path, monkeypatch):
    """The host's side of a log with room for four runs, and the client's."""
    monkeypatch.setattr(page, "MOST_RUNS", 4)
    client = Log(tmp_path / "log", make=True)
    host = Log(tmp_path / "log")
    yield host, client
    client.close()
    host.close()


def test_each_run_is_taken_once(log):
    host, client = log
    for number in (1, 2, 3):
        client.add(7, number)
    assert host.take() == [(7, 1), (7, 2), (7, 3)]
    client.add(8, 4)
    client.add(8, 5)
    assert host.take() == [(8, 4), (8, 5)]
    assert host.take() == []


def test_a_host_that_was_not_woken_for_long_takes_the_last_runs_in_order(log):
    host, client = log
    for number in range(1, 12):
        client.add(7, number)
    assert host.take() == [(7, 9), (7, 10), (7, 11)]
    assert host.take() == []
    client.add(7, 12)
    assert host.take() == [(7, 12)]


class Meanwhile:
    """The words of a log, whose client runs two programs while the host reads."""

    def __init__(self, words, client):
        self.words, self.client, self.looks = words, client, 0

    def __getitem__(self, at):
        self.looks += 1
        if self.looks == 2:  # the host knows how many there are
            self.client.add(7, 5)
            self.client.add(7, 6)
        return self.words[at]


def test_runs_that_are_overwritten_while_the_host_reads_are_not_taken_for_others(log, monkeypatch):
    host, client = log
    for number in (1, 2, 3, 4):
        client.add(7, number)
    with monkeypatch.context() as patch:
        patch.setattr(host, "_words", Meanwhile(host._words, client))
        assert host.take() == [(7, 4)]
    assert host.take() == [(7, 5), (7, 6)]
