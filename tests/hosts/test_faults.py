"""Faults that are over before a lease is, and wrong clocks: no attempt is lost."""

import contextlib
import socket
import time
from pathlib import Path

import pytest
from tests.process.conftest import until

from .conftest import PORT, Job

FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))

HOUR_S = 3600.0
HALF_OPEN = 500


@pytest.fixture(scope="module")
def machines(lab):
    """Three machines that have joined, each with as many GPUs as no other: 2, 3 and 4."""
    return [lab.join(f"gpu{gpus}", gpus=gpus) for gpus in (2, 3, 4)]


def a_job_on_each(lab, machines):
    """A job on each machine, all of whose GPUs it has."""
    jobs = [Job(lab, machines[2], gpus=4), Job(lab, machines[1], gpus=3), Job(lab, machines[0])]
    for job in jobs:
        job.until_begun()
    assert [job.place for job in jobs] == [["gpu4"], ["gpu3"], ["gpu2"]]
    return jobs


def are_connected(lab, machines):
    return [lab.node(each.host.name)["connected"] for each in machines]


def test_losses_in_one_direction_and_dead_links_cost_no_attempt(lab, machines):
    jobs = a_job_on_each(lab, machines)
    with machines[0].host.deaf(), machines[1].host.mute(), machines[2].host.link_down():
        until(lambda: not any(are_connected(lab, machines)), "all three are not heard")
    for job in jobs:
        job.ends_in_its_first_attempt()


def test_a_controller_that_nobody_reaches_for_a_while_costs_no_attempt(lab, machines):
    jobs = a_job_on_each(lab, machines)
    with lab.head.host.alone():
        until(lambda: not any(are_connected(lab, machines)), "nobody is heard")
    for job in jobs:
        job.ends_in_its_first_attempt()


def test_jobs_start_suspend_and_end_while_a_fifth_of_all_packets_is_lost(lab, machines):
    with machines[0].host.lossy(20):
        job = Job(lab, machines[0], gpus=1).until_begun()
        for _ in range(10):
            lab.client.suspend(job.id)
            job.until("SUSPENDED")
            lab.client.resume(job.id)
            job.until("RUNNING")
        job.ends_in_its_first_attempt()


def test_strangers_who_never_end_a_handshake_keep_nobody_out(lab, machines):
    with contextlib.ExitStack() as stack:
        for _ in range(HALF_OPEN):
            address = (lab.head.host.address, PORT)
            half_open = stack.enter_context(socket.create_connection(address, timeout=60))
            with contextlib.suppress(OSError):  # it had to make room
                half_open.sendall(b"\x16\x03\x01")  # the beginning of a record
        code, text = lab.head.rota("nodes")
        assert code == 0, text
        assert all(are_connected(lab, machines))
        late = lab.join("late", gpus=1)
        Job(lab, late, gpus=4).until_begun().ends_in_its_first_attempt()
        lab.client.remove_node("late")


@pytest.mark.skipif(not FAKETIME, reason="there is no faketime to set a clock by")
def test_a_machine_whose_clock_is_an_hour_off_tells_the_cluster_s_time(lab, machines):
    ahead = {"LD_PRELOAD": str(FAKETIME[-1]), "FAKETIME": "+1h", "DONT_FAKE_MONOTONIC": "1"}
    off = lab.join("off", gpus=5, **ahead)
    job = Job(lab, off, gpus=5)
    job.until_begun()
    with off.host.cut():
        until(lambda: not lab.node("off")["connected"], "the cut is noticed")
    job.ends_in_its_first_attempt()
    told = job.now
    assert abs(told["finish_s"] - time.time()) < HOUR_S / 2
    assert 0 <= told["run_s"] < HOUR_S / 2
    lab.client.remove_node("off")
