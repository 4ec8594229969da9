"""Profiles of jobs and kinds: what counts as measured, for whom, and what is remembered of it."""

import json

import pytest

from rota.model.allocation import on_node, shared_on_node
from rota.model.commands import Launch, Resume, Suspend
from rota.model.events import (
    AttemptLost,
    CommandSent,
    DecisionTaken,
    JobFinished,
    JobLaunched,
    JobResumed,
    JobSubmitted,
    JobSuspended,
    ModelReported,
    NodeJoined,
    NodeLost,
    WorkerReported,
)
from rota.model.job import JobSpec, JobState, Program
from rota.model.measured import profiles as profiles_module
from rota.model.measured.average import REMEMBERED_S, Average
from rota.model.measured.job_signature import Recent
from rota.model.measured.profile import OTHERS, Placement
from rota.model.measured.usage import Usage
from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.store.codec import decode, encode

ALONE = Placement("", 1)
GPU, SHARED = on_node(0, 1), shared_on_node(0, 1)


class Cluster:
    """Two nodes of two GPUs, jobs that a test gives GPUs, and a clock that it turns."""

    def __init__(self, *gpu_types: str) -> None:
        self.now_s = 1000.0
        self.state = ClusterState()
        self.state.log = []
        for number, gpu_type in enumerate(gpu_types or ("", "")):
            self.happens(NodeJoined, f"n{number}", 2, "gpu", gpu_type)

    def happens(self, event, *fields):
        self.state.apply(event(self.now_s, *fields))

    def job(self, run="python train.py --lr 0.1", workdir="/w"):
        """A new job; its row."""
        row = len(self.state.spec)
        program = Program(run, workdir)
        self.happens(JobSubmitted, JobSpec(str(row), 1, self.now_s, program=program))
        return row

    def plans(self, row, allocation):
        seq = self.state.decision_seq + 1
        self.happens(DecisionTaken, seq, "p", {row: allocation}, {}, {}, None, None)

    def sends(self, row, kind, allocation):
        attempt = self.state.attempt[row] + (kind is Launch)
        command = (self.state.next_command_id, row, attempt, 1)
        self.happens(CommandSent, kind(*command, *([allocation] if allocation else [])))

    def runs(self, row, allocation=GPU):
        """Let the job run there, from its start or from where it was suspended."""
        begins = self.state.home[row] is None
        self.plans(row, allocation)
        self.sends(row, Launch if begins else Resume, allocation)
        if begins:
            self.happens(JobLaunched, row, self.state.attempt[row])
        else:
            self.happens(JobResumed, row)

    def suspends(self, row):
        self.plans(row, None)
        self.sends(row, Suspend, None)
        self.happens(JobSuspended, row, self.now_s)

    def tells(self, row, step, **more):
        self.happens(WorkerReported, row, {"at_s": self.now_s, "step": step, "batch": 32} | more)

    def trains(self, *rows, seconds=10.0, step_s=0.1):
        """Let time pass in which these jobs do a step each ``step_s``; they tell at its ends."""
        steps = {row: (self.state.progress[row] or {}).get("step", 0) for row in rows}
        for row in (*rows, *rows):  # the first step of one is the beginning for others
            if self.state.profiles.awaits(row, self.now_s):
                self.tells(row, max(steps[row], 1))
        self.now_s += seconds
        for row in rows:
            self.tells(row, max(steps[row], 1) + round(seconds / step_s))

    def passes(self, seconds):
        self.now_s += seconds

    @property
    def view(self):
        return View(self.state, self.now_s, None)

    def step_s(self, row, **where):
        return self.view.step_s(row, ALONE._replace(**where))

    def ends(self, row):
        self.happens(JobFinished, row, JobState.SUCCEEDED, 0)


@pytest.fixture
def cluster():
    return Cluster()


def close(value):
    return pytest.approx(value, rel=1e-9)


# -- kinds -----------------------------------------------------------------------------------------


def test_a_sweep_over_numbers_is_one_kind_and_its_next_job_is_known_at_once(cluster):
    first = cluster.job("python train.py --lr 0.1 --seed 3")
    assert cluster.view.signature(first) == ""
    cluster.runs(first)
    cluster.trains(first)
    other = cluster.job("python train.py --lr 1e-3 --seed 14")
    assert cluster.view.signature(other) == cluster.view.signature(first)
    assert cluster.view.signature(first).startswith("train-")
    assert cluster.step_s(other) == close(0.1)
    assert not cluster.state.profiles.is_certain(other)


@pytest.mark.parametrize(
    "other",
    [
        ("python train.py --opt sgd", "/w"),
        ("python train.py --lr 0.1", "/v"),
        ("python test.py --lr 0.1", "/w"),
    ],
    ids=["another word", "another folder", "another program"],
)
def test_another_command_is_another_kind(cluster, other):
    first = cluster.job()
    cluster.runs(first)
    cluster.trains(first)
    assert cluster.view.signature(cluster.job(*other)) == ""


@pytest.mark.parametrize("what", ["model", "batch"])
def test_what_the_numbers_change_in_the_work_of_a_step_makes_another_kind(cluster, what):
    kinds = []
    for number in (64, 128):
        row = cluster.job(f"python train.py --width {number}")
        cluster.runs(row, on_node(0, 1 << len(kinds)))
        if what == "model":
            cluster.happens(ModelReported, row, number, 1)
        cluster.tells(row, 1, batch=number if what == "batch" else 32)
        kinds.append(cluster.view.signature(row))
    assert kinds[0] != kinds[1]
    # The very same command is the better guess, else the last that differs in numbers alone.
    guesses = [cluster.job(f"python train.py --width {number}") for number in (64, 128, 256)]
    assert [cluster.view.signature(row) for row in guesses] == [kinds[0], kinds[1], kinds[1]]


def test_a_simulated_job_is_of_the_kind_of_its_model_and_nothing_is_measured(cluster):
    spec = JobSpec("s", 1, 0.0, 60.0, model="resnet", gpu_util=0.4, memory_gb=3.0)
    cluster.happens(JobSubmitted, spec)
    cluster.runs(0)
    assert cluster.state.profiles is None
    assert cluster.view.signature(0) == "resnet"
    assert cluster.view.usage(0) == Usage(0.4, 3.0, None)
    assert (cluster.view.profile(0), cluster.view.own_profile(0)) == (None, None)


# -- what counts -----------------------------------------------------------------------------------


def test_time_per_step_is_kept_by_type_of_gpu_and_by_how_many(cluster):
    cluster = Cluster("a100", "t4")
    row = cluster.job()
    cluster.runs(row, on_node(0, 1))
    cluster.trains(row, step_s=0.1)
    cluster.suspends(row)
    cluster.runs(row, on_node(1, 0b11))
    cluster.trains(row, step_s=0.2)
    speeds = {place: speed.mean for place, speed in cluster.view.profile(row).speeds.items()}
    assert speeds == {Placement("a100", 1): close(0.1), Placement("t4", 2): close(0.2)}


def test_neither_a_pause_nor_what_was_before_it_counts(cluster):
    row = cluster.job()
    cluster.runs(row)
    cluster.trains(row, step_s=0.1)
    cluster.passes(3.0)  # it told nothing, and is suspended
    cluster.suspends(row)
    cluster.passes(600.0)
    cluster.runs(row)
    cluster.passes(5.0)
    cluster.trains(row, step_s=0.1)
    assert cluster.step_s(row) == close(0.1)
    assert cluster.view.profile(row).speeds[ALONE].count == 2


def test_the_way_to_the_first_step_does_not_count(cluster):
    row = cluster.job()
    cluster.runs(row)
    cluster.tells(row, 0)
    cluster.passes(30.0)
    cluster.tells(row, 1)
    cluster.trains(row, step_s=0.1)
    assert cluster.step_s(row) == close(0.1)


def test_a_step_that_takes_longer_than_reports_are_apart_is_measured_whole(cluster):
    row = cluster.job()
    cluster.runs(row)
    cluster.tells(row, 1)
    for step in (1, 1, 2):
        cluster.passes(10.0)
        cluster.tells(row, step)
    assert cluster.step_s(row) == close(30.0)


def test_an_attempt_that_starts_anew_is_measured_anew(cluster):
    row = cluster.job()
    cluster.runs(row)
    cluster.trains(row, step_s=0.1)
    cluster.happens(AttemptLost, row, 1, "its node was gone", 0.0)
    cluster.passes(100.0)
    cluster.runs(row)
    cluster.passes(100.0)
    cluster.tells(row, 500)  # from its checkpoint
    cluster.passes(10.0)
    cluster.tells(row, 600)
    assert cluster.step_s(row) == close(0.1)


def test_what_a_neighbour_takes_while_it_starts_is_of_no_placement(cluster):
    one, other = cluster.job("python a.py"), cluster.job("python b.py")
    cluster.runs(one, SHARED)
    cluster.trains(one, step_s=0.1)
    cluster.passes(1.0)
    cluster.runs(other, SHARED)  # its processes start, and it trains only later
    cluster.trains(one, step_s=1.0)
    cluster.trains(one, other, step_s=0.2)
    assert cluster.step_s(one) == close(0.1)
    assert cluster.step_s(one, beside=cluster.view.signature(other)) == close(0.2)
    assert cluster.step_s(other) is None


def test_a_report_from_before_a_change_tells_of_before_and_begins_nothing(cluster):
    one, other = cluster.job("python a.py"), cluster.job("python b.py")
    cluster.runs(one, SHARED)
    cluster.tells(one, 1)
    late = {"at_s": cluster.now_s + 1.0, "step": 11, "batch": 32}
    cluster.passes(2.0)
    cluster.runs(other, SHARED)
    cluster.happens(WorkerReported, one, late)
    assert cluster.step_s(one) == close(0.1)
    assert cluster.state.profiles.jobs[one].began is None
    cluster.passes(10.0)
    cluster.tells(one, 30)
    assert list(cluster.view.profile(one).speeds) == [ALONE]


def test_a_pair_is_known_by_its_kinds_and_tells_speeds_relative_to_alone(cluster):
    one, other = cluster.job("python a.py"), cluster.job("python b.py")
    for row, step_s in ((one, 0.1), (other, 0.2)):
        cluster.runs(row, SHARED)
        cluster.trains(row, step_s=step_s)
        cluster.suspends(row)
    assert cluster.view.pair(one, other) is None
    for row in (one, other):
        cluster.runs(row, SHARED)
    cluster.trains(one, other, step_s=0.25)
    assert cluster.view.pair(one, other) == (close(0.1 / 0.25), close(0.2 / 0.25))
    assert cluster.view.pair(other, one) == (close(0.2 / 0.25), close(0.1 / 0.25))
    assert cluster.view.pair(one, one) is None
    next_one, next_other = cluster.job("python a.py"), cluster.job("python b.py")
    assert cluster.view.pair(next_one, next_other) == cluster.view.pair(one, other)
    unknown = [cluster.job("python c.py"), cluster.job("python d.py")]
    assert cluster.view.pair(*unknown) is None


def test_what_a_pair_did_on_the_gpu_type_where_it_is_to_be_comes_before_that_on_others():
    cluster = Cluster("slow", "fast", "other")
    one, other = cluster.job("python a.py"), cluster.job("python b.py")
    for node, together_s in ((0, 0.2), (1, 1.0)):
        place = shared_on_node(node, 1)
        for row in (one, other):
            cluster.runs(row, place)
            cluster.trains(row, step_s=0.1)
            cluster.suspends(row)
        for row in (one, other):
            cluster.runs(row, place)
        for _ in range(3 - 2 * node):  # more often on the slow type
            cluster.trains(one, other, step_s=together_s)
        for row in (one, other):
            cluster.suspends(row)
    next_one, next_other = cluster.job("python a.py"), cluster.job("python b.py")
    assert cluster.view.pair(next_one, next_other) == (close(0.5), close(0.5))  # it is nowhere
    for node, speed in ((0, 0.5), (1, 0.1), (2, 0.5)):
        cluster.runs(next_other, shared_on_node(node, 2))
        assert cluster.view.pair(next_one, next_other) == (close(speed), close(speed))
        cluster.suspends(next_other)
        assert cluster.view.pair(next_one, next_other) == (close(speed), close(speed))


def test_more_than_one_neighbour_makes_no_pair(cluster):
    rows = [cluster.job(f"python {name}.py") for name in "abc"]
    for row in rows:
        cluster.runs(row, SHARED)
        cluster.tells(row, 1)
    cluster.trains(*rows)
    speeds = cluster.view.profile(rows[0]).speeds
    assert list(speeds) == [Placement("", 1, 1, OTHERS)]


def test_a_job_that_is_alone_again_is_measured_as_alone(cluster):
    one, other = cluster.job("python a.py"), cluster.job("python b.py")
    for row in (one, other):
        cluster.runs(row, SHARED)
        cluster.tells(row, 1)
    cluster.trains(one, other, step_s=0.2)
    cluster.ends(other)
    cluster.trains(one, step_s=0.1)
    assert cluster.step_s(one) == close(0.1)


def test_jobs_on_a_lost_node_are_not_beside_those_that_come_there_later(cluster):
    one, other = cluster.job("python a.py"), cluster.job("python b.py")
    cluster.runs(one, SHARED)
    cluster.tells(one, 1)
    cluster.happens(NodeLost, "n0")
    cluster.happens(NodeJoined, "n0", 2)
    cluster.runs(other, SHARED)
    cluster.trains(other, step_s=0.1)
    assert cluster.step_s(other) == close(0.1)


# -- what jobs use ---------------------------------------------------------------------------------


def used(cluster, row, util, cores):
    """Ten seconds in which a job keeps its device and cores so busy."""
    before = cluster.state.progress[row] or {}
    cluster.passes(10.0)
    more = {"device_util": util, "util_since_s": cluster.now_s - 5.0}
    more |= {"cpu_s": before.get("cpu_s", 0.0) + cores * 10.0, "cpu_at_s": cluster.now_s}
    cluster.tells(row, before.get("step", 0) + 100, **more)


def test_usage_is_that_of_jobs_alone_and_known_of_the_next_of_their_kind(cluster):
    one, other = cluster.job("python a.py"), cluster.job("python b.py")
    cluster.runs(one, SHARED)
    memory = {"memory_least_bytes": 10**9, "memory_most_bytes": 4 * 10**9}
    cluster.tells(one, 1, cpu_s=0.0, cpu_at_s=cluster.now_s, **memory)
    used(cluster, one, 0.3, 1.5)
    cluster.runs(other, SHARED)
    cluster.tells(other, 1)
    used(cluster, one, 0.9, 0.1)  # of a GPU that it has not for itself
    used(cluster, one, 0.9, 0.1)
    expected = Usage(close(0.3), 4.0, close(1.5))
    assert cluster.view.usage(one) == expected
    assert cluster.view.usage(cluster.job("python a.py")) == expected
    known = cluster.view.profile(one)
    assert (known.least_bytes, known.most_bytes) == (10**9, 4 * 10**9)


def test_what_a_job_told_itself_comes_before_what_its_kind_did(cluster):
    for util in (0.2, 0.6):
        row = cluster.job()
        cluster.runs(row)
        cluster.tells(row, 1, cpu_s=0.0, cpu_at_s=cluster.now_s)
        used(cluster, row, util, 1.0)
        assert cluster.view.usage(row).gpu_util == close(util)
        cluster.ends(row)
    assert cluster.view.usage(cluster.job()).gpu_util == close(0.4)


def test_a_share_of_the_device_that_began_before_the_measurement_does_not_count(cluster):
    row = cluster.job()
    cluster.runs(row)
    cluster.tells(row, 1)
    cluster.passes(10.0)
    cluster.tells(row, 100, device_util=1.0, util_since_s=cluster.now_s - 10.5)
    assert cluster.view.profile(row).device_util.mean is None
    assert cluster.view.usage(row).gpu_util == 1.0, "it is all that is known"


def test_a_command_that_never_tells_of_a_step_has_a_kind_at_its_end(cluster):
    row = cluster.job("make")
    cluster.runs(row)
    for cpu_s in (0.0, 20.0):
        told = {"at_s": cluster.now_s, "cpu_s": cpu_s, "cpu_at_s": cluster.now_s}
        cluster.happens(WorkerReported, row, told)
        cluster.passes(10.0)
    cluster.ends(row)
    assert cluster.view.usage(cluster.job("make")).cpu_cores == close(2.0)
    assert not cluster.view.profile(row).speeds


def test_an_attempt_that_failed_before_its_first_step_does_not_hide_what_others_did(cluster):
    first = cluster.job()
    cluster.runs(first)
    cluster.trains(first)
    cluster.ends(first)
    failed = cluster.job()
    cluster.runs(failed)
    cluster.happens(WorkerReported, failed, {"at_s": cluster.now_s, "cpu_s": 1.0, "cpu_at_s": 1.0})
    cluster.ends(failed)
    assert cluster.view.signature(cluster.job()) == cluster.view.signature(first)


# -- what is remembered ----------------------------------------------------------------------------


def test_an_average_follows_what_has_changed_for_good_within_an_hour_or_two():
    average = Average()
    for _ in range(360):
        average.add(10.0, 100, 10.0)
    assert average.mean == close(0.1)
    seconds = 0.0
    while average.mean < 0.195:
        average.add(20.0, 100, 20.0)
        seconds += 20.0
    assert seconds < 8 * REMEMBERED_S
    assert average.latest == 0.2


def test_the_log_makes_the_same_profiles_again(cluster):
    rows = [cluster.job(f"python {name}.py --n {n}") for n in range(3) for name in "ab"]
    for one, other in zip(rows[::2], rows[1::2], strict=True):
        cluster.runs(one, SHARED)
        cluster.happens(ModelReported, one, 100, 10)
        cluster.trains(one)
        cluster.runs(other, SHARED)
        cluster.trains(one, other, step_s=0.3)
        cluster.suspends(one)
        cluster.runs(one, on_node(1, 0b11))
        cluster.trains(one)
        cluster.ends(one)
        cluster.ends(other)
    again = ClusterState()
    for event in cluster.state.log:
        again.apply(decode(json.loads(json.dumps(encode(event)))))
    assert again.profiles == cluster.state.profiles
    assert len(again.profiles.by_signature) == 2
    cluster.tells(cluster.job(), 1)
    assert again.profiles != cluster.state.profiles


def test_what_is_kept_does_not_grow_without_end(cluster, monkeypatch):
    cluster = Cluster()
    most = profiles_module.MOST_SIGNATURES
    words = [
        f"python train.py {'x' * (n % 97)} {chr(97 + n // 97 % 26)}{'y' * (n // 2522)}"
        for n in range(10_000)
    ]
    assert len(set(words)) == 10_000
    for word in words:
        row = cluster.job(word)
        cluster.runs(row)
        cluster.trains(row)
        cluster.ends(row)
    profiles = cluster.state.profiles
    assert len(profiles.by_signature) == most
    assert len(profiles.jobs) == profiles_module.MOST_JOBS
    assert not profiles._placed
    assert not any(profiles._on_node.values())
    assert cluster.step_s(cluster.job(words[-1])) == close(0.1), "the last one is known"
    assert cluster.step_s(cluster.job(words[0])) is None, "the first one is forgotten"


def test_a_kind_that_was_forgotten_while_a_job_of_it_ran_is_there_again(cluster):
    row = cluster.job()
    cluster.runs(row)
    cluster.trains(row)
    kind = cluster.view.signature(row)
    del cluster.state.profiles.by_signature[kind]
    cluster.trains(row)
    assert cluster.view.signature(row) == kind
    assert cluster.step_s(cluster.job()) == close(0.1)
    assert cluster.view.profile(row).command == "python train.py --lr 0.1"


def test_of_recent_things_the_one_set_longest_ago_goes_first():
    recent = Recent(2)
    recent["a"], recent["b"] = 1, 2
    recent["a"] = 3
    recent["c"] = 4
    assert dict(recent) == {"a": 3, "c": 4}
