"""Elastic jobs with batches of the policy's choice, on whole live clusters under pollux."""

import json

import pytest

from rota.model.events import DecisionTaken, JobResized, JobRetuned
from rota.model.state.state import ClusterState
from rota.model.view import View

from .conftest import (
    PROMPT,
    SCRIPTS,
    node_of,
    own_base,
    stoppable_cluster,
    until,
)

TICK_S = 1.0
SAMPLES = 300
BATCH = {"mode": "adapt", "max_global": 96, "max_per_gpu": 16}


def train(cluster, name, *words, gpus="1..2"):
    """Submit a training whose pieces take as long as on two cores, whatever their size.

    It tells just that of its steps, whatever else the machine does: by it sizes are chosen.
    """
    out = cluster.base / name
    out.mkdir()
    line = ["python", SCRIPTS / "elastic.py", "--out", out, "--adapt", "--optimizer", "sgd"]
    # A batch norm refuses the last piece of an epoch if it is one sample.
    line += ["--model", "plain", "--lr", 0.001, "--samples", SAMPLES]
    line += ["--cores", 2, "--piece-s", 0.12, *words]
    job = {"run": " ".join(map(str, line)), "workdir": str(cluster.base), "name": name}
    return cluster.client.submit(job | {"resources": {"gpus": gpus}, "batch": BATCH})["id"]


def changes(cluster, job, kind):
    row = int(job) - 1
    return [event for event in cluster.events() if isinstance(event, kind) and event.row == row]


def sizes(cluster, job):
    return [event.allocation.num_gpus for event in changes(cluster, job, JobResized)]


def told(cluster, job):
    """How batches are cut now, by the job's own word."""
    progress = cluster.show(job)["progress"]["adaptation"]
    return progress["gpus"], (progress["per_gpu"], progress["accumulation"])


def measured(cluster, job):
    """What steps took by the log, as a policy sees it."""
    state = ClusterState()
    for event in cluster.events():
        state.apply(event)
    return View(state, 0.0, None).measured(int(job) - 1)


def written(cluster, name):
    """How far the training has come, by what its ranks write down."""
    return sum(file.stat().st_size for file in (cluster.base / name).glob("seen*"))


def finish(cluster, job, name):
    """Let the training end a little later, at the same step on all ranks."""
    step = cluster.show(job)["progress"]["step"] + 60
    draft = cluster.base / name / "finish.new"
    draft.write_text(str(step))
    draft.rename(draft.with_name("finish"))
    return cluster.ends(job)


def every_sample_once(cluster, name):
    """Whether each epoch but the last, which was cut short, had all samples in one batch each."""
    epochs: dict[int, dict[int, set[int]]] = {}
    for file in (cluster.base / name).glob("seen*"):
        for line in file.read_text().splitlines():
            epoch, batch, samples, rehearsal = json.loads(line)
            if not rehearsal:
                epochs.setdefault(epoch, {}).setdefault(batch, set()).update(samples)
    del epochs[max(epochs)]
    assert len(epochs) > 1
    counts = [sum(map(len, batches.values())) for batches in epochs.values()]
    seen = [set().union(*batches.values()) for batches in epochs.values()]
    return set(counts) == {SAMPLES} and all(each == set(range(SAMPLES)) for each in seen)


def test_jobs_are_resized_and_retuned_and_go_on_when_controller_and_agent_are_killed(make_cluster):
    cluster = make_cluster("pollux", 2, environment=PROMPT, interval_s=TICK_S)
    first = train(cluster, "first", "--steps", 1_000_000)
    until(lambda: changes(cluster, first, JobRetuned), "its batch is chosen anew")
    assert cluster.show(first)["num_gpus"] == 2
    second = train(cluster, "second", "--steps", 60, "--gate", 40)
    cluster.until_at("second", 40)
    assert sizes(cluster, first) == [1]

    known = measured(cluster, first)
    cluster.kill_controller()
    cluster.kill(cluster.agent())
    done = written(cluster, "first")
    until(lambda: written(cluster, "first") > done, "it trains meanwhile")
    cluster.up()
    assert {point[:3] for point in known} <= {point[:3] for point in measured(cluster, first)}
    cluster.opens("second", 40)
    ended = cluster.ends(second)
    assert (ended["attempt"], ended["preemptions"]) == (1, 0)

    until(lambda: sizes(cluster, first) == [1, 2], "it has both slots again")
    grown = changes(cluster, first, JobResized)[-1]
    assert grown.allocation.batch is not None

    def since_then():
        """The batches that it may train with now: the one that came along, and later ones."""
        later = (each for each in changes(cluster, first, JobRetuned) if each.at_s >= grown.at_s)
        return [grown.allocation.batch, *(each.batch for each in later)]

    until(lambda: told(cluster, first) in [(2, batch) for batch in since_then()], "it has come too")
    cluster.kill(cluster.agent())
    ended = finish(cluster, first, "first")
    assert (ended["attempt"], ended["preemptions"], ended["lost_ranks"]) == (1, 0, 0)
    assert every_sample_once(cluster, "first")
    places = {point[:3] for point in measured(cluster, first)}
    assert {gpus for _, gpus, _ in places} == {1, 2}
    assert len(places) > 2, "it has had several batches"


FAULTS = [("agent", "tune-before"), ("agent", "tuned-before"), ("controller", "answered-before")]


@pytest.fixture(scope="module")
def stoppable(tmp_path_factory):
    more = {"policy": "pollux", "gpus": 2, "interval_s": TICK_S, "environment": PROMPT}
    with stoppable_cluster(tmp_path_factory.mktemp("stoppable"), **more) as found:
        yield found


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("who", "point"), FAULTS)
def test_a_batch_changes_on_all_ranks_whoever_is_killed_on_the_way(stoppable, request, who, point):
    """The agent before it tells rank 0, and when it hears of it; the controller likewise.

    The policy may have another batch in mind by the time that the first one is told: it counts.
    """
    cluster, stops = stoppable
    with own_base(cluster, request):
        if who == "agent":
            stops.arm(cluster.node_names()[0], point)
        job = train(cluster, "job", "--steps", 1_000_000, "--gate", 3, gpus=2)
        cluster.until_at("job", 3)
        cluster.until_state(job, "RUNNING")
        if who == "controller":  # which has had the answer to the launch
            stops.arm(who, point)
        cluster.opens("job", 3)
        process = stops.until_at(point)
        assert not changes(cluster, job, JobRetuned)
        if who == "controller":
            cluster.kill_controller()
            cluster.up()
        else:
            cluster.kill(process)
        until(lambda: changes(cluster, job, JobRetuned), "its batch is chosen anew")
        until(
            lambda: told(cluster, job) == (2, changes(cluster, job, JobRetuned)[-1].batch),
            "all ranks have it",
        )
        ended = finish(cluster, job, "job")
        assert (ended["attempt"], ended["lost_ranks"]) == (1, 0)
        assert every_sample_once(cluster, "job")


def given(cluster, job):
    """The batch that the policy wants last."""
    row = int(job) - 1
    decisions = [event for event in cluster.events() if isinstance(event, DecisionTaken)]
    places = [event.allocations.get(row) for event in decisions]
    return [place.batch for place in places if place is not None][-1]


def test_a_batch_goes_along_to_another_node_and_is_chosen_anew_there(make_cluster):
    cluster = make_cluster("pollux", 1, nodes=2, environment=PROMPT, interval_s=TICK_S)
    job = train(cluster, "job", "--steps", 1_000_000, gpus=1)
    until(lambda: changes(cluster, job, JobRetuned), "its batch is chosen anew")
    here = node_of(cluster.show(job))
    cluster.client.suspend(job)
    cluster.until_state(job, "SUSPENDED")
    others = [cluster.submit("sleep 1000") for _ in range(2)]
    places = {node_of(cluster.until_state(other, "RUNNING")): other for other in others}
    del places[here]
    cluster.client.cancel(*places.values())
    cluster.client.resume(job)
    until(lambda: cluster.show(job)["migrations"] == 1, "it goes on on the other node")
    until(lambda: told(cluster, job) == (1, given(cluster, job)), "its batch has come along")
    ended = finish(cluster, job, "job")
    assert (ended["attempt"], ended["lost_ranks"]) == (1, 0)
    assert every_sample_once(cluster, "job")
