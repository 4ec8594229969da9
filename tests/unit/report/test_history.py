"""The course of a run, from events made by hand and by the simulator."""

import pytest

from rota.model.cluster import parse_cluster
from rota.model.events import (
    AttemptLost,
    CommandFailed,
    JobFinished,
    JobSubmitted,
    NodeLost,
    ResumeRequested,
    SpeedChanged,
    StopRequested,
    SuspendRequested,
)
from rota.model.job import JobState
from rota.policy.ordering.fifo import Fifo
from rota.policy.registry import create
from rota.report.history import History
from rota.testing.builders import job, simulation
from support.driven import DrivenCluster


def history_of(*jobs, cluster="1x2", policy=None, **more):
    simulated = simulation(jobs, policy or Fifo(), cluster)
    simulated.state.log = []
    simulated.run()
    return History(simulated.state.log, parse_cluster(cluster), **more)


class Driven(DrivenCluster):
    """A cluster whose events are kept from the first submission on."""

    def __init__(self, *jobs, cluster="1x4"):
        super().__init__(cluster=cluster)
        self.nodes = parse_cluster(cluster)
        self.state.log = []
        for spec in jobs:
            self.happens(JobSubmitted, spec)

    @property
    def history(self):
        return History(self.state.log, self.nodes)


def test_moments_tell_who_waits_and_which_gpus_are_held():
    history = history_of(job(0, 2, lasts=10), job(1, 1, lasts=10), job(2, 2, at=5, lasts=10))
    told = [tuple(m)[:5] for m in history.moments]
    assert told == [
        # at, waiting jobs, held, running, all
        (0.0, 1, 2, 2, 2),
        (5.0, 2, 2, 2, 2),
        (10.0, 1, 1, 1, 2),
        (20.0, 0, 2, 2, 2),
        (30.0, 0, 0, 0, 2),
    ]


def test_averages_are_over_time():
    figures = history_of(
        job(0, 2, lasts=10), job(1, 1, lasts=10), job(2, 2, at=5, lasts=10)
    ).figures()
    assert figures["avg_waiting_jobs"] == (1 * 5 + 2 * 5 + 1 * 10) / 30
    assert figures["max_waiting_jobs"] == 2


def test_gpus_are_stranded_while_a_job_would_fit_but_for_where_they_are():
    # Two nodes of four, three GPUs of each busy: one GPU is free on either.
    jobs = [job(0, 3, lasts=100), job(1, 3, lasts=100), job(2, 2, at=20, lasts=10)]
    cluster = Driven(*jobs, cluster="2x4")
    cluster.settle()  # the policy puts 0 and 1 on nodes of their own, and 2 on both of the rest
    cluster.state.log = [e for e in cluster.state.log if getattr(e, "row", 0) != 2]
    kept = [e for e in cluster.state.log if getattr(getattr(e, "command", None), "row", 0) != 2]
    moments = History(kept, cluster.nodes).moments
    assert moments[-1].all_gpus - moments[-1].held_gpus == 2
    assert moments[-1].stranded_gpus == 2


def test_fragmentation_is_the_share_of_free_gpu_time_that_was_stranded():
    cluster = Driven(job(0, 3), job(1, 2), job(2, 2), cluster="1x4,1x4")
    cluster.decide()
    sent = cluster.send()
    for command in sent[:2]:
        cluster.confirm(command)
    # The third is sent to the second node as well; its launch fails, and it waits.
    cluster.happens(CommandFailed, 2, sent[2].command_id, "no", 1e9)
    cluster.passes(100.0)
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    history = cluster.history
    assert history.moments[0].waiting_jobs == 1
    # Free are 1 GPU on one node, useless to the third, and 2 on the other.
    assert history.figures()["fragmentation"] == pytest.approx(1 / 3)


def test_no_gpu_is_stranded_where_too_few_are_free_or_one_gpu_jobs_wait():
    assert history_of(job(0, 3), job(1, 2), cluster="2x2").figures()["fragmentation"] == 0.0
    full = history_of(job(0, 2), job(1, 1), cluster="1x2").figures()
    assert full["fragmentation"] in (None, 0.0)


def test_the_first_mini_batches_are_a_minute_of_work_where_no_step_time_is_known():
    history = history_of(job(0, lasts=100), job(1, lasts=100), cluster="1x1")
    assert history.first_batches_s == {0: 60.0, 1: 160.0}
    assert history.figures()["avg_first_100_s"] == 110.0


def test_a_shorter_job_is_through_its_first_mini_batches_when_it_ends():
    assert history_of(job(0, at=5, lasts=20)).first_batches_s == {0: 20.0}


def test_a_step_time_that_is_known_gives_the_first_hundred_mini_batches():
    history = history_of(job(0, lasts=100), step_s=lambda spec: 0.25)
    assert history.first_batches_s == {0: 25.0}


def test_turns_add_up_to_the_first_mini_batches():
    policy = create("gandiva", {"quantum_s": "40"})
    history = history_of(job(0, lasts=100), job(1, lasts=100), cluster="1x1", policy=policy)
    # Turns of 40 s: the first needs 20 s of its second turn, which begins at 80.
    assert history.first_batches_s == {0: 100.0, 1: 140.0}


def test_speed_counts_in_the_first_mini_batches():
    cluster = Driven(job(0))
    cluster.settle()
    cluster.passes(30.0)
    cluster.happens(SpeedChanged, 0, 0.5)
    cluster.passes(100.0)
    cluster.happens(JobFinished, 0, JobState.SUCCEEDED)
    assert cluster.history.first_batches_s == {0: 90.0}


def test_a_job_that_loses_its_attempt_waits_again():
    cluster = Driven(job(0, 2))
    cluster.settle()
    cluster.passes(10.0)
    cluster.happens(AttemptLost, 0, 1, "a fault", 3.0)
    last = cluster.history.moments[-1]
    assert (last.waiting_jobs, last.held_gpus, last.running_gpus) == (1, 0, 0)


def test_a_lost_node_takes_its_gpus_and_what_ran_there():
    cluster = Driven(job(0, 4), job(1, 4), cluster="2x4")
    cluster.settle()
    cluster.passes(10.0)
    cluster.happens(NodeLost, "node0")
    last = cluster.history.moments[-1]
    assert (last.all_gpus, last.held_gpus, last.waiting_jobs) == (4, 4, 1)
    assert cluster.history.figures()["node_failures"] == 1


def test_who_is_kept_back_or_stopped_does_not_wait():
    cluster = Driven(job(0, 4), job(1, 4))
    cluster.settle()
    cluster.passes(1.0)
    cluster.happens(SuspendRequested, 1)
    assert cluster.history.moments[-1].waiting_jobs == 0
    cluster.happens(ResumeRequested, 1)
    assert cluster.history.moments[-1].waiting_jobs == 1
    cluster.happens(StopRequested, 1)
    assert cluster.history.moments[-1].waiting_jobs == 0


def test_nothing_happened_in_no_events():
    history = History(())
    assert history.moments == []
    figures = history.figures()
    assert figures.pop("node_failures") == 0
    assert set(figures.values()) == {None}
