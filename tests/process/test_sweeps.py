"""Searches on a real cluster: they end, whoever is killed, and no trial runs twice."""

import contextlib
from collections import Counter

import psutil
import pytest

from .conftest import SCRIPTS, is_gone, stoppable_cluster, until

SPACE = {"x": {"range": [0, 1]}}
CALLS = ("submit_trial", "end_sweep")
FINAL = ("SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT")


def submit(cluster, *words, **block):
    """Hand in a search for the best x, of six trials; its name."""
    fields = {"metric": "val_acc", "goal": "maximize", "space": SPACE, "max_trials": 6} | block
    command = ["python", SCRIPTS / "trial.py", "--out", cluster.base, "--x", "{x}", *words]
    job = {"name": "s", "run": " ".join(map(str, command)), "workdir": str(cluster.base)}
    return cluster.client.submit_sweep(job | {"sweep": fields})["name"]


def has_ended(cluster, name="s"):
    """The search once it has ended, and all its trials have."""

    def look():
        told = cluster.client.sweep(name)
        over = all(trial["state"] in FINAL for trial in told["trials"])
        return told if told["state"] == "ENDED" and over else None

    return until(look, f"sweep {name} has ended")


def starts(cluster):
    """How often each trial's script has begun, by number."""
    file = cluster.base / "starts"
    lines = file.read_text().splitlines() if file.exists() else []
    return Counter(int(line.split()[0]) for line in lines)


def driver(cluster):
    """What drives the cluster's searches."""

    def find():
        for process in cluster.processes():
            with contextlib.suppress(psutil.Error):
                if "rota.sweep" in process.cmdline():
                    return process
        return None

    return until(find, "the driver runs")


def whole(told):
    """Assert that a search of six trials has had them all, each once, to their ends."""
    assert (told["outcome"], told["message"]) == ("DONE", "6 trials have ended")
    assert [trial["number"] for trial in told["trials"]] == list(range(6))
    assert {trial["state"] for trial in told["trials"]} == {"SUCCEEDED"}
    assert [len(trial["curve"]) for trial in told["trials"]] == [5] * 6
    assert len({trial["job_id"] for trial in told["trials"]}) == 6
    return True


@pytest.mark.live_path("sweep")
def test_a_search_finds_the_best_and_ends(cluster):
    told = has_ended(cluster, submit(cluster))
    assert whole(told)
    best = max(told["trials"], key=lambda trial: trial["curve"][-1][2])
    assert told["best"]["number"] == best["number"]
    assert starts(cluster) == dict.fromkeys(range(6), 1)
    until(lambda: not [p for p in cluster.processes() if "rota.sweep" in p.cmdline()], "it rests")


def test_a_driver_that_is_killed_anywhere_loses_nothing(tmp_path):
    with stoppable_cluster(tmp_path) as (cluster, stops):
        points = ("start-before", "start-after", "end-before")
        for point in points:
            stops.arm("sweep", point)
        submit(cluster)
        for point in points:
            cluster.kill(stops.until_at(point))
        assert whole(has_ended(cluster))
        assert starts(cluster) == dict.fromkeys(range(6), 1)


def test_a_controller_that_is_killed_anywhere_loses_nothing(tmp_path):
    with stoppable_cluster(tmp_path) as (cluster, stops):
        points = (
            "submit_trial-before",
            "submit_trial-after",
            "end_sweep-before",
            "end_sweep-after",
        )
        for point in points:
            stops.arm("controller", point)
        submit(cluster)
        for point in points:
            stops.until_at(point)
            old = driver(cluster)
            cluster.kill_controller()
            until(lambda old=old: is_gone(old), "the driver ends with its controller")
            cluster.start()  # it stops at the next point, maybe before it has its node
        cluster.until_up()
        assert whole(has_ended(cluster))
        assert starts(cluster) == dict.fromkeys(range(6), 1)


def test_rungs_and_the_target(make_cluster):
    """With trials in a known order: the search's own program proposes them."""
    cluster = make_cluster("gandiva")
    block = {
        "algorithm": "manual",
        "max_trials": None,
        "rungs": {"eta": 2, "first": 1},
        "target": -0.26,
    }
    name = submit(cluster, "--linger", **block)
    submit_trial = cluster.client.submit_trial
    submit_trial(name, {"x": 0.6}, number=0)
    until(lambda: cluster.client.sweep(name)["trials"][0]["value"], "it has reported")
    submit_trial(name, {"x": 0.1}, number=1)
    behind = cluster.ends(cluster.client.sweep(name)["trials"][1]["job_id"], "CANCELLED")
    assert behind["id"]
    told = cluster.client.sweep(name)
    assert told["trials"][1]["why"].startswith("at report 1 its best val_acc was ")
    assert told["trials"][0]["state"] == "RUNNING" and told["outcome"] is None
    submit_trial(name, {"x": 0.7}, number=2)
    told = has_ended(cluster, name)
    assert told["outcome"] == "TARGET"
    assert told["message"].startswith("s.2 reached val_acc -0.2")
    assert [trial["state"] for trial in told["trials"]] == ["CANCELLED"] * 3
    assert told["best"]["number"] == 2


FAILURES = [
    ("crash", "ended FAILED: "),
    ("nan", "reported val_acc as no number (NaN or infinite)"),
    ("silent", "ended without a report of val_acc: have it call s.report(val_acc=...)"),
    ("other", "ended without a report of val_acc (but of val_accuracy): have it call "),
]


def test_searches_whose_trials_fail_give_up_and_say_why(cluster):
    names = [submit(cluster, "--as", kind, max_failures=1, parallel=1) for kind, _ in FAILURES]
    assert names == ["s", "s-2", "s-3", "s-4"]
    for name, (_, words) in zip(names, FAILURES, strict=True):
        told = has_ended(cluster, name)
        assert told["outcome"] == "FAILED"
        assert words in told["message"], told["message"]
        assert f"2 trials failed; the last: {name}.1 " in told["message"]
        assert len(told["trials"]) == 2
