"""A live search under Gandiva, with a controller that was killed, replays to the same plans."""

import pytest

from rota.model.events import DecisionTaken, MetricReported
from rota.model.reason import Reason
from rota.policy.registry import create

from ..process.conftest import SCRIPTS, Cluster, until
from .test_replay import read, replay

pytestmark = pytest.mark.process
SETTINGS = {"quantum_s": "0.3", "trials": "1"}


def test_a_live_search_replays_to_the_same_plans_and_commands(tmp_path):
    cluster = Cluster(tmp_path, "gandiva", 1, **SETTINGS)
    script = SCRIPTS / "telling.py"
    fields = {
        "name": "digits",
        "run": f"python {script} --out {tmp_path}/{{out}} --steps {{steps}} --pace 0.01",
        "workdir": str(tmp_path),
        "sweep": {
            "metric": "val_acc",
            "goal": "maximize",
            "space": {
                "lr": {"range": [0.0, 1.0]},
                "out": {"choice": ["a", "b", "c"]},
                "steps": {"int": [1, 100_000]},
            },
            "algorithm": "manual",
        },
    }

    def trials():
        return cluster.client.sweep("digits")["trials"]

    try:
        cluster.up()
        cluster.client.submit_sweep(fields)
        jobs = []
        for number, out in enumerate("abc"):
            (tmp_path / out).mkdir()
            steps = 200 if number else 100_000  # the first goes on until it is stopped
            params = {"lr": 0.1 * (number + 1), "out": out, "steps": steps}
            jobs.append(cluster.client.submit_trial("digits", params, number=number)["id"])
        until(lambda: sum(len(trial["curve"]) > 5 for trial in trials()) >= 2, "two have told")
        cluster.kill_controller()
        cluster.up()
        cluster.client.stop_trial("digits", 0, "it promises least")
        for job, state in zip(jobs, ("CANCELLED", "SUCCEEDED", "SUCCEEDED"), strict=True):
            cluster.ends(job, state)
        told = [len(trial["curve"]) for trial in trials()]
    finally:
        cluster.close()
    assert told[1:] == [200, 200]
    events = read(cluster.folder.database)
    taken = [e for e in events if isinstance(e, DecisionTaken)]
    assert any(Reason.TRIAL_BEHIND in e.reasons.values() for e in taken), "curves counted"
    assert sum(len(e.reports) for e in events if isinstance(e, MetricReported)) == sum(told)
    for keep_indexes in (True, False):
        policy = create("gandiva", SETTINGS)
        decisions, commands = replay(events, policy, keep_indexes=keep_indexes)
        assert decisions > 5
        assert commands > 8
