"""Jobs in snapshots on one machine: programs of rota.train, moves, and setups."""

import shutil

import pytest

from .conftest import SCRIPTS, node_of, until


@pytest.fixture
def two_nodes(make_cluster):
    return make_cluster(nodes=2, gpus=2)


@pytest.fixture
def project(two_nodes):
    folder = two_nodes.base / "project"
    folder.mkdir()
    shutil.copy(SCRIPTS / "train.py", folder)
    (two_nodes.base / "out").mkdir()
    return folder


def test_a_training_in_a_snapshot_moves_and_has_its_files_there(two_nodes, project):
    cluster = two_nodes
    run = f"python train.py --out {cluster.base / 'out'} --steps 1000000"
    job = cluster.submit(run, workdir=str(project), snapshot=True)
    cluster.until_step_advances("out")
    shutil.rmtree(project)
    show = cluster.show(job)
    source = node_of(show)
    assert show["suspension"] == "BOUNDARY"  # its script was looked at
    cluster.client.drain(source)
    until(lambda: cluster.show(job)["migrations"] == 1, "it has moved")
    show = cluster.until_state(job, "RUNNING")
    assert node_of(show) != source
    assert show["attempt"] == 1
    cluster.until_step_advances("out")
    copies = cluster.base.glob(f"**/nodes/{node_of(show)}/jobs/{job}/1/workdir/*")
    assert [each.name for each in copies] == ["train.py"]
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")


def test_ranks_and_jobs_of_one_snapshot_have_its_setup_run_once_on_a_node(two_nodes, project):
    cluster = two_nodes
    (project / "given").write_text("1\n")
    cluster.client.cordon(cluster.client.nodes()[1]["name"])
    times = cluster.base / "times"
    setup = f"echo once >> {times}; cp given made"
    more = {"workdir": str(project), "snapshot": True, "setup": setup}
    jobs = [cluster.submit("cat made", **more, gpus=gpus) for gpus in (1, 1, 2)]
    for job in jobs:
        cluster.ends(job)
        assert "".join(cluster.client.logs(job)) == "1\n"
    assert times.read_text() == "once\n"
    failing = cluster.submit("true", **more | {"setup": "echo one; echo two; exit 9"})
    ended = cluster.ends(failing, "FAILED")
    told = "setup failed with exit code 9, and printed last: one / two"
    assert (ended["exit_code"], ended["message"]) == (9, told)
