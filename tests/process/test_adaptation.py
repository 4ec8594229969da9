"""Batches are changed while real processes train, on all ranks behind the same one."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.live.agent.gang import HOLDING
from support.lone_agent import LoneAgent

from .conftest import until
from .test_elastic import Job

pytestmark = pytest.mark.usefixtures("holding")

LIMITS = {"most": 48, "most_per_gpu": 16, "min_gpus": 1}
SAMPLES = 300
WORDS = ("--adapt", "--loop", "epochs", "--samples", SAMPLES, "--optimizer", "sgd", "--lr", 0.01)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneAgent]:
    with LoneAgent(tmp_path_factory.mktemp("agent")) as agent:
        yield agent


@pytest.fixture
def launch(agent: LoneAgent, tmp_path: Path) -> Callable[..., Job]:
    """Start the training script with batches of 12 at first, for two epochs."""

    def launch(gpus: list[int], *words: object, **more: Any) -> Job:
        options = {"adapt": LIMITS} | more
        return Job(agent, tmp_path / "job", gpus, *WORDS, "--steps", 50, *words, **options)

    return launch


def tuned_at(job: Job, gate: int, batch: list[int]) -> int:
    """Ask for a batch in the step with this gate, and let that go on; the command's number."""
    job.until_at(gate)
    number = job.agent.begin("retune", batch=batch)
    job.agent.heeded()
    job.opens(gate)
    return number


def sizes(job: Job, epoch: int = 0) -> list[int]:
    """Of the batches of an epoch, in order."""
    return [len(samples) for _, samples in sorted(job.seen()[epoch].items())]


def whole(job: Job, samples: int = SAMPLES) -> bool:
    """Whether every sample of every epoch was seen once."""
    return all(
        set().union(*batches.values()) == set(range(samples))
        and sum(len(batch) for batch in batches.values()) == samples
        for batches in job.seen().values()
    )


@pytest.mark.parametrize("gpus", [[0], [0, 1, 2]], ids=["one-rank", "three-ranks"])
def test_all_ranks_change_the_batch_behind_the_same_one(launch, gpus):
    job = launch(gpus, "--gate", 3, "--gate", 7)
    first = tuned_at(job, 3, [8, 1])  # told in step 3, passed on in step 4
    assert job.answer(first)["type"] == "done"
    second = tuned_at(job, 7, [4, 0] if len(gpus) == 3 else [16, 2])
    assert job.answer(second)["batch"] == ([4, 0] if len(gpus) == 3 else [16, 2])
    state = job.succeeds()
    after = [12, 12, 12] if len(gpus) == 3 else [48, 48]
    assert sizes(job)[:10] == ([12] * 5 + [16 * len(gpus)] * 4 + after)[:10]
    assert whole(job)
    assert state["plain"]["batch"][:4] == [after[0], *second_cut(gpus)]
    assert state["plain"]["step"] <= state["scaled"] <= 2 * SAMPLES / 12


def second_cut(gpus: list[int]) -> list[int]:
    return [4, 0, 3] if len(gpus) == 3 else [16, 2, 1]


def test_a_batch_stays_as_it_is_when_the_gang_changes_or_loses_a_rank(launch):
    job = launch([0], "--gate", 3, "--gate", 6, "--gate", 9)
    assert job.answer(tuned_at(job, 3, [10, 2]))["type"] == "done"
    assert job.resizes_at(6, [0, 1, 2])["type"] == "done", job.logs()
    job.until_at(9)
    job.attempt.ranks[0].signal(signal.SIGKILL)
    job.opens(9)
    state = job.succeeds()
    assert state["world"] == 2
    assert sizes(job)[:9] == [12] * 5 + [30] * 4
    assert whole(job)
    assert state["plain"]["batch"][:4] == [30, 15, 0, 2]


def test_a_batch_that_rank_0_takes_with_it_when_it_is_lost_is_asked_for_again(launch):
    job = launch([0, 1, 2], "--gate", 3)
    job.until_at(3)
    number = job.agent.begin("retune", batch=[8, 1])
    job.agent.heeded()
    job.attempt.ranks[0].signal(signal.SIGKILL)
    job.opens(3)
    assert job.answer(number)["type"] == "done"
    state = job.succeeds()
    assert state["plain"]["batch"][:4] == [32, 8, 1, 2]
    assert whole(job)


def test_batches_change_before_and_after_a_rank_has_been_replaced(launch):
    job = launch([0, 1], "--gate", 3, "--gate", 6, "--gate", 9)
    assert job.answer(tuned_at(job, 3, [8, 0]))["type"] == "done"
    job.until_at(6)
    job.agent._loop.call_soon_threadsafe(job.attempt.elastic.replace, 1)
    until(lambda: job.gang.phase == HOLDING, "the newcomer is warm")
    during = job.agent.begin("retune", batch=[12, 0])
    job.agent.heeded()
    job.opens(6)
    assert job.answer(during)["error"].endswith("can't change its batch now; ask again")
    until(lambda: job.gang.members == [0, 2], "slot 2 has taken over from slot 1")
    assert job.answer(tuned_at(job, 9, [6, 1]))["type"] == "done"
    state = job.succeeds()
    assert sizes(job)[:11] == [12] * 5 + [16] * 6
    assert state["plain"]["batch"][:4] == [24, 6, 1, 2]
    assert whole(job)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ([17, 0], "a rank takes 1 to 16 samples at once, and not 17"),
        ([16, 3], "1 ranks x 16 samples x 4 are more than the largest batch of 48"),
        ([8, 0], "1 ranks x 8 samples x 1 are fewer than the initial batch of 12"),
    ],
)
def test_a_batch_out_of_bounds_is_refused_with_the_bound(launch, batch, words):
    job = launch([0], "--gate", 3)
    answer = job.answer(tuned_at(job, 3, batch))
    assert (answer["type"], answer["error"]) == ("failed", words)
    job.succeeds()
    assert set(sizes(job)[:-1]) == {12}


def test_a_job_of_a_fixed_size_changes_its_batch_and_goes_back_to_its_own(launch):
    job = launch([0], "--gate", 3, "--gate", 6, max_gpus=1)
    assert job.answer(tuned_at(job, 3, [12, 1]))["type"] == "done"
    job.until_at(6)
    number = job.agent.begin("retune", batch=None)
    job.agent.heeded()
    job.opens(6)
    assert job.answer(number)["batch"] == [0, 0]
    job.succeeds()
    assert sizes(job)[:10] == [12] * 5 + [24] * 3 + [12] * 2
    assert whole(job)


def test_a_resize_may_bring_a_batch_along(launch):
    job = launch([0], "--gate", 3, "--gate", 5)
    job.until_at(3)
    number = job.begins_resize([0, 1], batch=[8, 1])
    job.until_holding(number)
    job.opens(3)
    assert job.answer(number)["type"] == "done", job.logs()
    job.until_at(5)
    until(lambda: job.attempt.tuning._batch in (None, [8, 1]), "it is told")
    job.opens(5)
    state = job.succeeds()
    assert state["plain"]["batch"][:4] == [32, 8, 1, 2]
    assert set(sizes(job)) <= {12, 32, len(job.seen()[0][max(job.seen()[0])])}
    assert whole(job)


def test_a_batch_that_comes_with_a_resize_and_is_refused_is_told_also_later(launch):
    job = launch([0], "--gate", 3, "--gate", 5)
    job.until_at(3)
    number = job.begins_resize([0, 1], batch=[17, 0])
    job.until_holding(number)
    job.opens(3)
    assert job.answer(number)["type"] == "done", job.logs()
    job.until_at(5)
    job.opens(5)
    about = {"type": "refused", "job_id": job.attempt.job_id, "attempt": job.attempt.number}
    about |= {"batch": [17, 0], "gpus": 2}
    error = "a rank takes 1 to 16 samples at once, and not 17"
    until(lambda: about | {"error": error} in list(job.agent.said), "it is told")
    assert job.attempt.tuning.report() == about | {"error": error}
    job.succeeds()


def test_a_gang_whose_batch_does_not_fit_goes_on_with_the_one_before_in_another_attempt(launch):
    words = ("--gate", 3, "--fits", 10)
    limits = LIMITS | {"least_per_gpu": 2}
    job = launch([0, 1], *words, adapt=limits)
    assert job.answer(tuned_at(job, 3, [16, 0]))["type"] == "done"
    ended = job.ends()
    assert (ended["type"], ended["goes_on"]) == ("lost", True), job.logs()
    assert ended["error"] == (
        "out of memory with 16 samples at once on each GPU, of a batch of 32 that the scheduler "
        "chose; it goes on with batches of 12, of 48 at most, and at most 8 samples at once"
    )
    again = launch([0, 1], *words, job_id=job.attempt.job_id, attempt=2, adapt=limits)
    again.succeeds()
    told = again.attempt.progress["adaptation"]
    assert (told["least_per_gpu"], told["most_per_gpu"]) == (2, 8)
    assert set(sizes(again)) == {12}
    assert whole(again)


def test_a_program_with_fixed_batches_says_so(agent, tmp_path):
    job = Job(agent, tmp_path / "job", [0], "--gate", 3)
    answer = job.answer(tuned_at(job, 3, [24, 0]))
    assert answer["type"] == "failed"
    assert "it needs batch: {mode: adapt} in its job " in answer["error"]
    job.succeeds()


def test_reports_tell_the_noise_the_progress_and_the_time_of_steps(launch):
    job = launch([0, 1], "--gate", 40)
    job.until_at(40)
    job.opens(40)
    job.succeeds()
    told = job.attempt.progress["adaptation"]
    assert {key: told[key] for key in ("initial", "most", "most_per_gpu")} == {
        "initial": 12,
        "most": 48,
        "most_per_gpu": 16,
    }
    assert (told["size"], told["gpus"], told["per_gpu"], told["accumulation"]) == (12, 2, 6, 0)
    assert told["scaled_steps"] == pytest.approx(2 * SAMPLES / 12)
    assert told["var"] > 0
    assert told["sqr"] >= 0
    timed = [m["progress"]["adaptation"] for m in list(job.agent.said) if is_timed(m)]
    assert timed
    for each in timed:
        assert 0 < each["gradient_s"] < each["step_s"]


def is_timed(message: dict[str, Any]) -> bool:
    told = message.get("progress", {}).get("adaptation") or {}
    return bool(told.get("steps"))


def test_a_largest_batch_below_the_first_one_ends_the_job_with_what_to_do(launch):
    job = launch([0], adapt={"most": 8, "most_per_gpu": None, "min_gpus": 1})
    ended = job.ends()
    assert ended["exit_code"] == 1
    assert ended["message"].startswith("batch.max_global in the job file is 8, and s.loader(")
    assert "batch.max_global in the job file is 8, and s.loader(batch_size=12)" in job.logs()
