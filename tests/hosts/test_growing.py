"""One server that becomes three, as the page of the reference says, while its jobs run."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.process.conftest import until

from rota.experiment.runs import hosts

from .conftest import GATED, PORT, Job, Lab


@pytest.fixture
def base(tmp_path) -> Path:
    return tmp_path


@pytest.fixture
def lab(base) -> Iterator[Lab]:
    """A machine without a cluster, and others that may join."""
    if reason := hosts.why_none(*hosts.FOR_FAULTS):
        pytest.skip(reason)
    with hosts.lan() as lan:
        lab = Lab(lan, base)
        try:
            yield lab
        finally:
            lab.close()


def stop(machine):
    """End its controller or agent as Ctrl-C does; jobs run on."""
    found = machine.controller if machine.host.processes("up") else machine.agent
    found.send_signal(signal.SIGINT)
    machine.exit_code()


class Gang(Job):
    """A job that may have its GPUs on several nodes."""

    def __init__(self, lab, base, gpus):
        self.lab, self.gate = lab, base / "gate-of-gang"
        fields = {"run": GATED.format(gate=self.gate), "workdir": str(base), "processes": "gpu"}
        self.id = lab.client.submit(fields | {"resources": {"gpus": gpus}})["id"]


def test_one_server_becomes_three_and_no_job_notices(lab, base):
    head = lab.head
    head.run("up", "--gpus", "1", "--policy", "fifo-backfill")
    until(lambda: head.rota("nodes")[0] == 0, "the controller answers")
    gate = head.base / "gate"
    assert head.rota("run", "--", "sh", "-c", GATED.format(gate=gate))[0] == 0
    until(lambda: "begun" in head.rota("logs", "1")[1], "the first job runs")
    stop(head)

    lab.up()
    lab.join("gpu10")
    gpu2 = lab.join("gpu2")
    assert [node["name"] for node in lab.client.nodes()] == ["head", "gpu2", "gpu10"]
    wide = Gang(lab, base, 5).until("PENDING")
    gate.touch()
    wide.until("RUNNING")
    assert wide.place == ["gpu10", "gpu2", "head"]
    first = lab.client.job("1")
    assert (first["state"], first["attempt"]) == ("SUCCEEDED", 1)

    stop(gpu2)
    gpu2.run("agent")
    lab.until_connected("gpu2", gpu2)
    assert lab.node("gpu2")["num_gpus"] == 2
    wide.ends()
    assert wide.now["attempt"] == 1


def test_a_controller_with_another_address_is_followed_by_new_lines(lab):
    lab.up()
    gpu1 = lab.join("gpu1")
    job = Job(lab, gpu1).until_begun()
    stop(lab.head)
    lab.close()
    place = f"{lab.head.host.address}:{PORT + 1}"
    lab.url, lab._client = f"https://{place}", None
    lab.head.run("up", "--gpus", "1", "--policy", "fifo-backfill", "--listen", place)
    lab.until_up()
    stop(gpu1)
    gpu1.run(*lab.line())
    lab.until_connected("gpu1", gpu1)
    job.ends_in_its_first_attempt()
