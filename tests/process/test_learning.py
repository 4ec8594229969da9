"""What a live cluster learns of its jobs: the shape of their models, and how large jobs are."""

import contextlib

import pytest

from rota.model.decide.decision import take_decision
from rota.model.events import JobFinished, JobSubmitted, ModelReported
from rota.model.state.state import ClusterState
from rota.policy.tiresias.gittins import TiresiasGittins
from rota.store.events import EventStore
from rota.testing.builders import job as spec

from .conftest import until

# The network of the training script: 8 x 16 + 16 and 16 x 1 + 1 parameters of 4 bytes.
MODEL_BYTES, LARGEST_BYTES = 644, 512


def reports(cluster):
    return [event for event in cluster.events() if isinstance(event, ModelReported)]


def told(cluster, job):
    shown = cluster.show(job)
    return shown["model_bytes"], shown["largest_tensor_bytes"], shown["skew"]


def test_model_and_job_sizes_are_learned_and_outlive_agent_and_controller(make_cluster):
    settings = {"thresholds": "0.5,5", "min_samples": 2, "placement": "skew", "min_run_time_s": 0}
    cluster = make_cluster("tiresias-gittins", 2, **settings)
    long = cluster.train("long", "--steps", 10**6, "--gate", 0)
    cluster.until_at("long", 0)
    until(lambda: cluster.show(long)["skew"], "the model's size is known")
    expected = (MODEL_BYTES, LARGEST_BYTES, pytest.approx(LARGEST_BYTES / MODEL_BYTES))
    assert told(cluster, long) == expected
    cluster.opens("long", 0)

    agent = cluster.agent()
    cluster.kill(agent)
    until(lambda: cluster.agent().pid != agent.pid, "there is another agent")
    cluster.kill_controller()
    cluster.up()
    assert told(cluster, long) == expected

    gang = cluster.train("gang", "--steps", 40, gpus=2)
    plain = [cluster.submit("sleep 0.2"), cluster.submit("exit 3")]
    for job, state in ((gang, "SUCCEEDED"), (plain[0], "SUCCEEDED"), (plain[1], "FAILED")):
        cluster.ends(job, state)
    assert told(cluster, gang) == expected, "a wrapped model has the size of what it wraps"
    assert told(cluster, plain[0]) == (None, None, None)
    cluster.client.cancel(long)
    cluster.ends(long, "CANCELLED")
    assert [(event.row, event.model_bytes) for event in reports(cluster)] == [
        (int(long) - 1, MODEL_BYTES),
        (int(gang) - 1, MODEL_BYTES),
    ]
    # What the next controller, and the policy with it, will read from the log.
    with contextlib.closing(EventStore(cluster.folder.database)) as store:
        state = ClusterState()
        for event in store.load():
            state.apply(event)
    by_end = [
        event.row
        for event in cluster.events()
        if isinstance(event, JobFinished) and event.row != int(long) - 1
    ]
    assert list(state.completed_gpu_s) == [
        pytest.approx(cluster.show(str(row + 1))["run_s"] * state.num_gpus[row]) for row in by_end
    ]
    policy = TiresiasGittins(min_samples=2)
    for name in ("one", "two"):
        state.apply(JobSubmitted(event.at_s, spec(name, at=event.at_s)))
    take_decision(state, policy, event.at_s)
    assert len(policy._learned) == len(by_end) == 3


def test_work_of_a_lost_attempt_is_counted(cluster):
    job = cluster.train("job", "--steps", 10**6)
    cluster.until_step_advances("job", by=50)
    cluster.kill(cluster.pids(job)["shim"])
    until(lambda: cluster.show(job)["attempt"] == 2, "it starts anew")
    lost_s = cluster.show(job)["lost_s"]
    assert 0 < lost_s <= cluster.show(job)["run_s"]
    cluster.client.cancel(job)
    assert cluster.ends(job, "CANCELLED")["lost_s"] == lost_s


# What a program may say of its model to the agent, however wrong.
LIES = """
import json, os, socket, time
link = socket.socket(socket.AF_UNIX)
link.connect(os.environ["ROTA_AGENT_SOCKET"])
def say(**message):
    link.sendall(json.dumps(message).encode() + b"\\n")
say(type="hello", job_id=os.environ["ROTA_JOB_ID"], attempt=int(os.environ["ROTA_ATTEMPT"]),
    rank=0, suspended=False, step=0, total=None, model=[1, 2])
for sizes in ((0, 0), (3, 4), (-1, -1), (True, True), ("9", "9"), (1.5, 0.5), (10**400, 1),
              (2**70, 1)):
    say(type="model", model_bytes=sizes[0], largest_tensor_bytes=sizes[1])
say(type="model")
say(type="model", model_bytes={}, largest_tensor_bytes=[])
say(type="model", model_bytes=80, largest_tensor_bytes=20)
open("said", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
"""


def test_a_program_that_lies_about_its_model_harms_nobody(cluster):
    (cluster.base / "lies.py").write_text(LIES)
    job = cluster.submit("python lies.py")
    until((cluster.base / "said").exists, "it has said everything")
    until(lambda: cluster.show(job)["skew"], "what is possible is believed")
    assert told(cluster, job) == (80, 20, 0.25)
    (cluster.base / "go").touch()
    assert cluster.ends(job)["attempt"] == 1
    assert len(reports(cluster)) == 1
