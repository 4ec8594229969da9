"""``rota node``: what it says, and how times are read."""

import json
from datetime import datetime, timedelta
from getpass import getuser

import pytest

from rota.cli.node import seconds_until
from rota.errors import InputError
from rota.folder import Folder
from support.served import controller_without_agents, served

NOON = datetime(2031, 5, 20, 12, 0).timestamp()


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))
    folder = Folder(tmp_path / "home").create()
    with served(folder, controller_without_agents(folder)) as it:
        yield it


def state(rota):
    """The column STATE of the only node."""
    header, line = rota("nodes")[1].splitlines()
    return line[header.index("STATE") : header.index("GPU:JOB")].strip()


def test_a_node_is_cordoned_drained_and_enabled(rota, cluster):
    assert rota("node", "cordon", "here") == (0, "node here: cordoned; it takes no new job\n", "")
    assert state(rota) == f"away, cordoned ({getuser()})"
    assert rota("node", "cordon", "here")[1] == "node here: cordoned; it was so before\n"
    drained = "node here: drained; it takes no new job, and its jobs leave it\n"
    assert rota("node", "drain", "here")[1] == drained
    assert rota("node", "drain", "here")[1] == "node here: drained; it was so before\n"
    assert rota("node", "enable", "here")[1] == "node here: enabled; it takes jobs again\n"
    assert rota("node", "enable", "here")[1] == "node here: enabled; it was so before\n"
    assert state(rota) == "away"


def test_by_when_a_node_is_to_be_empty_is_told(rota, cluster):
    before_s = cluster.controller.now_s()
    assert rota("node", "drain", "here", "--by", "2h")[0] == 0
    (node,) = json.loads(rota("nodes", "-o", "json")[1])
    assert node["closed"] == "drained"
    assert 0 <= node["drain_by_s"] - before_s - 7200 < 60


def test_a_job_that_waits_for_a_cordoned_node_is_taken_and_told_why(rota, cluster):
    rota("node", "cordon", "here")
    assert rota("run", "--gpus", "2", "--", "true")[0] == 0
    assert "nodes that it needs are cordoned or drained" in rota("why", "1")[1]
    code, _, error = rota("run", "--gpus", "3", "--", "true")
    assert (code, "this cluster has 2" in error) == (3, True)


def test_an_unknown_node_is_an_error_and_the_others_are_still_cordoned(rota, cluster):
    code, out, error = rota("node", "cordon", "her", "here")
    assert (code, out) == (1, "node here: cordoned; it takes no new job\n")
    hint = "(did you mean 'here'?); `rota nodes --all` lists them"
    assert error == f"error: there is no node 'her' {hint}\n"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("2h", 7200),
        ("14:00", 7200),
        ("12:00:30", 30),
        ("2031-05-21T12:00", timedelta(days=1).total_seconds()),
        ("2031-05-21 12:00", timedelta(days=1).total_seconds()),
    ],
)
def test_times_are_durations_or_moments(text, seconds):
    assert seconds_until(text, NOON) == seconds


@pytest.mark.parametrize("text", ["11:59", "2031-05-20T12:00", "0s", "soon", "25:00", "2031-05-21"])
def test_a_time_that_is_past_or_none_is_refused(text):
    with pytest.raises(InputError, match="--by"):
        seconds_until(text, NOON)
