"""How busy the machine was, from what the kernel says of the trainings' processes."""

import json

import pytest

from rota.demo.busy import RunDelay
from rota.experiment.runs.cores import Used

RANK = "gandiva/nodes/vm/jobs/2/1/rank0.pid"


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


class Kernel:
    """The times of processes, as the kernel counts them."""

    def __init__(self, counts=True):
        self.counts = counts
        self.times = {}

    def __call__(self, pids):
        (pid,) = pids
        return self.times.get(pid, Used(0.0, 0.0)) if self.counts else Used(0.0, 0.0)


def a_rank(homes, pid, name=RANK):
    file = homes / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"shim": 1, "worker": pid}))


def waiting(tmp_path, kernel, clock=None, stalled_s=None):
    pressure = tmp_path / "pressure"
    if stalled_s is not None:
        stall(pressure, stalled_s)
    return RunDelay(tmp_path, clock or Clock(), pressure, kernel), pressure


def stall(pressure, seconds):
    total = round(seconds * 1e6)
    pressure.write_text(
        f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    )


def test_trainings_that_got_a_core_when_they_wanted_one_are_no_reason_to_complain(tmp_path):
    kernel = Kernel()
    watch, _ = waiting(tmp_path, kernel)
    a_rank(tmp_path, 7)
    kernel.times[7] = Used(9.0, 1.0)
    watch.look()
    assert watch.share() == pytest.approx(0.1)
    assert watch.complaint() is None


def test_beside_four_burners_on_two_cores_the_figures_are_worth_little(tmp_path):
    """Two trainings and four others share two cores: each waits two thirds of its time."""
    kernel = Kernel()
    watch, _ = waiting(tmp_path, kernel)
    for rank, pid in enumerate((7, 8)):
        a_rank(tmp_path, pid, RANK.replace("rank0", f"rank{rank}"))
        kernel.times[pid] = Used(5.0, 10.0)
    watch.look()
    assert watch.complaint() == (
        "Busy machine: jobs waited for a core 67% of their time; figures are worth little."
    )


def test_processes_that_have_ended_count_as_they_were_seen_last(tmp_path):
    kernel = Kernel()
    watch, _ = waiting(tmp_path, kernel)
    a_rank(tmp_path, 7)
    kernel.times[7] = Used(1.0, 1.0)
    watch.look()
    del kernel.times[7]
    watch.look()
    assert watch.share() == pytest.approx(0.5)


def test_a_file_that_is_being_written_is_read_at_the_next_look(tmp_path):
    kernel = Kernel()
    watch, _ = waiting(tmp_path, kernel)
    a_rank(tmp_path, 7)
    (tmp_path / RANK).write_text('{"shim": 1, "wor')
    watch.look()
    assert watch.share() is None


@pytest.mark.parametrize(("stalled_s", "is_busy"), [(12.0, False), (29.0, True)])
def test_where_the_kernel_does_not_count_pressure_tells(tmp_path, stalled_s, is_busy):
    clock = Clock()
    watch, pressure = waiting(tmp_path, Kernel(counts=False), clock, stalled_s=1000.0)
    a_rank(tmp_path, 7)
    watch.look()
    clock.now_s = 30.0
    stall(pressure, 1000.0 + stalled_s)
    complaint = watch.complaint()
    assert (complaint is not None) == is_busy
    if complaint is not None:
        assert "some task waited for a core 97% of the time" in complaint


@pytest.mark.parametrize("text", [None, "", "some\n"])
def test_where_nothing_is_known_nothing_is_said(tmp_path, text):
    clock = Clock()
    watch, pressure = waiting(tmp_path, Kernel(counts=False), clock)
    if text is not None:
        pressure.write_text(text)
    clock.now_s = 30.0
    assert watch.complaint() is None
