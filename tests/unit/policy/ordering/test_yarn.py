from rota.model.cluster import parse_cluster
from rota.model.events import JobFinished, NodeJoined
from rota.model.job import JobState
from rota.model.reason import Reason
from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.policy.ordering.yarn import block
from rota.policy.registry import create
from rota.testing.builders import job, run
from support.driven import DrivenCluster


def blocked(cluster, taken, num_gpus):
    """The GPUs by node that a gang is given when those in ``taken`` (node -> mask) are not free."""
    state = ClusterState()
    for node in parse_cluster(cluster):
        state.apply(NodeJoined(0.0, node.name, node.num_gpus))
    row = state.append(job(gpus=num_gpus))
    free = state.assumed.copy()
    for node, mask in taken.items():
        free.set_mask(node, free.masks[node] & ~mask)
    allocation = block(View(state, 0.0, None), free, row)
    return allocation and dict(allocation.gpus())


def test_a_gang_of_a_node_or_less_waits_for_room_on_one():
    assert blocked("2x4", {0: 0b0111, 1: 0b0011}, 2) == {1: (2, 3)}
    assert blocked("2x4", {0: 0b0001, 1: 0b0001}, 4) is None


def test_the_first_node_with_room_is_taken_not_the_tightest():
    assert blocked("2x4", {1: 0b0011}, 2) == {0: (0, 1)}


def test_a_larger_gang_waits_for_idle_nodes_and_room_for_the_rest():
    assert blocked("3x4", {0: 0b0001}, 6) == {1: (0, 1, 2, 3), 0: (1, 2)}
    assert blocked("3x4", {0: 0b0001, 1: 0b0001}, 8) is None


def test_nodes_of_several_sizes_are_filled_from_the_largest():
    assert blocked("1x2,1x4,1x2", {}, 7) == {0: (0, 1), 1: (0, 1, 2, 3), 2: (0,)}
    assert blocked("1x2,1x4,1x2", {}, 8) == {0: (0, 1), 1: (0, 1, 2, 3), 2: (0, 1)}


def test_the_head_of_the_line_blocks_it_even_if_enough_gpus_are_free():
    jobs = [job("a", 3, lasts=50), job("b", 3, lasts=80), job("c", 2), job("d", 1)]
    cluster = DrivenCluster(*jobs, cluster="2x4", policy=create("yarn-cs"))
    cluster.settle()
    assert [cluster.state_of(row) for row in (2, 3)] == [JobState.PENDING] * 2
    assert cluster.state.reason[2] == Reason.WAIT_GANG_FRAGMENTED
    assert cluster.state.reason[3] == Reason.WAIT_PRIORITY
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    cluster.settle()
    assert [cluster.state_of(row) for row in (2, 3)] == [JobState.RUNNING] * 2


def test_with_backfill_those_that_can_be_placed_pass():
    jobs = [job("a", 3, lasts=50), job("b", 3, lasts=80), job("c", 2), job("d", 1)]
    state, _ = run(jobs, create("yarn-cs", {"backfill": "yes"}), "2x4")
    assert list(state.first_start_s) == [0.0, 0.0, 50.0, 0.0]


def test_with_quotas_each_queue_is_a_line_of_its_own():
    jobs = [
        job("a", 4, vc="x", lasts=50),
        job("b", 4, vc="x", lasts=50),
        job("c", 2, vc="y", lasts=50),
    ]
    one_line, _ = run(jobs, create("yarn-cs"), "1x4,1x2")
    two_lines, _ = run(jobs, create("yarn-cs", {"quotas": "x=4;y=2"}), "1x4,1x2")
    assert list(one_line.first_start_s) == [0.0, 50.0, 50.0]
    assert list(two_lines.first_start_s) == [0.0, 50.0, 0.0]
