"""CPU cores beside the GPUs of a job: a command of its own, and no suspension."""

import pytest

from rota.errors import TransitionError
from rota.model.allocation import on_node
from rota.model.cluster import Node
from rota.model.commands import Launch, Resume, SetCpus, Suspend
from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.events import (
    CommandFailed,
    CommandSent,
    CpusSet,
    JobLaunched,
    JobResumed,
    JobSubmitted,
    JobSuspended,
    RetryDue,
    joined,
)
from rota.model.plan import Plan
from rota.model.state.state import ClusterState
from rota.policy.base import Policy
from rota.testing.builders import job

GPU = on_node(0, 0b1)


class Wants(Policy):
    def __init__(self, place, millicores):
        cpus = {} if millicores == "as before" else {0: millicores}
        self.plan = Plan({0: place}, {}, {}, cpus=cpus)

    def decide(self, view):
        return self.plan


def cluster(cores=4) -> ClusterState:
    state = ClusterState()
    state.apply(joined(0.0, Node("n0", 2, millicores=1000 * cores)))
    state.apply(JobSubmitted(0.0, job("a", 1)))
    return state


def running(millicores=2500) -> ClusterState:
    """A job that has run with so many cores since 0 s."""
    state = cluster()
    decide(state, 0.0, GPU, millicores)
    state.apply(JobLaunched(0.0, 0, 1))
    return state


def decide(state, at_s, place, millicores="as before"):
    """Decide on the job's GPU and cores, and send what follows."""
    take_decision(state, Wants(place, millicores), at_s)
    commands = diff(state)
    for command in commands:
        state.apply(CommandSent(at_s, command))
    return commands


def test_a_job_starts_with_its_cores():
    state = cluster()
    [launch] = decide(state, 0.0, GPU, 2500)
    assert launch == Launch(1, 0, 1, 0, GPU, 2500)
    assert state.held_cpus == {0: 2500}
    state.apply(JobLaunched(0.0, 0, 1))
    assert not state.unsettled
    assert not diff(state)


def test_without_a_column_nobody_is_held_to_cores():
    state = cluster()
    [launch] = decide(state, 0.0, GPU)
    assert launch.millicores is None
    assert state.target_cpus == state.held_cpus == {}


def test_other_cores_reach_a_running_job_by_a_command_and_call_for_no_decision():
    state = running()
    [command] = decide(state, 5.0, GPU, 1250)
    assert command == SetCpus(2, 0, 1, 0, 1250)
    assert (state.target_cpus, state.held_cpus) == ({0: 1250}, {0: 2500})
    state.apply(CpusSet(6.0, 0, 1250, 0.5))
    assert state.held_cpus == {0: 1250}
    assert not state.unsettled
    assert not state.decision_needed
    assert state.changed == [0]
    assert state.speed[0] == 0.5
    assert state.work(0, 10.0) == 8.0
    assert state.story(0)[-1] == (6.0, "may use 1.25 CPU cores")


def test_a_job_is_let_use_any_number_of_cores_again():
    state = running()
    [command] = decide(state, 5.0, GPU, None)
    assert command.millicores is None
    state.apply(CpusSet(5.0, 0, None))
    assert state.target_cpus == state.held_cpus == {}
    assert not state.unsettled
    assert state.story(0)[-1] == (5.0, "may use any number of CPU cores")


def test_a_job_that_loses_its_gpus_loses_its_cores_and_resumes_with_others():
    state = running()
    [command] = decide(state, 5.0, None)
    assert isinstance(command, Suspend)
    assert state.target_cpus == {}
    state.apply(JobSuspended(6.0, 0, 6.0))
    assert state.held_cpus == {}
    assert decide(state, 7.0, GPU, 500) == [Resume(3, 0, 1, 0, GPU, 500)]
    state.apply(JobResumed(8.0, 0))
    assert state.held_cpus == {0: 500}
    assert not state.unsettled


def test_a_suspension_overtakes_a_change_of_cores():
    state = running()
    decide(state, 5.0, GPU, 1000)
    [command] = decide(state, 5.5, None)
    assert isinstance(command, Suspend)
    with pytest.raises(TransitionError, match="given CPU cores"):
        state.apply(CpusSet(6.0, 0, 1000))
    state.apply(JobSuspended(6.0, 0, 6.0))


def test_cores_that_could_not_be_set_are_given_up():
    state = running()
    [command] = decide(state, 5.0, GPU, 1000)
    state.apply(CommandFailed(6.0, 0, command.command_id, "no cgroup", 10.0))
    assert state.target_cpus == state.held_cpus == {0: 2500}
    state.apply(RetryDue(10.0, 0))
    assert not diff(state)


def test_the_cores_of_a_start_that_failed_are_nobodys():
    state = cluster()
    [launch] = decide(state, 0.0, GPU, 2500)
    state.apply(CommandFailed(1.0, 0, launch.command_id, "no such file", 10.0))
    assert state.target_cpus == state.held_cpus == {}


def test_another_policy_without_a_say_in_cores_lets_all_go():
    state = running()
    plain = Wants(GPU, "as before")
    plain.plan = Plan({}, {}, {})
    plain.identity = "plain"
    made = take_decision(state, plain, 5.0)
    assert made.cpus == {0: None}
    assert take_decision(state, plain, 6.0).cpus is None


def test_a_copy_has_cores_of_its_own():
    state = running()
    twin = state.copy()
    twin.apply(CpusSet(1.0, 0, 1))
    assert state.held_cpus == {0: 2500}
