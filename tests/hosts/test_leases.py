"""Machines that are not heard: their jobs go on elsewhere, and never in two places at once.

A busy machine may itself cost an attempt, as leases are short here. So an attempt counts as another
one, and what holds of the one before is looked at whatever its number is.
"""

import contextlib
import shutil

import psutil
import pytest
from tests.process.conftest import until

from rota.live.controller.leases import MARGIN_S
from rota.live.wire import tags
from rota.live.wire.lease import Lease, lease_file

from .conftest import Job

LEASE = "5s"


@pytest.fixture(scope="module")
def pair(lab):
    """Two machines that have joined, with short leases."""
    lab.head.end()
    lab.up("--lease", LEASE)
    return [lab.join(name) for name in ("gpu1", "gpu2")]


@pytest.fixture(scope="module")
def spare(lab, pair):
    """A third machine, with room for the jobs of both."""
    return lab.join("spare", gpus=4)


def begun(lab, machines):
    """A job that runs on one of them, that machine, the others, and the number of its attempt."""
    job = Job(lab, machines[0]).until_begun()
    attempt, (name,) = job.now["attempt"], job.place
    others = [each for each in machines if each.host.name != name]
    return job, next(each for each in machines if each.host.name == name), others, attempt


def until_left(machine):
    until(lambda: not machine.working(), "what is left of the former attempt is killed")


def test_a_job_of_a_machine_that_is_cut_off_for_good_starts_elsewhere_once_it_has_stopped(
    lab, pair
):
    job, first, (other,), attempt = begun(lab, pair)
    with first.host.cut():
        job.until_begun_again(attempt)
        assert first.is_stopped()
        assert job.place == [other.host.name]
        until(other.working, "it runs there")
    until_left(first)
    job.ends()


LEDGER = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            with open({ledger!r}, "a") as ledger:
                ledger.write(f"{{os.environ['ROTA_ATTEMPT']}} {{time.monotonic()}}\\n")
            time.sleep(0.01)
    os._exit(0)
time.sleep(1000)
"""


def is_guard(process):
    tag = tags.tag_or_limit(process.pid)
    return tags.key_in(tag) is not None and tag & tags.GUARD


def test_nothing_of_a_job_runs_twice_where_agent_shims_and_zygotes_are_killed_behind_a_cut_cable(
    lab, pair
):
    job = {"resources": {"gpus": 2}, "workdir": str(pair[0].base)}
    ledger, script = pair[0].base / "ledger", pair[0].base / "ledger.py"
    script.write_text(LEDGER.format(ledger=str(ledger)))
    job_id = lab.client.submit(job | {"run": f"python {script}"})["id"]

    def times(attempt):
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        told = (line.split() for line in lines if line.count(" ") == 1)
        return [float(at_s) for number, at_s in told if int(number) == attempt]

    until(lambda: times(1), "its first attempt runs")
    (place,) = lab.client.job(job_id)["gpus"][:1]
    first = next(each for each in pair if each.host.name == place["node"])
    with first.host.cut():
        first.end()
        for process in first.host.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name().startswith("rota zygote") or is_guard(process):
                    process.kill()
        until(lambda: times(2), "its next attempt runs elsewhere")
        assert max(times(1)) < min(times(2))
    lab.client.cancel(job_id)
    first.run("agent", "--gpus", "2")
    lab.until_connected(first.host.name, first)


def test_jobs_stop_while_their_controller_is_away_and_go_on_when_it_is_back(lab, pair):
    job, machine, _, attempt = begun(lab, pair)
    lab.head.end()
    until(machine.is_stopped, "its processes have stopped")
    lab.up("--lease", LEASE)
    until(lambda: not machine.is_stopped(), "they go on")
    job.ends()
    assert job.now["attempt"] == attempt


def test_a_controller_that_stands_still_for_longer_than_a_lease_costs_no_attempt(lab, pair):
    job, machine, _, attempt = begun(lab, pair)
    lease = Lease(lease_file(machine.folder.node(machine.host.name)))
    lab.head.controller.suspend()
    try:
        until(lambda: lease.left_s < -MARGIN_S - 1.0, "the controller would count it as over")
        assert machine.is_stopped()
    finally:
        lab.head.controller.resume()
        lease.close()
    until(lambda: not machine.is_stopped(), "its processes go on")
    job.ends()
    assert job.now["attempt"] == attempt


def test_an_agent_that_hangs_keeps_no_job_from_being_stopped(lab, pair):
    job, machine, _, attempt = begun(lab, pair)
    agent = machine.agent
    agent.suspend()
    try:
        job.until_begun_again(attempt)
        assert machine.is_stopped()
    finally:
        agent.resume()
    until_left(machine)
    job.ends()


def test_jobs_start_anew_once_after_a_controller_that_nobody_reaches_for_longer_than_a_lease(
    lab, pair
):
    job, machine, _, attempt = begun(lab, pair)
    with lab.head.host.alone():
        until(lambda: job.now["state"] == "PENDING", "its attempt is lost")
        assert machine.is_stopped()
    job.until_begun_again(attempt)
    until(lambda: sum(bool(each.working()) for each in pair) == 1, "one attempt is left")
    job.ends()


@pytest.mark.parametrize("faults", [("deaf", "mute"), ("link_down", "power_off")])
def test_jobs_start_elsewhere_after_losses_in_one_direction_dead_links_and_power_cuts(
    lab, pair, spare, faults
):
    lab.client.cordon("spare")
    jobs = [Job(lab, each).until_begun() for each in pair]
    lab.client.enable("spare")
    with contextlib.ExitStack() as stack:
        for machine, fault in zip(pair, faults, strict=True):
            if (begins := getattr(machine.host, fault)()) is not None:
                stack.enter_context(begins)
        for job in jobs:
            job.until_begun_again(1)
        for machine, fault in zip(pair, faults, strict=True):
            assert fault == "power_off" or machine.is_stopped()
        assert [job.place for job in jobs] == [["spare"], ["spare"]]
    for machine, fault in zip(pair, faults, strict=True):
        if fault == "power_off":
            machine.host.power_on()
            machine.run("agent", "--gpus", "2")
        until_left(machine)
        lab.until_connected(machine.host.name, machine)
    for job in jobs:
        job.ends()


def test_jobs_of_a_machine_that_is_removed_start_elsewhere_once_its_lease_is_over(lab, pair, spare):
    job, first, _, attempt = begun(lab, [*pair, spare])
    name = first.host.name
    with first.host.cut():
        code, text = lab.head.rota("node", "remove", "--force", name)
        assert code == 0
        if attempt == job.now["attempt"]:
            assert "when its lease is over" in text
        job.until_begun_again(attempt)
        assert first.is_stopped()
        until(lambda: not lab.node(name).get("alive"), "it is removed")
    until_left(first)
    assert first.exit_code() == 5
    job.ends()


def test_a_machine_with_a_copied_folder_waits_until_the_lease_of_the_first_is_over(
    lab, pair, spare
):
    job, first, _, attempt = begun(lab, [*pair, spare])
    name = first.host.name
    twin = lab.machine(f"twin-of-{name}")
    shutil.copytree(
        first.folder.path, twin.folder.path, ignore=shutil.ignore_patterns("*.lock", "*.sock")
    )
    twin.run("agent", "--node", name, "--gpus", "1")
    until(lambda: f"another agent of {name} is connected" in twin.log, "it is refused")
    with first.host.cut():
        until(lambda: f"{name} is another machine" in twin.log, "it waits")
        assert lab.node(name)["claimed_by"] == twin.host.address
        assert f"claimed by {twin.host.address}" in lab.head.rota("nodes")[1]
        assert job.now["attempt"] == attempt
        job.until_begun_again(attempt)
        assert first.is_stopped()
        twin.end()
    until_left(first)
    lab.until_connected(name, first)
    job.ends()
