"""Why a job does not run: all blockers, who holds what, and the smallest change that helps."""

import json

import pytest

from rota.explain.why import explain
from rota.model.allocation import on_node
from rota.model.cluster import Node
from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.events import (
    AttemptLost,
    CommandFailed,
    CommandSent,
    DecisionTaken,
    JobFinished,
    JobLaunched,
    JobSubmitted,
    JobSuspended,
    NodeClosed,
    NodeJoined,
    NodeLost,
    StopRequested,
    SuspendRequested,
    WorkerRegistered,
    WorkerReported,
    joined,
)
from rota.model.job import Adapt, Dependency, Elastic, JobSpec, JobState, Program, Suspension
from rota.model.probe import Probe
from rota.model.reason import Reason
from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.policy.registry import create
from rota.testing.builders import job
from support.driven import DrivenCluster, cluster_with_a_job_that_is, cluster_with_a_job_that_leaves

SCHEMA = [
    "job_id",
    "state",
    "reason",
    "sentence",
    "blockers",
    "would_start_if",
    "awaited",
    "position",
    "turns",
    "sharing",
    "data_wait",
    "resizing",
    "warnings",
    "trials",
    "history",
    "cpus",
    "filling",
    "burst",
    "flow",
]


class Cluster:
    """One node, jobs by GPU count, and a policy whose launches all succeed."""

    def __init__(self, num_gpus, *jobs, policy="fifo"):
        self.state = ClusterState()
        self.state.epoch = 1
        self.policy = create(policy)
        if num_gpus:
            self.state.apply(NodeJoined(0.0, "n", num_gpus, "gpu"))
        for gpus in jobs:
            self.submit(gpus)

    def submit(self, gpus):
        job_id = str(len(self.state.spec) + 1)
        self.state.apply(JobSubmitted(0.0, JobSpec(job_id, gpus, 0.0)))

    def apply(self, *events):
        for event in events:
            self.state.apply(event)

    def decide(self, at_s, launched=True):
        take_decision(self.state, self.policy, at_s)
        for command in diff(self.state):
            self.state.apply(CommandSent(at_s, command))
            if launched:
                self.state.apply(JobLaunched(at_s, command.row, command.attempt))

    def why(self, row, at_s=10.0, history=()):
        verdict = explain(self.state, row, at_s, history)
        assert list(verdict) == SCHEMA
        assert json.loads(json.dumps(verdict)) == verdict
        for blocker in verdict["blockers"]:
            assert list(blocker) == ["rule", "need", "have", "held_by"]
            assert blocker["rule"] in Reason.__members__
            assert blocker["need"]
            assert blocker["have"]
        return verdict


def rules(verdict):
    return [blocker["rule"] for blocker in verdict["blockers"]]


def test_a_running_job_has_no_blockers():
    cluster = Cluster(2, 1)
    cluster.decide(1.0)
    verdict = cluster.why(0)
    assert (verdict["state"], verdict["blockers"]) == ("RUNNING", [])
    assert verdict["would_start_if"] is None
    assert verdict["position"] is None
    assert verdict["sentence"] == "it runs on n:0"


def test_on_a_full_disk_that_comes_first_and_jobs_that_run_are_not_in_want_of_it():
    cluster = Cluster(1, 1)
    cluster.submit(1)
    cluster.decide(1.0)
    cluster.submit(1)
    verdict = explain(cluster.state, 2, 1.0, shortage="1 MiB is free; make room for 80 MiB there")
    assert rules(verdict)[0] == verdict["reason"] == "WAIT_DISK"
    assert "until it has room" in verdict["sentence"]
    assert "80 MiB" in verdict["blockers"][0]["have"]
    assert verdict["would_start_if"] == "there was room on the disk; then the policy decides"
    assert explain(cluster.state, 0, 1.0, shortage="1 MiB is free")["blockers"] == []


def test_a_job_that_waits_is_told_of_nodes_that_are_awaited():
    cluster = Cluster(1, 1, 1)
    cluster.decide(1.0)
    awaited = [{"name": "m", "why": "the machine boots"}]
    assert explain(cluster.state, 1, 1.0, awaited=awaited)["awaited"] == [
        "node m: the machine boots"
    ]
    assert explain(cluster.state, 0, 1.0, awaited=awaited)["awaited"] == []


def test_a_gang_that_further_nodes_could_hold_is_told_how_many_are_asked_for():
    driven = DrivenCluster(cluster="", most_nodes=3)
    driven.state.apply(joined(0.0, Node("n", 4, "cuda", reach="10.0.0.1")))
    driven.happens(JobSubmitted, job("a", 8, program=Program("python train.py", "/work")))
    driven.settle()
    verdict = explain(driven.state, 0, 1.0, most_nodes=3)
    assert (verdict["reason"], rules(verdict)) == ("WAIT_RESOURCES", ["WAIT_RESOURCES"])
    (blocker,) = verdict["blockers"]
    assert blocker["need"] == "8 GPUs"
    assert blocker["have"] == "4 on 1 node; up to 3 nodes are asked for"
    assert verdict["would_start_if"] == "the nodes that are awaited were there"


def test_a_starting_job_says_where():
    cluster = Cluster(2, 2)
    cluster.decide(1.0, launched=False)
    assert cluster.why(0)["sentence"] == "it is starting on n:0,1"


def test_gpus_that_are_taken_name_their_holders():
    cluster = Cluster(4, 2, 1, 2)
    cluster.decide(1.0)
    verdict = cluster.why(2)
    assert verdict["reason"] == "WAIT_RESOURCES"
    assert verdict["blockers"][0] == {
        "rule": "WAIT_RESOURCES",
        "need": "2 GPUs",
        "have": "1 of 4 free",
        "held_by": ["1", "2"],
    }
    assert verdict["would_start_if"] == "1 GPU more were free, as when job 2 ends"
    assert verdict["position"] == 1


def test_the_smallest_change_may_take_several_jobs():
    cluster = Cluster(4, 1, 1, 2, 4)
    cluster.decide(1.0)
    assert "when jobs 3, 1, 2 end" in cluster.why(3)["would_start_if"]


def test_earlier_jobs_that_wait_are_named():
    cluster = Cluster(2, 2, 2, 1)
    cluster.decide(1.0)
    verdict = cluster.why(2)
    assert set(rules(verdict)) == {"WAIT_RESOURCES", "WAIT_PRIORITY"}
    earlier = next(b for b in verdict["blockers"] if b["rule"] == "WAIT_PRIORITY")
    assert earlier["held_by"] == ["2"]
    assert earlier["have"] == "1 job that came earlier and waits"
    assert verdict["position"] == 2


def test_a_job_that_its_owner_suspended_says_how_to_go_on():
    cluster = Cluster(2, 2, 1)
    cluster.decide(1.0)
    cluster.apply(SuspendRequested(2.0, 1))
    verdict = cluster.why(1)
    assert (verdict["state"], verdict["reason"]) == ("HELD", "HELD_BY_USER")
    assert rules(verdict) == ["HELD_BY_USER", "WAIT_RESOURCES"]
    assert verdict["would_start_if"] == "its owner let it go on: rota resume 2"
    assert verdict["position"] is None


def test_a_failed_launch_tells_the_seconds_left():
    cluster = Cluster(1, 1)
    cluster.decide(1.0, launched=False)
    command = cluster.state.outstanding[0]
    cluster.apply(CommandFailed(2.0, 0, command.command_id, "no such file", 15.0))
    verdict = cluster.why(0, at_s=10.0)
    assert verdict["reason"] == "WAIT_BACKOFF"
    assert rules(verdict)[0] == "WAIT_BACKOFF"
    assert verdict["blockers"][0]["have"].endswith("s are left; launch failed: no such file")
    assert verdict["blockers"][0]["have"].startswith("5 s are left")
    assert verdict["would_start_if"] == "5 s had passed"


def test_a_job_larger_than_the_cluster_never_fits():
    cluster = Cluster(2, 3)
    cluster.decide(1.0)
    verdict = cluster.why(0)
    assert (verdict["reason"], rules(verdict)[0]) == ("NEVER_FITS", "NEVER_FITS")
    assert verdict["blockers"][0]["have"] == "2 in the cluster"
    assert verdict["would_start_if"] == "it asked for at most 2 GPUs"


def test_a_lost_node_is_named():
    cluster = Cluster(2, 2)
    cluster.decide(1.0)
    cluster.apply(NodeLost(2.0, "n"))
    verdict = cluster.why(0)
    assert verdict["state"] == "PENDING"
    assert "NODE_UNHEALTHY" in rules(verdict)
    unhealthy = next(b for b in verdict["blockers"] if b["rule"] == "NODE_UNHEALTHY")
    assert unhealthy["have"] == "0 in the cluster; lost: n"
    assert verdict["would_start_if"] == "the lost nodes came back"


def test_a_cordoned_node_is_named_and_what_would_help():
    cluster = Cluster(2, 2)
    cluster.apply(NodeClosed(0.5, "n"))
    cluster.decide(1.0)
    verdict = cluster.why(0)
    assert verdict["reason"] == rules(verdict)[0] == "NODE_CLOSED"
    assert verdict["blockers"][0]["have"] == "0 in the cluster; cordoned: n"
    assert verdict["would_start_if"] == "nodes took jobs again: rota node enable n"


def test_free_gpus_of_a_drained_node_count_for_nobody():
    cluster = DrivenCluster(job("first", 3), job("second", 3), cluster="2x4")
    cluster.happens(NodeClosed, "node1", True)
    cluster.settle()
    verdict = explain(cluster.state, 1, cluster.now_s, [])
    blockers = {blocker["rule"]: blocker["have"] for blocker in verdict["blockers"]}
    assert blockers["NODE_CLOSED"] == "4 GPUs free that take no job; drained: node1"
    assert blockers["WAIT_RESOURCES"] == "1 of 4 free"
    assert verdict["would_start_if"] == "nodes took jobs again: rota node enable node1"


def test_a_cluster_without_nodes_waits_for_one():
    cluster = Cluster(0, 1)
    for _ in range(2):
        verdict = cluster.why(0)
        assert (verdict["reason"], verdict["sentence"]) == (
            "NODE_UNHEALTHY",
            "no node has joined yet",
        )
        assert verdict["would_start_if"] == "a node joined"
        cluster.decide(1.0)


def test_a_turn_that_comes_tells_when():
    cluster = Cluster(1, 1, 1, policy="gandiva")
    cluster.decide(1.0)
    verdict = cluster.why(1, at_s=11.0)
    assert verdict["reason"] == "SLICE_WAITING_TURN"
    assert verdict["blockers"][0]["held_by"] == ["1"]
    assert "s at the earliest" in verdict["would_start_if"]


def suspended(movable):
    """Job 1 suspended on GPU 0, where job 2 runs now."""
    cluster = Cluster(2, 1, 1)
    cluster.decide(1.0)
    kind = Suspension.BOUNDARY if movable else Suspension.PROCESS
    cluster.apply(WorkerRegistered(1.0, 0, kind, movable), StopRequested(1.5, 1))
    cluster.apply(JobFinished(1.6, 1, JobState.CANCELLED))
    change = {0: None}
    cluster.apply(DecisionTaken(2.0, 2, "", change, {0: Reason.PREEMPTED_BY}, {}, None, None))
    (command,) = diff(cluster.state)
    cluster.apply(CommandSent(2.0, command), JobSuspended(2.0, 0, 2.0))
    cluster.submit(1)
    cluster.apply(DecisionTaken(3.0, 3, "", {2: on_node(0, 1)}, {2: 0}, {}, None, None))
    (command,) = diff(cluster.state)
    cluster.apply(CommandSent(3.0, command), JobLaunched(3.0, 2, 1))
    return cluster


def test_stopped_processes_wait_for_their_own_gpus():
    verdict = suspended(movable=False).why(0)
    where = next(b for b in verdict["blockers"] if b["rule"] == "WAIT_TOPOLOGY")
    assert where["held_by"] == ["3"]
    assert "n:0" in where["need"]


def test_a_job_that_can_move_does_not():
    verdict = suspended(movable=True).why(0)
    assert rules(verdict) == ["PREEMPTED_BY"]
    assert verdict["blockers"][0]["held_by"] == ["3"]


def test_a_preempted_job_names_who_got_its_gpus():
    cluster = Cluster(1, 1, 1)
    cluster.decide(1.0)
    change = {0: None, 1: on_node(0, 1)}
    cluster.apply(DecisionTaken(2.0, 2, "", change, {0: Reason.PREEMPTED_BY}, {}, None, None))
    (command,) = diff(cluster.state)
    cluster.apply(CommandSent(2.0, command), JobSuspended(2.0, 0, 2.0))
    blocker = next(b for b in cluster.why(0)["blockers"] if b["rule"] == "PREEMPTED_BY")
    assert (blocker["have"], blocker["held_by"]) == ("job 2 got its GPUs", ["2"])


def test_gpus_that_were_promised_are_waited_for():
    cluster = Cluster(1, 1, 1)
    cluster.decide(1.0)
    change = {0: None, 1: on_node(0, 1)}
    cluster.apply(DecisionTaken(2.0, 2, "", change, {0: Reason.PREEMPTED_BY, 1: 0}, {}, None, None))
    verdict = cluster.why(1)
    assert verdict["reason"] == "WAIT_RESOURCES"
    assert verdict["blockers"][0]["held_by"] == ["1"]
    assert "about to be" in verdict["would_start_if"]
    assert verdict["position"] is None


@pytest.mark.parametrize("outcome", [s for s in JobState if s.is_final])
def test_a_job_that_ended_says_how(outcome):
    cluster = Cluster(1, 1)
    cluster.decide(1.0)
    cluster.apply(JobFinished(2.0, 0, outcome, 3, "out of memory"))
    verdict = cluster.why(0)
    assert verdict["sentence"] == f"it ended as {outcome.name} with exit code 3: out of memory"
    assert (verdict["blockers"], verdict["position"]) == ([], None)


def test_a_job_that_was_given_up_says_how_another_goes_on_with_what_it_has_saved():
    cluster = Cluster(1)
    cluster.apply(JobSubmitted(0.0, JobSpec("7", 1, 0.0, program=Program("true", "/"))))
    cluster.decide(1.0)
    cluster.apply(JobFinished(2.0, 0, JobState.LOST, None, "gone"))
    sentence = cluster.why(0)["sentence"]
    assert sentence.startswith("it ended as LOST: gone; `rota run --resume-from 7`, or ")
    assert "`resume_from: 7` in a job file" in sentence


def test_a_lost_attempt_waits_again():
    cluster = Cluster(1, 1)
    cluster.decide(1.0)
    cluster.apply(AttemptLost(2.0, 0, 1, "its agent died"))
    verdict = cluster.why(0)
    assert verdict["state"] == "PENDING"
    assert verdict["position"] == 1


def test_history_is_told_by_name():
    verdict = Cluster(1, 1).why(0, history=[(1.0, 1), (2.5, Reason.SLICE_WAITING_TURN)])
    assert verdict["history"] == [
        {"at_s": 1.0, "reason": "WAIT_RESOURCES"},
        {"at_s": 2.5, "reason": "SLICE_WAITING_TURN"},
    ]


def test_a_quota_that_is_used_up_names_the_jobs_of_the_queue():
    nlp = {"vc": "nlp"}
    jobs = (job(1, 2, **nlp), job(2, 1, vc="vision"), job(3, 1, **nlp))
    policy = create("fifo-backfill", {"quotas": "nlp=2;vision=2", "borrow": "no"})
    cluster = DrivenCluster(*jobs, policy=policy)
    cluster.settle()
    verdict = explain(cluster.state, 2, 1.0)
    assert verdict["reason"] == "WAIT_QUOTA"
    assert verdict["blockers"][0] == {
        "rule": "WAIT_QUOTA",
        "need": "room for 1 GPU in the quota of queue 'nlp'",
        "have": "it is used up",
        "held_by": ["1"],
    }
    larger = "the quota of queue 'nlp' were larger"
    assert verdict["would_start_if"] == f"jobs of queue 'nlp' ended (1), or {larger}"


def test_a_gang_larger_than_its_queues_quota_needs_a_larger_one():
    policy = create("fifo-backfill", {"quotas": "nlp=1;vision=3", "borrow": "no"})
    cluster = DrivenCluster(job(1, 2, vc="nlp"), policy=policy)
    cluster.settle()
    would = explain(cluster.state, 0, 1.0)["would_start_if"]
    assert would == "the quota of queue 'nlp' were larger"


@pytest.mark.parametrize(
    ("quotas", "sentence", "have", "if_"),
    [
        ("vision=2", "its queue has no quota", "it has none", "queue 'nlp' had a quota"),
        (
            "vision=2;nlp=1",
            "it asks for more GPUs than its queue's quota has",
            "it has 1 GPU",
            "the quota of queue 'nlp' were larger",
        ),
    ],
)
def test_a_queue_without_or_with_too_small_a_quota_has_not_used_it_up(quotas, sentence, have, if_):
    jobs = (job(1, 2, vc="vision"), job(2, 2, vc="nlp"), job(3, 2, vc="nlp"))
    policy = create("fifo-backfill", {"quotas": quotas})
    cluster = DrivenCluster(*jobs, policy=policy)
    cluster.settle()
    quota = policy.quota(View(cluster.state, 1.0, policy), 2)
    verdict = explain(cluster.state, 2, 1.0, quota=quota)
    assert (verdict["reason"], verdict["sentence"]) == ("WAIT_QUOTA", sentence)
    need = "room for 2 GPUs in the quota of queue 'nlp'"
    assert verdict["blockers"][0] == {
        "rule": "WAIT_QUOTA",
        "need": need,
        "have": have,
        "held_by": [],
    }
    more = "where queues may borrow, also if 2 GPUs more were free, as when job 1 ends"
    assert verdict["would_start_if"] == f"{if_}; {more}"


def test_where_queues_may_borrow_free_gpus_would_do_as_well():
    jobs = (job(1, 2, vc="nlp"), job(2, 2, vc="vision"), job(3, 1, vc="nlp"))
    policy = create("fifo-backfill", {"quotas": "nlp=2;vision=2"})
    cluster = DrivenCluster(*jobs, policy=policy)
    cluster.settle()
    would = explain(cluster.state, 2, 1.0)["would_start_if"]
    assert would.endswith(
        "; where queues may borrow, also if 1 GPU more were free, as when job 1 ends"
    )


def test_an_unfair_share_names_the_jobs_of_owners_who_used_less():
    policy = create("srtf", {"fair_share": "user"})
    cluster = DrivenCluster(job(1, 4, user="ann", lasts=1000), policy=policy)
    cluster.settle()
    cluster.passes(400.0)
    cluster.happens(JobSubmitted, job(2, 4, user="bob", at=400, lasts=1000))
    cluster.settle()
    verdict = explain(cluster.state, 0, cluster.now_s)
    assert verdict["reason"] == "WAIT_FAIRSHARE"
    assert verdict["blockers"][0] == {
        "rule": "WAIT_FAIRSHARE",
        "need": "a smaller use than that of owners whose jobs run",
        "have": "its owner has used more",
        "held_by": ["2"],
    }
    less = "its owner's use fell below that of owners whose jobs run"
    assert verdict["would_start_if"] == f"{less}, or 4 GPUs more were free, as when job 2 ends"


def test_a_scattered_gang_needs_its_gpus_on_few_enough_nodes():
    policy = create("fifo-backfill", {"placement": "consolidate-strict"})
    cluster = DrivenCluster(*(job(i) for i in range(4)), cluster="2x2", policy=policy)
    cluster.settle()
    for row in (0, 3):
        cluster.happens(JobFinished, row, JobState.SUCCEEDED)
    cluster.happens(JobSubmitted, job(4, 2))
    cluster.settle()
    verdict = explain(cluster.state, 4, 1.0)
    assert verdict["blockers"][0] == {
        "rule": "WAIT_GANG_FRAGMENTED",
        "need": "2 GPUs on few enough nodes",
        "have": "2 free, on 2 nodes",
        "held_by": ["1", "2"],
    }
    assert verdict["would_start_if"] == "2 GPUs were free on few enough nodes"


class TestSizes:
    """What is said of a job with a range of GPUs."""

    def running(self, policy="elastic", sizes=(1, 2, 4, 8)):
        cluster = Cluster(8, policy=policy)
        program = Program("true", "/")
        spec = JobSpec("1", 1, 0.0, elastic=Elastic(sizes), program=program)
        cluster.apply(JobSubmitted(0.0, spec))
        cluster.decide(1.0)
        return cluster

    def said(self, cluster, resizes=True):
        return explain(cluster.state, 0, 10.0, resizes=resizes)["resizing"]

    def test_a_policy_that_does_not_resize_is_named_with_one_that_does(self):
        said = self.said(self.running("fifo"), resizes=False)
        assert said.startswith("it stays at 1 GPU: the policy fifo does not resize jobs")
        assert "rota up --policy elastic" in said

    @pytest.mark.parametrize(
        ("suspension", "lacks"),
        [(Suspension.PROCESS, "session()"), (Suspension.BOUNDARY, "s.loader(...)")],
    )
    def test_a_program_that_can_not_be_resized_is_told_what_it_lacks(self, suspension, lacks):
        cluster = self.running()
        cluster.apply(WorkerRegistered(2.0, 0, suspension, True))
        assert self.said(cluster).startswith("it can't be resized")
        assert lacks in self.said(cluster)

    def test_it_says_what_its_scaler_wants_and_why(self):
        cluster = self.running()
        cluster.apply(WorkerRegistered(2.0, 0, Suspension.BOUNDARY, True, True, 8))
        assert self.said(cluster) == "its throughput at this size is being measured"
        for step in range(10):
            at_s = 3.0 + 10 * step
            report = {"step": 100 * step, "total": None, "at_s": at_s}
            cluster.apply(WorkerReported(at_s, 0, report))
            cluster.decide(at_s, launched=False)
        assert self.said(cluster) == "its scaler wants 2 GPUs: a second size, to fit a curve"

    def test_it_grows_no_further_than_its_batches_have_shards(self):
        cluster = self.running()
        cluster.apply(WorkerRegistered(2.0, 0, Suspension.BOUNDARY, True, True, 3))
        assert cluster.state.sizes(0) == (1, 2)
        assert "its batches have 3 shards, for 3 GPUs at most" in self.said(cluster)

    def test_a_job_of_one_size_and_one_that_has_ended_say_nothing(self):
        cluster = Cluster(2, 1)
        cluster.decide(1.0)
        assert cluster.why(0)["resizing"] is None
        ended = self.running()
        ended.apply(JobFinished(2.0, 0, JobState.SUCCEEDED))
        assert self.said(ended) is None


def test_a_job_that_moves_says_from_where_to_where():
    cluster = cluster_with_a_job_that_is(JobState.MIGRATING)
    sentence = explain(cluster.state, 0, cluster.now_s)["sentence"]
    assert sentence == "its state is on its way from node0:0 to node1:0"


def test_a_job_whose_state_is_sent_to_wait_elsewhere_says_so_and_what_it_waits_for():
    cluster = cluster_with_a_job_that_leaves()
    told = explain(cluster.state, 0, cluster.now_s)
    there = "node1, where the job goes on waiting"
    assert told["sentence"] == f"its state is on its way from node0:0 to {there}"
    assert told["blockers"][0]["rule"] == "HELD_BY_USER"


def test_a_job_that_ends_while_its_state_is_sent_elsewhere_waits_for_nothing():
    cluster = cluster_with_a_job_that_leaves()
    cluster.happens(StopRequested, 0)
    told = explain(cluster.state, 0, cluster.now_s)
    assert (told["state"], told["blockers"], told["would_start_if"]) == ("STOPPING", [], None)


def test_what_a_policy_has_tried_with_a_job_is_told():
    cluster = Cluster(2, 1)
    cluster.decide(1.0)
    assert cluster.why(0)["trials"] == []
    cluster.state.notes.probes[0] = [Probe(90.0, "pack", 1.0, 1.2, True)]
    assert cluster.why(0)["trials"] == [
        {"at_s": 90.0, "what": "pack", "predicted": 1.0, "measured": 1.2, "kept": True}
    ]


def test_a_job_that_waits_for_others_is_told_which():
    cluster = Cluster(2, 1, 1)
    awaited = (Dependency("1"), Dependency("2", "ended"))
    cluster.apply(JobSubmitted(0.0, JobSpec("3", 1, 0.0, depends_on=awaited)))
    cluster.decide(1.0)
    verdict = cluster.why(2)
    assert (verdict["reason"], verdict["position"]) == ("WAIT_DEPENDENCY", None)
    (blocker,) = verdict["blockers"]
    assert blocker["need"] == "job 1 to have succeeded, job 2 to have ended"
    assert blocker["held_by"] == ["1", "2"]
    assert verdict["would_start_if"].startswith("jobs 1, 2 ended as it waits for")


def test_a_block_of_batches_that_the_policy_does_not_look_at_is_told():
    state = DrivenCluster(job("a", adapt=Adapt(64)), job("b")).state
    (told,) = explain(state, 0, 1.0, adapts=False)["warnings"]
    assert (
        told == "batch has no effect: this policy chooses none; `rota up --policy pollux` does that"
    )
    assert explain(state, 0, 1.0, adapts=True)["warnings"] == []
    assert explain(state, 1, 1.0, adapts=False)["warnings"] == []
