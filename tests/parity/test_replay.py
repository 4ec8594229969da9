"""The model and the policy alone, fed with a live run's log, decide and command as it did."""

from itertools import groupby
from pathlib import Path

import pytest

from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.events import CommandSent, DecisionTaken, FillMeasured, JobParked
from rota.model.state.state import ClusterState
from rota.policy.registry import create
from rota.store.codec import encode
from rota.store.events import EventStore
from support.flow_functions import FOLDER, Gate

from ..process.conftest import SCRIPTS, Cluster, node_of, until
from ..process.test_out_of_service import closed


def read(database: Path) -> list:
    store = EventStore(database)
    try:
        return list(store.load())
    finally:
        store.close()


def replay(events: list, policy, *, keep_indexes: bool) -> tuple[int, int]:
    """Assert that every logged decision and command comes out again; how many there were."""
    state, decisions, commands = ClusterState(), 0, 0
    expected: list | None = None  # what a decision calls for must follow it in the log
    for sent, group in groupby(events, key=lambda event: isinstance(event, CommandSent)):
        for event in () if sent else group:
            assert not expected, f"the log lacks {expected}"
            if isinstance(event, DecisionTaken):
                if not keep_indexes:
                    state.plan = None
                assert encode(take_decision(state, policy, event.at_s)) == encode(event)
                expected = diff(state)
                decisions += 1
            else:
                state.apply(event)
                expected = None
        if sent:
            logged = list(group)
            state.epoch = logged[0].command.epoch
            assert diff(state) == [event.command for event in logged]
            for event in logged:
                state.apply(event)
            commands += len(logged)
            expected = None
        state.validate()
    return decisions, commands


QUEUES = {"thresholds": "1", "promote_knob": "2", "min_run_time_s": "0"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ("gandiva", {"quantum_s": "0.3"}),
        ("tiresias", QUEUES),
        ("tiresias-gittins", QUEUES | {"min_samples": "1"}),
    ],
)
def test_a_live_run_with_restarts_replays_to_the_same_plans_and_commands(
    tmp_path, policy, settings
):
    cluster = Cluster(tmp_path, policy, 2, **settings)
    short, long = ("--steps", 250), ("--until", "--steps", 10**6)
    scripts = ((1, short), (2, short), (1, long), (1, long))
    weighs = 10 if policy == "gandiva" else 0  # classes of priority would let the last go first
    try:
        cluster.up()
        jobs = [
            cluster.train(f"job{i}", *steps, gpus=gpus, priority=50 + weighs * i)
            for i, (gpus, steps) in enumerate(scripts)
        ]
        background = cluster.train("back", *long, gpus=2, share={"role": "background"})
        cluster.until_step_advances("job0")
        cluster.client.suspend(jobs[2])
        cluster.kill_controller()
        cluster.up()
        cluster.client.resume(jobs[2])
        until(lambda: cluster.step("job1") > 3, "job1 has begun")
        cluster.kill(cluster.pids(jobs[3])["shim"])
        until(lambda: cluster.show(jobs[3])["attempt"] == 2, "it starts anew")
        for job in jobs[:2]:
            cluster.ends(job)
        for job, out in ((jobs[2], "job2"), (jobs[3], "job3")):
            (tmp_path / out / "enough").touch()
            cluster.ends(job)
        until(lambda: cluster.show(background)["filling"]["harvest"], "it is measured alone")
        (tmp_path / "back" / "enough").touch()
        cluster.ends(background)
    finally:
        cluster.close()
    events = read(cluster.folder.database)
    assert any(isinstance(event, FillMeasured) for event in events)
    for keep_indexes in (True, False):
        decisions, commands = replay(events, create(policy, settings), keep_indexes=keep_indexes)
        assert decisions > 5
        assert commands > 8


def test_a_live_run_with_moves_between_nodes_replays_to_the_same_plans_and_commands(tmp_path):
    settings = {"quantum_s": "0.5"}
    cluster = Cluster(tmp_path, "gandiva", 2, nodes=2, **settings)
    try:
        cluster.up()
        sizes = (1, 2, 1, 2, 1)
        jobs = [cluster.train(f"job{i}", "--steps", 200, gpus=n) for i, n in enumerate(sizes)]
        opaque = cluster.submit("for i in $(seq 40); do sleep 0.05; done")
        for job in (*jobs, opaque):
            cluster.ends(job)
        moves = sum(cluster.show(job)["migrations"] for job in jobs)
        assert cluster.show(opaque)["migrations"] == 0
    finally:
        cluster.close()
    events = read(cluster.folder.database)
    assert moves > 0
    for keep_indexes in (True, False):
        decisions, commands = replay(events, create("gandiva", settings), keep_indexes=keep_indexes)
        assert decisions > 5
        assert commands > 8


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", ["gandiva", "fifo-backfill"])
def test_a_live_run_in_which_states_leave_a_drained_node_replays_alike(tmp_path, policy):
    """Of its two jobs the owner has suspended one; the other one gets no GPUs elsewhere."""
    settings = {"quantum_s": "0.5"} if policy == "gandiva" else {}
    cluster = Cluster(tmp_path, policy, 2, nodes=2, **settings)
    try:
        cluster.up()
        jobs = [cluster.train(f"job{i}", "--until", "--steps", 10**6) for i in range(2)]
        source = node_of(cluster.until_state(jobs[0], "RUNNING"))
        cluster.until_step_advances("job1")
        cluster.client.cordon(source)
        other = cluster.train("other", "--until", "--steps", 10**6, gpus=2)
        cluster.until_step_advances("other")
        cluster.client.suspend(jobs[0])
        cluster.client.drain(source)
        until(lambda: closed(cluster, source) == "drained", "both states have left")
        cluster.kill_controller()
        cluster.up()
        cluster.client.resume(jobs[0])
        for job, out in ((other, "other"), (jobs[0], "job0"), (jobs[1], "job1")):
            (tmp_path / out / "enough").touch()
            assert cluster.ends(job)["attempt"] == 1
    finally:
        cluster.close()
    events = read(cluster.folder.database)
    assert any(isinstance(event, JobParked) for event in events)
    for keep_indexes in (True, False):
        replay(events, create(policy, settings), keep_indexes=keep_indexes)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", ["gandiva", "fifo-backfill"])
def test_a_live_run_with_retries_dependencies_and_types_replays_alike(tmp_path, policy):
    settings = {"quantum_s": "0.5"} if policy == "gandiva" else {}
    options = ("--gpu-types", "t4,a100")
    cluster = Cluster(tmp_path, policy, 1, nodes=2, options=options, **settings)
    a100, again = {"gpus": 1, "gpu_type": "a100"}, {"max": 3, "backoff": 0.3}
    flaky = 'echo x >> tries; test "$(wc -l < tries)" -ge 3'
    try:
        cluster.up()
        first = cluster.submit(flaky, retries=again, resources=a100)
        typed = [cluster.train(f"job{i}", "--steps", 100, resources=a100) for i in range(3)]
        others = [cluster.train(f"other{i}", "--steps", 100) for i in range(2)]
        last = cluster.submit("true", depends_on=[first, *typed])
        cluster.kill_controller()
        cluster.up()
        for job in (first, *typed, *others, last):
            cluster.ends(job)
        assert cluster.show(first)["attempt"] == 3
    finally:
        cluster.close()
    events = read(cluster.folder.database)
    for keep_indexes in (True, False):
        decisions, commands = replay(events, create(policy, settings), keep_indexes=keep_indexes)
        assert decisions > 5
        assert commands >= 9


@pytest.mark.sampled(0)
def test_a_live_run_with_flow_jobs_replays_to_the_same_plans_and_commands(tmp_path):
    settings = {"quantum_s": "2", "trial_s": "2"}
    cluster = Cluster(tmp_path, "gandiva", 2, **settings)
    try:
        cluster.up()
        jobs = []
        for number, idle in enumerate((None, "0.5", None)):
            (folder := tmp_path / f"flow{number}").mkdir()
            env = {FOLDER: str(folder), "PYTHONPATH": str(Path(__file__).parents[1])}
            run = f"python {SCRIPTS}/flow_job.py 2 3"
            share = {"weight": 1 + number}
            gate = Gate(folder, 1)
            gate.open(3)
            job = cluster.submit(
                run,
                gpus=2,
                processes="flow",
                env=env,
                share=share,
                **({"idle": idle} if idle else {}),
            )
            jobs.append((job, folder, gate))
        other = cluster.train("other", "--until")
        for batch in (0, 1):
            for _, folder, _ in jobs:
                (folder / f"go{batch}").touch()
                until((folder / f"at{batch + 1}").exists, f"batch {batch} is over")
        idle = jobs[1][0]
        until(lambda: cluster.show(idle)["reason"] == "IDLE", "it has called nothing for a while")
        cluster.kill_controller()
        cluster.up()
        for job, folder, _ in jobs:
            (folder / "go2").touch()
            cluster.ends(job)
        (tmp_path / "other" / "enough").touch()
        cluster.ends(other)
    finally:
        cluster.close()
    events = read(cluster.folder.database)
    for keep_indexes in (True, False):
        decisions, commands = replay(events, create("gandiva", settings), keep_indexes=keep_indexes)
        assert decisions > 5
        assert commands > 8
