"""Gangs of trainings on the same GPUs take turns there: all GPUs see their steps in one order."""

import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rota.live.agent import agent as agent_module
from rota.live.agent import ordering, pausing
from support.lone_agent import LoneAgent

from .conftest import PROMPT, SCRIPTS, until
from .states import differences, outcome
from .test_elastic import Job as Training

STEPS = 30
GATE, LATER = 2, 12

pytestmark = pytest.mark.usefixtures("holding")


class Job(Training):
    """A training whose turns are told of in a folder that it has with others."""

    def __init__(
        self, agent: LoneAgent, out: Path, gpus: list[int], *words: object, **launch: Any
    ) -> None:
        self.turns = out.parent
        script = [SCRIPTS / "turns.py", self.turns]
        words = ("--steps", STEPS, *words)
        patient = {"group_timeout_s": 300} | launch
        super().__init__(agent, out, gpus, *words, before=script, **patient)

    @property
    def seat(self) -> str | None:
        """The seat that all its ranks have; None if they have none, or not the same."""
        seats = {rank.seat for rank in self.attempt.members}
        return seats.pop() if len(seats) == 1 else None

    def begins(self, kind: str, **fields: Any) -> int:
        """Give the agent a command about this job, which it has begun then; its number."""
        about = {"job_id": self.attempt.job_id, "attempt": self.attempt.number}
        number = self.agent.begin(kind, **about, **fields)
        self.agent.heeded()
        return number


def seated(launches: Iterable[Callable[[], Job]]) -> list[Job]:
    """Jobs that take turns from the step after the gate on; all are at the gate when asked to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering, "in_gangs", lambda _: set())
        jobs = [launch() for launch in launches]
        for job in jobs:
            job.until_at(GATE)
    for job in jobs:
        until(lambda job=job: job.attempt.hold is not None, "its ranks are to take turns")
    for job in jobs:
        job.opens(GATE)
    return jobs


def turns_of(folder: Path) -> Counter[str]:
    """How many turns each job has had, on all of its GPUs together."""
    told = [line.split() for line in (folder / "turns").read_text().splitlines()]
    return Counter(job for job, _, gpu in told if gpu != "none")


def have_turns_to_the_end(folder: Path) -> set[str]:
    """The jobs whose ranks had a turn in every step after their first one, and each the same."""
    steps = defaultdict(list)
    for line in (folder / "turns").read_text().splitlines():
        job, rank, gpu = line.split()
        steps[job, rank].append(gpu != "none")
    turns = defaultdict(set)
    for (job, _), had in steps.items():
        turns[job].add(sum(had) if True in had and all(had[had.index(True) :]) else None)
    return {job for job, counts in turns.items() if len(counts) == 1 and None not in counts}


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    """An agent whose background jobs do not give way on the CPU, to whatever runs beside a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_module, "ways_of", lambda _: [])
        with LoneAgent(tmp_path_factory.mktemp("agent")) as agent:
            yield agent


@pytest.fixture(scope="module")
def alone(agent, tmp_path_factory) -> dict[str, Any]:
    """The outcome of a run that shares its GPUs with nobody."""
    return outcome(Job(agent, tmp_path_factory.mktemp("alone") / "job", [0, 1]).succeeds())


def test_gangs_that_overlap_in_a_circle_end_with_the_weights_of_a_run_alone(
    launch, alone, tmp_path
):
    circle = ([0, 1], [1, 2], [0, 2])
    jobs = seated(partial(launch, gpus, "--gate", GATE) for gpus in circle)
    for job in jobs:
        assert not differences(outcome(job.succeeds()), alone)
    turns = turns_of(tmp_path)
    assert turns.keys() == {job.attempt.job_id for job in jobs}
    assert have_turns_to_the_end(tmp_path)  # the first to end; others have no turns once alone


def test_background_gangs_that_overlap_beside_a_gang_end_with_the_weights_of_a_run_alone(
    launch, alone, tmp_path
):
    front = launch([0, 1, 2], "--gate", GATE, max_gpus=3)
    circle = ([0, 1], [1, 2], [0, 2])
    jobs = seated(partial(launch, gpus, "--gate", GATE, background=True) for gpus in circle)
    front.opens(GATE)
    for job in jobs:
        assert not differences(outcome(job.succeeds()), alone)
    front.succeeds()
    turns = turns_of(tmp_path)
    assert turns.keys() == {job.attempt.job_id for job in jobs}
    assert have_turns_to_the_end(tmp_path)


@pytest.fixture
def pair(launch) -> list[Job]:
    """Two gangs on the same two GPUs, of which the first waits in its turn at a gate."""
    return packed(launch)


def packed(launch: Callable[..., Job]) -> list[Job]:
    """See :func:`pair`."""
    first = partial(launch, [0, 1], "--gate", GATE, "--gate", LATER)
    jobs = seated([first, partial(launch, [0, 1], "--gate", GATE)])
    jobs[0].until_at(LATER)
    until(lambda: jobs[0].seat and jobs[1].seat, "both have seats")
    return jobs


def test_others_go_on_when_a_rank_is_killed_in_its_turn(pair, alone):
    first, second = pair
    first.attempt.ranks[1].signal(signal.SIGKILL)
    until(lambda: not first.attempt.ranks[1].alive, "the rank is gone")
    first.opens(LATER)
    assert not differences(outcome(first.succeeds()), alone)
    assert not differences(outcome(second.succeeds()), alone)


def test_one_that_is_suspended_has_no_turns_and_has_some_again_later(pair, alone):
    first, second = pair
    number = first.begins("suspend")
    first.opens(LATER)
    assert first.answer(number)["type"] == "done"
    until(lambda: first.seat is None, "the seat is left")
    assert not differences(outcome(second.succeeds()), alone)
    assert first.answer(first.begins("resume", gpus=[0, 1]))["type"] == "done"
    assert not differences(outcome(first.succeeds()), alone)


def test_one_that_is_resized_takes_turns_on_the_gpus_that_it_has_then(pair, alone):
    first, second = pair
    number = first.begins("resize", gpus=[0])
    first.until_holding(number)
    first.opens(LATER)
    assert first.answer(number)["type"] == "done"
    assert not differences(outcome(first.succeeds()), alone)
    assert not differences(outcome(second.succeeds()), alone)


def test_one_that_is_stopped_in_its_turn_keeps_nobody_waiting(pair, alone, monkeypatch):
    first, second = pair
    monkeypatch.setattr(pausing, "BOUNDARY_TIMEOUT_S", 0.0)
    monkeypatch.setattr(pausing, "BOUNDARY_TIMEOUT_STEPS", 0)
    assert first.answer(first.begins("suspend"))["type"] == "done"
    assert first.attempt.record.frozen
    assert not differences(outcome(second.succeeds()), alone)
    assert first.answer(first.begins("resume", gpus=[0, 1]))["type"] == "done"
    first.opens(LATER)
    assert not differences(outcome(first.succeeds()), alone)


def test_steps_go_on_without_turns_once_the_host_is_gone(pair, alone):
    pair[0].agent.end_host()
    pair[0].opens(LATER)
    for job in pair:
        assert not differences(outcome(job.succeeds()), alone)


def test_turns_go_on_without_an_agent_and_under_the_next_one(tmp_path, alone):
    folder, count = tmp_path / "home", iter(range(2))
    with LoneAgent(folder) as agent:
        jobs = packed(
            lambda *words: Job(agent, tmp_path / f"job{next(count)}", words[0], *words[1:])
        )
        agent.vanish()
        agent.join()
    with LoneAgent(folder) as agent:
        for job in jobs:
            job.agent, job.attempt = agent, agent.attempts[job.attempt.job_id]
        jobs[0].opens(LATER)
        for job in jobs:
            assert not differences(outcome(job.succeeds()), alone)
    assert have_turns_to_the_end(tmp_path)


# Samples take a while to come, and a step next to nothing: two such jobs do twice the work of one.
LOADS = """
import os, sys, time
import torch, rota.train
hurry, steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if not os.path.exists(hurry):
            time.sleep(0.05)
        return torch.full((8,), float(index))
model = torch.nn.Linear(8, 1)
with rota.train.session() as s:
    model, optimizer = s.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-5))
    loader = s.loader(Slow(), batch_size=4)
    for step in s.steps(steps):
        for x in s.next_batch():
            model(x).square().mean().backward()
        optimizer.step()
        if s._turns.key is not None:
            open(hurry + ".seated" + os.environ["ROTA_JOB_ID"], "w").close()
print("weights", model.weight.double().sum().item().hex())
"""


def test_gandiva_packs_gangs_of_trainings_whose_steps_take_turns_then(make_cluster):
    settings = {"quantum_s": 0.5, "trial_s": 6.0, "least_gain": 0.1, "pack_gangs": "on"}
    cluster = make_cluster("gandiva", 2, environment=PROMPT, **settings)
    script, hurry = cluster.base / "train.py", cluster.base / "hurry"
    script.write_text(LOADS)
    jobs = [cluster.submit(f"python {script} {hurry} 800", gpus=2) for _ in range(2)]

    def tried() -> bool:
        return all(cluster.client.explain(job)["trials"] for job in jobs)

    until(tried, "both have been tried together")
    trials = [cluster.client.explain(job)["trials"][0] for job in jobs]
    assert [(each["what"], each["kept"]) for each in trials] == [("pack", True)] * 2
    assert [cluster.show(job)["shared_with"] for job in jobs] == [jobs[1:], jobs[:1]]
    seated = [cluster.base / f"hurry.seated{job}" for job in jobs]
    until(lambda: all(file.exists() for file in seated), "their steps take turns")
    hurry.touch()
    for job in jobs:
        cluster.ends(job)
    found = {
        line
        for job in jobs
        for line in "".join(cluster.client.logs(job)).splitlines()
        if "weights" in line
    }
    assert len({line.rpartition("weights")[2] for line in found}) == 1
