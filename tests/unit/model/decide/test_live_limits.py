import pytest

from rota.explain.why import explain
from rota.model.allocation import Allocation, on_node
from rota.model.commands import Resize, Resume
from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.decide.live_limits import confine
from rota.model.events import (
    CommandSent,
    JobFinished,
    JobLaunched,
    JobResumed,
    JobSubmitted,
    JobSuspended,
    NodeAddressChanged,
    NodeJoined,
    WorkerRegistered,
)
from rota.model.job import Elastic, JobState, Program, Suspension
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.state.state import ClusterState
from rota.policy.base import Policy
from rota.policy.registry import create
from rota.testing.builders import job


def live_state(*sizes: int, jobs: tuple[int, ...] = ()) -> ClusterState:
    """A state with CPU nodes of these sizes, and waiting jobs of so many GPUs."""
    state = ClusterState()
    for index, size in enumerate(sizes):
        state.apply(NodeJoined(0.0, f"n{index}", size, "cpu"))
    for index, gpus in enumerate(jobs):
        state.apply(JobSubmitted(0.0, job(f"j{index}", gpus)))
    return state


class Wants(Policy):
    """A policy that wants what a test says."""

    def __init__(self, **places):
        self.places = {int(name[1:]): place for name, place in places.items()}

    def decide(self, view):
        return Plan(dict(self.places), {}, {})


def decided(state, policy, at_s=1.0):
    event = take_decision(state, policy, at_s)
    state.validate()
    return event


SPLIT = Allocation(((0, 0b1), (1, 0b1)))


def test_a_gang_that_is_spread_over_nodes_is_put_on_the_tightest_that_has_room():
    state = live_state(4, 3, jobs=(2,))
    event = decided(state, Wants(j0=SPLIT))
    assert event.allocations == {0: on_node(1, 0b11)}


def test_a_gang_waits_when_its_gpus_are_free_on_different_nodes_only():
    state = live_state(2, 2, jobs=(1, 1, 2))
    taken = {"j0": on_node(0, 0b10), "j1": on_node(1, 0b10)}
    event = decided(state, Wants(**taken, j2=SPLIT))
    assert event.allocations == {0: on_node(0, 0b10), 1: on_node(1, 0b10)}
    assert event.reasons == {2: Reason.WAIT_GANG_FRAGMENTED}


def test_a_gang_that_is_larger_than_every_node_is_told_so():
    state = live_state(2, 2, jobs=(3,))
    event = decided(state, Wants(j0=Allocation(((0, 0b11), (1, 0b1)))))
    assert (event.allocations, event.reasons) == ({}, {0: Reason.NEVER_FITS})
    verdict = explain(state, 0, 1.0)
    assert verdict["blockers"][0]["have"] == "2 on the largest node, and a gang is on one node"
    assert verdict["would_start_if"] == "it asked for at most 2 GPUs"


def test_simulated_nodes_take_gangs_that_are_spread():
    state = ClusterState()
    for name in ("n0", "n1"):
        state.apply(NodeJoined(0.0, name, 1))
    state.apply(JobSubmitted(0.0, job("j0", 2)))
    assert decided(state, Wants(j0=SPLIT)).allocations == {0: SPLIT}


def suspended(state, *, portable, movable=True):
    """The job of row 0, which ran on the first GPU, is suspended."""
    (launch,) = diff(state)
    state.apply(CommandSent(1.0, launch))
    state.apply(JobLaunched(1.0, 0, 1))
    kind = Suspension.BOUNDARY if portable else Suspension.PROCESS
    state.apply(WorkerRegistered(1.0, 0, kind, movable, portable=portable))
    decided(state, Wants(j0=None), 2.0)
    (suspend,) = diff(state)
    state.apply(CommandSent(2.0, suspend))
    state.apply(JobSuspended(2.0, 0, 2.0))


def test_stopped_processes_stay_on_their_node_though_not_on_their_gpu():
    state = live_state(2, 2, jobs=(1, 1))
    decided(state, Wants(j0=on_node(0, 0b1)))
    suspended(state, portable=False)
    event = decided(state, Wants(j0=on_node(1, 0b1), j1=on_node(0, 0b1)), 3.0)
    assert event.allocations[0] == on_node(0, 0b10)


def test_a_job_that_can_not_leave_a_full_node_waits_and_says_for_what():
    state = live_state(1, 1, jobs=(1, 1))
    decided(state, Wants(j0=on_node(0, 0b1)))
    suspended(state, portable=False)
    event = decided(state, Wants(j0=on_node(1, 0b1), j1=on_node(0, 0b1)), 3.0)
    assert event.allocations == {1: on_node(0, 0b1)}
    assert event.reasons == {0: Reason.WAIT_TOPOLOGY}
    for command in diff(state):
        state.apply(CommandSent(3.0, command))
    blocker = explain(state, 0, 3.0)["blockers"][0]
    assert blocker["need"] == "1 GPU of n0, where its stopped processes are"
    assert (blocker["have"], blocker["held_by"]) == ("0 free", ["j1"])


def test_a_job_whose_state_can_be_written_down_goes_where_the_plan_wants_it():
    state = live_state(1, 1, jobs=(1,))
    decided(state, Wants(j0=on_node(0, 0b1)))
    suspended(state, portable=True)
    event = decided(state, Wants(j0=on_node(1, 0b1)), 3.0)
    assert event.allocations == {0: on_node(1, 0b1)}
    assert [type(command).__name__ for command in diff(state)] == ["Migrate"]


def test_a_plan_that_breaks_the_contract_is_left_for_the_check():
    state = live_state(1, 1, jobs=(2, 1))
    for other in (on_node(7, 0b1), on_node(0, 0b10), "nonsense"):
        plan = Plan({0: SPLIT, 1: other}, {}, {})
        assert confine(state, plan) is plan
    plan = Plan({0: SPLIT, 9: None}, {}, {})
    assert confine(state, plan) is plan


@pytest.mark.parametrize("name", ["fifo", "fifo-backfill", "tiresias", "las"])
def test_policies_go_on_when_their_plans_are_confined(name):
    """Jobs of two GPUs on fragmented nodes start as soon as one node has room."""
    state = live_state(2, 2, jobs=(1, 1))
    policy = create(name)
    decided(state, Wants(j0=on_node(0, 0b1), j1=on_node(1, 0b1)))
    for command in diff(state):
        state.apply(CommandSent(1.0, command))
        state.apply(JobLaunched(1.0, command.row, 1))
    state.apply(JobSubmitted(2.0, job("gang", 2)))
    decided(state, policy, 2.0)
    assert state.target[2] is None
    assert state.reason[2] == Reason.WAIT_GANG_FRAGMENTED
    state.apply(JobFinished(3.0, 0, JobState.SUCCEEDED, 0))
    decided(state, policy, 3.0)
    assert state.target[2] == on_node(0, 0b11)


def typed_state(*jobs):
    """Two nodes of two GPUs, a t4 and an a100, and waiting jobs (GPUs, types)."""
    state = ClusterState()
    for kind in ("t4", "a100"):
        state.apply(NodeJoined(0.0, kind, 2, "cpu", kind))
    for index, (gpus, types) in enumerate(jobs):
        state.apply(JobSubmitted(0.0, job(f"j{index}", gpus)._replace(gpu_types=types)))
    return state


def test_a_job_gets_gpus_of_the_types_that_it_asked_for():
    state = typed_state((2, ("a100",)), (2, ("h100", "t4")), (1, ()))
    event = decided(state, create("fifo"))
    assert event.allocations == {0: on_node(1, 0b11), 1: on_node(0, 0b11)}


def test_a_job_whose_types_are_taken_keeps_no_gpus_from_others():
    state = typed_state((2, ("a100",)), (1, ("a100",)), (2, ()))
    event = decided(state, create("fifo"))
    assert event.allocations == {0: on_node(1, 0b11), 2: on_node(0, 0b11)}
    assert Reason(state.reason[1]) == Reason.WAIT_TOPOLOGY
    for command in diff(state):
        state.apply(CommandSent(1.0, command))
    verdict = explain(state, 1, 1.0)
    assert verdict["blockers"][0] == {
        "rule": "WAIT_TOPOLOGY",
        "need": "1 GPU of a100 on one node",
        "have": "0 free",
        "held_by": ["j0"],
    }
    assert verdict["would_start_if"] == "1 GPU of a100 on one node were free"


def test_a_job_for_whose_types_no_node_is_large_enough_never_fits():
    state = typed_state((3, ("a100",)), (1, ("h100",)), (1, ()))
    decided(state, create("fifo-backfill"))
    assert [Reason(code).name for code in state.reason[:2]] == ["NEVER_FITS", "NEVER_FITS"]
    assert state.target[2] is not None


@pytest.mark.parametrize("name", ["tiresias", "gandiva", "round-robin", "max-min-fairness"])
def test_no_policy_puts_a_job_on_other_types_whatever_else_happens(name):
    state, policy = typed_state(*((1, ("a100",)) for _ in range(5)), *((1, ()),) * 3), create(name)
    for at_s in range(1, 200, 10):
        event = decided(state, policy, float(at_s))
        places = [state.target[row] for row in range(5)]
        assert all(place is None or place.nodes() == (1,) for place in places), event
        while commands := diff(state):
            for command in commands:
                state.apply(CommandSent(float(at_s), command))
                if type(command).__name__ == "Launch":
                    state.apply(JobLaunched(float(at_s), command.row, command.attempt))
                elif type(command).__name__ == "Suspend":
                    state.apply(JobSuspended(float(at_s), command.row, float(at_s)))
                else:
                    state.apply(JobResumed(float(at_s), command.row))
    assert sum(state.first_start_s[row] >= 0 for row in range(5)) >= 2
    assert sum(state.first_start_s[row] >= 0 for row in range(5, 8)) >= 2


IN_RANKS = Program(run="python train.py", workdir="/")


def joined_state(*sizes, jobs=(), program=IN_RANKS, **more):
    """The same of nodes that reach each other, and of jobs with one process per GPU."""
    state = ClusterState()
    for index, size in enumerate(sizes):
        state.apply(NodeJoined(0.0, f"n{index}", size, "cpu", reach=f"10.0.0.{index}"))
    for index, gpus in enumerate(jobs):
        state.apply(JobSubmitted(0.0, job(f"j{index}", gpus, program=program, **more)))
    return state


def test_a_gang_may_be_on_nodes_that_reach_each_other():
    state = joined_state(2, 2, jobs=(2, 3))
    event = decided(state, Wants(j0=SPLIT))
    assert event.allocations == {0: SPLIT}


def test_a_gang_that_fits_no_node_gets_gpus_of_several_where_it_can():
    wide = Allocation(((0, 0b11), (1, 0b11)))
    state = joined_state(4, 2, 2, jobs=(1, 4))
    event = decided(state, Wants(j0=on_node(0, 0b1), j1=Allocation(((1, 0b11), (2, 0b11)))))
    assert event.allocations[1].num_gpus == 4
    state = joined_state(2, 2, jobs=(4,))
    state.apply(NodeJoined(0.0, "alone", 1, "cpu"))
    event = decided(state, Wants(j0=Allocation(((0, 0b11), (1, 0b1), (2, 0b1)))))
    assert event.allocations == {0: wide}


@pytest.mark.parametrize("name", ["fifo", "tiresias", "gandiva", "elastic"])
def test_gpus_that_a_gang_cannot_have_are_offered_to_others_in_the_same_decision(name):
    state, policy = joined_state(2, 2, jobs=(1,)), create(name)
    state.apply(NodeJoined(0.0, "old", 2, "cpu"))  # its agent can't have gangs over several nodes
    decided(state, policy, 1.0)
    for index, gpus in enumerate((4, 2, 1, 1), 1):
        state.apply(JobSubmitted(2.0, job(f"j{index}", gpus, program=IN_RANKS)))
    event = decided(state, policy, 2.0)
    assert event.reasons[1] == Reason.WAIT_GANG_FRAGMENTED
    assert event.allocations.keys() == {2, 3, 4}


@pytest.mark.parametrize("name", ["fifo", "fifo-backfill", "tiresias", "gandiva"])
def test_a_gang_spans_a_node_once_others_can_call_it(name):
    """A cluster begins on one machine, and listens to others from the second start on."""
    state, policy = live_state(2), create(name)
    decided(state, policy, 1.0)
    state.apply(NodeJoined(2.0, "gpu2", 2, "cpu", reach="10.0.0.2"))
    state.apply(JobSubmitted(3.0, job("j0", 4, program=IN_RANKS)))
    decided(state, policy, 3.0)
    assert state.target[0] is None
    state.apply(NodeAddressChanged(4.0, "n0", "", "10.0.0.1"))
    assert state.decision_needed
    decided(state, policy, 4.0)
    assert state.target[0] == Allocation(((0, 0b11), (1, 0b11)))


def test_a_node_that_listens_no_more_takes_no_gang_over_nodes():
    state = joined_state(2, 2, jobs=(4,))
    state.apply(NodeAddressChanged(1.0, "n0", "", ""))
    assert state.num_reached == 1
    decided(state, create("fifo"), 2.0)
    assert (state.target[0], state.reason[0]) == (None, Reason.NEVER_FITS)


@pytest.mark.parametrize("processes", ["node", "flow"])
def test_what_shares_its_node_or_starts_its_own_processes_is_on_one(processes):
    state = joined_state(2, 2, jobs=(3,), program=IN_RANKS._replace(processes=processes))
    event = decided(state, Wants(j0=Allocation(((0, 0b11), (1, 0b1)))))
    assert event.allocations == {}
    assert event.reasons == {0: Reason.NEVER_FITS}


def begun(state, place, *, resizable=False):
    """The job of row 0 has begun there."""
    decided(state, Wants(j0=place))
    (launch,) = diff(state)
    state.apply(CommandSent(1.0, launch))
    state.apply(JobLaunched(1.0, 0, 1))
    state.apply(WorkerRegistered(1.0, 0, Suspension.BOUNDARY, movable=False, resizable=resizable))
    return state


def test_a_suspended_gang_goes_on_on_all_of_its_gpus_alone():
    state = begun(joined_state(2, 2, 2, jobs=(2,)), SPLIT)
    decided(state, Wants(j0=None), 2.0)
    (suspend,) = diff(state)
    state.apply(CommandSent(2.0, suspend))
    state.apply(JobSuspended(2.0, 0, 2.0))
    event = decided(state, Wants(j0=Allocation(((1, 0b1), (2, 0b1)))), 3.0)
    assert event.allocations == {0: SPLIT}


def test_a_gang_that_is_still_being_suspended_is_wanted_again_on_its_own_gpus():
    """The confirmation of its suspension alone would call for no decision any more."""
    state = begun(joined_state(2, 2, 2, jobs=(4,)), Allocation(((0, 0b11), (1, 0b11))))
    before = state.held[0]
    decided(state, Wants(j0=None), 2.0)
    (suspend,) = diff(state)
    state.apply(CommandSent(2.0, suspend))
    event = decided(state, Wants(j0=Allocation(((1, 0b11), (2, 0b11)))), 3.0)
    assert event.allocations == {0: before}


ELASTIC = {"elastic": Elastic((1, 2, 3, 4))}


@pytest.mark.parametrize(
    "target",
    [Allocation(((0, 0b1), (2, 0b1))), on_node(0, 0b1), Allocation(((0, 0b11), (1, 0b11)))],
)
def test_a_gang_is_resized_over_nodes_with_its_first_one_kept(target):
    state = begun(joined_state(2, 2, 2, jobs=(2,), **ELASTIC), SPLIT, resizable=True)
    event = decided(state, Wants(j0=target), 2.0)
    assert event.allocations == {0: target}
    (resize,) = diff(state)
    assert isinstance(resize, Resize)


def test_a_gang_does_not_leave_its_first_node_while_it_runs():
    state = begun(joined_state(2, 2, 2, jobs=(2,), **ELASTIC), SPLIT, resizable=True)
    event = decided(state, Wants(j0=Allocation(((1, 0b1), (2, 0b1)))), 2.0)
    assert event.allocations in ({}, {0: None})


def test_a_gang_that_is_being_resized_and_is_to_be_suspended_is_not_wanted_on_both_its_places():
    state = begun(joined_state(2, 2, 2, jobs=(2,), **ELASTIC), SPLIT, resizable=True)
    decided(state, Wants(j0=Allocation(((0, 0b1), (2, 0b1)))), 2.0)
    (resize,) = diff(state)
    state.apply(CommandSent(2.0, resize))
    assert state.held[0].num_gpus == 3
    decided(state, Wants(j0=None), 3.0)
    event = decided(state, Wants(j0=Allocation(((1, 0b1), (2, 0b1)))), 4.0)
    assert event.allocations in ({}, {0: None})


def test_a_job_that_can_not_get_to_other_nodes_while_it_runs_is_not_suspended_for_them():
    """It has no GPU in both places: once suspended, it could go on where it is alone."""
    state = begun(joined_state(4, 2, 2, jobs=(2,), **ELASTIC), on_node(0, 0b1100), resizable=True)
    event = decided(state, Wants(j0=SPLIT), 2.0)
    assert event.allocations == {}
    assert diff(state) == []


def test_a_gang_whose_gpus_go_to_another_job_is_not_wanted_on_one_node_for_that():
    state = begun(joined_state(2, 2, 4, jobs=(2, 4)), SPLIT)
    both = Allocation(((0, 0b11), (1, 0b11)))
    event = decided(state, Wants(j0=on_node(2, 0b11), j1=both), 2.0)
    assert event.allocations == {0: None, 1: both}


@pytest.mark.parametrize(("movable", "portable"), [(False, False), (True, False)])
def test_running_processes_that_can_not_be_moved_are_not_suspended_for_another_node(
    movable, portable
):
    state = live_state(2, 2, jobs=(1,))
    decided(state, Wants(j0=on_node(0, 0b1)))
    for command in diff(state):
        state.apply(CommandSent(1.0, command))
    state.apply(JobLaunched(1.0, 0, 1))
    kind = Suspension.PROCESS
    state.apply(WorkerRegistered(1.0, 0, kind, movable, portable=portable))
    assert decided(state, Wants(j0=on_node(1, 0b1)), 2.0).allocations == {}


def test_a_running_job_that_is_wanted_on_no_node_at_all_breaks_the_contract():
    state = begun(live_state(2, jobs=(1,)), on_node(0, 0b1))
    errors = []
    take_decision(state, Wants(j0=on_node(99, 0b1)), 2.0, failed=errors.append)
    assert "GPUs of node 99, which is not there" in str(errors)


def test_a_job_is_decided_on_anew_if_its_state_can_not_go_where_it_was_wanted():
    """Its program told so after the decision, and before it was suspended."""
    state = live_state(2, 2, jobs=(1,))
    decided(state, Wants(j0=on_node(0, 0b1)))
    (launch,) = diff(state)
    state.apply(CommandSent(1.0, launch))
    state.apply(JobLaunched(1.0, 0, 1))
    decided(state, Wants(j0=on_node(1, 0b1)), 2.0)
    (suspend,) = diff(state)
    state.apply(CommandSent(2.0, suspend))
    state.apply(WorkerRegistered(2.0, 0, Suspension.PROCESS, movable=True, portable=False))
    state.apply(JobSuspended(3.0, 0, 3.0))
    state.validate()
    assert state.decision_needed
    assert diff(state) == []
    decided(state, Wants(j0=on_node(1, 0b1)), 4.0)
    (resume,) = diff(state)
    assert (type(resume), resume.allocation) == (Resume, on_node(0, 0b1))
