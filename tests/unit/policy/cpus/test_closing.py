"""CPU cores of jobs that no policy moves, because a node of theirs is closed."""

import pytest

from rota.model.allocation import of_parts, on_node
from rota.model.decide.decision import Decider
from rota.model.events import (
    JobFinished,
    JobSubmitted,
    NodeClosed,
    NodeCpusChanged,
    NodeOpened,
)
from rota.model.job import JobState
from rota.policy.cpus.even import Equal, Proportional
from rota.policy.cpus.sad import Sad
from rota.testing.builders import job
from support.driven import DrivenCluster
from support.places import Places


class Cluster(DrivenCluster):
    """Two nodes of 2 GPUs and 8 cores; a gang of two on both of them, and a job on each."""

    def __init__(self, stage):
        jobs = job("gang", 2), job("a"), job("b")
        super().__init__(*jobs, cluster="2x2:cpus=8", policy=Places(stage))
        self.policy.changes = {
            0: of_parts([(0, 0b1), (1, 0b1)]),
            1: on_node(0, 0b10),
            2: on_node(1, 0b10),
        }
        self.settle()

    def given(self):
        """The thousandths of each node that jobs have."""
        found = {}
        for row, millicores in self.state.target_cpus.items():
            for node, share in self.state.target[row].shares(millicores):
                found[node] = found.get(node, 0) + share
        return found


@pytest.fixture(params=[Equal, Proportional, Sad])
def cluster(request):
    return Cluster(request.param())


def test_a_closed_node_that_loses_cores_shares_out_what_is_left(cluster):
    before = dict(cluster.state.target_cpus)
    cluster.happens(NodeClosed, "node0")
    cluster.settle()
    assert list(cluster.state.staying) == [0, 1]
    assert cluster.state.target_cpus == before
    cluster.happens(NodeCpusChanged, "node0", 1000)
    cluster.settle()
    assert cluster.given()[0] <= 1000
    assert set(cluster.state.target_cpus) == {0, 1, 2}, "nobody has none, or any number"
    assert min(cluster.state.target_cpus.values()) >= 250


def test_an_open_node_that_loses_cores_takes_them_from_a_gang_that_stays_on_a_closed_one(cluster):
    cluster.happens(NodeClosed, "node0")
    cluster.settle()
    cluster.happens(NodeCpusChanged, "node1", 1000)
    cluster.happens(JobSubmitted, job("c"))
    cluster.settle()
    assert cluster.given()[1] <= 1000
    assert min(cluster.state.target_cpus[row] for row in (0, 2)) >= 250


def test_cores_of_a_job_that_ends_on_a_closed_node_go_to_those_that_stay():
    cluster = Cluster(Equal())
    cluster.happens(NodeClosed, "node0")
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    cluster.settle()
    assert cluster.state.target_cpus == {1: 8000, 2: 8000}
    cluster.happens(NodeOpened, "node0")
    cluster.settle()
    assert cluster.state.target_cpus == {1: 8000, 2: 8000}


def test_a_policy_without_a_stage_lets_go_of_the_cores_of_jobs_that_stay():
    cluster = Cluster(Equal())
    cluster.happens(NodeClosed, "node0")
    cluster.settle()
    other = Places(None)
    other.identity = "other"
    Decider(cluster.state, other).decide(cluster.now_s)
    assert cluster.state.target_cpus == {}


def test_what_is_told_of_the_cores_of_a_job_that_stays_is_no_fault():
    cluster = Cluster(Sad())
    cluster.happens(NodeClosed, "node0")
    cluster.state.notes.why_cpus.clear()
    cluster.happens(NodeCpusChanged, "node0", 4000)
    cluster.settle()
    assert set(cluster.state.notes.why_cpus) >= {0, 1}
