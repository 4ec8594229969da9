"""Another batch on the same GPUs: a command of its own, and no suspension."""

import pytest

from rota.errors import TransitionError
from rota.model.allocation import Allocation, of_parts, on_node
from rota.model.commands import Resize, Resume, Retune, Stop, Suspend
from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.decide.live_limits import confine
from rota.model.events import (
    CommandFailed,
    CommandSent,
    JobLaunched,
    JobRetuned,
    JobSubmitted,
    JobSuspended,
    NodeJoined,
    RetryDue,
    StopRequested,
    SuspendRequested,
)
from rota.model.job import Adapt, Elastic
from rota.model.plan import Plan
from rota.model.state.state import ClusterState
from rota.policy.base import Policy
from rota.testing.builders import job

PLAIN = on_node(0, 0b11)
TUNED = PLAIN.with_batch((32, 1))


class Wants(Policy):
    def __init__(self, place):
        self.place = place

    def decide(self, view):
        return Plan({0: self.place}, {}, {})


def running(kind="gpu", adapt=None, elastic=None) -> ClusterState:
    """A job of two GPUs that has run on them since 0 s."""
    state = ClusterState()
    state.apply(NodeJoined(0.0, "n0", 2, kind))
    state.apply(JobSubmitted(0.0, job("a", 2)._replace(adapt=adapt, elastic=elastic)))
    take_decision(state, Wants(PLAIN), 0.0)
    send(state, 0.0)
    state.apply(JobLaunched(0.0, 0, 1))
    return state


def send(state, at_s):
    commands = diff(state)
    for command in commands:
        state.apply(CommandSent(at_s, command))
    return commands


def test_a_batch_is_part_of_what_an_allocation_is():
    assert PLAIN != TUNED
    assert Allocation(((0, 0b11),), batch=(32, 1)) == TUNED
    assert hash(TUNED) == hash(TUNED.with_sharing(True).with_sharing(False))
    assert TUNED.with_batch(None) is PLAIN
    assert of_parts([(0, 0b11)], False, (32, 1)) == TUNED
    assert TUNED.without(on_node(0, 1)) == on_node(0, 0b10).with_batch((32, 1))
    assert repr(TUNED) == "Allocation(0:[0, 1] 32x2)"


@pytest.mark.parametrize("batch", [(0, 0), (1, -1), (1,), (1, 0, 0)])
def test_a_batch_that_can_not_be_is_refused(batch):
    with pytest.raises(ValueError, match="a batch is 1 or more samples"):
        on_node(0, 1).with_batch(batch)


def test_a_running_job_is_retuned_where_it_is():
    state = running()
    take_decision(state, Wants(TUNED), 10.0)
    assert send(state, 10.0) == [Retune(2, 0, 1, 0, (32, 1))]
    assert diff(state) == []
    state.apply(JobRetuned(12.0, 0, (32, 1), 2.0))
    assert state.held[0] is state.target[0]
    assert not state.unsettled
    assert not state.decision_needed
    assert (state.service(0, 20.0), state.work(0, 20.0)) == (20.0, 12.0 + 16.0)
    assert state.story(0)[-1] == (12.0, "retuned to 32 samples a GPU, 2 times")
    state.validate()


def test_other_gpus_come_with_their_batch_by_a_suspension():
    state = running()
    state.apply(NodeJoined(5.0, "n1", 2))
    there = on_node(1, 0b11).with_batch((8, 0))
    take_decision(state, Wants(there), 10.0)
    (suspend,) = send(state, 10.0)
    assert isinstance(suspend, Suspend)
    state.apply(JobSuspended(10.0, 0, 10.0))
    (start,) = send(state, 10.0)
    assert start.allocation is there


def test_a_suspended_job_resumes_with_another_batch():
    state = running()
    take_decision(state, Wants(None), 10.0)
    send(state, 10.0)
    state.apply(JobSuspended(10.0, 0, 10.0))
    take_decision(state, Wants(TUNED), 20.0)
    (resume,) = send(state, 20.0)
    assert isinstance(resume, Resume)
    assert state.held[0] is TUNED


def test_a_retune_that_failed_leaves_the_batch_as_it_was():
    state = running()
    take_decision(state, Wants(TUNED), 10.0)
    (retune,) = send(state, 10.0)
    state.apply(CommandFailed(11.0, 0, retune.command_id, "no", 20.0))
    assert state.target[0] == state.held[0] == PLAIN
    assert diff(state) == []
    state.apply(RetryDue(20.0, 0))
    assert 0 in state.active
    assert state.service(0, 20.0) == 20.0


def test_a_stop_overtakes_a_retune():
    state = running()
    take_decision(state, Wants(TUNED), 10.0)
    send(state, 10.0)
    state.apply(StopRequested(11.0, 0))
    assert [type(command) for command in diff(state)] == [Stop]


def test_a_suspension_overtakes_a_retune_which_may_wait_for_a_step_for_long():
    state = running()
    take_decision(state, Wants(TUNED), 10.0)
    send(state, 10.0)
    state.apply(SuspendRequested(11.0, 0))
    assert [type(command) for command in send(state, 11.0)] == [Suspend]
    assert diff(state) == []
    state.apply(JobSuspended(12.0, 0, 11.5))
    assert state.home[0] == PLAIN
    state.validate()


def test_other_gpus_wait_for_a_retune_that_is_on_its_way():
    state = running()
    state.apply(NodeJoined(5.0, "n1", 2))
    take_decision(state, Wants(TUNED), 10.0)
    send(state, 10.0)
    take_decision(state, Wants(on_node(1, 0b11)), 11.0)
    assert diff(state) == []
    state.apply(JobRetuned(12.0, 0, (32, 1)))
    assert [type(command) for command in diff(state)] == [Suspend]


def test_a_job_can_be_given_other_sizes_while_its_batch_changes_but_not_once_one_is_chosen():
    state = running(elastic=Elastic((1, 2)))
    take_decision(state, Wants(TUNED), 10.0)
    send(state, 10.0)
    assert state.sizes(0) == (1, 2)
    take_decision(state, Wants(on_node(0, 1)), 11.0)
    assert state.sizes(0) == (1,)
    assert diff(state) == []
    state.apply(JobRetuned(12.0, 0, (32, 1)))
    assert state.sizes(0) == (1,)
    assert [type(command) for command in send(state, 12.0)] == [Resize]
    state.validate()


def test_only_a_running_job_is_retuned():
    state = ClusterState()
    state.apply(NodeJoined(0.0, "n0", 2))
    state.apply(JobSubmitted(0.0, job("a", 2)))
    for event in (JobRetuned(1.0, 0, None), CommandSent(1.0, Retune(1, 0, 0, 0, None))):
        with pytest.raises(TransitionError, match="can't be retuned"):
            state.apply(event)


def test_jobs_of_live_nodes_that_adapt_are_retuned_and_moved_with_their_batch():
    state = running("cpu", Adapt(4096, None))
    assert confine(state, Plan({0: TUNED}, {}, {})).allocations == {0: TUNED}
    spread = Allocation(((0, 1), (1, 1)), batch=(8, 0))
    state.apply(NodeJoined(5.0, "n1", 2, "cpu"))
    assert confine(state, Plan({0: spread}, {}, {})).allocations == {0: PLAIN.with_batch((8, 0))}
    take_decision(state, Wants(TUNED), 10.0)
    assert [type(command) for command in diff(state)] == [Retune]


def test_jobs_of_live_nodes_keep_their_own_batch():
    state = running(kind="cpu")
    plan = Plan({0: TUNED}, {}, {})
    assert confine(state, plan).allocations == {0: PLAIN}
    take_decision(state, Wants(TUNED), 10.0)
    assert diff(state) == []
