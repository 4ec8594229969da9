"""A state folder is of one allocation at a time, or of pilots."""

import json

import pytest

from rota.errors import InputError
from rota.folder import Folder
from rota.live.provider.slurm import Answer
from rota.server import slurm
from rota.server.slurm import AllocationEngine, SlurmEngine

UNREACHED = "Unable to contact slurm controller"
GONE = Answer(1, "", "slurm_load_jobs error: Invalid job id specified")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    says(monkeypatch, Answer(0, "n1\nn2\n", ""))
    return Folder(tmp_path).create()


def says(monkeypatch, answer):
    monkeypatch.setattr(slurm, "call", lambda *command: answer)


def has_nodes(folder, file):
    asked_s = {"rota-1": -1.0}
    (folder.path / file).write_text(json.dumps({"last": 1, "asked_s": asked_s}))


def test_all_hosts_of_the_allocation_are_nodes(folder):
    engine = AllocationEngine(folder, [])
    engine.check()
    assert engine.bounds == (2, 2)


def test_hosts_that_slurm_does_not_tell_are_an_error_with_a_fix(folder, monkeypatch):
    says(monkeypatch, Answer(127, "", "scontrol: No such file or directory"))
    with pytest.raises(InputError, match=r"hosts of job 17 can't be told: scontrol.*SLURM_JOB_ID"):
        AllocationEngine(folder, [])


def test_pilots_are_given_back_before_an_allocation_is_used(folder):
    has_nodes(folder, "slurm.json")
    with pytest.raises(InputError, match="has pilots; `rota down` outside of an allocation"):
        AllocationEngine(folder, []).check()


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (Answer(0, "RUNNING\n", ""), "those of job 16, which goes on: run it there"),
        (Answer(1, "", UNREACHED), f"those of job 16, of which squeue does not tell: {UNREACHED}"),
        (Answer(0, "NODE_FAIL\n", ""), "job 16, .*, ended by NODE_FAIL, and jobs may go on there"),
        (Answer(0, "TIMEOUT\n", ""), ""),
        (GONE, ""),
    ],
    ids=["runs", "no answer", "not heard", "over", "forgotten"],
)
def test_nodes_of_another_job_are_forgotten_once_that_has_ended(folder, monkeypatch, said, error):
    engines = [AllocationEngine(folder, []), SlurmEngine(folder, (1, 1), [], [])]
    monkeypatch.setattr(slurm, "refusal", lambda words: None)
    says(monkeypatch, said)
    for engine in engines:
        has_nodes(folder, "slurm-16.json")
        if error:
            with pytest.raises(InputError, match=error):
                engine.check()
        else:
            engine.check()
            engine.provider(None)
        assert (folder.path / "slurm-16.json").exists() is bool(error)


def test_a_cluster_goes_on_in_its_own_allocation(folder):
    has_nodes(folder, "slurm-17.json")
    AllocationEngine(folder, []).check()
    assert (folder.path / "slurm-17.json").exists()


def test_steps_and_pilots_that_can_not_be_cancelled_are_an_error(folder, monkeypatch):
    has_nodes(folder, "slurm-17.json")
    monkeypatch.setattr(slurm, "cancel_steps", lambda job, asked: f"{job} stays")
    with pytest.raises(slurm.ServerError, match="can't be cancelled: 17 stays"):
        slurm.cancel_pilots(folder)


def test_slurm_is_not_asked_where_nothing_is_left(folder, monkeypatch):
    for file in ("slurm.json", "slurm-17.json"):
        (folder.path / file).write_text(json.dumps({"last": 1, "asked_s": {}}))
    for name in ("cancel_steps", "cancel_all"):
        monkeypatch.setattr(slurm, name, lambda *asked: "Slurm is not there")
    slurm.cancel_pilots(folder)
