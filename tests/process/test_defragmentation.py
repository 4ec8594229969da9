"""Free slots of several nodes are brought together for a gang, and slots go to whom they suit."""

from typing import Any

from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.policy.gandiva.jobs import Notes, speed_alone

from .conftest import PROMPT, Cluster, node_of, until
from .states import equal, weights

STEPS = 150


def hold(cluster: Cluster, name: str, gpus: int = 1) -> str:
    """A job that has its slots until there is a file of this name. It can't be moved."""
    run = f"while [ ! -e {name} ]; do sleep 0.02; done"
    return cluster.submit(run, gpus=gpus, processes="node")


def trials(cluster: Cluster, job: str) -> list[dict[str, Any]]:
    """What was tried with a job, as ``rota why`` tells it."""
    found: list[dict[str, Any]] = cluster.client.explain(job)["trials"]
    return found


def is_measured(cluster: Cluster, job: str) -> bool:
    """Whether the policy knows how fast the job is, should it be asked now."""
    state, row = ClusterState(), int(job) - 1
    for event in cluster.events():
        state.apply(event)
    view = View(state, state.progress[row]["at_s"] if state.progress[row] else 0.0, None)
    return speed_alone(view, row, Notes(state.marks[row])) is not None


def ends_as_alone(cluster: Cluster, out: str, job: str, gpus: int = 1) -> None:
    """It ends, in one attempt, with the weights of a run of as many steps that nobody disturbs."""
    (cluster.base / out / "enough").touch()
    assert cluster.ends(job)["attempt"] == 1
    alone = cluster.train(f"{out}_alone", "--steps", cluster.step(out), gpus=gpus)
    assert cluster.ends(alone)["preemptions"] == 0
    assert equal(weights(cluster.base / out), weights(cluster.base / f"{out}_alone"))


def test_three_nodes_in_fragments_are_defragmented_and_the_gang_that_waits_starts(make_cluster):
    """Each node has a job and a free slot: one must leave its node, and the only one that can.

    It has told nothing yet when the last decision is taken before the gang comes.
    """
    more = {"trial_s": 1.0, "least_gain": 1.0, "pack": "off"}  # no speed would make it go back
    cluster = make_cluster(
        "gandiva", nodes=3, gpus=2, quantum_s=0.5, limit=1, environment=PROMPT, **more
    )
    moves = cluster.train("moves", "--until", "--steps", 10**6, "--gate", 0)
    nodes = [node_of(cluster.until_state(moves, "RUNNING"))]
    holds = {}
    for name in ("short", "stays", "short2", "last", "short3"):
        holds[name] = hold(cluster, name)
        node = node_of(cluster.until_state(holds[name], "RUNNING"))
        nodes += [node] if node not in nodes else []
    assert len(nodes) == 3
    cluster.until_at("moves", 0)
    for name in ("short", "short2", "short3"):
        (cluster.base / name).touch()
        cluster.ends(holds[name])
    places = [node_of(cluster.show(job)) for job in (moves, holds["stays"], holds["last"])]
    assert places == nodes
    cluster.opens("moves", 0)
    until(lambda: is_measured(cluster, moves), "its speed is known")

    gang = cluster.train("gang", "--steps", STEPS, "--gate", 50, gpus=2)
    cluster.until_at("gang", 50)
    assert node_of(cluster.show(gang)) == nodes[0]
    cluster.opens("gang", 50)
    show = cluster.ends(gang)
    assert (show["attempt"], show["migrations"], show["preemptions"]) == (1, 0, 0)
    show = until(lambda: trials(cluster, moves) and cluster.show(moves), "the move is judged")
    assert (show["attempt"], show["migrations"]) == (1, 1)
    assert node_of(show) in nodes[1:]
    (trial,) = trials(cluster, moves)
    assert (trial["what"], trial["predicted"]) == (f"move to make room for job {gang}", 1.0)
    assert trial["measured"] is not None
    for name in ("stays", "last"):
        assert cluster.show(holds[name])["preemptions"] == 0
        (cluster.base / name).touch()
        cluster.ends(holds[name])
    ends_as_alone(cluster, "moves", moves)
    alone = cluster.train("gang_alone", "--steps", STEPS, gpus=2)
    cluster.ends(alone)
    assert equal(weights(cluster.base / "gang"), weights(cluster.base / "gang_alone"))


# A training for which one node is slower than the other: by far if it is heavy. Alone it is fast.
TYPED = """
import os, sys
import torch, rota.train
from steady import Steady
kind, steps = sys.argv[1], int(sys.argv[2])
step_s, slow_s = {"heavy": (0.05, 0.25), "light": (0.05, 0.005), "alone": (0, 0)}[kind]
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
with rota.train.session() as s:
    model, optimizer = s.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    steady = Steady()
    for step in s.steps(steps):
        steady.begin()
        on_slow = os.environ["ROTA_NODE"].endswith("-1")
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        s.report(samples=4)
        steady.end(step_s + slow_s * on_slow)
        if os.path.exists(kind + ".enough"):
            break
    print("ended", step + 1, model.weight.double().sum().item().hex())
"""


def test_a_job_that_gains_little_by_the_fast_slot_leaves_it_to_one_that_gains_much(make_cluster):
    settings = {"trial_s": 2.0, "stay_s": 5.0, "least_gain": 0.3, "quantum_s": 1.0}
    cluster = make_cluster(
        "gandiva",
        nodes=2,
        gpus=1,
        options=("--gpu-types", "fast,slow"),
        environment=PROMPT,
        **settings,
    )
    (cluster.base / "typed.py").write_text(TYPED)
    kinds = {node["name"]: node["gpu_type"] for node in cluster.client.nodes()}
    suits = {"fast": "light", "slow": "heavy"}  # the wrong one
    first = cluster.submit("until [ -e known ]; do sleep 0.01; done")
    kind = kinds[node_of(cluster.until_state(first, "RUNNING"))]  # the next first one goes there
    (cluster.base / "known").touch()
    cluster.ends(first)
    names = sorted(suits.values(), key=lambda name: name != suits[kind])
    jobs = {name: cluster.submit(f"python typed.py {name} {10**6}") for name in names}

    def ended(job: str) -> list[str]:
        lines = "".join(cluster.client.logs(job)).splitlines()
        return next(line.split()[1:] for line in lines if line.startswith("ended"))

    def kind_of(name: str) -> str:
        return kinds[node_of(cluster.until_state(jobs[name], "RUNNING"))]

    assert (kind_of("light"), kind_of("heavy")) == ("fast", "slow")
    until(lambda: all(trials(cluster, job) for job in jobs.values()), "they have changed places")
    light, heavy = (trials(cluster, jobs[name])[0] for name in ("light", "heavy"))
    assert (light["what"], light["kept"]) == ("move to slow", True)
    assert (heavy["what"], heavy["kept"]) == ("move to fast", True)
    assert light["measured"] * heavy["measured"] > 1.3
    assert (kind_of("light"), kind_of("heavy")) == ("slow", "fast")
    for name, job in jobs.items():
        (cluster.base / f"{name}.enough").touch()
        show = cluster.ends(job)
        assert (show["attempt"], show["migrations"]) == (1, 1)
        steps, _ = ended(job)
        alone = cluster.submit(f"python typed.py alone {steps}")
        cluster.ends(alone)
        assert ended(job) == ended(alone)
