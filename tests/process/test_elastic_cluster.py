"""Elastic jobs on a whole live cluster: the policy grows them, and takes back what others need."""

import json
from pathlib import Path

import psutil
import pytest

from rota.model.events import DecisionTaken, JobResized
from support.lone_agent import LoneAgent

from .conftest import DEADLINE_S, SCRIPTS, until

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = ["char_gpt", "char_lstm", "digits_cnn", "digits_mlp", "digits_vit", "recsys_mf"]


def sizes(cluster, job):
    row = int(job) - 1
    found = [e for e in cluster.events() if isinstance(e, JobResized) and e.row == row]
    return [event.allocation.num_gpus for event in found]


def grown(cluster):
    """A job that has grown from one slot to two, on which it is twice as fast: its pieces wait."""
    out = cluster.base / "elastic"
    out.mkdir()
    words = ["python", SCRIPTS / "elastic.py", "--out", out, "--steps", 100_000]
    words += ["--cores", 2, "--piece-s", 0.02]
    run = " ".join(map(str, words))
    elastic = cluster.client.submit(
        {"run": run, "workdir": str(cluster.base), "resources": {"gpus": "1..2"}}
    )["id"]
    until(lambda: sizes(cluster, elastic) == [2], "it has grown")
    return elastic


@pytest.mark.live_path("resize")
def test_a_job_grows_into_idle_slots_and_gives_them_back_to_one_that_arrives(make_cluster):
    cluster = make_cluster("elastic", 2, look_s=0.5, threshold=0.01)
    elastic = grown(cluster)
    assert cluster.show(elastic)["num_gpus"] == 2
    assert len(cluster.show(elastic)["gpus"][0]["gpus"]) == 2

    rigid = cluster.submit("true")
    cluster.ends(rigid)
    assert sizes(cluster, elastic)[:2] == [2, 1]
    until(lambda: sizes(cluster, elastic)[2:3] == [2], "it has grown again")

    cluster.kill(cluster.pids(elastic, rank=0)["worker"])
    until(lambda: len(sizes(cluster, elastic)) >= 4, "it goes on without the rank that was killed")
    until(lambda: sizes(cluster, elastic)[-1] == 2, "another rank has taken its place")
    shown = cluster.show(elastic)
    assert (shown["attempt"], shown["lost_ranks"]) == (1, 1)
    lost = "rank 0 was killed by SIGKILL; the others go on with 1 GPU"
    assert lost in [event["line"] for event in shown["story"]]
    ranks = cluster.show(elastic)["ranks"]
    assert {rank["gpu"] for rank in ranks} == {0, 1}
    assert all(psutil.pid_exists(rank["pid"]) for rank in ranks)
    assert ranks[0]["process"] != 0, "another process is rank 0 since that one was killed"
    cluster.client.cancel(elastic)
    cluster.ends(elastic, "CANCELLED")


def test_under_gandiva_a_job_grows_when_nobody_waits_and_shrinks_at_once_for_an_arrival(
    make_cluster,
):
    """No turn ends while this test lasts: whoever comes has what the grown job gives back."""
    cluster = make_cluster("gandiva", 2, quantum_s=600.0, idle_s=0.5)
    elastic = grown(cluster)
    arrival = cluster.train("arrival", "--steps", 60, "--gate", 30)
    cluster.until_at("arrival", 30)
    assert sizes(cluster, elastic) == [2, 1]
    shows = cluster.show(elastic), cluster.show(arrival)
    assert [(show["state"], show["num_gpus"]) for show in shows] == [("RUNNING", 1)] * 2
    cluster.opens("arrival", 30)
    assert cluster.ends(arrival)["preemptions"] == 0
    until(lambda: sizes(cluster, elastic) == [2, 1, 2], "it has grown again")
    show = cluster.show(elastic)
    assert (show["attempt"], show["preemptions"]) == (1, 0)
    cluster.client.cancel(elastic)
    cluster.ends(elastic, "CANCELLED")


def settled_size(cluster, job):
    """Where the job's scaler has settled, if it has."""
    row = int(job) - 1
    decided = [e for e in cluster.events() if isinstance(e, DecisionTaken)]
    marks = [e.marks[row] for e in decided if row in e.marks]
    return marks[-1]["scaler"].get("settled") if marks and marks[-1] else None


def test_a_job_settles_at_the_size_beyond_which_more_ranks_bring_nothing(make_cluster):
    """Three slots, and a job whose pieces take as long as on two cores.

    The pieces are long, and a third rank makes the job slower by a quarter, so that the noise of a
    busy machine is small beside both; what is wrong all the same is put right by later looks.
    """
    cluster = make_cluster("elastic", 3, look_s=0.7)
    out = cluster.base / "elastic"
    out.mkdir()
    words = ["python", SCRIPTS / "elastic.py", "--out", out, "--steps", 100_000]
    words += ["--cores", 2, "--piece-s", 0.06]
    run = " ".join(map(str, words))
    job = cluster.client.submit(
        {"run": run, "workdir": str(cluster.base), "resources": {"gpus": "1..3"}}
    )["id"]
    until(lambda: settled_size(cluster, job) == 2, "it has settled at two", 2 * DEADLINE_S)
    assert max(sizes(cluster, job)) > 2, "more were tried"
    until(lambda: cluster.show(job)["num_gpus"] == 2, "it is back at two")
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")


def test_a_controller_learns_of_ranks_that_were_lost_while_it_was_away(make_cluster):
    cluster = make_cluster("elastic", 2, look_s=0.5, threshold=0.01)
    elastic = grown(cluster)
    cluster.kill_controller()
    cluster.kill(cluster.pids(elastic, rank=0)["worker"])
    (record,) = cluster.folder.path.glob("nodes/*/jobs/*/1/attempt.json")
    until(lambda: json.loads(record.read_text())["members"] == [1], "the other goes on alone")
    cluster.up()
    until(lambda: sizes(cluster, elastic)[1:2] == [1], "its GPU is known to be free")
    until(lambda: sizes(cluster, elastic)[-1] == 2, "another rank has taken its place")
    cluster.client.cancel(elastic)
    cluster.ends(elastic, "CANCELLED")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", MODELS)
def test_every_model_of_the_demo_goes_from_one_rank_to_two_and_back_and_again(tmp_path, model):
    with LoneAgent(tmp_path / "agent", num_gpus=2) as agent:
        agent.launch(f"python {SCRIPTS / 'demo_model.py'} {EXAMPLES} {model} 100000", [0], 2)
        agent.await_step(2)
        for gpus in ([0, 1], [0], [0, 1]):
            assert agent.command("resize", gpus=gpus)["type"] == "done"
            agent.await_step(agent.attempt.progress["step"] + 6)
        losses = [agent.attempt.progress["loss"], agent.attempt.progress["metrics"]["first_loss"]]
        assert losses[0] < losses[1], "it trains"
