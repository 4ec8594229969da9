"""``rota report`` in front of a real controller that runs no jobs."""

import json

import pytest

from rota.folder import Folder
from rota.model.events import JobFinished
from rota.model.job import JobState
from support.served import controller_without_agents, served


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    for name in ("ROTA_SERVER", "ROTA_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    folder = Folder().create()
    with served(folder, controller_without_agents(folder)) as it:
        yield it


def test_an_empty_history_is_a_sentence(cluster, rota):
    code, out, _ = rota("report")
    assert code == 0
    assert out == "no job has been submitted to this cluster yet; `rota run` submits one\n"
    assert rota("report", "--since", "7d")[1] == "no job went on in the last 7d\n"


def test_jobs_are_counted_by_state_and_told_by_queue(cluster, rota, tmp_path):
    rota("run", "--queue", "vision", "--", "true")
    rota("run", "--", "true")
    controller = cluster.controller
    ended = JobFinished(controller.now_s(), 1, JobState.FAILED, 1)
    cluster.do(lambda: controller.journal.note(ended))
    code, out, _ = rota("report")
    assert code == 0
    first, _, table = out.partition("\n")
    assert "policy fifo-backfill; jobs: 1 FAILED; not ended: 1 " in first
    assert "by user" in table and "by queue" in table and "vision" in table
    told = json.loads(rota("report", "--since", "1h", "--json")[1])
    assert (told["jobs"], told["ended"]) == (2, {"FAILED": 1})
    assert sorted(told["queues"]) == ["(none)", "vision"]


def test_a_page_is_written(cluster, rota, tmp_path):
    rota("run", "--", "true")
    code, _, err = rota("report", "--html", "r.html")
    assert (code, err) == (0, "wrote r.html\n")
    assert "How jobs fared" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("args", "words"),
    [(("--since", "yesterday"), "--since"), (("--html", "no/r.html"), "there is no folder no")],
)
def test_what_is_wrong_is_named(cluster, rota, args, words):
    code, _, err = rota("report", *args)
    assert code == 2
    assert words in err
