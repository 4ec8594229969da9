"""Step times and use by CPU cores and phase: where they count, and of which jobs they are known."""

import json

import pytest

from rota.explain.data_wait import data_wait_of
from rota.model.allocation import shared_on_node
from rota.model.commands import SetCpus
from rota.model.events import CommandSent, CpusSet, DecisionTaken, WorkerReported
from rota.model.measured import profile as profile_module
from rota.model.measured.cpu_points import CpuPlace
from rota.store.codec import decode, encode

from .test_profiles import GPU, Cluster, close

TRAIN = CpuPlace("", 1, 1, "train", None, 2, None)
EVALUATE = TRAIN._replace(phase="evaluate", workers=None)
SHARED = shared_on_node(0, 1)


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def row(cluster):
    """A job that has begun to train."""
    row = cluster.job()
    cluster.runs(row)
    cluster.tells(row, 1)
    return row


def steps(cluster, row, step_s=0.5, wait_s=0.1, seconds=10.0, since_s=None, **more):
    """Let the job train for some seconds, and tell its times of all of them."""
    since_s = cluster.now_s if since_s is None else since_s
    cluster.passes(seconds)
    entry = {"steps": round(seconds / step_s), "step_s": step_s, "wait_s": wait_s}
    phases = {"train": entry | {"since_s": since_s, "workers": 2}}
    step = cluster.state.progress[row]["step"] + round(seconds / step_s)
    cluster.tells(row, step, phases=phases, phase="train", **more)


def validates(cluster, row, seconds):
    """Let the job validate, and tell how long that took."""
    entry = {"steps": 1, "step_s": seconds, "since_s": cluster.now_s}
    cluster.passes(seconds)
    step = cluster.state.progress[row]["step"] + 1
    cluster.tells(row, step, phases={"evaluate": entry}, phase="train")


def gives_cores(cluster, row, millicores):
    command = SetCpus(cluster.state.next_command_id, row, cluster.state.attempt[row], 1, millicores)
    cluster.happens(CommandSent, command)
    cluster.passes(0.25)
    cluster.happens(CpusSet, row, millicores)


def points(cluster, row):
    """Means of step and wait, by conditions."""
    known = cluster.view.profile(row).cpu_points
    return {place: (point.step_s.mean, point.wait_s.mean) for place, point in known.items()}


def test_step_times_are_kept_by_cores_and_known_of_the_next_job_of_the_kind(cluster, row):
    steps(cluster, row, step_s=0.5, wait_s=0.3)
    gives_cores(cluster, row, 2500)
    steps(cluster, row, step_s=0.25, wait_s=0.05)
    expected = {
        TRAIN: (close(0.5), close(0.3)),
        TRAIN._replace(millicores=2500): (close(0.25), close(0.05)),
    }
    assert points(cluster, row) == expected
    assert cluster.view.own_profile(row).cpu_points[TRAIN].wait_share == close(0.6)
    assert points(cluster, cluster.job()) == expected


def test_a_job_whose_arguments_make_other_steps_than_its_kind_soon_has_its_own_times(cluster, row):
    gives_cores(cluster, row, 1000)
    steps(cluster, row, step_s=0.5)
    gives_cores(cluster, row, 2000)
    steps(cluster, row, step_s=0.25)
    cluster.suspends(row)
    other = cluster.job("python train.py --lr 0.2")

    def times():
        found = cluster.view.core_times(other, GPU, "train")
        return {each.millicores: each.step_s for each in found}

    assert times() == {1000: close(0.5), 2000: close(0.25)}
    cluster.runs(other)
    cluster.tells(other, 1)
    gives_cores(cluster, other, 1000)
    steps(cluster, other, step_s=1.0)
    assert cluster.view.signature(other) == cluster.view.signature(row)
    assert times() == {1000: close(1.0)}
    gives_cores(cluster, other, 2000)
    steps(cluster, other, step_s=1.0, seconds=50.0)
    assert times() == {1000: close(1.0), 2000: close(1.0)}


def test_a_wait_for_data_is_told_of_steps_with_the_cores_that_a_job_has(cluster, row):
    steps(cluster, row, step_s=0.5, wait_s=0.4)
    assert data_wait_of(cluster.state, row)["share"] == close(0.8)
    gives_cores(cluster, row, 2000)
    assert data_wait_of(cluster.state, row) is None
    steps(cluster, row, step_s=0.5, wait_s=0.1)
    assert data_wait_of(cluster.state, row)["share"] == close(0.2)


def test_steps_during_which_cores_changed_are_of_neither(cluster, row):
    began_s = cluster.now_s
    cluster.passes(5.0)
    gives_cores(cluster, row, 2000)
    steps(cluster, row, since_s=began_s)
    assert points(cluster, row) == {}
    steps(cluster, row)
    assert list(points(cluster, row)) == [TRAIN._replace(millicores=2000)]


def test_a_report_from_before_other_cores_that_comes_late_counts_nowhere(cluster, row):
    entry = {"steps": 10, "step_s": 0.5, "since_s": cluster.now_s, "workers": 2}
    cluster.passes(5.0)
    late = {"at_s": cluster.now_s, "step": 11, "batch": 32, "phases": {"train": entry}}
    gives_cores(cluster, row, 2000)
    cluster.happens(WorkerReported, row, late)
    assert points(cluster, row) == {}


def test_a_validation_that_had_its_cores_almost_from_its_beginning_counts_as_one_step(cluster, row):
    entry = {"steps": 1, "step_s": 40.0, "since_s": cluster.now_s}
    cluster.passes(2.0)
    gives_cores(cluster, row, 8000)
    cluster.passes(40.0)
    cluster.tells(row, 2, phases={"evaluate": entry}, phase="train")
    assert points(cluster, row) == {EVALUATE._replace(millicores=8000): (40.0, None)}


def test_a_report_that_is_repeated_with_news_of_something_else_counts_once(cluster, row):
    validates(cluster, row, 30.0)
    cluster.happens(WorkerReported, row, cluster.state.progress[row] | {"phase": "evaluate"})
    (point,) = cluster.view.profile(row).cpu_points.values()
    assert (point.step_s.mean, point.step_s.count) == (30.0, 1)


def test_jobs_that_share_their_gpus_tell_nothing_of_cores(cluster, row):
    other = cluster.job("python other.py")
    cluster.suspends(row)
    for each in (row, other):
        cluster.runs(each, SHARED)
        cluster.tells(each, 2)
    steps(cluster, row)
    assert points(cluster, row) == {}


@pytest.mark.parametrize(
    "wrong",
    [{"step_s": 0}, {"step_s": float("nan")}, {"wait_s": -1.0}, {"wait_s": 60.0}],
    ids=str,
)
def test_times_that_can_not_be_are_left_out_and_the_rest_of_the_report_counts(cluster, row, wrong):
    entry = {"steps": 20, "step_s": 0.5, "since_s": cluster.now_s, "workers": 2} | wrong
    cluster.passes(10.0)
    cluster.tells(row, 21, phases={"train": entry})
    assert points(cluster, row) == {}
    assert cluster.step_s(row) == close(0.5)


def test_only_so_many_points_are_kept_the_latest_ones(cluster, row, monkeypatch):
    monkeypatch.setattr(profile_module, "MOST_POINTS", 3)
    again = cluster.job("python again.py")
    cluster.suspends(row)
    cluster.runs(again)
    cluster.tells(again, 1)
    for cores in range(1, 6):
        gives_cores(cluster, again, cores * 1000)
        steps(cluster, again)
    assert [place.millicores for place in points(cluster, again)] == [3000, 4000, 5000]


# -- phases ----------------------------------------------------------------------------------------


def uses(cluster, row, util, cores):
    """Ten seconds of such a use, told by the agent of a program that tells no steps."""
    before = cluster.state.progress[row] or {}
    cluster.passes(10.0)
    told = {"at_s": cluster.now_s, "device_util": util, "util_since_s": cluster.now_s - 5.0}
    told |= {"cpu_s": before.get("cpu_s", 0.0) + cores * 10.0, "cpu_at_s": cluster.now_s}
    cluster.happens(WorkerReported, row, told)


def test_a_session_tells_its_phase_and_it_is_known_at_once(cluster, row):
    assert cluster.view.phase(row) == "train"
    cluster.tells(row, 1, phase="evaluate")
    assert cluster.view.phase(row) == "evaluate"
    cluster.tells(row, 1, phase="asleep")
    assert cluster.view.phase(row) == "evaluate"
    cluster.tells(row, 2, phase="train")
    assert cluster.view.phase(row) == "train"


@pytest.mark.parametrize("controlled", [False, True])
def test_a_switch_of_phase_calls_for_a_decision_where_cores_are_controlled(
    cluster, row, controlled
):
    seq, cpus = cluster.state.decision_seq + 1, {row: 2000} if controlled else None
    cluster.happens(DecisionTaken, seq, "p", {}, {}, {}, None, None, None, cpus)
    for phase, switched in (("train", False), ("evaluate", True), ("evaluate", False)):
        cluster.state.decision_needed = False
        cluster.tells(row, 2, phase=phase)
        assert cluster.state.decision_needed is (switched and controlled)


def test_a_switch_that_shows_in_the_use_of_a_gpu_calls_for_a_decision_too(cluster):
    row = cluster.job("./program")
    cluster.runs(row)
    seq = cluster.state.decision_seq + 1
    cluster.happens(DecisionTaken, seq, "p", {}, {}, {}, None, None, None, {row: 2000})
    called = []
    for util in [0.9] * 6 + [0.1] * 3:
        cluster.state.decision_needed = False
        uses(cluster, row, util, 1.0)
        called.append(cluster.state.decision_needed)
    assert called == [False] * 7 + [True, False]


def test_a_program_without_a_session_shows_its_phase_by_its_second_sample(cluster):
    row = cluster.job("python plain.py")
    cluster.runs(row)
    uses(cluster, row, 0.9, 1.04)
    for _ in range(6):
        uses(cluster, row, 0.9, 1.04)
    assert cluster.view.phase(row) == "train"
    uses(cluster, row, 0.08, 3.87)
    uses(cluster, row, 0.08, 3.87)
    assert cluster.view.phase(row) == "evaluate"
    for _ in range(3):
        uses(cluster, row, 0.08, 3.87)
    for _ in range(3):
        uses(cluster, row, 0.9, 1.04)
    assert cluster.view.phase(row) == "train"
    known = cluster.view.own_profile(row).cpu_points
    use = {place.phase: (p.device_util.mean, p.cpu_cores.mean) for place, p in known.items()}
    assert use == {"train": (close(0.9), close(1.04)), "evaluate": (close(0.08), close(3.87))}
    assert all(point.step_s.mean is None for point in known.values())


def test_another_attempt_begins_in_the_first_phase(cluster):
    row = cluster.job("python plain.py")
    cluster.runs(row)
    for util, cores in [(0.9, 1.0)] * 6 + [(0.1, 4.0)] * 2:
        uses(cluster, row, util, cores)
    assert cluster.view.phase(row) == "evaluate"
    cluster.suspends(row)
    assert cluster.view.phase(row) == "evaluate", "it goes on where it was"
    cluster.ends(row)
    assert cluster.view.phase(cluster.job("python plain.py")) == "train"


def test_the_log_makes_points_and_phases_anew(cluster, row):
    steps(cluster, row)
    gives_cores(cluster, row, 1500)
    steps(cluster, row, cpu_s=2.0, cpu_at_s=cluster.now_s)
    validates(cluster, row, 30.0)
    again = type(cluster.state)()
    for event in cluster.state.log:
        again.apply(decode(json.loads(json.dumps(encode(event)))))
    assert again.profiles == cluster.state.profiles
    assert again.copy().profiles == cluster.state.profiles
