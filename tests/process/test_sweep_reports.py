"""What a trial reports of its metric arrives, once and in order, whoever is killed meanwhile."""

import json

from .conftest import SCRIPTS, Cluster, until
from .test_migration import move

STEPS = 30


def sweep(cluster: Cluster, out: str, *words: object, gpus: int | str = 1, **more) -> str:
    """A search of the user's own, with one trial; the job's id."""
    (cluster.base / out).mkdir()
    run = ["python", SCRIPTS / "telling.py", "--out", cluster.base / out, *words]
    fields = {
        "name": out,
        "run": " ".join(map(str, run)),
        "workdir": str(cluster.base),
        "resources": {"gpus": gpus},
        "sweep": {
            "metric": "val_acc",
            "goal": "maximize",
            "space": {"lr": {"range": [0.0, 1.0]}},
            "algorithm": "manual",
        },
        **more,
    }
    assert cluster.client.submit_sweep(fields)["name"] == out
    return str(cluster.client.submit_trial(out, {"lr": 0.5}, number=3)["id"])


def told(cluster: Cluster, out: str) -> list[list]:
    """[step, value] of each report, as the script wrote it down before it made it."""
    lines = (cluster.base / out / "told.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def trial(cluster: Cluster, out: str) -> dict:
    (found,) = cluster.client.sweep(out)["trials"]
    return found


def curve(cluster: Cluster, out: str) -> list[list]:
    """[step, value] of each report that the controller knows."""
    return [[step, value] for step, _, value in trial(cluster, out)["curve"]]


def until_told(cluster: Cluster, out: str, step: int) -> None:
    """Wait until the controller knows all reports up to a gate."""
    cluster.until_at(out, step)
    known = until(lambda: (c := curve(cluster, out)) and c[-1][0] >= step and c, "it is told")
    assert known == told(cluster, out)


def test_every_report_arrives_and_one_that_is_no_number_is_null(cluster):
    job = sweep(cluster, "digits", "--steps", STEPS, "--nan-at", 7, "--before", "--gate", 20)
    until(lambda: len(curve(cluster, "digits")) == 22, "reports arrive while it runs")
    cluster.opens("digits", 20)
    show = cluster.ends(job)
    number_3 = {"name": "digits", "number": 3, "params": {"lr": 0.5}, "array": False}
    assert show["sweep"] == number_3
    assert json.loads((cluster.base / "digits" / "params").read_text()) == {"lr": 0.5}
    found = curve(cluster, "digits")
    assert found == [[0, -1.0], *told(cluster, "digits")]
    assert found[8] == [7, None]
    times = [at_s for _, at_s, _ in trial(cluster, "digits")["curve"]]
    assert times == sorted(times)
    assert trial(cluster, "digits")["value"] == max(v for _, v in found if v is not None)
    (span,) = trial(cluster, "digits")["ran"]
    assert span[0] <= times[1] <= times[-1] <= span[1] + 0.001
    cluster.down()
    cluster.up()
    assert curve(cluster, "digits") == found


def test_what_the_disk_had_no_room_for_to_the_end_of_a_trial_is_told_nevertheless(cluster):
    job = sweep(cluster, "digits", "--steps", STEPS, "--full-from", 12, "--gate", STEPS - 1)
    cluster.until_at("digits", STEPS - 1)
    assert len(curve(cluster, "digits")) <= 12
    cluster.opens("digits", STEPS - 1)
    cluster.ends(job)
    assert curve(cluster, "digits") == told(cluster, "digits")


def test_reports_survive_a_kill_of_the_agent(cluster):
    job = sweep(cluster, "digits", "--steps", STEPS, "--gate", 10, "--gate", 20)
    until_told(cluster, "digits", 10)
    agent = cluster.agent()
    cluster.freeze(agent)
    cluster.opens("digits", 10)
    cluster.until_at("digits", 20)
    cluster.kill(agent)  # before it could have told any of these
    until_told(cluster, "digits", 20)
    cluster.opens("digits", 20)
    cluster.ends(job)
    assert curve(cluster, "digits") == told(cluster, "digits")
    assert len(told(cluster, "digits")) == STEPS


def test_reports_survive_a_kill_of_the_controller_also_of_a_trial_that_ends_meanwhile(cluster):
    job = sweep(cluster, "digits", "--steps", STEPS, "--gate", 10, "--gate", STEPS - 1)
    until_told(cluster, "digits", 10)
    cluster.kill_controller()
    cluster.opens("digits", 10)
    cluster.until_at("digits", STEPS - 1)
    cluster.up()
    until_told(cluster, "digits", STEPS - 1)
    worker = cluster.pids(job)["worker"]
    cluster.kill_controller()
    cluster.opens("digits", STEPS - 1)
    until(lambda: not any(p.pid == worker for p in cluster.of_job(job)), "the trial has ended")
    cluster.up()
    cluster.ends(job)
    assert curve(cluster, "digits") == told(cluster, "digits")


def test_what_was_told_just_before_a_kill_of_agent_and_trial_is_not_lost(cluster):
    job = sweep(cluster, "digits", "--steps", STEPS, "--gate", 10, "--gate", 20)
    until_told(cluster, "digits", 10)
    agent, worker = cluster.agent(), cluster.pids(job)["worker"]
    cluster.freeze(agent)
    cluster.opens("digits", 10)
    cluster.until_at("digits", 20)
    cluster.kill(agent, worker)
    cluster.ends(job, "FAILED")
    assert curve(cluster, "digits") == told(cluster, "digits")
    assert len(told(cluster, "digits")) == 21


def test_the_curve_goes_on_after_a_suspension(cluster):
    job = sweep(cluster, "digits", "--steps", STEPS, "--gate", 10)
    until_told(cluster, "digits", 10)
    cluster.suspend_at(job, "digits", 10)
    assert len(trial(cluster, "digits")["ran"]) == 1
    cluster.client.resume(job)
    cluster.ends(job)
    assert curve(cluster, "digits") == told(cluster, "digits")
    first, second = trial(cluster, "digits")["ran"]
    assert first[0] < first[1] <= second[0] < second[1]


def test_a_trial_whose_process_is_given_up_tells_all_and_nothing_twice(make_cluster):
    cluster = make_cluster(nodes=2, gpus=1)
    job = sweep(cluster, "digits", "--steps", STEPS, "--before", "--gate", 10)
    source, target = move(cluster, job, "digits", 10)
    assert source != target
    show = cluster.ends(job)
    assert (show["attempt"], show["migrations"]) == (1, 1)
    assert curve(cluster, "digits") == [[0, -1.0], *told(cluster, "digits")]


def test_an_attempt_that_goes_back_to_a_checkpoint_replaces_what_it_reports_again(cluster):
    words = ("--steps", STEPS, "--checkpoint-at", 12, "--gate", 20)
    job = sweep(cluster, "digits", *words)
    until_told(cluster, "digits", 20)
    pids = cluster.pids(job)
    cluster.kill(pids["shim"], pids["worker"])
    cluster.opens("digits", 20)
    show = cluster.ends(job)
    assert show["attempt"] == 2
    said = told(cluster, "digits")
    assert [step for step, _ in said] == [*range(21), *range(13, STEPS)]
    assert curve(cluster, "digits") == said[:13] + said[21:]


def test_another_rank_0_tells_on_where_the_one_that_was_lost_has_ended(make_cluster):
    cluster = make_cluster("elastic", gpus=2, look_s=0.5, threshold=0.01)
    words = ("--steps", 100_000, "--pace", 0.02, "--loader")
    job = sweep(cluster, "digits", *words, gpus="1..2", env={"ROTA_GROUP_TIMEOUT_S": "10"})
    until(lambda: len(cluster.show(job)["ranks"]) == 2, "it has two ranks")
    (cluster.base / "digits" / "hold").touch()
    held = until(lambda: list((cluster.base / "digits").glob("held*")), "rank 0 holds")[0]
    step = int(held.name.removeprefix("held"))
    until(lambda: curve(cluster, "digits")[-1][0] == step, "what it has told is known")
    (cluster.base / "digits" / "hold").unlink()
    cluster.kill(int(held.read_text()))
    until(lambda: curve(cluster, "digits")[-1][0] >= step + 5, "another rank tells on")
    show = cluster.show(job)
    assert (show["attempt"], show["lost_ranks"]) == (1, 1)
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")
    said, known = told(cluster, "digits"), curve(cluster, "digits")
    assert known == [[n, 0.5 * n + 100] for n in range(len(known))]
    assert said[-1][0] - known[-1][0] in (0, 1)  # it may have been ended before it reported
