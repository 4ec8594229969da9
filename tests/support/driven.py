"""A cluster that a test drives by hand: what happens, happens when the test says so."""

from collections.abc import Callable
from typing import Any

from rota.model.cluster import parse_cluster
from rota.model.commands import Command, Launch, Migrate, Park, Resume, SetCpus, Stop, Suspend
from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.events import (
    AttemptLost,
    CommandSent,
    CpusSet,
    JobFinished,
    JobLaunched,
    JobParked,
    JobResumed,
    JobSubmitted,
    JobSuspended,
    NodeClosed,
    ResumeRequested,
    StopRequested,
    SuspendRequested,
    joined,
)
from rota.model.job import JobSpec, JobState
from rota.model.state.state import ClusterState
from rota.policy.ordering.fifo import FifoBackfill
from rota.testing.builders import job


class DrivenCluster:
    """A state on a cluster with some jobs, a clock, and a first-fit policy by arrival.

    Nothing is decided, sent or confirmed but by a call.
    """

    def __init__(
        self,
        *jobs: JobSpec,
        cluster: str = "1x4",
        policy: Any = None,
        most_nodes: int = 0,
    ) -> None:
        self.state = ClusterState()
        self.policy = FifoBackfill() if policy is None else policy
        self.now_s = 0.0
        self.most_nodes = most_nodes
        for node in parse_cluster(cluster) if cluster else ():
            self.state.apply(joined(0.0, node))
        for spec in jobs:
            self.happens(JobSubmitted, spec)

    def happens(self, event: Callable[..., Any], *fields: Any) -> None:
        """Apply an event of this kind now."""
        self.state.apply(event(self.now_s, *fields))

    def passes(self, seconds: float) -> None:
        """Let time pass; nothing happens meanwhile."""
        self.now_s += seconds

    def decide(self) -> None:
        """Let the policy decide now."""
        take_decision(self.state, self.policy, self.now_s, most_nodes=self.most_nodes)

    def send(self) -> list[Command]:
        """Send the commands that are due now, and give them back."""
        commands = diff(self.state)
        for command in commands:
            self.happens(CommandSent, command)
        return commands

    def confirm(self, command: Command) -> None:
        """Let a command have been carried out now."""
        if isinstance(command, Launch):
            self.happens(JobLaunched, command.row, command.attempt)
        elif isinstance(command, Resume | Migrate):
            self.happens(JobResumed, command.row)
        elif isinstance(command, Park):
            self.happens(JobParked, command.row)
        elif isinstance(command, Suspend):
            self.happens(JobSuspended, command.row, self.now_s)
        elif isinstance(command, SetCpus):
            self.happens(CpusSet, command.row, command.millicores)
        elif isinstance(command, Stop):
            self.happens(JobFinished, command.row, self.state.stop_outcome[command.row])

    def settle(self) -> None:
        """Decide, then send and confirm until there is nothing left to send."""
        self.decide()
        while commands := self.send():
            for command in commands:
                self.confirm(command)

    def state_of(self, row: int) -> JobState:
        """Where a job stands."""
        return JobState(self.state.state[row])


def cluster_with_a_job_that_is(state: JobState) -> DrivenCluster:
    """A cluster whose job of row 0, of one GPU, stands at ``state``, on the way users know."""
    cluster = DrivenCluster(job("the-job"), cluster="2x1")
    if state == JobState.HELD:
        cluster.happens(SuspendRequested, 0)
    if state in (JobState.PENDING, JobState.HELD):
        return cluster
    cluster.decide()
    launch = cluster.send()[0]
    if state == JobState.STARTING:
        return cluster
    cluster.passes(1.0)
    cluster.confirm(launch)
    cluster.passes(10.0)
    if state in (JobState.SUSPENDING, JobState.SUSPENDED, JobState.MIGRATING):
        _suspend(cluster, state)
    elif state == JobState.STOPPING:
        cluster.happens(StopRequested, 0)
    elif state == JobState.LOST:
        cluster.happens(StopRequested, 0, JobState.LOST)
        cluster.happens(AttemptLost, 0, 1, "the node was lost")
    elif state.is_final:
        cluster.happens(JobFinished, 0, state)
    return cluster


def cluster_with_a_job_that_leaves() -> DrivenCluster:
    """One whose job of row 0, which its owner has suspended, is being parked on node1.

    Its own node, node0, is drained.
    """
    cluster = cluster_with_a_job_that_is(JobState.SUSPENDED)
    cluster.happens(NodeClosed, "node0", True)
    cluster.decide()
    cluster.send()
    return cluster


def _suspend(cluster: DrivenCluster, state: JobState) -> None:
    cluster.happens(SuspendRequested, 0)
    suspend = cluster.send()[0]
    if state == JobState.SUSPENDING:
        return
    cluster.confirm(suspend)
    if state == JobState.SUSPENDED:
        return
    # Another job takes the GPU where the first one's state lies.
    cluster.happens(JobSubmitted, job("other"))
    cluster.settle()
    cluster.happens(ResumeRequested, 0)
    cluster.decide()
    cluster.send()
