"""The CPU cores of a node: who may use which, by what, and what follows when that changes."""

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.live.agent import cpus as module
from rota.live.agent.cpus import AFFINITY, NOT_HELD, WHOLE, Cpus, Part, numa_nodes, spread
from rota.live.agent.devices import Devices
from rota.live.agent.launching import Place, whole_cores
from rota.live.agent.processes import bind, descendants


class Groups:
    """Control groups that are made up."""

    name = "made up"
    binds = True

    def __init__(self):
        self.limits, self.cores, self.gathered, self.busy = {}, {}, {}, set()
        self.error = None

    def _refuse(self):
        if self.error is not None:
            raise self.error

    def set(self, group, millicores, cores=(), *, background=False):
        self._refuse()
        self.limits[group] = millicores
        self.cores[group] = set(cores)

    def check(self, group):
        self._refuse()
        if group not in self.limits:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", group)

    def doors(self, group):
        return [f"/groups/{group}/cgroup.procs"]

    def gather(self, group, below):
        self._refuse()
        self.gathered[group] = below()

    def names(self):
        return sorted(self.limits)

    def remove(self, group):
        if group in self.busy:
            raise OSError(errno.EBUSY, "Device or resource busy", group)
        del self.limits[group]

    def close(self):
        self.limits.clear()


class Rank:
    def __init__(self, shim):
        self.shim, self.alive, self.heard = shim, True, []

    def send(self, message):
        self.heard.append(message)

    def below(self):
        return {self.shim + 1, self.shim + 2}


class Attempt:
    def __init__(self, number, millicores=None, gpus=(0,)):
        self.record = SimpleNamespace(
            job_id=str(number),
            attempt=1,
            millicores=millicores,
            gpus=list(gpus),
            suspended_s=None,
            background=False,
        )
        self.ranks, self.ended, self.saved = [Rank(1000 * number)], None, []
        self.worker_pids = []

    def save_if_there_is_room(self):
        self.saved.append(self.record.millicores)


class World:
    def __init__(self):
        self.bound, self.widened = {}, []

    def bind(self, pid, cores, *, widens=True):
        self.bound[pid] = set(cores)
        if widens:
            self.widened.append(pid)


class Node:
    """A node of four cores with these attempts; a test makes up what its machine has."""

    def __init__(self, *attempts, groups=None, numa=(), part=WHOLE, kind="cuda"):
        self.attempts, self.groups, self.world = list(attempts), groups, World()
        self.cores, self.usable = {0, 1, 2, 3}, 64_000
        self.cpus = Cpus(
            lambda: self.attempts,
            Devices(kind, 4, (0, 1, 2, 3)),
            self.world,
            groups,
            part,
            cores=lambda: self.cores,
            usable=lambda: self.usable,
            numa=numa,
        )


# -- what there is ---------------------------------------------------------------------------------


def test_a_node_tells_its_cores_and_by_what_jobs_are_held(monkeypatch):
    node = Node(groups=Groups())
    assert node.cpus.told().items() >= {"millicores": 4000, "held_by": "made up"}.items()
    assert Node().cpus.held_by == AFFINITY
    monkeypatch.setattr(module, "_may_bind", lambda: False)
    assert Node().cpus.held_by == NOT_HELD


def test_a_quota_around_the_agent_leaves_it_less_than_its_cores():
    node = Node()
    node.usable = 1500
    assert node.cpus.look() is True
    assert node.cpus.told()["millicores"] == 1500
    assert node.cpus.look() is False


@pytest.mark.parametrize(
    ("part", "cores"),
    [(Part(0, 2), [0, 1]), (Part(1, 2), [2, 3]), (Part(2, 3), [2, 3]), (Part(5, 6), [3])],
)
def test_nodes_of_one_machine_share_its_cores(part, cores):
    assert part.of({0, 1, 2, 3}) == cores
    assert Node(part=part).cpus.told()["millicores"] == 4000 // part.parts


def test_more_nodes_than_cores_have_one_each_that_they_share():
    assert [Part(i, 5).of({0, 7}) for i in range(5)] == [[0], [7], [0], [7], [7]]


# -- jobs in groups --------------------------------------------------------------------------------


def test_a_new_process_joins_its_group_which_has_its_limit_by_then():
    attempt, groups = Attempt(7, 1500), Groups()
    node = Node(attempt, groups=groups)
    assert node.cpus.place(attempt.record) == Place(["/groups/7.1/cgroup.procs"], [])
    assert groups.limits == {"7.1": 1500}
    attempt.record.millicores = None
    assert node.cpus.place(attempt.record) is None


def test_a_share_is_written_down_before_the_group_is_told():
    attempt, groups = Attempt(7, 1500), Groups()
    node = Node(attempt, groups=groups)
    groups.set("7.1", 1500)
    attempt.save_if_there_is_room = lambda: attempt.saved.append(dict(groups.limits))
    node.cpus.give(attempt, 2000)
    assert attempt.saved == [{"7.1": 1500}]
    assert groups.limits == {"7.1": 2000}
    assert groups.gathered == {"7.1": {7001, 7002}}
    node.cpus.give(attempt, 2000)
    told = [rank.heard for rank in attempt.ranks]
    assert told == [[{"type": "cpus", "millicores": 2000}]], "a session is told once"
    assert node.world.bound == {}


def test_a_job_without_a_limit_comes_off_the_core_of_its_slot_when_it_gets_one():
    attempt, groups = Attempt(7, None, gpus=[2]), Groups()
    node = Node(attempt, groups=groups, kind="cpu")
    node.cpus.give(attempt, None)
    assert (groups.limits, node.world.bound) == ({}, {})
    node.cpus.give(attempt, 500)
    assert node.world.bound == {7000: {0, 1, 2, 3}}
    node.cpus.give(attempt, None)
    assert node.world.bound == {7000: {2}}
    assert groups.limits == {"7.1": None}


def test_the_next_agent_sets_all_groups_and_removes_those_of_dead_attempts():
    """The agent before was killed after it had written a record, and before it set the group."""
    groups, running, over = Groups(), Attempt(7, 2000), Attempt(8, 500)
    over.ended = {"type": "ended"}
    groups.limits = {"7.1": 1500, "8.1": 500, "9.3": 500, "9.4": 500}
    groups.busy = {"9.4"}
    node = Node(running, over, groups=groups)
    node.cpus.adopt()
    assert groups.limits == {"7.1": 2000, "9.4": 500}
    groups.busy = set()
    node.cpus.look()
    assert groups.limits == {"7.1": 2000}, "a group that a process was left in goes when it has"


def test_a_group_lies_within_a_memory_node_that_has_room_and_stays_there():
    first, second, large = Attempt(1, 1000), Attempt(2, 1500), Attempt(3, 2500)
    groups = Groups()
    node = Node(first, second, large, groups=groups, numa=[{0, 1}, {2, 3}])
    for attempt in node.attempts:
        node.cpus.place(attempt.record)
    assert groups.cores == {"1.1": {0, 1}, "2.1": {2, 3}, "3.1": {0, 1, 2, 3}}
    first.ended = {}
    node.cpus.look()
    assert groups.cores["2.1"] == {2, 3}
    groups.binds = False
    node.cpus.place(second.record)
    assert groups.cores["2.1"] == set()


# -- jobs held by affinity -------------------------------------------------------------------------


def test_without_groups_jobs_have_whole_cores_of_their_own():
    a, b = Attempt(1, 1500), Attempt(2, 2000)
    node = Node(a, b)
    assert node.cpus.place(b.record).cores == [0, 1]
    assert node.cpus.place(a.record).cores == [2, 3]
    node.cpus.give(a, 3000)
    assert node.world.bound == {1000: {0, 2, 3}, 2000: {0, 1}}
    node.world.widened.clear()
    node.cpus.look()
    assert node.world.widened == [], "threads that a program has bound itself stay so"


def test_what_cannot_be_bound_is_not():
    node = Node(a := Attempt(1, 1500))
    node.cpus._can_bind = False
    assert node.cpus.place(a.record).cores == []
    node.cpus.give(a, 500)
    node.cpus.look()
    assert node.world.bound == {}


def test_cores_that_go_away_leave_every_job_one(caplog):
    a, b, c = Attempt(1, 2000), Attempt(2, 1000), Attempt(3, 1000)
    node = Node(a, b, c)
    node.cpus.adopt()
    node.cores = {2}
    assert node.cpus.look() is True
    assert node.cpus.told()["millicores"] == 1000
    assert node.world.bound == {1000: {2}, 2000: {2}, 3000: {2}}
    assert node.cpus.look() is False


def test_a_suspended_job_takes_no_core_from_others_until_it_goes_on():
    a, b = Attempt(1, 2000), Attempt(2, 4000)
    node = Node(a, b)
    b.record.suspended_s = 5.0
    node.cpus.adopt()
    node.cpus.look()
    assert node.world.bound[1000] == {0, 1}
    node.cpus.give(b, 2000)
    assert node.world.bound == {1000: {0, 1}, 2000: {2, 3}}


# -- groups that fail ------------------------------------------------------------------------------


FAULTS = {
    "removed": FileNotFoundError(errno.ENOENT, "No such file or directory", "7.1"),
    "read-only": OSError(errno.EROFS, "it can't be written", "7.1"),
    "foreign": PermissionError(errno.EPERM, "it belongs to another user", "7.1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_group_that_fails_leaves_affinity_and_one_warning(fault, caplog):
    a, b, groups = Attempt(7, 2000), Attempt(8, 1000), Groups()
    node = Node(a, b, groups=groups)
    node.cpus.place(a.record)
    node.cpus.place(b.record)
    groups.error = FAULTS[fault]
    with caplog.at_level(logging.WARNING, "rota.agent"):
        assert node.cpus.look() is True
        assert node.cpus.look() is False
    assert node.cpus.held_by == AFFINITY
    assert node.world.bound == {7000: {0, 1}, 8000: {2}}
    [warning] = caplog.messages
    assert warning.startswith("jobs are held to their CPU cores by affinity now: made up: ")
    assert FAULTS[fault].strerror in warning
    assert FAULTS[fault].strerror in node.cpus.why
    node.cpus.give(a, 3000)
    assert node.world.bound[7000] == {0, 1, 2}


def test_quotas_of_groups_that_failed_are_lifted_and_groups_go_when_they_are_empty():
    a, b, groups = Attempt(7, 2000), Attempt(8, 1000), Groups()
    node = Node(a, b, groups=groups)
    node.cpus.place(a.record)
    node.cpus.place(b.record)
    del groups.limits["8.1"]
    node.cpus.look()
    assert groups.limits == {"7.1": None}
    a.ended = {}
    node.cpus.look()
    assert groups.limits == {}


def test_a_launch_whose_group_is_not_made_yet_is_no_fault():
    a, groups = Attempt(7, 2000), Groups()
    node = Node(a, groups=groups)
    assert node.cpus.look() is False
    assert node.cpus.held_by == "made up"


def test_a_launch_finds_out_that_groups_fail():
    a, groups = Attempt(7, 2000), Groups()
    node = Node(a, groups=groups)
    groups.error = FAULTS["read-only"]
    assert node.cpus.place(a.record) == Place([], [0, 1])
    assert node.cpus.held_by == AFFINITY


# -- which cores -----------------------------------------------------------------------------------


@given(
    shares=st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 9000), min_size=1),
    count=st.integers(1, 12),
    width=st.integers(1, 6),
)
def test_everybody_has_cores_and_none_is_shared_while_another_is_free(shares, count, width):
    cores = list(range(count))
    numa = [set(cores[i : i + width]) for i in range(0, count, width)]
    chosen = spread(shares, cores, numa)
    for name, share in shares.items():
        assert len(set(chosen[name])) == min(count, whole_cores(share))
        assert set(chosen[name]) <= set(cores)
    assert spread(shares, cores, numa, chosen) == chosen, "nothing changes by itself"
    if sum(map(whole_cores, shares.values())) <= count:
        for spread_out in (chosen, spread(shares, cores)):
            taken = [core for own in spread_out.values() for core in own]
            assert len(set(taken)) == len(taken)


def test_a_job_keeps_its_cores_and_lies_on_one_memory_node():
    assert spread({"a": 1000}, [0, 1, 2], before={"a": [2]}) == {"a": [2]}
    assert spread({"a": 2000, "b": 1000}, range(4), [{0, 1}, {2, 3}]) == {"a": [0, 1], "b": [2]}
    assert spread({"a": 1000, "b": 2000}, range(3), [{0}, {1, 2}]) == {"b": [1, 2], "a": [0]}


def test_quarters_of_a_core_share_cores_evenly():
    chosen = spread(dict.fromkeys("abcd", 250), [0, 1])
    assert sorted(map(tuple, chosen.values())) == [(0,), (0,), (1,), (1,)]


def test_memory_nodes_are_read_from_the_kernel(tmp_path):
    for name, text in (("node0", "0-1,4\n"), ("node1", "2-3\n"), ("node2", "\n"), ("power", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(text)
    assert numa_nodes(tmp_path) == [{0, 1, 4}, {2, 3}, set()]
    assert numa_nodes(tmp_path / "none") == []


@pytest.mark.parametrize(("millicores", "cores"), [(1, 1), (1000, 1), (1001, 2), (2500, 3)])
def test_programs_are_told_whole_cores(millicores, cores):
    assert whole_cores(millicores) == cores


# -- real processes --------------------------------------------------------------------------------

TREE = """
import os, sys, threading
threads = [threading.Thread(target=threading.Event().wait, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
if os.fork() == 0:
    os.fork()
os.write(1, b"here\\n")
sys.stdin.read()
"""


def affinities(pid):
    return [
        os.sched_getaffinity(int(thread))
        for each in descendants(pid)
        for thread in os.listdir(f"/proc/{each}/task")
    ]


def test_all_threads_of_all_processes_are_bound_and_bound_threads_may_stay_so():
    every = sorted(os.sched_getaffinity(0))
    if len(every) < 2:
        pytest.skip("there is one core alone")
    words = [sys.executable, "-c", TREE]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as top:
        assert [top.stdout.readline() for _ in range(3)] == [b"here\n"] * 3
        assert len(descendants(top.pid)) == 3
        assert len(affinities(top.pid)) == 5
        bind(top.pid, every[:1])
        assert affinities(top.pid) == [set(every[:1])] * 5
        bind(top.pid, every[:2], widens=False)
        assert affinities(top.pid) == [set(every[:1])] * 5
        bind(top.pid, every[:2])
        assert affinities(top.pid) == [set(every[:2])] * 5
        bind(top.pid, every[1:2], widens=False)
        assert affinities(top.pid) == [set(every[1:2])] * 5


def test_a_worker_joins_its_groups_before_its_program_runs(tmp_path, capsys):
    from rota.train.zygote import join

    join([str(tmp_path / "cgroup.procs"), str(tmp_path / "none" / "cgroup.procs")])
    assert Path(tmp_path / "cgroup.procs").read_text() == str(os.getpid())
    assert "none/cgroup.procs: No such file or directory" in capsys.readouterr().err
