"""States of suspended jobs that leave a drained node: whose, when, and where to."""

import pytest

from rota.errors import TransitionError
from rota.explain.why import explain
from rota.model.allocation import on_node
from rota.model.cluster import Node
from rota.model.commands import Migrate, Park, Resume, Stop, Suspend
from rota.model.decide.diff import diff
from rota.model.decide.in_use import nodes_in_use
from rota.model.decide.parking import homes_wanted
from rota.model.events import (
    CommandFailed,
    CommandSent,
    JobFinished,
    JobParked,
    NodeClosed,
    NodeDeadlineChanged,
    NodeLost,
    NodeOpened,
    NodeReachable,
    NodeUnreachable,
    ResumeRequested,
    RetryDue,
    StopRequested,
    SuspendRequested,
    WorkerRegistered,
    joined,
)
from rota.model.job import JobState, Share, Suspension
from rota.testing.builders import job
from support.driven import DrivenCluster


@pytest.fixture
def cluster():
    """node0 and node1 of 2 GPUs. The jobs of rows 0 and 1 have them; node0 is to be drained."""
    cluster = DrivenCluster(job("a", 2), job("b", 2), cluster="2x2")
    cluster.settle()
    return cluster


def drain(cluster, name="node0", by_s=None):
    cluster.happens(NodeClosed, name, True, by_s)
    cluster.decide()


def suspended(cluster, *rows):
    """Have their owner suspend these jobs."""
    for row in rows:
        cluster.happens(SuspendRequested, row)
    cluster.settle()


def join(cluster, name, num_gpus=2, **fields):
    cluster.state.apply(joined(cluster.now_s, Node(name, num_gpus, "gpu", **fields)))
    cluster.decide()


def parking(cluster):
    """The commands that send states off, by row: the nodes that they go to."""
    sent = [each for each in diff(cluster.state) if isinstance(each, Park)]
    return {each.row: cluster.state.nodes[each.allocation.nodes()[0]].name for each in sent}


def parked(cluster):
    """Send the one command that is due, which sends a state off."""
    (command,) = cluster.send()
    assert isinstance(command, Park)
    return command


def home(cluster, row=0):
    return cluster.state.home[row].nodes()


def test_a_job_that_gets_no_gpus_elsewhere_waits_there_and_goes_on_there(cluster):
    drain(cluster)
    (suspend,) = cluster.send()
    assert isinstance(suspend, Suspend)
    assert homes_wanted(cluster.state) == []
    cluster.confirm(suspend)
    command = parked(cluster)
    assert command.allocation == on_node(1, 3)
    assert cluster.state_of(0) == JobState.MIGRATING
    assert (cluster.state.held[0], home(cluster)) == (None, (0,))
    assert diff(cluster.state) == []
    cluster.state.validate()
    cluster.passes(2.0)
    cluster.confirm(command)
    assert (cluster.state_of(0), home(cluster)) == (JobState.SUSPENDED, (1,))
    assert (cluster.state.migrations[0], cluster.state.parking) == (1, {})
    assert cluster.state.story(0)[-1] == (2.0, "waits on node1, where its state is")
    assert diff(cluster.state) == []
    cluster.state.validate()
    cluster.happens(JobFinished, 1, JobState.SUCCEEDED)
    cluster.decide()
    (resume,) = cluster.send()
    assert isinstance(resume, Resume)
    cluster.confirm(resume)
    assert (cluster.state_of(0), cluster.state.attempt[0]) == (JobState.RUNNING, 1)
    cluster.state.validate()


def test_a_job_that_gets_gpus_elsewhere_takes_its_state_along(cluster):
    join(cluster, "node2")
    drain(cluster)
    cluster.confirm(*cluster.send())
    assert [type(each) for each in diff(cluster.state)] == [Migrate]


def test_gpus_that_it_gets_meanwhile_wait_until_its_state_is_there(cluster):
    drain(cluster)
    cluster.confirm(*cluster.send())
    command = parked(cluster)
    join(cluster, "node2")
    assert cluster.state.target[0] == on_node(2, 3)
    assert diff(cluster.state) == []
    cluster.confirm(command)
    (migrate,) = cluster.send()
    assert isinstance(migrate, Migrate)
    cluster.confirm(migrate)
    assert cluster.state.migrations[0] == 2
    cluster.state.validate()


def test_what_its_owner_has_suspended_is_sent_off_as_well(cluster):
    suspended(cluster, 0)
    drain(cluster)
    cluster.confirm(parked(cluster))
    assert (cluster.state_of(0), home(cluster)) == (JobState.SUSPENDED, (1,))
    assert 0 in cluster.state.held_back


def test_nothing_is_sent_off_a_node_that_is_cordoned_or_open_again(cluster):
    suspended(cluster, 0)
    cluster.happens(NodeClosed, "node0")
    cluster.decide()
    assert parking(cluster) == {}
    drain(cluster)
    assert parking(cluster) == {0: "node1"}
    cluster.happens(NodeOpened, "node0")
    cluster.decide()
    assert parking(cluster) == {}


def test_nothing_is_sent_before_the_policy_has_decided_where_jobs_go(cluster):
    suspended(cluster, 0)
    cluster.happens(NodeClosed, "node0", True)
    assert parking(cluster) == {}
    cluster.decide()
    assert parking(cluster) == {0: "node1"}


@pytest.mark.parametrize(("movable", "portable"), [(False, False), (True, False), (False, True)])
def test_processes_that_can_not_move_stay(cluster, movable, portable):
    cluster.happens(WorkerRegistered, 0, Suspension.PROCESS, movable, False, 0, portable)
    suspended(cluster, 0)
    drain(cluster)
    assert parking(cluster) == {}


def test_a_gang_over_several_nodes_stays():
    cluster = DrivenCluster(job("a", 4), cluster="3x2")
    cluster.settle()
    suspended(cluster, 0)
    assert home(cluster) == (0, 1)
    drain(cluster)
    assert parking(cluster) == {}


def test_a_background_job_stays(cluster):
    suspended(cluster, 0)
    cluster.state.spec[0] = cluster.state.spec[0]._replace(share=Share("background"))
    drain(cluster)
    assert parking(cluster) == {}


@pytest.mark.parametrize("name", ["node0", "node1"])
def test_a_node_that_is_not_heard_sends_and_gets_nothing(cluster, name):
    suspended(cluster, 0)
    drain(cluster)
    cluster.happens(NodeUnreachable, name)
    cluster.decide()
    assert parking(cluster) == {}
    cluster.happens(NodeReachable, name)
    cluster.decide()
    assert parking(cluster) == {0: "node1"}


def test_only_open_nodes_with_gpus_of_its_type_and_enough_of_them_are_chosen():
    cluster = DrivenCluster(job("a", 2), cluster="1x4:v100")
    cluster.settle()
    suspended(cluster, 0)
    drain(cluster)
    join(cluster, "other", 4, gpu_type="a100")
    join(cluster, "small", 1, gpu_type="v100")
    join(cluster, "closed", 4, gpu_type="v100")
    cluster.happens(NodeClosed, "closed")
    cluster.decide()
    assert parking(cluster) == {}
    join(cluster, "right", 2, gpu_type="v100")
    assert parking(cluster) == {0: "right"}


def test_a_node_that_has_to_go_sooner_is_not_chosen_and_one_that_stays_comes_first(cluster):
    suspended(cluster, 0)
    cluster.happens(NodeDeadlineChanged, "node0", 500.0)
    cluster.happens(NodeDeadlineChanged, "node1", 400.0)
    drain(cluster, by_s=500.0)
    assert parking(cluster) == {}
    cluster.happens(NodeDeadlineChanged, "node1", 600.0)
    cluster.decide()
    assert parking(cluster) == {0: "node1"}
    join(cluster, "node2")
    assert parking(cluster) == {0: "node2"}
    cluster.happens(NodeClosed, "node0", True)  # an administrator's, without an end
    cluster.happens(NodeDeadlineChanged, "node0", None)
    cluster.happens(NodeClosed, "node2")
    cluster.decide()
    assert parking(cluster) == {}


def test_states_are_spread_over_nodes_by_their_host_memory():
    cluster = DrivenCluster(*(job(str(n)) for n in range(6)), cluster="1x6")
    cluster.settle()
    suspended(cluster, *range(6))
    drain(cluster)
    join(cluster, "n1", 2, host_memory_gb=100.0)
    join(cluster, "n2", 2, host_memory_gb=200.0)
    assert parking(cluster) == {0: "n1", 1: "n2", 2: "n2", 3: "n1", 4: "n2", 5: "n2"}
    join(cluster, "n3", 4)  # of which nobody knows: then by GPUs
    assert list(parking(cluster).values()) == ["n1", "n2", "n3", "n3", "n1", "n2"]


def test_the_states_that_must_leave_first_go_first():
    cluster = DrivenCluster(job("a"), job("b"), cluster="2x1")
    cluster.settle()
    suspended(cluster, 0, 1)
    drain(cluster, "node0", 900.0)
    drain(cluster, "node1", 300.0)
    join(cluster, "node2", 1)
    assert [row for row, _ in homes_wanted(cluster.state)] == [1, 0]


class TestOnItsWay:
    """The state of row 0 is on its way from node0 to node1; node2 is another one."""

    @pytest.fixture
    def found(self, cluster):
        suspended(cluster, 0)
        join(cluster, "node2", 2)
        drain(cluster)
        cluster.command = parked(cluster)
        return cluster

    def test_a_node_that_could_not_keep_it_comes_last_when_it_is_tried_again(self, found):
        def fails():
            command_id = found.state.outstanding[0].command_id
            found.happens(CommandFailed, 0, command_id, "no room", found.now_s + 5.0)
            assert (found.state_of(0), home(found)) == (JobState.SUSPENDED, (0,))
            assert "park failed: no room" in found.state.story(0)[-1][1]
            assert parking(found) == {}
            found.state.validate()
            found.happens(RetryDue, 0)
            found.decide()

        fails()
        assert parking(found) == {0: "node2"}
        parked(found)
        fails()
        assert parking(found) == {0: "node1"}
        found.confirm(parked(found))
        assert found.state.parked_in_vain == {}

    def test_the_pause_after_a_failure_keeps_it_from_no_gpus(self, found):
        found.happens(ResumeRequested, 0)
        found.happens(NodeClosed, "node2")
        found.decide()
        found.happens(CommandFailed, 0, found.command.command_id, "no room", 5.0)
        told = explain(found.state, 0, found.now_s)
        assert told["reason"] == "WAIT_RESOURCES"
        assert "WAIT_BACKOFF" not in [each["rule"] for each in told["blockers"]]
        found.happens(NodeOpened, "node2")
        found.decide()
        (migrate,) = found.send()
        assert isinstance(migrate, Migrate)
        assert (found.state.backoff, found.state.parked_in_vain) == ({}, {})
        found.confirm(migrate)
        found.state.validate()

    def test_the_pause_after_a_failure_ends_with_the_attempt(self, found):
        found.happens(CommandFailed, 0, found.command.command_id, "no room", 5.0)
        found.happens(NodeLost, "node0")
        assert (found.state.backoff, found.state.parked_in_vain) == ({}, {})

    def test_a_job_that_is_stopped_meanwhile_ends_where_its_state_lies(self, found):
        found.happens(StopRequested, 0)
        (stop,) = found.send()
        assert isinstance(stop, Stop)
        assert found.state.parking[0] == found.command.allocation
        found.state.validate()
        found.confirm(stop)
        assert found.state_of(0) == JobState.CANCELLED
        assert found.state.parking == {}
        found.state.validate()

    def test_a_job_that_is_to_stop_and_comes_before_it_was_told_ends_there(self, found):
        found.happens(StopRequested, 0)
        found.confirm(found.command)
        assert (found.state_of(0), home(found)) == (JobState.STOPPING, (1,))
        assert [type(each) for each in found.send()] == [Stop]

    def test_a_failure_after_the_request_to_stop_leaves_the_stop_due(self, found):
        found.happens(StopRequested, 0)
        found.happens(CommandFailed, 0, found.command.command_id, "no room", 5.0)
        assert found.state_of(0) == JobState.STOPPING
        assert found.state.backoff == {}
        assert [type(each) for each in found.send()] == [Stop]

    @pytest.mark.parametrize("stops", [False, True])
    def test_if_its_new_node_is_lost_it_is_where_it_was(self, found, stops):
        if stops:
            found.happens(StopRequested, 0)
        found.happens(NodeLost, "node1")
        found.decide()
        found.state.validate()
        assert (home(found), found.state.attempt[0]) == ((0,), 1)
        if stops:
            assert Stop in map(type, found.send())
        else:
            assert found.state_of(0) == JobState.SUSPENDED
            assert parking(found) == {0: "node2"}

    def test_if_its_new_node_is_lost_after_a_stop_was_sent_the_stop_stands(self, found):
        found.happens(StopRequested, 0)
        (stop,) = found.send()
        found.happens(NodeLost, "node1")
        assert found.state.outstanding[0] == stop
        assert found.state.parking == {}
        found.state.validate()

    def test_if_its_old_node_is_lost_its_attempt_is(self, found):
        found.happens(NodeLost, "node0")
        assert found.state_of(0) == JobState.HELD
        assert (found.state.home[0], found.state.parking) == (None, {})
        found.state.validate()

    def test_its_owner_may_let_it_go_on_meanwhile(self, found):
        found.happens(ResumeRequested, 0)
        found.decide()
        assert diff(found.state) == []
        found.confirm(found.command)
        assert found.state_of(0) == JobState.SUSPENDED
        (migrate,) = found.send()
        assert (type(migrate), migrate.allocation.nodes()) == (Migrate, (2,))

    def test_neither_node_is_given_back_meanwhile(self, found):
        assert nodes_in_use(found.state) == {0, 1}
        twin = found.state.copy()
        found.confirm(found.command)
        assert nodes_in_use(found.state) == {1}
        assert nodes_in_use(twin) == {0, 1}

    def test_what_is_elsewhere_already_is_not_parked(self, found):
        found.confirm(found.command)
        with pytest.raises(TransitionError, match="can't be parked"):
            found.happens(JobParked, 0)
        with pytest.raises(TransitionError, match="can't be sent Park"):
            found.happens(CommandSent, found.command._replace(row=1))
