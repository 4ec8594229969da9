"""Pollux on live jobs: what it looks at, and what it does while they have yet to tell."""

import itertools

import pytest

from rota.live.controller.goodput import told_by
from rota.model.allocation import on_node
from rota.model.commands import Launch, Resize, Resume, Suspend
from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.events import (
    BatchRefused,
    CommandSent,
    CpusSet,
    JobFinished,
    JobLaunched,
    JobResized,
    JobResumed,
    JobRetuned,
    JobSubmitted,
    JobSuspended,
    NodeJoined,
    ResumeRequested,
    StopRequested,
    SuspendRequested,
    WorkerRegistered,
    WorkerReported,
)
from rota.model.job import Adapt, Elastic, JobState, Program, Suspension
from rota.model.measured.profiles import Profiles
from rota.model.plan import Plan
from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.policy.base import Policy
from rota.policy.pollux.layout import Layout
from rota.policy.pollux.models import Models
from rota.policy.registry import create
from rota.testing.builders import job

TOLD = {"initial": 12, "most": 96, "most_per_gpu": 48, "scaled_steps": 30.0, "epoch_samples": 120}
TOLD |= {"size": 12, "gpus": 1, "per_gpu": 12, "accumulation": 0, "sqr": 1.0, "var": 20.0}


class OneEach(Policy):
    """Gives every job a GPU of its own, while there are any."""

    def decide(self, view):
        free = [gpu for gpu in range(8) if view.free_now().masks[0] >> gpu & 1]
        waiting = [row for row in view.active if view.target[row] is None]
        places = {row: on_node(0, 1 << gpu) for row, gpu in zip(waiting, free, strict=False)}
        return Plan(places, {}, {})


class Cluster:
    """A live node of slots, on which everything that was decided happens at once."""

    def __init__(self, slots=8):
        self.state = ClusterState()
        self.state.apply(NodeJoined(0.0, "n0", slots, "cpu"))
        self.now_s = 0.0

    def submit(self, gpus=(1, 2, 4, 8), run="python train.py"):
        program, elastic = Program(run, "/work"), Elastic(gpus)
        spec = job(len(self.state.spec) + 1, gpus[0], at=self.now_s, elastic=elastic)
        spec = spec._replace(program=program, adapt=Adapt(96, 48), duration_s=None)
        self.state.apply(JobSubmitted(self.now_s, spec))
        return len(self.state.spec) - 1

    def decides(self, policy):
        """One decision, and the launches that follow from it; the other commands."""
        self.now_s += 10.0
        take_decision(self.state, policy, self.now_s)
        return self.commands()

    def commands(self):
        """Send what is to be sent; launches happen at once, the others are given back."""
        others = []
        for command in diff(self.state):
            self.state.apply(CommandSent(self.now_s, command))
            if isinstance(command, Launch):
                self.state.apply(JobLaunched(self.now_s, command.row, command.attempt))
            else:
                others.append(command)
        return others

    def tells(self, row, **changes):
        self.now_s += 1.0
        told = TOLD | {"steps": 10, "step_s": 0.2, "gradient_s": 0.19} | changes
        progress = {"at_s": self.now_s, "step": 10, "samples": 120, "batch": 12, "metrics": {}}
        self.state.apply(WorkerReported(self.now_s, row, progress | {"adaptation": told}))

    def ends(self, row):
        self.state.apply(JobFinished(self.now_s, row, JobState.SUCCEEDED, 0, ""))


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def kinds_asked(monkeypatch):
    """The rows whose kinds were asked for."""
    asked, kind = [], Profiles.signature

    def noted(self, state, row):
        asked.append(row)
        return kind(self, state, row)

    monkeypatch.setattr(Profiles, "signature", noted)
    return asked


def with_history(cluster, number):
    for _ in range(number):
        row = cluster.submit()
        cluster.decides(OneEach())
        cluster.tells(row)
        cluster.ends(row)


def test_a_decision_looks_at_no_job_that_has_ended_before_the_one_before(cluster, kinds_asked):
    with_history(cluster, 30)
    first, second = cluster.submit(), cluster.submit()
    policy = create("pollux", {})
    cluster.decides(policy)
    assert set(kinds_asked) > {first, second}, "it has to learn who has been there, once"
    kinds_asked.clear()
    for _ in range(3):
        cluster.tells(first)
        cluster.decides(policy)
    assert set(kinds_asked) == {first, second}


def test_what_ended_jobs_have_measured_counts_for_their_kind_though_they_are_not_looked_at(cluster):
    with_history(cluster, 3)
    row = cluster.submit()
    policy = create("pollux", {})
    for _ in range(3):
        cluster.decides(policy)
        cluster.tells(row)
        cluster.state.decision_needed = True
    anew = create("pollux", {}).decide(View(cluster.state, 100.0, policy))
    assert policy.decide(View(cluster.state, 100.0, policy)) == anew
    told = told_by(cluster.state, row, cluster.now_s, {})
    assert [len(points) for points in told.of_kind] == [1, 1, 1]


def test_few_cores_do_not_make_gpus_look_slow(cluster):
    row = cluster.submit()
    policy = create("pollux", {})
    cluster.decides(policy)
    models = [fitted(cluster)]
    for millicores, wait_s in ((500, 1.8), (8000, 0.0)):
        cluster.state.apply(CpusSet(cluster.now_s, row, millicores))
        cluster.tells(row, step_s=0.2 + wait_s, wait_s=wait_s)
        models.append(fitted(cluster))
    assert models[0] is None
    assert models[1].compute_s(12) == pytest.approx(0.195, rel=0.05)
    assert models[2].compute_s(12) == pytest.approx(models[1].compute_s(12))


def fitted(cluster):
    """The step times of the first job, as a policy has them."""
    ((known,),) = Models(shared=True).know(View(cluster.state, cluster.now_s, None), [0], {})
    return None if known.model is None else known.model.step_time


def test_jobs_that_never_ran_are_not_asked_for_a_goodput_curve(cluster, kinds_asked):
    for _ in range(5):
        cluster.state.apply(StopRequested(0.0, cluster.submit()))
    row = cluster.submit()
    cluster.decides(OneEach())
    kinds_asked.clear()
    assert told_by(cluster.state, row, cluster.now_s, {}).of_kind == ()
    assert set(kinds_asked) == {row}


def test_a_batch_that_was_refused_is_not_asked_for_again_nor_a_larger_one(cluster):
    row = cluster.submit(gpus=(1,))
    policy = create("pollux", {})
    cluster.decides(policy)
    cluster.tells(row)
    cluster.tells(row, per_gpu=24, size=24, step_s=0.22, gradient_s=0.21)
    (retune,) = cluster.decides(policy)
    first = retune.batch
    asked = []
    while first is not None and len(asked) < 10:
        asked.append(first[0])
        cluster.state.apply(BatchRefused(cluster.now_s, row, first, "no room"))
        first = next((command.batch for command in cluster.decides(policy)), None)
    assert asked[0] > 24
    assert asked == sorted(set(asked), reverse=True), "each is smaller than the one before"
    assert 1 < len(asked) < 10
    cluster.tells(row)
    assert cluster.decides(policy) == []


def test_a_batch_that_has_become_larger_does_not_become_smaller_for_the_horizon(cluster):
    """Gradient noise that is measured as small and large in turn asks for a change each time."""
    row = cluster.submit(gpus=(1,))
    policy = create("pollux", {"horizon_s": 100.0})
    cluster.decides(policy)
    cluster.tells(row, per_gpu=24, size=24, step_s=0.22, gradient_s=0.21)
    wholes, times = [], []
    for look in range(40):
        cluster.tells(row, var=(500.0, 0.1)[look % 2])
        for command in cluster.decides(policy):
            cluster.state.apply(JobRetuned(cluster.now_s, row, command.batch))
            wholes.append(command.batch[0] * (command.batch[1] + 1))
            times.append(cluster.now_s)
    grows = [after > before for before, after in itertools.pairwise(wholes)]
    assert not all(grows), "it is taken back in the end"
    assert wholes[0] > 12, "the first one is larger than its own"
    for (before, after), again in zip(itertools.pairwise(times), grows, strict=True):
        assert again or after - before >= 100.0
    turns = [at_s for at_s, grew in zip(times[1:], grows, strict=True) if not grew]
    assert all(later - before >= 200.0 for before, later in itertools.pairwise(turns))


def begun_with_others_to_come(cluster, policy):
    """A job that has all GPUs and has told nothing yet, decided on with three that have come."""
    first = cluster.submit(gpus=(2, 4, 8))
    cluster.decides(OneBig())
    for number in range(3):
        cluster.submit(gpus=(2, 4, 8), run=f"python other.py {'x' * number}")
    assert cluster.decides(policy) == [], "it is neither suspended nor asked yet"
    assert [target and target.num_gpus for target in cluster.state.target] == [2, 2, 2, 2]
    assert cluster.state.held[first].num_gpus == 8
    return first


class OneBig(Policy):
    def __init__(self, slots=0xFF):
        self.slots = slots

    def decide(self, view):
        return Plan({0: on_node(0, self.slots)}, {}, {})


def test_a_job_that_has_just_begun_gives_gpus_up_once_its_program_has_said_that_it_can(cluster):
    first = begun_with_others_to_come(cluster, create("pollux", {}))
    for resizable in (False, True):  # it opens a session first, and then makes a loader
        assert cluster.commands() == []
        said = WorkerRegistered(cluster.now_s, first, Suspension.BOUNDARY, True, resizable, 8)
        cluster.state.apply(said)
    (resize,) = cluster.commands()
    assert (type(resize), resize.row, resize.allocation.num_gpus) == (Resize, first, 2)
    cluster.state.apply(JobResized(cluster.now_s, first, resize.allocation))
    cluster.commands()
    assert [held.num_gpus for held in cluster.state.held] == [2, 2, 2, 2]
    assert cluster.state.preemptions[first] == 0
    cluster.state.validate()


def test_one_whose_program_turns_out_not_to_be_able_is_suspended_and_goes_on_as_it_was(cluster):
    policy = create("pollux", {})
    first = begun_with_others_to_come(cluster, policy)
    told = {"at_s": cluster.now_s, "metrics": {}}  # as an agent does that knows of no session
    cluster.state.apply(WorkerReported(cluster.now_s, first, told))
    (suspend,) = cluster.commands()
    assert (type(suspend), suspend.row) == (Suspend, first)
    cluster.state.apply(JobSuspended(cluster.now_s, first, cluster.now_s))
    assert cluster.state.target[first] is None, "it can't go on with two"
    assert cluster.state.decision_needed
    cluster.commands()
    cluster.decides(policy)
    assert View(cluster.state, 0.0, None).sizes(first) == (8,)
    cluster.state.validate()


def test_a_job_that_has_just_begun_is_not_given_more_before_its_program_has_said_that_it_can(
    cluster,
):
    first = cluster.submit(gpus=(1, 2, 4, 8))
    cluster.decides(OneEach())
    assert View(cluster.state, 0.0, None).sizes(first) == (1,)


@pytest.mark.parametrize("run", ["train", "other"])
def test_who_has_begun_with_much_makes_room_while_nothing_is_known_of_it(cluster, run):
    policy = create("pollux", {})
    cluster.submit(gpus=(1, 2, 4))
    cluster.decides(policy)
    cluster.submit(gpus=(4,), run=f"python {run}.py")
    cluster.decides(policy)
    assert [target and target.num_gpus for target in cluster.state.target] == [4, 4]
    cluster.submit(gpus=(2,), run=f"python {run}.py")
    cluster.decides(policy)
    assert [target and target.num_gpus for target in cluster.state.target] == [1, 4, 2]


def test_jobs_that_run_one_command_go_one_after_the_other_before_their_kind_is_known(cluster):
    for number in (1, 2, 3):
        cluster.submit(gpus=(8,), run=f"python train.py --seed {number}")
    assert View(cluster.state, 0.0, None).signature(0) == ""
    policy = create("pollux", {})
    for _ in range(3):
        assert cluster.decides(policy) == [], "none makes room for one that came later"
    assert [target and target.num_gpus for target in cluster.state.target] == [8, None, None]


class TakesAllAway(Policy):
    """Means no job to have any GPUs."""

    def decide(self, view):
        what_if = view.what_if()
        Layout(what_if, 8, dict.fromkeys(view.active, 0), dict.fromkeys(view.active, 1.0)).place()
        return what_if.plan()


def said(cluster, row):
    cluster.state.apply(
        WorkerRegistered(cluster.now_s, row, Suspension.BOUNDARY, True, True, 8, True)
    )


def test_a_job_that_is_to_have_no_gpus_goes_on_with_its_least_before_it_is_suspended(cluster):
    first = cluster.submit(gpus=(2, 4, 8))
    cluster.decides(OneBig())
    for _ in range(2):
        assert cluster.decides(TakesAllAway()) == [], "nobody knows yet if it can become smaller"
    said(cluster, first)
    (resize,) = cluster.commands()
    assert (type(resize), resize.allocation.num_gpus) == (Resize, 2)
    cluster.state.apply(JobResized(cluster.now_s, first, resize.allocation))
    (suspend,) = cluster.decides(TakesAllAway())
    assert type(suspend) is Suspend
    cluster.state.apply(JobSuspended(cluster.now_s, first, cluster.now_s))
    assert View(cluster.state, 0.0, None).sizes(first) == (2,), "so many are enough to go on"


def test_a_job_that_can_not_become_smaller_is_suspended_at_once(cluster):
    first = cluster.submit(gpus=(2, 4, 8))
    cluster.decides(OneBig())
    told = {"at_s": cluster.now_s, "metrics": {}}
    cluster.state.apply(WorkerReported(cluster.now_s, first, told))
    (suspend,) = cluster.decides(TakesAllAway())
    assert (type(suspend), suspend.row) == (Suspend, first)


class Retuned(Policy):
    """Wants the first job to have another batch where it is."""

    def decide(self, view):
        return Plan({0: view.target[0].with_batch((24, 0))}, {}, {})


def with_both_slots():
    """A job alone that has both slots and can do with one, and gains little by the second."""
    cluster = Cluster(slots=2)
    first = cluster.submit(gpus=(1, 2))
    cluster.decides(OneBig(0b11))
    said(cluster, first)
    cluster.tells(first)
    cluster.tells(first, gpus=2, size=24, step_s=0.29, gradient_s=0.19)
    return cluster, first


def comes(cluster):
    return cluster.submit(gpus=(1, 2), run="python other.py")


def targets(cluster):
    return [target and target.num_gpus for target in cluster.state.target]


@pytest.mark.parametrize("retuned", [True, False])
def test_who_comes_while_a_batch_changes_gets_a_slot_of_one_that_can_do_with_less(retuned):
    cluster, first = with_both_slots()
    (retune,) = cluster.decides(Retuned())
    second = comes(cluster)
    assert cluster.decides(create("pollux", {})) == [], "one command at a time"
    assert targets(cluster) == [1, 1]
    if retuned:
        cluster.state.apply(JobRetuned(cluster.now_s, first, retune.batch))
    else:
        cluster.state.apply(BatchRefused(cluster.now_s, first, retune.batch, "no room"))
    (resize,) = cluster.commands()
    assert (type(resize), resize.row, resize.allocation.num_gpus) == (Resize, first, 1)
    cluster.state.apply(JobResized(cluster.now_s, first, resize.allocation))
    cluster.commands()
    assert cluster.state.held[second].num_gpus == 1
    assert cluster.state.preemptions[first] == 0
    cluster.state.validate()


def test_who_comes_while_another_grows_waits_until_that_can_give_a_slot_up():
    cluster, first = with_both_slots()
    (shrink,) = cluster.decides(OneBig(0b1))
    cluster.state.apply(JobResized(cluster.now_s, first, shrink.allocation))
    policy = create("pollux", {})
    (grow,) = cluster.decides(policy)
    assert (type(grow), grow.allocation.num_gpus) == (Resize, 2)
    second = comes(cluster)
    assert cluster.decides(policy) == []
    assert targets(cluster) == [2, None], "it is not suspended: it would have to go on with two"
    cluster.state.apply(JobResized(cluster.now_s, first, grow.allocation))
    assert cluster.state.decision_needed
    (shrink,) = cluster.decides(policy)
    assert (type(shrink), shrink.row, shrink.allocation.num_gpus) == (Resize, first, 1)
    assert targets(cluster) == [1, 1]
    cluster.state.apply(JobResized(cluster.now_s, first, shrink.allocation))
    cluster.commands()
    assert cluster.state.held[second].num_gpus == 1
    cluster.state.validate()


def test_who_comes_while_another_is_resumed_does_not_have_it_suspended_again():
    cluster, first = with_both_slots()
    cluster.state.apply(SuspendRequested(cluster.now_s, first))
    cluster.commands()
    cluster.state.apply(JobSuspended(cluster.now_s, first, cluster.now_s))
    cluster.state.apply(ResumeRequested(cluster.now_s, first))
    policy = create("pollux", {})
    (resume,) = cluster.decides(policy)
    assert type(resume) is Resume
    comes(cluster)
    assert cluster.decides(policy) == []
    assert targets(cluster) == [2, None]
    cluster.state.apply(JobResumed(cluster.now_s, first))
    cluster.decides(policy)
    assert targets(cluster) == [1, 1]
