"""Whose turn it is on a node, as Gandiva tells those who wait."""

import pytest

from rota.explain.why import explain
from rota.model.events import JobSubmitted
from rota.model.view import View
from rota.policy.gandiva import packing
from rota.policy.gandiva.jobs import Notes
from rota.policy.registry import create
from rota.testing.builders import job, simulation
from support.driven import DrivenCluster


def cluster_of(*jobs, nodes="1x1", **settings):
    cluster = DrivenCluster(*jobs, cluster=nodes, policy=create("gandiva", settings))
    cluster.settle()
    return cluster


def why(cluster, row):
    policy = cluster.policy
    view = View(cluster.state, cluster.now_s, policy)
    turns, ahead = policy.turns(view, row), policy.ahead(view, row)
    return explain(cluster.state, row, cluster.now_s, turns=turns, ahead=ahead)


def test_who_waits_is_told_who_runs_who_is_next_and_when_the_turn_ends():
    cluster = cluster_of(*(job(name) for name in "abc"))
    began_s = cluster.now_s
    cluster.passes(20.0)
    verdict = why(cluster, 2)
    turns = verdict["turns"]
    assert (turns["running"], turns["waiting"]) == ([["a"]], [["b"], ["c"]])
    assert (turns["position"], turns["nodes"]) == (2, ["node0"])
    assert turns["ends_s"] == pytest.approx(began_s + 60.0)
    (blocker,) = verdict["blockers"]
    assert blocker == {
        "rule": "SLICE_WAITING_TURN",
        "need": "its turn on node0",
        "have": "it is number 2 of 2; the turn ends in 40 s",
        "held_by": ["a"],
    }
    assert verdict["would_start_if"] == "its turn came, in 40 s at the earliest"
    assert why(cluster, 0)["turns"]["position"] is None
    assert why(cluster, 0)["blockers"] == []


def test_the_least_served_is_next_not_the_one_that_came_first():
    cluster = cluster_of(*(job(name) for name in "abc"))
    cluster.passes(60.0)
    cluster.settle()
    cluster.passes(60.0)
    cluster.settle()
    cluster.passes(10.0)
    turns = why(cluster, 0)["turns"]
    assert (turns["running"], turns["waiting"]) == ([["c"]], [["a"], ["b"]])


def test_jobs_and_nodes_that_have_no_part_in_it_are_not_named():
    cluster = cluster_of(*(job(name, 2) for name in "abcd"), nodes="2x2")
    (here,) = why(cluster, 2)["turns"]["nodes"]
    (there,) = why(cluster, 3)["turns"]["nodes"]
    assert here != there
    blocker = why(cluster, 2)["blockers"][0]
    held = cluster.state.held
    node = [n.name for n in cluster.state.nodes].index(here)
    holders = [name for name, row in (("a", 0), ("b", 1)) if held[row].nodes() == (node,)]
    assert (blocker["held_by"], len(why(cluster, 2)["blockers"])) == (holders, 1)


def test_where_nobody_waits_there_is_nothing_to_tell():
    cluster = cluster_of(job("a"), job("b"), nodes="1x2")
    assert why(cluster, 0)["turns"] is None


def test_a_job_in_the_queue_takes_no_turns_yet():
    cluster = cluster_of(*(job(name) for name in "abc"), limit="2")
    verdict = why(cluster, 2)
    assert (verdict["turns"], verdict["reason"]) == (None, "WAIT_LIMIT")


def test_asking_changes_nothing():
    cluster = cluster_of(*(job(name) for name in "abc"))
    marks = [dict(mark) for mark in cluster.state.marks]
    view = View(cluster.state, cluster.now_s, cluster.policy)
    before = cluster.policy.turns(view, 2)
    assert cluster.policy.turns(view, 2) == before
    assert cluster.state.marks == marks


def test_with_settings_for_all_orderings_the_turns_are_those_of_the_cluster():
    cluster = cluster_of(*(job(name) for name in "ab"), min_run_time_s="10")
    verdict = why(cluster, 1)
    assert (verdict["turns"], verdict["reason"]) == (None, "SLICE_WAITING_TURN")


def test_who_has_yet_to_be_decided_about_is_told_so():
    cluster = cluster_of(job("a"))
    cluster.happens(JobSubmitted, job("b", at=1.0))
    verdict = why(cluster, 1)
    assert verdict["sentence"] == "the policy has yet to decide about it"
    assert "the policy has yet to decide about it" in [b["have"] for b in verdict["blockers"]]
    cluster.settle()
    assert "turn" in why(cluster, 1)["sentence"]


def test_a_turn_reads_only_marks_that_changed_and_measures_nobody_who_can_not_be_packed(
    monkeypatch,
):
    read, measured = [], []
    plain_init, plain_speed = Notes.__init__, packing.speed_alone

    def init(notes, mark):
        read.append(mark)
        plain_init(notes, mark)

    def speed_alone(*args):
        measured.append(args)
        return plain_speed(*args)

    monkeypatch.setattr(Notes, "__init__", init)
    monkeypatch.setattr(packing, "speed_alone", speed_alone)
    sim = simulation([job(i, lasts=1e5) for i in range(40)], create("gandiva", {}), "10x1")
    while sim.engine.now_s < 600.0:
        sim.step()
    read.clear()
    measured.clear()
    decisions, preemptions = sim.decisions, sum(sim.state.preemptions)
    while sim.engine.now_s < 1200.0:
        sim.step()
    assert sim.decisions - decisions >= 10
    assert sum(sim.state.preemptions) > preemptions
    assert not read
    assert not measured
