"""A search that a user's own program carries on over the API, on a real cluster."""

import contextlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from rota.client.client import Client
from rota.errors import TransitionError, UnreachableError
from rota.model.job import JobState

from .conftest import SCRIPTS, is_gone, stoppable_cluster, until

SWEEP = {
    "metric": "val_acc",
    "goal": "maximize",
    "space": {"x": {"range": [0, 1]}},
    "algorithm": "manual",
}


def fields(cluster):
    command = ["python", SCRIPTS / "trial.py", "--out", cluster.base, "--x", "{x}"]
    return {
        "name": "s",
        "run": " ".join(map(str, command)),
        "workdir": str(cluster.base),
        "sweep": SWEEP,
    }


def held(cluster, number):
    """Let a trial wait before its first report, whenever it is started."""
    (cluster.base / f"{number}.hold").touch()


def goes_on(cluster, number):
    (cluster.base / f"{number}.hold").unlink()


def starts(cluster):
    """How often each trial's script has begun, by number."""
    file = cluster.base / "starts"
    lines = file.read_text().splitlines() if file.exists() else []
    return Counter(int(line.split()[0]) for line in lines)


def trials(cluster):
    return cluster.client.sweep("s")["trials"]


def until_trial(cluster, number, state):
    def look():
        told = next(trial for trial in trials(cluster) if trial["number"] == number)
        if JobState[told["state"]].is_final and told["state"] != state:
            pytest.fail(f"trial {number} is {told}")
        return told if told["state"] == state else None

    return until(look, f"trial {number} is {state}")


def test_trials_run_and_are_stopped_and_cancelled(cluster):
    client = cluster.client
    client.submit_sweep(fields(cluster))
    for number in (1, 2, 3):
        held(cluster, number)
    first = client.submit_trial("s", {"x": 0.5})
    assert first["name"] == "s.0"
    told = until_trial(cluster, 0, "SUCCEEDED")
    # Whole steps are reported, and the last one is the best.
    assert [step for step, _, _ in told["curve"]] == sorted({step for step, _, _ in told["curve"]})
    assert [value for _, _, value in told["curve"]] == pytest.approx(
        [-abs(0.5 - 0.7) - 1 / (step + 1) for step in range(5)]
    )
    assert client.sweep("s")["best"]["value"] == told["value"] == told["curve"][-1][2]
    assert told["gpu_s"] > 0

    for _ in range(3):
        client.submit_trial("s", {"x": 0.25})
    until(lambda: starts(cluster) == {0: 1, 1: 1, 2: 1}, "two trials have begun")
    assert client.stop_trial("s", 1, "it does not promise enough")["changed"]
    stopped = until_trial(cluster, 1, "CANCELLED")
    assert (stopped["why"], stopped["value"]) == ("it does not promise enough", None)
    until(lambda: 3 in starts(cluster), "the third has begun in its place")
    counts = client.sweep("s", brief=True)["trials"]
    assert counts == {"done": 1, "running": 2, "waiting": 0, "failed": 0, "stopped": 1}

    pids = [cluster.of_job(trial["job_id"]) for trial in trials(cluster)[2:]]
    assert all(pids)
    assert client.cancel_sweep("s")["changed"]
    for number in (2, 3):
        until_trial(cluster, number, "CANCELLED")
    assert client.sweep("s")["outcome"] == "CANCELLED"
    until(lambda: all(is_gone(process) for job in pids for process in job), "they are gone")
    with pytest.raises(TransitionError, match="takes no more trials"):
        client.submit_trial("s", {"x": 0.5})


@pytest.fixture(params=["before", "after"])
def answered_late(tmp_path, request):
    """A cluster, and a way to make a call whose first answer is lost with the controller.

    It is killed before anything is written down, or when all is but nobody has been told.
    """
    with stoppable_cluster(tmp_path) as (cluster, stops):

        def call_twice(name, call):
            point = f"{name}-{request.param}"
            stops.arm("controller", point)
            with ThreadPoolExecutor(1) as pool, Client(folder=cluster.folder) as other:
                lost = pool.submit(call, other)
                cluster.kill(stops.until_at(point))
                cluster.up(connected=False)
                with contextlib.suppress(UnreachableError):  # it is repeated for a few seconds
                    lost.result()
            return call(cluster.client)

        yield cluster, call_twice


def test_what_is_handed_in_with_a_key_is_taken_once(answered_late):
    cluster, call_twice = answered_late
    body = fields(cluster)
    begun = call_twice("submit_sweep", lambda client: client.submit_sweep(body, key="k"))
    assert begun["name"] == "s"
    assert len(cluster.client.sweeps()) == 1

    job = call_twice("submit_trial", lambda client: client.submit_trial("s", {"x": 0.5}, key="t"))
    assert job["name"] == "s.0"
    until_trial(cluster, 0, "SUCCEEDED")
    assert starts(cluster) == {0: 1}


def test_trials_with_a_number_run_once_and_ends_count_once(answered_late):
    cluster, call_twice = answered_late
    cluster.client.submit_sweep(fields(cluster))
    held(cluster, 7)
    job = call_twice("submit_trial", lambda client: client.submit_trial("s", {"x": 0.5}, number=7))
    assert job["name"] == "s.7"
    until(lambda: starts(cluster) == {7: 1}, "it has begun")

    call_twice("stop_trial", lambda client: client.stop_trial("s", 7, "enough"))
    assert until_trial(cluster, 7, "CANCELLED")["why"] == "enough"

    call_twice("end_sweep", lambda client: client.end_sweep("s", "DONE", "that was it"))
    told = cluster.client.sweep("s")
    assert (told["state"], told["outcome"]) == ("ENDED", "DONE")
    assert [trial["number"] for trial in told["trials"]] == [7]
    assert starts(cluster) == {7: 1}


def test_a_controller_has_a_driver_while_there_is_a_search(cluster):
    client = cluster.client
    assert not [p for p in cluster.processes() if "rota.sweep" in p.cmdline()]
    client.submit_sweep(fields(cluster))
    held(cluster, 0)
    client.submit_trial("s", {"x": 0.5})
    first = cluster.driver()
    until(lambda: starts(cluster) == {0: 1}, "the trial has begun")
    agent = cluster.agent()

    cluster.kill(first)
    until(lambda: client.sweep("s")["driver_error"], "it is told")
    second = cluster.driver()
    assert "killed by SIGKILL" in client.sweep("s")["driver_error"]

    cluster.kill_controller()
    until(lambda: is_gone(second), "it ends with its controller")
    assert agent.is_running()
    cluster.up()
    third = cluster.driver()
    goes_on(cluster, 0)
    until_trial(cluster, 0, "SUCCEEDED")
    assert starts(cluster) == {0: 1}
    assert client.sweep("s")["driver_error"] is None

    client.end_sweep("s", "DONE", "that was it")
    until(lambda: is_gone(third), "nobody needs it any more")


def test_a_driver_that_hangs_keeps_no_cluster_from_ending(cluster):
    cluster.client.submit_sweep(fields(cluster))
    driver = cluster.driver()
    cluster.freeze(driver)
    cluster.down()
    assert is_gone(driver)
