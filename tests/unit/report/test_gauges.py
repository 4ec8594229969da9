"""Gauges of a cluster: free and stranded GPUs, and shares."""

import pytest

from rota.model.allocation import Allocation, on_node
from rota.model.events import JobFinished, JobSubmitted, SuspendRequested
from rota.model.job import BACKGROUND, JobState, Share
from rota.model.state.state import ClusterState
from rota.report.gauges import NOBODY, FreeByNode, gauges, gpu_shares, queue_rows, standing
from rota.report.history import History
from rota.testing.builders import job
from support.driven import DrivenCluster


def two_nodes():
    free = FreeByNode()
    free.join("a", 4)
    free.join("b", 4)
    return free


def test_free_gpus_are_stranded_where_the_smallest_waiting_job_does_not_fit():
    free = two_nodes()
    free.take(Allocation(((0, 0b0111), (1, 0b0011))))
    assert (free.count, free.stranded(2), free.stranded(3), free.stranded(4)) == (3, 1, 3, 0)
    assert free.stranded(0) == free.stranded(1) == 0  # nobody waits; one GPU fits anywhere


def test_a_gpu_that_jobs_share_is_free_once_all_of_them_have_given_it_up():
    free, held = two_nodes(), on_node(0, 0b0011)
    for _ in range(3):
        free.take(held)
    free.take(on_node(0, 0b0100))
    assert free.count == 5
    for left in (5, 5, 7):
        free.give(held)
        assert free.count == left


def test_a_node_that_is_lost_takes_its_gpus_with_it_and_may_come_back():
    free = two_nodes()
    free.lose(1)
    assert (free.all_gpus, free.count) == (4, 4)
    free.join("b", 2)
    assert (free.all_gpus, free.count, free.index["b"]) == (6, 6, 1)


def test_gauges_are_those_of_the_last_moment_of_a_history():
    cluster = DrivenCluster(cluster="2x4")
    cluster.state.log = log = []
    nodes = list(cluster.state.nodes)
    for spec in (job(0, 3), job(1, 3), job(2, 4), job(3, 1)):
        cluster.happens(JobSubmitted, spec)
    cluster.settle()
    told, moment = gauges(standing(cluster.state)), History(log, nodes).moments[-1]
    assert told["free_gpus"] == told["gpus"] - told["held_gpus"] == moment.free_gpus == 1
    assert (told["gpus"], told["waiting_jobs"]) == (moment.all_gpus, moment.waiting_jobs) == (8, 1)
    assert told["stranded_gpus"] == moment.stranded_gpus == 0  # four would not fit by number either
    cluster.happens(JobFinished, 3, JobState.SUCCEEDED)
    cluster.happens(JobSubmitted, job(4, 2))
    told, moment = gauges(standing(cluster.state)), History(log, nodes).moments[-1]
    assert told["stranded_gpus"] == moment.stranded_gpus == 2
    assert told["fragmentation"] == 1.0


def test_shares_are_of_all_gpus_and_quotas_are_told_where_they_are_enforced():
    jobs = [job(0, 2, user="ann", vc="v"), job(1, 1, user="bob"), job(2, 4, user="bob", vc="v")]
    cluster = DrivenCluster(*jobs, cluster="1x4")
    cluster.settle()
    told = gauges(standing(cluster.state), {"v": 3})
    assert told["users"] == {
        "ann": {"held_gpus": 2, "waiting_jobs": 0, "share": 0.5},
        "bob": {"held_gpus": 1, "waiting_jobs": 1, "share": 0.25},
    }
    queue = {"held_gpus": 2, "waiting_jobs": 1, "quota_gpus": 3, "share": 0.5, "quota": 0.75}
    assert list(told["queues"]) == ["v", NOBODY]
    rows = queue_rows(standing(cluster.state))
    assert {name: cluster.state.spec[row].vc for name, row in rows.items()} == {
        "v": "v",
        NOBODY: "",
    }
    assert told["queues"]["v"] == queue
    assert told["queues"][NOBODY]["quota"] is None


def test_jobs_that_want_nothing_or_fill_gaps_do_not_count():
    background = job(1, user="b", share=Share(BACKGROUND))
    cluster = DrivenCluster(job(0, user="a"), background, cluster="1x1")
    cluster.happens(SuspendRequested, 0)
    cluster.settle()
    told = gauges(standing(cluster.state))
    assert (told["waiting_jobs"], told["users"], told["fragmentation"]) == (0, {}, None)


def test_a_cluster_without_nodes_has_no_shares():
    told = gauges(standing(ClusterState()))
    assert (told["gpus"], told["fragmentation"], told["queues"]) == (0, None, {})


def test_shares_of_gpu_time_are_those_of_all_that_jobs_have_had():
    cluster = DrivenCluster(job(0, 3, user="ann"), job(1, 1), cluster="1x4")
    assert gpu_shares(cluster.state, 0.0, lambda spec: spec.user) == {"ann": None, NOBODY: None}
    cluster.settle()
    cluster.passes(10.0)
    found = gpu_shares(cluster.state, cluster.now_s, lambda spec: spec.user)
    assert list(found) == ["ann", NOBODY]
    assert found == pytest.approx({"ann": 0.75, NOBODY: 0.25})
