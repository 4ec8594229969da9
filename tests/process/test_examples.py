"""The job files among the examples, handed in as a reader would; and many jobs at once."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rota.client.client import Client
from rota.model.job import JobState

from .conftest import until

EXAMPLES = Path(__file__).parents[2] / "examples"


def submit(cluster, job_file, *changes):
    """Hand in a copy of an example with other numbers, each after the one that it replaces.

    Returns the job's id, or the name of a search.
    """
    folder = cluster.base / "examples"
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
    text = (folder / job_file).read_text()
    for short, shorter in zip(changes[::2], changes[1::2], strict=True):
        assert short in text
        text = text.replace(short, shorter)
    (folder / job_file).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "rota.cli.main", "submit", job_file],
        cwd=folder,
        env=os.environ | {"ROTA_HOME": str(cluster.folder.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_elastic_example_grows_onto_the_second_slot_and_ends(make_cluster):
    cluster = make_cluster("elastic", look_s=0.2, threshold=0.000001)
    job = submit(cluster, "elastic.yaml", "--epochs 200", "--epochs 400")
    until(lambda: cluster.show(job)["num_gpus"] == 2, "it has grown")
    assert cluster.show(job)["name"] == "elastic"
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")
    run = "python rota_elastic.py --epochs 2"
    job = cluster.submit(run, workdir=str(cluster.base / "examples"))
    cluster.ends(job)
    assert "epoch 2 loss" in "".join(cluster.client.logs(job))


def test_the_example_with_checkpoints_of_its_own_goes_on_where_it_left(cluster):
    job = submit(cluster, "own_checkpoints.yaml", "--steps 2000", "--steps 100000")
    cluster.until_state(job, "RUNNING")
    until(lambda: "step 500 loss" in "".join(cluster.client.logs(job)), "it trains")
    cluster.client.suspend(job)
    show = cluster.until_state(job, "SUSPENDED")
    assert (show["suspension"], show["memory"]["where"]) == ("RESTART", "checkpoint")
    printed = "".join(cluster.client.logs(job))
    left = printed.rpartition("leaves after step ")[2].strip()
    cluster.client.resume(job)
    says = f"goes on after step {left}\n"
    until(lambda: says in "".join(cluster.client.logs(job)), "it goes on")
    assert cluster.show(job)["attempt"] == 1
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")


def test_many_jobs_from_many_threads_at_once_all_run_and_once(cluster):
    ids, failures = [], []

    def hand_in(number):
        try:
            with Client(folder=cluster.folder) as client:
                for each in range(3):
                    run = f"echo {number}-{each} >> {cluster.base}/ran"
                    job = {"run": run, "workdir": str(cluster.base), "name": f"n{number}-{each}"}
                    ids.append(client.submit(job)["id"])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=hand_in, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(set(ids)) == 24

    def ended():
        jobs = cluster.client.jobs(everything=True)
        return all(JobState[job["state"]].is_final for job in jobs)

    until(ended, "all have ended")
    jobs = cluster.client.jobs(everything=True)
    assert {(job["state"], job["attempt"]) for job in jobs} == {("SUCCEEDED", 1)}
    assert {job["id"] for job in jobs} == set(ids)
    ran = (cluster.base / "ran").read_text().splitlines()
    assert sorted(ran) == sorted(f"{number}-{each}" for number in range(8) for each in range(3))


def test_the_example_whose_batches_adapt_gets_larger_ones(make_cluster):
    cluster = make_cluster("pollux", interval_s=1.0, restart_s=1.0, horizon_s=30.0)
    job = submit(cluster, "adaptive.yaml", "rota_adaptive.py", "rota_adaptive.py --target 2")

    def grown():
        told = (cluster.show(job)["progress"] or {}).get("adaptation") or {}
        return (told.get("size") or 0) > 64

    until(grown, "its batches have grown")
    assert cluster.show(job)["progress"]["adaptation"]["least_per_gpu"] == 8
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")


@pytest.mark.sampled(0)
def test_the_examples_of_searches_find_something(make_cluster):
    cluster = make_cluster("gandiva", quantum_s=1.0)
    fewer = ("target: 0.97", "target: 2", "max_trials: 12", "max_trials: 3")
    done = cluster.client.wait_sweep(submit(cluster, "sweep.yaml", *fewer))
    assert done["outcome"] == "DONE"
    assert [len(trial["curve"]) for trial in done["trials"]] == [12, 12, 12]
    for script in ("plain_search.py", "rota_search.py"):
        ran = subprocess.run(
            [sys.executable, script, "--trials", "2", "--epochs", "2"],
            cwd=cluster.base / "examples",
            env=os.environ | {"ROTA_HOME": str(cluster.folder.path)},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        assert "best val_acc 0." in ran.stdout
    done = cluster.client.sweep("@last")
    assert (done["outcome"], done["best"]["value"]) == (
        "DONE",
        pytest.approx(best_in(ran.stdout), abs=6e-4),
    )
    assert [len(trial["curve"]) for trial in done["trials"]] == [2, 2]


def best_in(printed):
    return float(printed.partition("best val_acc ")[2].split()[0])


def test_the_example_in_the_background_runs_in_the_gaps_of_the_one_with_a_plan(make_cluster):
    cluster = make_cluster("fifo", 2)
    front = submit(cluster, "burst.yaml", "1.05", "100.0", "--epochs 100", "--epochs 1000000")
    until(lambda: "epoch 1 loss" in "".join(cluster.client.logs(front)), "it trains")
    back = submit(cluster, "probe.yaml")
    until(lambda: cluster.show(front)["filling"], "it has a gap")
    assert cluster.show(front)["filling"]["with"] == [back]
    assert cluster.show(back)["filling"]["with"] == [front]
    for job in (back, front):
        cluster.client.cancel(job)
        cluster.ends(job, "CANCELLED")


@pytest.mark.sampled(0)
def test_the_example_for_the_background_probes_as_the_plain_one_does():
    printed = [
        subprocess.run(
            [sys.executable, script, "--steps", "100"],
            cwd=EXAMPLES,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for script in ("plain_probe.py", "rota_probe.py")
    ]
    assert printed[0] == printed[1]
    assert printed[0].startswith("lr 0.0")
    assert len(printed[0].splitlines()) == 2
