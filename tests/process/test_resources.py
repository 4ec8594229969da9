"""What jobs ask for beside GPUs, and what they have run before them, on a real cluster."""

import pytest

from rota.errors import NeverFitsError

from .conftest import Cluster

pytestmark = pytest.mark.process


@pytest.fixture
def typed(tmp_path):
    cluster = Cluster(tmp_path, gpus=1, nodes=2, options=("--gpu-types", "t4,a100"))
    try:
        yield cluster.up()
    finally:
        cluster.close()


def test_a_job_runs_on_a_node_of_the_types_that_it_asked_for(typed):
    gate = "until test -e go; do sleep 0.05; done"
    names = {node["gpu_type"]: node["name"] for node in typed.client.nodes()}
    wants = {"gpus": 1, "gpu_type": "a100"}
    first = typed.submit(gate, resources=wants)
    second = typed.submit(gate, resources=wants)
    third = typed.submit(gate)
    assert typed.until_state(first, "RUNNING")["gpus"][0]["node"] == names["a100"]
    assert typed.until_state(third, "RUNNING")["gpus"][0]["node"] == names["t4"]
    assert typed.show(second)["reason"] == "WAIT_TOPOLOGY"
    (typed.base / "go").touch()
    for job in (first, second, third):
        typed.ends(job)
    with pytest.raises(NeverFitsError, match="gpu_type is h100 and this cluster has a100, t4"):
        typed.submit("true", resources={"gpus": 1, "gpu_type": ["h100"]})


def test_a_job_is_told_the_cores_that_it_asked_for(cluster):
    words = "echo $ROTA_CPUS $OMP_NUM_THREADS"
    asks = {"gpus": 1, "cpus": 1, "memory": "1MB"}
    job = cluster.submit(words, resources=asks)
    show = cluster.ends(job)
    assert (show["cpus"], show["memory_gb"]) == (1, 0.001)
    assert "".join(cluster.client.logs(job)) == "1 1\n"
    for more, word in (({"cpus": 99_999}, "cpus"), ({"memory": "999999GB"}, "memory")):
        with pytest.raises(NeverFitsError, match=f"resources.{word} is .* the largest node has"):
            cluster.submit("true", resources={"gpus": 1} | more)


def test_a_setup_runs_once_on_a_node_before_all_jobs_that_need_it(cluster):
    setup = "echo once >> times; echo preparing"
    jobs = [cluster.submit("cat times", setup=setup) for _ in range(3)]
    jobs.append(cluster.submit("cat times", gpus=2, setup=setup))
    for job in jobs:
        cluster.ends(job)
    assert (cluster.base / "times").read_text() == "once\n"
    logs = ["".join(cluster.client.logs(job)) for job in jobs]
    assert sorted(logs) == ["once\n", "once\n", "once\n", "preparing\nonce\n"]
    failing = cluster.submit("touch never", setup="echo no room; exit 9")
    ended = cluster.ends(failing, "FAILED")
    told = "setup failed with exit code 9, and printed last: no room"
    assert (ended["exit_code"], ended["message"]) == (9, told)
    assert "no room\nrota: setup failed with exit code 9" in "".join(cluster.client.logs(failing))
    assert not (cluster.base / "never").exists()


def test_a_training_that_has_a_setup_is_suspended_at_a_step_as_any_other(cluster):
    job = cluster.train("out", "--steps", 60, "--gate", 10, setup="true")
    cluster.suspend_at(job, "out", 10)
    assert cluster.show(job)["suspension"] == "BOUNDARY"
    cluster.client.resume(job)
    cluster.ends(job)
