"""Machines that join: their jobs run through cut cables, and through ends of both programs."""

import os
import shutil
import signal

import pytest
from tests.process.conftest import until

from differential import facts
from rota.folder import REMOVED, membership
from rota.model.job import FRESH, WARM

from .conftest import Job


@pytest.fixture(scope="module")
def gpu1(lab):
    return lab.join("gpu1")


@pytest.mark.live_path("join")
def test_a_machine_joins_and_runs_jobs_as_any_node_does(lab, gpu1):
    node = lab.node("gpu1")
    assert (node["address"], node["num_gpus"]) == (gpu1.host.address, 2)
    assert node["build"].startswith("rota ")
    assert lab.node("head")["address"] is None
    job = Job(lab, gpu1).until_begun()
    assert [place["node"] for place in job.now["gpus"]] == ["gpu1"]
    assert not (gpu1.folder.path / "rota.db").exists()
    lab.client.suspend(job.id)
    job.until("SUSPENDED")
    lab.client.resume(job.id)
    job.until("RUNNING")
    job.ends_in_its_first_attempt()
    other = Job(lab, gpu1).until_begun()
    lab.client.cancel(other.id)
    other.until("CANCELLED")


@pytest.mark.parametrize("start", [FRESH, WARM])
def test_a_program_there_is_as_a_plain_run_there(lab, gpu1, start):
    pytest.importorskip("torch")
    work = gpu1.base / start
    work.mkdir()
    out = facts.put(work)
    words = {"run": f"python facts.py {out}", "workdir": str(work), "start": start}
    job = lab.client.submit(words | {"resources": {"gpus": 2}})
    until(lambda: lab.client.job(job["id"])["state"] == "SUCCEEDED", "it has ended")
    assert lab.client.job(job["id"])["started"] == ("forked" if start == WARM else "fresh")
    facts.assert_alike([facts.told_plainly(work, os.environ), *facts.told(out)])


def test_a_cable_that_is_cut_and_mended_harms_no_job(lab, gpu1):
    job = Job(lab, gpu1).until_begun()
    with gpu1.host.cut():
        until(lambda: not lab.node("gpu1")["connected"], "the cut is noticed")
        job.gate.touch()  # it ends meanwhile
        assert job.now["state"] == "RUNNING"
    job.ends_in_its_first_attempt()


def test_nothing_is_placed_on_a_machine_that_is_not_heard(lab, gpu1):
    job = Job(lab, gpu1).until_begun()
    with gpu1.host.cut():
        until(lambda: lab.node("gpu1")["unreachable"], "the machine is unreachable")
        silent, cut = lab.client.explain(job.id)["warnings"]
        assert silent.startswith("node gpu1 is not heard, and the job stays there for ")
        assert cut.startswith("the connection of node gpu1 ended ")
        other = Job(lab, gpu1)
        until(lambda: other.now["reason"] == "NODE_UNHEALTHY", "the policy refuses the other job")
        assert lab.client.explain(other.id)["would_start_if"] == "nodes that are away came back"
    job.ends_in_its_first_attempt()
    other.ends_in_its_first_attempt()


def test_the_next_controller_takes_jobs_of_other_machines_over(lab, gpu1):
    job = Job(lab, gpu1).until_begun()
    lab.head.end()
    lab.up()
    lab.until_connected("gpu1", gpu1)
    assert job.now["state"] == "RUNNING"
    job.ends_in_its_first_attempt()


def test_the_next_agent_needs_no_line_and_takes_jobs_over(lab, gpu1):
    job = Job(lab, gpu1).until_begun()
    gpu1.end()
    gpu1.run("agent", "--gpus", "2")
    lab.until_connected("gpu1", gpu1)
    job.ends_in_its_first_attempt()


def test_what_a_job_has_printed_outlives_its_machine(lab):
    brief = lab.join("brief", gpus=5)
    job = Job(lab, brief, gpus=5).until_begun()
    job.gate.touch()
    job.until("SUCCEEDED")
    copies = lab.head.folder.copies("brief", job.id)
    until((copies / "1").is_dir, "a copy is made")
    brief.host.power_off()
    until(lambda: not lab.node("brief")["connected"], "the machine is away")
    assert job.printed() == "begun\nover\n"
    lab.client.remove_node("brief")
    assert job.printed() == "begun\nover\n"
    lab.client.clean(job.id)
    assert not copies.exists()


def test_an_agent_that_is_stopped_for_a_while_loses_no_job(lab, gpu1):
    job = Job(lab, gpu1).until_begun()
    (agent,) = [
        each for each in gpu1.host.processes("rota.live.agent") if "--joined" in each.cmdline()
    ]
    agent.send_signal(signal.SIGSTOP)
    try:
        until(lambda: lab.node("gpu1")["silent_s"] > 2, "its silence is told")
    finally:
        agent.send_signal(signal.SIGCONT)
    job.ends_in_its_first_attempt()


def test_a_power_cut_loses_an_attempt_and_the_job_starts_anew_once_the_machine_is_back(lab):
    cut = lab.join("cut", gpus=3)
    job = Job(lab, cut, gpus=3).until_begun()
    cut.host.power_off()
    cut.host.power_on()
    cut.run("agent", "--gpus", "3")
    until(lambda: job.now["attempt"] == 2, "it starts anew")
    job.gate.touch()
    job.until("SUCCEEDED")
    lab.client.remove_node("cut")


def test_the_second_of_two_machines_with_one_folder_is_refused_while_the_first_is_heard(lab, gpu1):
    twin = lab.machine("twin")
    shutil.copytree(
        gpu1.folder.path, twin.folder.path, ignore=shutil.ignore_patterns("*.lock", "*.sock")
    )
    twin.run("agent", "--node", "gpu1", "--gpus", "2")
    until(lambda: "another agent of gpu1 is connected" in twin.log, "it is refused")
    job = Job(lab, gpu1).until_begun()
    job.ends_in_its_first_attempt()
    twin.end()


def test_tokens_that_are_not_good_leave_nothing_behind(lab):
    machine = lab.machine("stranger")
    line = lab.line()
    first = lab.machine("first")
    first.run(*line)
    lab.until_connected("first", first)
    fresh = lab.line()
    token, ca = fresh.index("--token") + 1, fresh.index("--ca") + 1
    faults = {
        "was used before, by node first": line,
        "none of this cluster's": [*fresh[:token], "rota-join-other", *fresh[token + 1 :]],
        "has another CA": [*fresh[:ca], "sha256:" + "0" * 64, *fresh[ca + 1 :]],
    }
    for words, wrong in faults.items():
        code, text = machine.rota(*wrong)
        assert (code, text.count("\n")) == (5, 1), text
        assert words in text
        assert not machine.folder.path.exists()


def test_a_node_that_is_removed_ends_and_has_to_join_again(lab):
    gone = lab.join("gone", gpus=4)
    job = Job(lab, gone, gpus=4).until_begun()
    code, text = lab.head.rota("node", "remove", "gone")
    assert code == 1
    assert "rota node drain gone" in text
    lab.client.cancel(job.id)
    job.until("CANCELLED")
    lab.client.drain("gone")
    assert lab.head.rota("node", "remove", "gone") == (
        0, "node gone: removed; its token is revoked\n"
    )  # fmt: skip
    assert gone.exit_code() == 5
    assert membership(gone.folder.node("gone"))[REMOVED] is True
    assert gone.rota("agent", "--node", "gone")[0] == 5
    gone.run(*lab.line(), "--gpus", "4")
    lab.until_connected("gone", gone)
    assert lab.node("gone")["closed"] is None


def test_a_machine_that_is_heard_ends_its_jobs_before_it_is_removed_by_force(lab):
    heard = lab.join("heard", gpus=6)
    job = Job(lab, heard, gpus=6).until_begun()
    code, text = lab.head.rota("node", "remove", "--force", "heard")
    assert (code, "once they have ended there" in text) == (0, True)
    assert heard.exit_code() == 5
    assert not heard.working()
    until(lambda: job.now["state"] == "PENDING" or job.now["attempt"] == 2, "it is lost there")
    lab.client.cancel(job.id)
