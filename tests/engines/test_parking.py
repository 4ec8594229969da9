"""A pilot of Slurm ends by its time limit; the state of a job that waits is elsewhere by then."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.process.conftest import Cluster, node_of, until
from tests.process.states import equal, weights
from tests.process.test_out_of_service import closed

from support.slurm import Slurm

STEPS = 200
LEFT_S = 30.0  # at least, for the state to leave


@pytest.fixture
def cluster(slurm: Slurm, tmp_path: Path) -> Iterator[Cluster]:
    options = ("--on", "slurm", "--partition", "gpu", "--time", "8h", "--nodes", "2")
    made = Cluster(tmp_path, options=options)
    made.environment |= slurm.environment
    made.nodes = 2
    made.up()
    yield made
    made.close()
    assert not slurm.jobs("PD,R,CG,S")


def with_its_end(cluster: Cluster, name: str) -> dict[str, Any] | None:
    """A node, once it is known when its pilot ends."""
    (node,) = [each for each in cluster.client.nodes() if each["name"] == name]
    return node if node["leaves_s"] is not None else None


def test_a_job_that_waits_outlives_the_pilot_that_had_its_state(cluster, slurm):
    cluster.ends(cluster.train("alone", "--steps", STEPS))
    job = cluster.train("job", "--steps", STEPS, "--gate", 60)
    source = node_of(cluster.until_state(job, "RUNNING"))
    cluster.client.cordon(source)
    filler = cluster.submit("sleep 1000", gpus=2, processes="node")
    target = node_of(cluster.until_state(filler, "RUNNING"))
    cluster.until_at("job", 60)

    node = until(lambda: with_its_end(cluster, source), "its end is told")
    pilot = node["about"].split()[2].rstrip(",")
    ran_s = 8 * 3600 - (node["leaves_s"] - time.time())
    slurm.run("scontrol", "update", f"JobId={pilot}", f"TimeLimit={int((ran_s + LEFT_S) / 60) + 1}")
    until(lambda: closed(cluster, source) == "draining", "its new end is told")
    cluster.opens("job", 60)
    until(lambda: closed(cluster, source) == "drained", "its state has left")
    show = cluster.show(job)
    assert (show["state"], show["state_on"], show["attempt"]) == ("SUSPENDED", target, 1)
    until(
        lambda: f"(node {source}) has ended: TIMEOUT" in (cluster.base / "up.log").read_text(),
        "its pilot has ended",
    )

    assert cluster.show(job)["attempt"] == 1
    cluster.client.cancel(filler)
    assert cluster.ends(job)["attempt"] == 1
    assert cluster.step("job") == STEPS
    assert equal(weights(cluster.base / "job"), weights(cluster.base / "alone"))
