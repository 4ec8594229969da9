"""The experiment on a real Slurm."""

import pytest

from rota.errors import SimulationError
from rota.experiment import engines_timeslice
from rota.experiment.runs.slurm import Job, Node, idle_node
from support.slurm import GPUS, Slurm

STEPS = 100


@pytest.fixture(autouse=True)
def here(slurm: Slurm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)


def test_both_jobs_advance_with_rota_and_one_under_slurm(slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(engines_timeslice, "SEEDS", [1])
    monkeypatch.setattr(engines_timeslice, "STEPS", STEPS)
    monkeypatch.setattr(engines_timeslice, "QUANTUM_S", 1.0)
    outcome = engines_timeslice.run(partition="gpu")
    (said,) = outcome.settings["second job while the first runs, Slurm alone"]
    assert said == "PENDING (Resources)"
    assert outcome.settings["node"]["gpus"] == GPUS
    share = outcome.figures[0]
    assert share.baseline == 0.0
    assert share.ours > 0.0
    assert not slurm.jobs("PD,R,CG,S")
    assert not list(tmp_path.iterdir())


def test_a_job_of_slurm_that_fails_is_told_with_its_last_words(tmp_path):
    node = idle_node()
    job = Job(node, ["sh", "-c", "echo no such model; exit 3"], tmp_path / "job.log")
    with pytest.raises(SimulationError, match=f"{job.id}: FAILED.*no such model"):
        job.wait(60.0)


def test_a_node_that_a_job_has_is_not_idle(slurm, tmp_path):
    node = idle_node("gpu")
    assert node == Node("n1", "gpu", GPUS)
    job = Job(node, ["sleep", "600"], tmp_path / "job.log")
    while job.state()[0] != "RUNNING":
        pass
    assert idle_node("gpu").name == "n2"
    job.cancel()
    assert not slurm.jobs("PD,R,CG,S")
