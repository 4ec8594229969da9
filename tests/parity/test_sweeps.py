"""A live search under Gandiva, with a controller that was killed, replays to the same plans."""

from collections import Counter

from rota.model.commands import Launch, Resume, Stop, Suspend
from rota.model.events import CommandSent, DecisionTaken, MetricReported
from rota.model.reason import Reason
from rota.policy.registry import create

from ..process.conftest import SCRIPTS, Cluster, until
from .test_replay import read, replay

SETTINGS = {"quantum_s": "0.3", "trials": "1"}


def test_a_live_search_replays_to_the_same_plans_and_commands(tmp_path):
    cluster = Cluster(tmp_path, "gandiva", 1, **SETTINGS)
    script = SCRIPTS / "telling.py"
    fields = {
        "name": "digits",
        "run": f"python {script} --out {tmp_path}/{{out}} --until --steps 1000000 --pace 0.01",
        "workdir": str(tmp_path),
        "start": "warm",  # turns are shorter than an import of torch
        "sweep": {
            "metric": "val_acc",
            "goal": "maximize",
            "space": {
                "lr": {"range": [0.0, 1.0]},
                "out": {"choice": ["a", "b", "c"]},
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
            params = {"lr": 0.1 * (number + 1), "out": out}
            jobs.append(cluster.client.submit_trial("digits", params, number=number)["id"])
        until(lambda: sum(len(trial["curve"]) > 5 for trial in trials()) >= 2, "two have told")
        cluster.kill_controller()
        cluster.up()
        cluster.client.stop_trial("digits", 0, "it promises least")
        cluster.ends(jobs[0], "CANCELLED")
        # The one that has told more is held until the other has told, too.
        more, less = sorted((1, 2), key=lambda number: -len(trials()[number]["curve"]))
        cluster.client.suspend(jobs[more])
        cluster.until_state(jobs[more], "SUSPENDED")
        until(lambda: len(trials()[less]["curve"]) > 5, "the other has told")
        cluster.client.resume(jobs[more])
        for out in "bc":  # both: the one that promises less waits for as long as the other runs
            (tmp_path / out / "enough").touch()
        for number in (less, more):
            cluster.ends(jobs[number])
        told = [len(trial["curve"]) for trial in trials()]
    finally:
        cluster.close()
    for number, out in enumerate("bc", start=1):
        assert told[number] == len((tmp_path / out / "told.jsonl").read_text().splitlines())
    events = read(cluster.folder.database)
    taken = [e for e in events if isinstance(e, DecisionTaken)]
    assert any(Reason.TRIAL_BEHIND in e.reasons.values() for e in taken), "curves counted"
    assert sum(len(e.reports) for e in events if isinstance(e, MetricReported)) == sum(told)
    sent = Counter(type(event.command) for event in events if isinstance(event, CommandSent))
    assert sent[Launch] == 3
    assert sent[Suspend] >= 2
    assert {Resume, Stop} <= sent.keys()
    for keep_indexes in (True, False):
        policy = create("gandiva", SETTINGS)
        decisions, commands = replay(events, policy, keep_indexes=keep_indexes)
        assert decisions > 5
        assert commands == sent.total()
