"""Jobs that change their size: who gets room, by what they are measured, and when left alone."""

import pytest

from rota.model.cluster import parse_cluster
from rota.model.commands import Resize
from rota.model.events import BurstPlanned, JobResized, WorkerRegistered, WorkerReported
from rota.model.job import Elastic, JobSpec, JobState, Program, Suspension
from rota.model.reason import Reason
from rota.policy.elastic.policy import Watched
from rota.policy.registry import create
from rota.policy.scaling import Observations, allot
from rota.sim.machine import FREE
from rota.sim.simulation import Simulation
from rota.testing.builders import job, trace
from support.driven import DrivenCluster

RUNS = Program("python train.py", "/tmp", (), "gpu")


class Live(DrivenCluster):
    """Live jobs whose programs can be resized, and report as the test says."""

    def __init__(self, *jobs, cluster="1x4", **settings):
        super().__init__(*jobs, cluster=cluster, policy=create("elastic", settings))
        self.done = {}

    def confirm(self, command):
        super().confirm(command)
        if isinstance(command, Resize):
            self.happens(JobResized, command.row, command.allocation)
        elif self.state_of(command.row) == JobState.RUNNING:
            self.happens(WorkerRegistered, command.row, Suspension.BOUNDARY, True, True)

    def looks(self, number, rates, every_s=5.0, **told):
        """So many looks; ``rates`` is (steps, samples) per second of the job by its size."""
        for _ in range(number):
            self.passes(every_s)
            steps, samples = (rate * every_s for rate in rates(self.size()))
            before = self.done.get(0, (0, 0))
            self.done[0] = (before[0] + steps, before[1] + samples)
            step, seen = map(int, self.done[0])
            progress = {"at_s": self.now_s, "step": step, "samples": seen, **told}
            self.happens(WorkerReported, 0, progress)
            self.settle()

    def size(self, row=0):
        return self.state.num_gpus[row]


def elastic(job_id, *sizes, **more):
    return job(job_id, sizes[0], program=RUNS, elastic=Elastic(sizes, **more))


def sizes(state):
    return [0 if target is None else target.num_gpus for target in state.target]


def steps_only(size):
    return 10.0 * size, 0.0


def batches_that_grow(size):
    return 10.0, 80.0 * size


class Linear:
    """Twice the GPUs, twice the speed."""

    def speed(self, spec, allocation, nodes):
        return allocation.num_gpus


def simulated_until(at_s, *jobs):
    """The state of two nodes of four GPUs each at a time."""
    policy = create("elastic", {"look_s": "10"})
    sim = Simulation(trace(*jobs), parse_cluster("2x4"), policy, FREE, speeds=Linear())
    while sim.engine.now_s < at_s:
        assert sim.step()
    return sim.state


def test_nothing_is_kept_free_for_a_job_that_no_node_can_take():
    first, second = (JobSpec(i, 3, 0.0, 30000.0, elastic=Elastic((3, 4))) for i in "12")
    state = simulated_until(
        500, first, second, JobSpec("3", 2, 300.0, 9.0, elastic=Elastic((2, 4)))
    )
    assert sizes(state) == [4, 4, 0]
    assert state.reason[2] == Reason.WAIT_GANG_FRAGMENTED


def test_those_who_make_room_for_a_job_are_on_one_node():
    """If each of the two gave up one GPU, neither of their nodes could take a job of two."""
    first = JobSpec("1", 2, 0.0, 90000.0, elastic=Elastic((2, 3, 4)))
    second = JobSpec("2", 3, 0.0, 90000.0, elastic=Elastic((3, 4)))
    third = JobSpec("3", 2, 900.0, 9000.0, elastic=Elastic((2, 4)))
    before, after = (sizes(simulated_until(at_s, first, second, third)) for at_s in (700, 910))
    assert before == [4, 4]
    assert after == [2, 4, 2]


def test_batches_that_grow_with_the_gang_count_by_their_samples():
    cluster = Live(elastic(1, 1, 2, 4))
    cluster.settle()
    cluster.looks(40, batches_that_grow)
    assert cluster.size() == 4


def test_steps_count_where_no_samples_are_told():
    cluster = Live(elastic(1, 1, 2, 4))
    cluster.settle()
    cluster.looks(40, steps_only)
    assert cluster.size() == 4
    cluster = Live(elastic(1, 1, 2, 4))
    cluster.settle()
    cluster.looks(40, lambda size: (10.0, 0.0))  # more GPUs bring nothing
    assert cluster.size() == 1


@pytest.mark.parametrize(
    "told", [{"total": 100_000}, {"total": None, "total_samples": 8_000_000}], ids=str
)
def test_a_job_that_tells_what_it_has_left_is_as_large_as_that_is_worth(told):
    """10,000 s at one GPU; more GPUs cost more than an earlier end is worth, or less."""
    for value, size in [(1e-9, 1), (1e9, 4)]:
        wanted = {"deadline_s": 3000.0, "value": value, "price_per_gpu_hour": 1.0}
        cluster = Live(elastic(1, 1, 2, 4, **wanted))
        cluster.settle()
        cluster.looks(60, lambda size: (5.0 * size + 5, 80 * (5.0 * size + 5)), **told)
        assert cluster.size() == size


@pytest.mark.parametrize(("total", "size"), [(250, 1), (100_000, 4)])
def test_a_job_that_ends_soon_is_left_alone(total, size):
    cluster = Live(elastic(1, 1, 2, 4))
    cluster.settle()
    cluster.looks(4, steps_only, total=total)
    assert (cluster.size() > 1) == (size > 1)


def test_the_published_search_counts_steps():
    cluster = Live(elastic(1, 1, 2, 4), scaler="probe")
    cluster.settle()
    cluster.looks(2, steps_only)
    assert cluster.size() == 2  # fifty steps, where ten are asked for


def planned(cluster, *step_s):
    """Job 0's program has planned its layers for as many GPUs as it has."""
    cluster.happens(BurstPlanned, 0, 32, step_s, (0.0,) * cluster.size())
    cluster.settle()


def test_a_job_whose_program_predicts_its_steps_goes_to_the_best_size_at_once():
    seconds = (8.0, 5.0, 2.5, 2.5)  # 3 GPUs are best, and none is worth having beside them
    cluster = Live(elastic("a", 1, 2, 3, 4))
    cluster.settle()
    planned(cluster, *seconds)
    visited = [cluster.size()]
    for _ in range(12):
        cluster.looks(1, lambda size: (10 / seconds[size - 1], 0.0))
        visited += [cluster.size()] * (cluster.size() != visited[-1])
    assert visited == [1, 3]


def test_gpus_go_first_to_the_job_that_is_predicted_to_gain_by_them():
    watched = Watched((1, 2, 3), Observations(), (6.0, 5.9, 5.8), 3, calm=False)
    other = watched._replace(predicted=(6.0, 3.0, 2.0))
    assert allot(4, [watched.claim(), other.claim()]) == [1, 3]
    assert allot(4, [other.claim(), watched.claim()]) == [3, 1]
