"""Background jobs in gaps: who gets which GPU, what trials come to, and what is remembered."""

import json

import pytest

from rota.model.allocation import background_on_node, indices, on_node, shared_on_node
from rota.model.events import (
    FillMeasured,
    JobFinished,
    JobSubmitted,
    ModelReported,
    NodeClosed,
    NodeOpened,
    ResumeRequested,
    SuspendRequested,
    WorkerRegistered,
)
from rota.model.job import JobState, Share, Suspension
from rota.model.reason import Reason
from rota.policy.fill.gap_fill import DWELL_S, GapFill
from rota.policy.fill.seating import TURN_S
from rota.policy.fill.trial import STARVED_S, Trial, read
from rota.testing.builders import job
from support.driven import DrivenCluster
from support.places import Places

TRIAL_S, PAUSE_S = 30.0, 600.0
GPU_0, GPU_1, BOTH = on_node(0, 1), on_node(0, 2), on_node(0, 3)


def back(name, **more):
    return job(name, share=Share("background"), **more)


def front(name, gpus=1, slowdown=None, **more):
    return job(name, gpus, share=Share("foreground", slowdown), **more)


class Cluster(DrivenCluster):
    """A node of two GPUs; foreground jobs have the GPUs that a test gives them by name."""

    def __init__(self, *jobs, cluster="1x2", **places):
        policy = Places(None)
        policy.fill = GapFill(trial_s=TRIAL_S, pause_s=PAUSE_S)
        super().__init__(*jobs, cluster=cluster, policy=policy)
        self.places(**places)

    def row(self, name):
        return self.state.row_of(name)

    def places(self, **places):
        """Foreground jobs have these GPUs from now on."""
        self.policy.changes = {self.row(name): place for name, place in places.items()}
        for name in places:
            self.happens(ModelReported, self.row(name), 10, 5)
        self.settle()

    def tells(self, name, beside, slowdown, harvest=0.4, after=5.0):
        """A report on a background job so many seconds later, and the decision after it."""
        self.passes(after)
        other = -1 if beside is None else self.row(beside)
        interval = (0.99 * slowdown, 1.01 * slowdown, 9) if beside is not None else ()
        self.happens(FillMeasured, self.row(name), other, slowdown, harvest, *interval)
        self.settle()

    def later(self, seconds):
        """A decision after some time, as if a report on a foreground job had come."""
        self.passes(seconds)
        self.state.decision_needed = True
        self.settle()

    def has(self, name):
        """The node and GPU of a background job; None if it has none."""
        target = self.state.target[self.row(name)]
        if target is None:
            return None
        assert target.background
        node, mask = target.parts[0]
        return node, mask.bit_length() - 1

    def on(self, name):
        """The node and the GPUs of a background job; None if it has none."""
        target = self.state.target[self.row(name)]
        return None if target is None else (target.parts[0][0], indices(target.parts[0][1]))

    def reason(self, name):
        return Reason(self.state.reason[self.row(name)])

    def probes(self, name):
        return self.state.notes.probes.get(self.row(name), [])

    def why(self, name):
        return self.state.notes.why.get(self.row(name))


def gang(name, gpus=2, **more):
    return job(name, gpus, share=Share("background"), **more)


def beside_one():
    """Job a on one GPU, whose other one is gone, and background job b on trial beside it."""
    return Cluster(front("a"), back("b"), cluster="1x1", a=GPU_0)


def test_an_idle_gpu_comes_first_and_is_no_trial():
    cluster = Cluster(front("a"), back("b"), a=GPU_0)
    assert cluster.has("b") == (0, 1)
    assert cluster.state.target[cluster.row("b")] is background_on_node(0, 2)
    assert cluster.why("b") == "no foreground job has its GPU"
    assert cluster.reason("b") == Reason.NONE


def test_else_it_gets_the_largest_gap():
    jobs = front("a", gpu_util=0.9), front("c", gpu_util=0.3), back("b")
    cluster = Cluster(*jobs, a=GPU_0, c=GPU_1)
    assert cluster.has("b") == (0, 1)


def test_a_gap_of_next_to_nothing_is_none():
    cluster = Cluster(front("a", gpu_util=0.99), back("b"), cluster="1x1", a=GPU_0)
    assert cluster.has("b") is None
    assert cluster.reason("b") == Reason.WAIT_GAPS
    assert (
        cluster.why("b") == "the largest gaps: node0:0, about 0 % beside job a: too little is left"
    )


def test_one_background_job_has_a_gpu_and_the_others_wait():
    cluster = Cluster(front("a"), back("b"), back("c"), cluster="1x1", a=GPU_0)
    assert (cluster.has("b"), cluster.has("c")) == ((0, 0), None)
    assert cluster.reason("c") == Reason.WAIT_GAPS
    assert (
        cluster.why("c") == "the largest gaps: node0:0, perhaps 50 % beside job a: job b fills it"
    )


def test_foreground_jobs_that_share_a_gpu_leave_what_neither_uses():
    jobs = front("a", gpu_util=0.5), front("c", gpu_util=0.4), front("d", gpu_util=0.3), back("b")
    shared = shared_on_node(0, 1)
    cluster = Cluster(*jobs, a=shared, c=shared, d=GPU_1)
    assert cluster.has("b") == (0, 1)


# -- trials ----------------------------------------------------------------------------------------


def test_a_pair_within_the_limit_for_long_enough_is_kept():
    cluster = beside_one()
    assert cluster.why("b").startswith("on trial beside job a")
    cluster.tells("b", "a", 1.04)
    assert cluster.probes("b") == []
    assert cluster.state.wake_at_s == TRIAL_S
    cluster.tells("b", "a", 1.05, after=TRIAL_S)
    (probe,) = cluster.probes("b")
    assert (probe.kept, probe.mates, probe.predicted) == (True, (0,), 1.5)
    assert probe.measured == pytest.approx(1 / 1.05 + 0.4)
    assert cluster.has("b") == (0, 0)
    assert cluster.why("b") == "kept beside job a, whose steps are not shown to be beyond the limit"
    assert cluster.state.wake_at_s is None


def test_a_pair_beyond_the_limit_is_undone_at_once():
    cluster = beside_one()
    cluster.tells("b", "a", 1.4)
    assert cluster.has("b") is None
    assert cluster.state.held[cluster.row("b")] is None
    assert cluster.reason("b") == Reason.FILL_UNDONE
    (probe,) = cluster.probes("b")
    assert (probe.kept, probe.mates) == (False, (0,))
    why = "job a became too slow beside it, or beside a job like it, and a pause is on"
    assert cluster.why("b") == f"the largest gaps: node0:0, perhaps 50 % beside job a: {why}"


def test_the_foreground_keeps_its_gpus_whatever_comes():
    cluster = beside_one()
    before = cluster.state.target[0]
    cluster.tells("b", "a", 1.4)
    cluster.later(PAUSE_S)
    assert cluster.state.target[0] is before is cluster.state.held[0]
    assert cluster.state.preemptions[0] == 0


def test_the_limit_of_the_foreground_counts():
    cluster = Cluster(front("a", slowdown=1.5), back("b"), cluster="1x1", a=GPU_0)
    cluster.tells("b", "a", 1.4)
    assert cluster.has("b") == (0, 0)


def test_a_foreground_that_allows_no_slowdown_has_nobody_beside_it():
    cluster = Cluster(front("a", slowdown=1.0), back("b"), cluster="1x1", a=GPU_0)
    assert cluster.has("b") is None
    assert cluster.why("b").endswith(": job a allows no slowdown")


def test_an_undone_pair_is_tried_again_only_after_pauses_that_grow():
    cluster = beside_one()
    pauses = []
    for _ in range(3):
        undone_s = cluster.now_s + 5.0
        cluster.tells("b", "a", 1.4)
        assert cluster.has("b") is None
        pauses.append(cluster.state.wake_at_s - undone_s)
        cluster.later(pauses[-1] - 1.0)
        assert cluster.has("b") is None
        cluster.later(1.0)
        assert cluster.has("b") == (0, 0)
    assert pauses == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]


def test_a_pair_that_is_kept_after_all_begins_anew():
    cluster = beside_one()
    cluster.tells("b", "a", 1.4)
    cluster.later(PAUSE_S)
    cluster.tells("b", "a", 1.0, after=TRIAL_S)
    assert [probe.kept for probe in cluster.probes("b")] == [False, True]
    cluster.tells("b", "a", 1.5)
    assert cluster.state.wake_at_s == cluster.now_s + PAUSE_S


def test_a_job_that_was_undone_goes_on_on_an_idle_gpu():
    cluster = Cluster(front("a"), front("c"), back("b"), a=GPU_0, c=GPU_1)
    assert cluster.has("b") == (0, 0)
    cluster.tells("b", "a", 1.4)
    assert cluster.has("b") is None  # it is not tried beside the next one yet
    cluster.happens(JobFinished, cluster.row("c"), JobState.SUCCEEDED)
    cluster.settle()
    assert cluster.has("b") == (0, 1)


def test_a_job_that_was_undone_is_tried_beside_others_after_a_while():
    cluster = Cluster(front("a"), front("c"), back("b"), a=GPU_0, c=GPU_1)
    cluster.tells("b", "a", 1.4)
    assert cluster.why("b").count("a pause is on") == 2
    assert cluster.state.wake_at_s == cluster.now_s + TRIAL_S
    cluster.later(TRIAL_S)
    assert cluster.has("b") == (0, 1)


def test_what_came_of_a_pair_holds_for_jobs_of_their_kinds():
    jobs = [front("a", model="vgg"), back("b", model="bert"), back("c", model="bert")]
    cluster = Cluster(*jobs, cluster="1x1", a=GPU_0)
    cluster.tells("b", "a", 1.4)
    assert cluster.has("c") is None
    assert cluster.reason("c") == Reason.FILL_UNDONE
    assert "bert beside vgg" in cluster.state.stage_marks["fill"]


def test_a_pair_that_has_gone_well_needs_no_second_trial():
    cluster = beside_one()
    cluster.tells("b", "a", 1.0, after=TRIAL_S)
    cluster.places(a=None)
    assert cluster.why("b") == "no foreground job has its GPU"
    cluster.places(a=GPU_0)
    assert cluster.why("b").startswith("kept beside job a")
    assert len(cluster.probes("b")) == 1


def test_another_foreground_on_the_gpu_is_another_trial():
    cluster = Cluster(front("a"), front("c"), back("b"), cluster="1x1", a=GPU_0)
    cluster.tells("b", "a", 1.0, after=TRIAL_S)
    cluster.places(a=None, c=GPU_0)
    assert cluster.why("b").startswith("on trial beside job c")
    cluster.tells("b", "c", 1.4)
    assert cluster.has("b") is None
    cluster.places(c=None, a=GPU_0)
    cluster.later(TRIAL_S)
    assert cluster.has("b") == (0, 0)


def test_a_foreground_that_tells_nothing_is_filled_in_its_idle_moments():
    cluster = beside_one()
    cluster.later(10 * TRIAL_S)
    assert cluster.has("b") == (0, 0)
    assert cluster.why("b") == "job a tells too little of its steps to be judged"
    (probe,) = cluster.probes("b")
    assert (probe.kept, probe.measured) == (True, None)
    cluster.tells("b", "a", 1.4)
    assert cluster.reason("b") == Reason.FILL_UNDONE


# -- places ----------------------------------------------------------------------------------------


def test_a_job_without_a_place_takes_that_of_one_that_has_run_longer_by_a_turn():
    cluster = Cluster(front("a"), back("b"), back("c"), cluster="1x1", a=GPU_0)
    cluster.tells("b", "a", 1.0, after=TRIAL_S)
    assert cluster.state.wake_at_s == TURN_S
    cluster.later(TURN_S - TRIAL_S)
    assert (cluster.has("b"), cluster.has("c")) == (None, (0, 0))
    assert cluster.reason("b") == Reason.WAIT_GAPS
    assert cluster.state.preemptions[cluster.row("b")] == 1


def test_nobody_moves_while_nothing_is_much_better():
    jobs = front("a", gpu_util=0.4), front("c", gpu_util=0.7), back("b")
    cluster = Cluster(*jobs, c=GPU_1, a=GPU_0)
    assert cluster.has("b") == (0, 0)
    cluster.tells("b", "a", 1.0, harvest=0.55, after=TRIAL_S)
    cluster.happens(JobFinished, cluster.row("c"), JobState.SUCCEEDED)
    cluster.later(DWELL_S)
    assert cluster.has("b") == (0, 0)


def test_a_job_moves_to_an_idle_gpu_that_is_much_better_once_it_has_stayed_for_a_while():
    jobs = front("a", gpu_util=0.4), front("c", gpu_util=0.7), back("b")
    cluster = Cluster(*jobs, c=GPU_1, a=GPU_0)
    cluster.tells("b", "a", 1.0, harvest=0.3, after=TRIAL_S)
    cluster.happens(JobFinished, cluster.row("c"), JobState.SUCCEEDED)
    cluster.settle()
    assert cluster.has("b") == (0, 0)
    assert cluster.state.wake_at_s == DWELL_S
    cluster.later(DWELL_S - TRIAL_S)
    assert cluster.has("b") == (0, 1)


def test_a_job_that_gets_nothing_for_long_moves_elsewhere_and_does_not_come_straight_back():
    jobs = front("a", gpu_util=0.4), front("c", gpu_util=0.7), back("b")
    cluster = Cluster(*jobs, c=GPU_1, a=GPU_0)
    cluster.tells("b", "a", 1.0, harvest=0.0)
    cluster.later(STARVED_S)
    assert cluster.has("b") == (0, 1)
    cluster.tells("b", "c", 1.4)
    cluster.later(TRIAL_S)
    assert cluster.has("b") is None
    cluster.later(PAUSE_S)
    assert cluster.has("b") is not None


def test_a_job_that_gets_nothing_anywhere_stays():
    cluster = beside_one()
    cluster.tells("b", "a", 1.0, harvest=0.0)
    cluster.later(STARVED_S)
    assert cluster.has("b") == (0, 0)


@pytest.mark.parametrize(
    ("movable", "portable", "place"),
    [(False, False, None), (True, False, (0, 1)), (True, True, (0, 1))],
)
def test_a_job_goes_only_to_gpus_where_its_state_can_go_on(movable, portable, place):
    cluster = Cluster(front("a"), front("c"), back("b"), a=GPU_1)
    assert cluster.has("b") == (0, 0)
    how = (Suspension.PROCESS, movable, False, 0, portable)
    cluster.happens(WorkerRegistered, cluster.row("b"), *how)
    cluster.places(c=GPU_0)
    cluster.tells("b", "c", 1.4)
    cluster.happens(JobFinished, cluster.row("a"), JobState.SUCCEEDED)
    cluster.settle()
    assert cluster.has("b") == place


@pytest.mark.parametrize(("portable", "place"), [(False, None), (True, (0, 0))])
def test_a_job_goes_only_to_nodes_where_its_state_can_go_on(portable, place):
    cluster = Cluster(front("a"), back("b"), cluster="2x1", a=GPU_0)
    how = (Suspension.BOUNDARY, True, False, 0, portable)
    cluster.happens(WorkerRegistered, cluster.row("b"), *how)
    cluster.happens(NodeClosed, "node1", False, None)
    cluster.settle()
    assert cluster.has("b") == place
    if place is None:
        assert cluster.why("b").endswith("its state can go on only elsewhere")
        cluster.happens(NodeOpened, "node1")
        cluster.settle()
        assert cluster.has("b") == (1, 0)


def test_a_job_leaves_a_node_that_is_closed():
    cluster = Cluster(front("a"), back("b"), cluster="2x1", a=GPU_0)
    assert cluster.has("b") == (1, 0)
    cluster.happens(NodeClosed, "node1", False, None)
    cluster.settle()
    assert cluster.has("b") == (0, 0)


# -- what is remembered ----------------------------------------------------------------------------


def test_marks_are_plain_and_those_of_jobs_end_with_them():
    cluster = beside_one()
    cluster.tells("b", "a", 1.4)
    marks = cluster.state.stage_marks["fill"]
    assert json.loads(json.dumps(marks)) == marks
    assert marks["1"]["undone"] == 1
    cluster.happens(JobFinished, 1, JobState.CANCELLED)
    assert marks == {}


def test_nothing_is_remembered_of_jobs_that_have_ended():
    cluster = Cluster(front("a"), back("b"), cluster="1x1", a=GPU_0)
    cluster.tells("b", "a", 1.4)
    assert "0" in cluster.state.stage_marks["fill"]["1"]["pairs"]
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    cluster.settle()
    assert "pairs" not in cluster.state.stage_marks["fill"]["1"]


def test_a_decision_that_finds_nothing_new_changes_no_mark():
    cluster = beside_one()
    cluster.tells("b", "a", 1.0, after=TRIAL_S)
    before = json.dumps(cluster.state.stage_marks)
    for _ in range(3):
        cluster.tells("b", "a", 1.02)
    assert json.dumps(cluster.state.stage_marks) == before


def test_what_changed_while_there_was_no_background_job_is_seen():
    cluster = Cluster(front("a"), back("b"), a=GPU_0)
    cluster.happens(JobFinished, cluster.row("b"), JobState.SUCCEEDED)
    cluster.settle()
    cluster.places(a=GPU_1)
    cluster.happens(JobSubmitted, back("c"))
    cluster.settle()
    assert cluster.has("c") == (0, 0)


def test_a_stage_made_anew_goes_on_from_its_marks():
    cluster, again = beside_one(), beside_one()
    for slowdown in (1.05, 1.0, 1.15, 1.15):
        for each in (cluster, again):
            each.tells("b", "a", slowdown, after=20.0)
        again.policy.fill = GapFill(trial_s=TRIAL_S, pause_s=PAUSE_S)
        again.state.plan = None
        again.state.stage_marks = json.loads(json.dumps(again.state.stage_marks))
        assert again.state.stage_marks == cluster.state.stage_marks
    assert again.has("b") is None


# -- gangs -----------------------------------------------------------------------------------------


def test_a_gang_has_the_gpus_of_one_node_of_which_most_is_left():
    jobs = front("a", gpu_util=0.9), front("c", gpu_util=0.4), front("d", 2, gpu_util=0.6)
    places = {"a": on_node(0, 1), "c": on_node(0, 2), "d": on_node(1, 3)}
    cluster = Cluster(*jobs, gang("b"), cluster="2x2", **places)
    assert cluster.on("b") == (1, (0, 1))
    assert cluster.why("b").startswith("on trial beside job d for")


def test_a_gang_takes_idle_gpus_first_and_is_no_trial_there():
    cluster = Cluster(front("a", 2, gpu_util=0.0), gang("b"), cluster="2x2", a=on_node(0, 3))
    assert cluster.on("b") == (1, (0, 1))
    assert cluster.why("b") == "no foreground job has its GPUs"


def test_a_gang_has_all_of_its_gpus_or_none():
    cluster = Cluster(front("a", gpu_util=0.99), gang("b"), back("c"), a=GPU_0)
    assert cluster.on("b") is None
    assert cluster.on("c") == (0, (1,))
    assert cluster.why("b") == (
        "no node has 2 gaps for it at once; the largest gaps: node0:1, idle: job c fills it; "
        "node0:0, about 0 % beside job a: too little is left"
    )


def test_a_gang_is_undone_by_any_foreground_job_and_tried_elsewhere():
    jobs = front("a", gpu_util=0.2), front("c", gpu_util=0.2, slowdown=1.5)
    places = {"a": on_node(0, 1), "c": on_node(0, 2)}
    cluster = Cluster(*jobs, gang("b", 3), cluster="1x4", **places)
    assert cluster.on("b") == (0, (0, 2, 3))
    cluster.tells("b", "a", 1.3)
    assert (cluster.on("b"), cluster.reason("b")) == (None, Reason.FILL_UNDONE)
    cluster.later(2 * TRIAL_S)
    assert cluster.on("b") == (0, (1, 2, 3))
    cluster.tells("b", "c", 1.3)
    cluster.tells("b", "c", 1.3, after=TRIAL_S)
    assert cluster.on("b") == (0, (1, 2, 3))
    assert cluster.why("b") == "kept beside job c, whose steps are not shown to be beyond the limit"


def test_a_gang_and_those_that_are_smaller_take_turns():
    names = "bcd"
    cluster = Cluster(*(back(name) for name in names[:2]), gang("d"))
    assert [cluster.on(name) for name in names] == [(0, (0,)), (0, (1,)), None]
    cluster.later(TURN_S - 1.0)
    assert cluster.on("d") is None
    cluster.later(1.0)
    assert [cluster.on(name) for name in names] == [None, None, (0, (0, 1))]
    cluster.later(TURN_S)
    assert cluster.on("d") == (0, (0, 1))
    cluster.later(TURN_S)
    assert [cluster.on(name) for name in names] == [(0, (0,)), (0, (1,)), None]


def test_a_gang_that_gets_nothing_on_one_gpu_goes_where_it_gets_something():
    jobs = front("a", gpu_util=0.5), front("c", gpu_util=0.6), front("d", gpu_util=0.7), gang("b")
    places = {"a": on_node(0, 1), "c": on_node(0, 2), "d": on_node(0, 4)}
    cluster = Cluster(*jobs, cluster="1x3", **places)
    assert cluster.on("b") == (0, (0, 1))
    for _ in range(2):
        cluster.tells("b", "c", 1.0, harvest=0.0, after=STARVED_S)
    assert cluster.on("b") == (0, (0, 2))


def test_a_suspended_gang_that_can_not_move_goes_on_where_it_was():
    cluster = Cluster(front("a", 2), gang("b"), cluster="1x4", a=on_node(0, 3))
    assert cluster.on("b") == (0, (2, 3))
    cluster.places(a=None)
    cluster.happens(WorkerRegistered, cluster.row("b"), Suspension.PROCESS, False)
    cluster.happens(SuspendRequested, cluster.row("b"))
    cluster.settle()
    cluster.places(a=on_node(0, 12))
    cluster.happens(ResumeRequested, cluster.row("b"))
    cluster.settle()
    assert cluster.on("b") == (0, (2, 3))


def test_the_marks_of_a_gang_come_back_from_json():
    trial = Trial(0, (1, 3), (4,), 5.0, 0.5, "probe")
    assert read(json.loads(json.dumps(trial.mark()))) == trial
    single = trial._replace(gpus=(3,))
    assert single.mark()[1] == 3
    assert read(json.loads(json.dumps(single.mark()))) == single
