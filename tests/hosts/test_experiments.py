"""Experiments on several machines."""

import os
import subprocess

import pytest

from rota.experiment import gandiva_timeslice
from rota.experiment.runs import hosts

STEPS = 20


def test_an_experiment_runs_on_machines_of_its_own_and_leaves_none_behind(monkeypatch):
    if reason := hosts.why_none():
        pytest.skip(reason)
    monkeypatch.setattr(gandiva_timeslice, "LIVE_STEPS", STEPS)
    seen, wait = [], gandiva_timeslice.wait_for_all

    def waiting(client, jobs, within_s):
        wait(client, jobs, within_s)
        seen.extend((node["name"], node["num_gpus"], node["connected"]) for node in client.nodes())

    monkeypatch.setattr(gandiva_timeslice, "wait_for_all", waiting)
    before = networks()
    times = gandiva_timeslice._live("fifo", 2)
    assert [len(each) for each in times] == [STEPS] * 4
    assert seen == [("host0", 1, True), ("host1", 1, True)]
    assert networks() == before


def networks():
    """The network namespaces that this process has made; others make theirs beside."""
    told = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    mine = f"rt{os.getpid() % 100_000}x"
    return {line.split()[0] for line in told.stdout.splitlines() if line.startswith(mine)}
