"""Jobs become larger and smaller while they train, lose ranks, and end with the same weights."""

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rota.live.agent import elastic, pulses
from rota.live.agent.gang import HOLDING
from support.layers import write_profile
from support.lone_agent import LoneAgent

from .conftest import SCRIPTS, all_are_at, until
from .states import differences, outcome

pytestmark = pytest.mark.usefixtures("holding")


class Job:
    """One run of the elastic training script on an agent, with its folder."""

    def __init__(
        self,
        agent: LoneAgent,
        out: Path,
        gpus: list[int],
        *words: object,
        max_gpus: int = 4,
        fault: tuple[str, int] | None = None,
        group_timeout_s: float = 10,
        form_timeout_s: float = 4,
        before: Sequence[object] = (),
        **launch: Any,
    ) -> None:
        self.agent, self.out = agent, out
        out.mkdir(exist_ok=True)
        env = {
            "ROTA_GROUP_TIMEOUT_S": f"{group_timeout_s}",
            "ROTA_FORM_TIMEOUT_S": f"{form_timeout_s}",
        }
        scripts = [SCRIPTS / "elastic.py"]
        if fault is not None:
            env |= {"FAULT": fault[0], "FAULT_SLOT": str(fault[1]), "FAULT_ARMED": f"{out}/armed"}
            scripts.insert(0, SCRIPTS / "faults.py")
        run = " ".join(map(str, ["python", *before, *scripts, "--out", out, *words]))
        answer = agent.launch(run, gpus, max_gpus, env=env, **launch)
        assert answer["type"] == "done", answer
        self.attempt = agent.attempt

    @property
    def gang(self) -> Any:
        assert self.attempt.elastic is not None
        return self.attempt.elastic.gang

    def until_at(self, gate: int) -> None:
        """Wait until rank 0 waits in this step, and the others have come to it."""

        def there() -> bool:
            assert self.attempt.ended is None, self.logs()
            return all_are_at(self.out, gate)

        until(there, f"step {gate}")

    def opens(self, gate: int) -> None:
        (self.out / f"go{gate}").touch()

    def begins_resize(self, gpus: list[int], **fields: Any) -> int:
        """Ask for a resize as soon as the agent knows enough; the command's number."""
        until(lambda: self.attempt.shards is not None, "the agent has heard of its batches")
        until(lambda: self.attempt.cooperates, "all ranks are connected")
        return self.agent.begin("resize", gpus=gpus, **fields)

    def resizes_at(self, gate: int, gpus: list[int]) -> dict[str, Any]:
        """Resize at the end of the step with this gate; the answer."""
        self.until_at(gate)
        number = self.begins_resize(gpus)
        self.until_holding(number)
        self.opens(gate)
        return self.answer(number)

    def until_holding(self, number: int) -> None:
        """Wait until the newcomers are warm and the members are asked to hold; or it is over."""

        def asked() -> bool:
            answered = any(m.get("command_id") == number for m in list(self.agent.said))
            return answered or self.gang.phase == HOLDING

        until(asked, "the newcomers are warm")
        self.agent.heeded()  # the members have been sent word of it

    def until_ready(self, slot: int) -> None:
        """Wait until a rank that left stands by for the next growth."""
        standby = self.attempt.elastic._standby  # type: ignore[union-attr]
        until(lambda: standby.get(slot), f"slot {slot} stands by")

    def answer(self, number: int) -> dict[str, Any]:
        return self.agent.answer(number)

    def ends(self) -> dict[str, Any]:
        """The end of the attempt."""
        until(lambda: self.attempt.ended is not None, "the job ends")
        return self.attempt.ended  # type: ignore[return-value]

    def succeeds(self) -> dict[str, Any]:
        """The state at the end of training."""
        ended = self.ends()
        assert ended.get("exit_code") == 0, (ended, self.logs())
        return torch.load(self.out / "end.pt", weights_only=False)

    def causes(self) -> list[str]:
        """What the controller was told of changes that no command asked for."""
        return [
            message["cause"]
            for message in list(self.agent.said)
            if message["type"] == "resized" and message["job_id"] == self.attempt.job_id
        ]

    def told_plans(self) -> list[dict[str, Any]]:
        """The plans by layer that the controller was told of."""
        said = (message for message in list(self.agent.said) if message["type"] == "planned")
        return [message for message in said if message["job_id"] == self.attempt.job_id]

    def logs(self) -> str:
        return "\n".join(file.read_text() for file in sorted(self.attempt.folder.glob("*.log")))

    def seen(self) -> dict[int, dict[int, set[int]]]:
        """The samples of each batch of each epoch that members have worked on."""
        found: dict[int, dict[int, set[int]]] = {}
        for file in self.out.glob("seen*"):
            for line in file.read_text().splitlines():
                epoch, batch, samples, rehearsal = json.loads(line)
                if not rehearsal:
                    found.setdefault(epoch, {}).setdefault(batch, set()).update(samples)
        return found


@pytest.fixture(scope="module")
def reference(agent, tmp_path_factory) -> Callable[..., dict[str, Any]]:
    """The outcome of an undisturbed run of one rank."""
    known: dict[tuple[object, ...], dict[str, Any]] = {}

    def of(*words: object) -> dict[str, Any]:
        if words not in known:
            job = Job(agent, tmp_path_factory.mktemp("reference"), [0], *words)
            known[words] = outcome(job.succeeds())
        return known[words]

    return of


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--loop", "epochs", "--workers", 2),
        ("--workers", 1, "--optimizer", "sgd", "--amp"),
        ("--loop", "epochs", "--model", "uneven", "--steps", 15),
    ],
    ids=["steps", "epochs-workers", "steps-workers-sgd-amp", "epochs-uneven"],
)
def test_training_ends_with_the_same_bits_whatever_the_resizes(launch, reference, words):
    job = launch([0], *words, "--gate", 2, "--gate", 4, "--gate", 6, "--gate", 8)
    for gate, gpus in [(2, [0, 1]), (4, [0]), (6, [0, 1, 2]), (8, [1, 2])]:
        answer = job.resizes_at(gate, gpus)
        assert (answer["type"], sorted(answer.get("gpus", ()))) == ("done", gpus), job.logs()
    state = job.succeeds()
    assert state["world"] == 2
    assert not differences(outcome(state), reference(*words))


def listening(job):
    """Where the ranks listen, by address."""
    processes = [psutil.Process(job.attempt.ranks[slot].worker) for slot in job.gang.members]
    found = [c for each in processes for c in each.net_connections("inet") if c.status == "LISTEN"]
    return {connection.laddr.ip for connection in found}


def test_ranks_listen_on_the_loopback_interface_alone_in_each_of_their_groups(launch, reference):
    job = launch([0, 1], "--gate", 2, "--gate", 4, group_timeout_s=60, form_timeout_s=30)
    job.until_at(2)
    assert listening(job) == {"127.0.0.1"}
    answer = job.resizes_at(2, [0, 1, 2])
    assert answer["type"] == "done", (answer.get("error"), job.logs())
    job.until_at(4)
    assert listening(job) == {"127.0.0.1"}
    job.opens(4)
    assert not differences(outcome(job.succeeds()), reference())


@pytest.mark.parametrize("reduction", ["tree", "ddp"])
def test_ranks_that_come_to_different_batches_end_with_an_error_that_says_so(launch, reduction):
    job = launch(
        [0, 1], "--loop", "epochs", "--model", "plain", "--reduction", reduction, "--cut", 1
    )
    assert job.ends()["exit_code"] == 1
    assert "InputError: rank 0 and rank 1 do not work on the same batch" in job.logs()


def test_a_rank_that_joins_after_parameters_were_unfrozen_reduces_them_too(launch, reference):
    words = ("--loop", "epochs", "--steps", 15, "--freeze-until", 1)
    job = launch([0], *words, "--gate", 3, "--gate", 8)
    assert job.resizes_at(3, [0, 1])["type"] == "done", job.logs()
    assert job.resizes_at(8, [0, 1, 2])["type"] == "done", job.logs()
    assert not differences(outcome(job.succeeds()), reference(*words))


def test_every_sample_of_an_epoch_is_seen_once_through_all_resizes(launch):
    job = launch([0], "--gate", 2, "--gate", 6, "--loop", "epochs", "--steps", 10)
    job.resizes_at(2, [0, 1, 2])
    job.resizes_at(6, [1])
    job.succeeds()
    seen = job.seen()
    assert sorted(seen) == [0, 1]
    for batches in seen.values():
        sizes = [len(samples) for _, samples in sorted(batches.items())]
        assert sizes == [12, 12, 12, 12, 5]
        assert set().union(*batches.values()) == set(range(53))


def test_torchs_own_reduction_agrees_closely_after_resizes(launch, reference):
    words = ("--model", "plain", "--clean", "--workers", 1)
    job = launch([0], *words, "--reduction", "ddp", "--gate", 2, "--gate", 5, "--gate", 8)
    for gate, gpus in [(2, [0, 1]), (5, [0, 1, 2]), (8, [1])]:
        assert job.resizes_at(gate, gpus)["type"] == "done", job.logs()
    assert close(job.succeeds(), reference(*words))


LAYERS = ("--reduction", "burst", "--ranks-of", "0=1", "--ranks-of", "2=3")


def test_layers_on_ranks_of_their_own_agree_closely_after_resizes(launch, reference):
    """Also where the rank that keeps all layers leaves the others."""
    words = ("--model", "plain", "--clean", "--workers", 1)
    job = launch([0], *words, *LAYERS, *(f"--gate={gate}" for gate in (2, 4, 6, 8)))
    for gate, gpus in [(2, [0, 1]), (4, [0, 1, 2]), (6, [1, 2]), (8, [1])]:
        assert job.resizes_at(gate, gpus)["type"] == "done", job.logs()
    assert close(job.succeeds(), reference(*words))


def test_plans_are_told_after_resizes_with_idle_parts_in_the_order_of_the_gpus(launch, tmp_path):
    """The rank that has been there is on the later GPU; the second layer is its alone."""
    chain, links = (
        {"0": (0.1, 1.2), "2": (0.5, 0.52)},
        {"bandwidth_bytes_s": 1e9, "latency_s": 1e-4},
    )
    profile = write_profile(tmp_path / "profile.json", chain, 12, network=links)
    words = ("--model", "plain", "--reduction", "burst", "--profile", profile)
    job = launch([1], *words, "--gate", 2, "--gate", 4, "--gate", 6)
    told = until(lambda: job.told_plans(), "the only rank has told its plan")
    assert (told[0]["batch"], told[0]["idle"], len(told[0]["step_s"])) == (12, [0.0], 4)
    assert job.resizes_at(2, [0, 1])["type"] == "done", job.logs()
    job.until_at(4)
    idle = until(lambda: job.told_plans()[1:], "both have planned")[-1]["idle"]
    assert idle[0] > 0.1 > idle[1]
    assert job.resizes_at(4, [0])["type"] == "done", job.logs()
    job.until_at(6)
    assert until(lambda: job.told_plans()[2:], "the other has planned")[-1]["idle"] == [0.0]
    job.opens(6)
    job.succeeds()


def test_a_rank_that_is_killed_leaves_layers_to_the_others(launch, reference):
    words = ("--model", "plain", "--clean")
    job = launch([0, 1, 2], *words, *LAYERS, "--gate", 3)
    job.until_at(3)
    job.attempt.ranks[1].signal(signal.SIGKILL)
    job.opens(3)
    assert close(job.succeeds(), reference(*words))
    assert "rank 1 was killed by SIGKILL" in job.causes()


def test_a_job_whose_layers_are_lost_with_rank_0_ends_with_an_error_that_says_so(launch):
    job = launch([0, 1, 2], "--model", "plain", *LAYERS, "--gate", 3)
    job.until_at(3)
    job.attempt.ranks[0].signal(signal.SIGKILL)
    job.opens(3)
    assert job.ends()["exit_code"] == 1
    assert "GangError: rank 0 was lost, and with it layers of the model" in job.logs()


def close(state: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether weights agree to single precision, and everything else wholly."""
    weights = zip(state["models"][0].values(), expected["models"][0].values(), strict=True)
    return outcome(state)["plain"] == expected["plain"] and all(
        torch.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in weights
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("lr_scaling", ["linear", "adascale"])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_batches_may_grow_with_the_gang_and_no_sample_is_lost_with_a_rank(
    launch, lr_scaling, victim
):
    job = launch(
        [0], "--gate", 3, "--gate", 6, "--loop", "epochs", "--steps", 10, "--lr-scaling", lr_scaling
    )
    assert job.resizes_at(3, [0, 1, 2])["type"] == "done", job.logs()
    job.until_at(6)
    job.attempt.ranks[victim].signal(signal.SIGKILL)
    job.opens(6)
    state = job.succeeds()
    for batches in job.seen().values():
        assert sum(len(samples) for samples in batches.values()) == 53
        assert set().union(*batches.values()) == set(range(53))
    first = [len(samples) for _, samples in sorted(job.seen()[0].items())]
    assert first[:7] == [3, 3, 3, 3, 9, 9, 9]  # the batch in which a rank was lost is whole
    assert set(first[7:-1]) == {6}
    if lr_scaling == "linear":
        assert state["scaled"] == pytest.approx(2 * 53 / 3)
    else:
        assert state["plain"]["step"] <= state["scaled"] <= 2 * 53 / 3


def test_the_first_step_of_a_batch_that_grows_has_the_multiplied_learning_rate(launch):
    """Two ranks with parts of three samples, against one rank with six at twice the rate."""
    words = ("--model", "plain", "--clean", "--optimizer", "sgd", "--steps", 1)
    small = launch([0, 1], *words, "--lr-scaling", "linear", max_gpus=2).succeeds()
    large = launch([0], *words, "--lr-scaling", "none", "--per-rank", 6, max_gpus=2).succeeds()
    start = launch([0], *words, "--lr-scaling", "none", "--lr", 0.0).succeeds()
    for one, other, before in zip(
        *(state["models"][0].values() for state in (small, large, start)), strict=True
    ):
        torch.testing.assert_close(one - before, 2 * (other - before), rtol=1e-4, atol=1e-7)


GROW = ([0, 1], [0, 1, 2])
SHRINK = ([0, 1], [0])
MOVE = ([0, 1], [1, 2])
ENDS_OF_RANKS = [
    *((GROW, 0, point) for point in ("hold-before", "vote1-before", "vote1-after", "host-after")),
    *(
        (GROW, 0, point)
        for point in ("vote2-before", "vote2-after", "meet-after", "exchange-after")
    ),
    *((GROW, 0, point) for point in ("vote3-after", "tell-after", "hold-after", "host-before")),
    *((GROW, 0, point) for point in ("meet-before", "form-before", "form-after")),
    *((GROW, 0, point) for point in ("exchange-before", "vote3-before", "tell-before")),
    *((GROW, 1, point) for point in ("hold-after", "vote2-before", "meet-before", "vote3-before")),
    *((GROW, 2, point) for point in ("join-before", "meet-before", "meet-after")),
    *((GROW, 2, point) for point in ("exchange-before", "exchange-after", "tell-before")),
    *((SHRINK, 0, point) for point in ("vote1-after", "vote2-after", "form-before", "tell-before")),
    *((SHRINK, 1, point) for point in ("vote1-before", "vote2-before", "vote2-after")),
    *((SHRINK, 1, point) for point in ("standby-before", "standby-after")),
    *((SHRINK, 1, point) for point in ("park-before", "park-after")),
    *((MOVE, 0, point) for point in ("vote1-after", "vote2-after", "standby-before")),
    *((MOVE, 1, point) for point in ("host-after", "form-after", "exchange-before")),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("sizes", "slot", "point"),
    ENDS_OF_RANKS,
    ids=[f"{len(s[0])}to{len(s[1])}-slot{slot}-{point}" for s, slot, point in ENDS_OF_RANKS],
)
def test_a_rank_that_is_killed_in_a_resize_costs_nothing(launch, reference, sizes, slot, point):
    job = launch(sizes[0], "--gate", 3, fault=(f"kill:{point}", slot))
    job.until_at(3)
    (job.out / "armed").touch()
    assert job.resizes_at(3, sizes[1])["type"] in ("done", "failed")
    state = job.succeeds()
    assert (job.out / "fault").exists()
    assert not differences(outcome(state), reference())


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_is_killed_in_training_is_done_without(launch, reference, victim):
    job = launch([0, 1, 2], "--gate", 3)
    job.until_at(3)
    job.attempt.ranks[victim].signal(signal.SIGKILL)
    job.opens(3)
    assert not differences(outcome(job.succeeds()), reference())
    assert len(job.gang.members) < 3
    assert f"rank {victim} was killed by SIGKILL" in job.causes()


def test_all_of_a_larger_gang_notice_a_loss_with_torchs_own_reduction(launch, reference):
    words = ("--model", "plain", "--clean")
    job = launch([0, 1, 2, 3], *words, "--reduction", "ddp", "--gate", 3, group_timeout_s=60)
    job.until_at(3)
    job.attempt.ranks[2].signal(signal.SIGKILL)
    job.opens(3)
    assert close(job.succeeds(), reference(*words))


@pytest.fixture
def impatient(monkeypatch):
    """Ranks that hang are found soon, and those that a busy machine keeps waiting are not."""
    monkeypatch.setattr(pulses, "HANGS_AFTER_S", 3.0)
    monkeypatch.setattr(pulses, "HANGS_AFTER_STEPS", 0)


@pytest.mark.parametrize("victim", [0, 1], ids=["in-its-step", "in-a-reduction"])
def test_a_rank_that_hangs_is_killed_by_its_pulse_and_the_rest_go_on(
    launch, reference, impatient, victim
):
    job = launch([0, 1, 2], "--gate", 3)
    job.until_at(3)
    job.attempt.ranks[victim].signal(signal.SIGSTOP)
    job.opens(3)
    assert not differences(outcome(job.succeeds()), reference())
    assert job.attempt.elastic.lost == {victim}
    assert f"rank {victim} hung and was killed" in job.causes()


@pytest.mark.parametrize(("slot", "point"), [(0, "host-before"), (1, "vote2-before")])
def test_a_rank_that_hangs_in_a_resize_is_killed(launch, reference, impatient, slot, point):
    job = launch([0, 1], "--gate", 3, fault=(f"stop:{point}", slot))
    job.until_at(3)
    (job.out / "armed").touch()
    assert job.resizes_at(3, [0, 1, 2])["type"] == "failed"
    assert not differences(outcome(job.succeeds()), reference())
    assert job.attempt.elastic.lost == {slot}


def test_a_rank_that_lags_behind_is_replaced(launch, reference, monkeypatch):
    monkeypatch.setattr(elastic, "LOOK_EVERY_S", 0.005)
    monkeypatch.setattr(pulses, "LAGS_BELOW", 0.8)
    monkeypatch.setattr(elastic, "COUPLED_STEP_S", 0.05)  # it is not asked to hold at a gate
    job = launch([0, 1], "--slow", 1, "--steps", 100, "--gate", 95)
    until(lambda: job.gang.members == [0, 2], "slot 2 has taken over from slot 1")
    assert job.attempt.record.gpus == [0, 1]
    until(lambda: job.causes() == ["rank 1 lagged behind and was replaced"], "it is told")
    job.opens(95)
    assert not differences(outcome(job.succeeds()), reference("--steps", 100))


def test_an_error_in_one_rank_ends_the_job_with_that_error(launch):
    job = launch([0, 1], "--raise-in", 1)
    ended = job.ends()
    told = f"rank 1 failed: see `rota logs {job.attempt.job_id} --rank 1`"
    assert (ended["exit_code"], ended["message"]) == (1, told)
    assert job.attempt.record.failed == 1
    assert "ValueError: this shard is rotten" in (job.attempt.folder / "rank1.log").read_text()


def test_a_forward_that_leaves_parameters_out_is_an_error_with_torchs_own_reduction(launch):
    job = launch([0, 1], "--model", "uneven", "--reduction", "ddp", group_timeout_s=60)
    assert job.ends()["exit_code"] == 1
    assert "of 6 parameters (" in job.logs()
    assert "never.weight" in job.logs()
    assert "use reduction='tree'" in job.logs()


def test_a_resize_in_a_validation_waits_for_its_end(launch, reference):
    job = launch([0, 1], "--gate", 3, "--gate-in", "evaluate")
    assert job.resizes_at(3, [0])["type"] == "done"
    assert not differences(outcome(job.succeeds()), reference())


def test_a_checkpoint_in_the_step_of_a_resize_is_whole_and_the_next_attempt_goes_on(
    launch, reference
):
    job = launch([0, 1], "--gate", 3, "--checkpoint-at", 3, "--stop-after", 6)
    assert job.resizes_at(3, [0, 1, 2])["type"] == "done"
    assert job.ends()["exit_code"] == 5
    again = launch([1], job_id=job.attempt.job_id, attempt=2)
    state = again.succeeds()
    assert state["plain"]["extra"]["trail"] == list(range(12))
    assert not differences(outcome(state), reference())
    assert min(min(batches) for batches in again.seen().values()) == 4


def test_sizes_that_the_job_can_not_have_are_refused_and_it_goes_on(launch, reference):
    job = launch([0, 1], "--shards", 2, "--gate", 3)
    job.until_at(3)
    until(lambda: job.attempt.shards is not None, "the agent has heard of its batches")
    until(lambda: job.attempt.cooperates, "all ranks are connected")
    for gpus, words in [
        ([0, 1, 2], "3 GPUs are not a size for this job: it takes 1 to 2"),
        ([], "0 GPUs are not a size"),
        ([2, 3], "a resize keeps at least one of the GPUs"),
        ([0, 0], "not a size"),
    ]:
        answer = job.agent.command("resize", gpus=gpus)
        assert answer["type"] == "failed"
        assert words in answer["error"]
    assert job.agent.command("resize", gpus=[0, 1])["type"] == "done"  # as it is
    job.opens(3)
    assert job.succeeds()["world"] == 2


def test_a_program_without_a_loader_is_not_resized(launch):
    job = launch([0], "--no-loader", "--gate", 1)
    job.until_at(1)
    until(lambda: job.attempt.cooperates, "all ranks are connected")
    answer = job.agent.command("resize", gpus=[0, 1])
    assert answer["type"] == "failed"
    assert "has no s.loader" in answer["error"]
    job.opens(1)
    assert job.ends()["exit_code"] == 0


def test_a_data_set_smaller_than_the_shards_is_an_error_that_says_so(launch):
    job = launch([0], "--samples", 3)
    assert job.ends()["exit_code"] == 1
    assert "the dataset has 3 samples" in job.logs()


def test_a_newcomer_that_fails_in_its_rehearsal_is_given_up_and_the_job_goes_on(launch, reference):
    job = launch([0], "--gate", 3, "--raise-in-rehearsal")
    answer = job.resizes_at(3, [0, 1])
    assert answer["type"] == "failed"
    assert "newcomer ended" in answer["error"]
    assert not differences(outcome(job.succeeds()), reference())


def test_a_suspension_calls_off_a_resize_that_has_not_begun_to_vote(launch, reference):
    job = launch([0, 1], "--gate", 3)
    job.until_at(3)
    resize = job.begins_resize([0, 1, 2])
    job.until_holding(resize)
    suspend = job.agent.begin("suspend")
    answer = job.answer(resize)
    assert (answer["type"], answer["error"]) == ("failed", "the job is to be suspended")
    job.opens(3)
    assert job.answer(suspend)["type"] == "done"
    refused = job.agent.command("resize", gpus=[0])
    assert refused["type"] == "failed"
    assert "is suspended, and can't be resized now" in refused["error"]
    assert job.agent.command("resume", gpus=[0, 1])["type"] == "done"
    assert not differences(outcome(job.succeeds()), reference())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("gpus", [[0, 1, 2], [0], [1, 2]], ids=["grow", "shrink", "move"])
def test_an_agent_that_is_lost_in_a_resize_leaves_a_job_that_goes_on(tmp_path, reference, gpus):
    """Lost when all have been told their places: some go there, or nobody does."""
    words = ("--steps", 240)
    with LoneAgent(tmp_path / "agent") as first:
        gates = ("--gate", 3, "--gate", 30, "--gate", 230)
        # The second agent loads torch anew, while a rank waits for the one that is at the gate.
        out, patience_s = tmp_path / "job", 60
        job = Job(
            *(first, out, [0, 1], *words, *gates),
            group_timeout_s=patience_s,
            form_timeout_s=patience_s,
        )
        job.until_at(3)
        hosting = job.gang.hosting

        def host_and_vanish(*arguments):
            hosting(*arguments)
            first.vanish()

        job.gang.hosting = host_and_vanish
        number = job.begins_resize(gpus)
        job.until_holding(number)
        job.opens(3)
        first.join()
    with LoneAgent(tmp_path / "agent") as second:
        until(lambda: second._agent.attempts, "the job is adopted")
        job.agent, job.attempt = second, second.attempt
        job.until_at(30)
        job.opens(30)  # ranks look for a new agent at boundaries
        job.until_at(230)
        until(lambda: job.attempt.state == "running", "the agent knows all of it")
        assert not job.gang.busy
        new = job.begins_resize([job.attempt.record.gpus[0], 3])
        job.until_holding(new)
        job.opens(230)
        answer = job.answer(new)
        assert answer["type"] == "done", f"{answer}\n{job.logs()}"
        assert not differences(outcome(job.succeeds()), reference(*words))


@pytest.mark.parametrize("loop", ["steps", "epochs"])
def test_a_rank_that_left_stands_by_and_is_the_first_to_come_back(launch, reference, loop):
    words = ("--loop", loop, "--steps", 15)
    job = launch([0, 1], *words, "--gate", 2, "--gate", 6, "--gate", 8, "--gate", 12)
    assert job.resizes_at(2, [0])["type"] == "done"
    job.until_ready(1)
    assert job.resizes_at(6, [0, 2])["type"] == "done"  # in another epoch, on another device
    assert job.gang.members == [0, 1]
    assert job.resizes_at(8, [2])["type"] == "done"  # who came back has the state
    job.until_ready(0)
    assert job.resizes_at(12, [2, 0, 1])["type"] == "done"
    assert job.gang.members == [1, 0, 2]
    assert len(job.attempt.ranks) == 3
    assert not differences(outcome(job.succeeds()), reference(*words))


def test_ranks_that_stand_by_may_be_lost_frozen_or_left_over(launch, reference):
    job = launch([0, 1, 2], "--gate", 2, "--gate", 6)
    assert job.resizes_at(2, [0])["type"] == "done"
    job.until_ready(1)
    job.until_ready(2)
    job.attempt.ranks[1].signal(signal.SIGKILL)
    until(lambda: not job.attempt.ranks[1].alive, "it is dead")
    job.attempt.ranks[2].signal(signal.SIGSTOP)
    assert job.resizes_at(6, [0, 1])["type"] == "done"
    assert job.gang.members == [0, 2]
    assert not differences(outcome(job.succeeds()), reference())


def test_a_job_that_ends_takes_those_who_stand_by_with_it(launch):
    job = launch([0, 1], "--gate", 2)
    assert job.resizes_at(2, [0])["type"] == "done"
    job.succeeds()
    assert not any(rank.alive for rank in job.attempt.ranks)


def test_a_rank_that_is_lost_while_the_job_is_being_suspended_is_done_without(launch, reference):
    job = launch([0, 1, 2], "--gate", 3)
    job.until_at(3)
    suspend = job.agent.begin("suspend")
    job.agent.heeded()
    job.attempt.ranks[1].signal(signal.SIGKILL)
    job.opens(3)
    assert job.answer(suspend)["type"] == "done"
    assert job.gang.members == [0, 2]
    assert job.attempt.record.suspension == "boundary"
    assert job.agent.command("resume", gpus=[0, 2])["type"] == "done"
    assert not differences(outcome(job.succeeds()), reference())


def test_ranks_stand_by_while_the_job_is_suspended(launch, reference):
    job = launch([0, 1], "--gate", 2, "--gate", 5, "--gate", 8)
    assert job.resizes_at(2, [0])["type"] == "done"
    job.until_ready(1)
    job.until_at(5)
    suspend = job.agent.begin("suspend")
    job.agent.heeded()
    job.opens(5)
    assert job.answer(suspend)["type"] == "done"
    assert job.agent.command("resume", gpus=[3])["type"] == "done"
    assert job.resizes_at(8, [3, 1])["type"] == "done"
    assert job.gang.members == [0, 1]
    assert not differences(outcome(job.succeeds()), reference())


def test_who_was_to_come_back_is_still_there_after_a_resize_that_was_called_off(launch, reference):
    job = launch([0, 1], "--gate", 2, "--gate", 5, "--gate", 8)
    assert job.resizes_at(2, [0])["type"] == "done"
    job.until_ready(1)
    job.until_at(5)
    resize = job.begins_resize([0, 1, 2])
    job.until_holding(resize)
    suspend = job.agent.begin("suspend")
    assert job.answer(resize)["type"] == "failed"
    job.opens(5)
    assert job.answer(suspend)["type"] == "done"
    assert job.agent.command("resume", gpus=[0])["type"] == "done"
    assert job.resizes_at(8, [0, 1])["type"] == "done"
    assert job.gang.members == [0, 1]
    assert len(job.attempt.ranks) == 3
    assert not differences(outcome(job.succeeds()), reference())


def test_a_rank_that_is_lost_in_a_suspension_is_done_without_afterwards(launch, reference):
    job = launch([0, 1], "--gate", 3)
    job.until_at(3)
    suspend = job.agent.begin("suspend")
    job.agent.heeded()
    job.opens(3)
    assert job.answer(suspend)["type"] == "done"
    job.attempt.ranks[0].signal(signal.SIGKILL)
    until(lambda: not job.attempt.ranks[0].alive, "it is dead")
    assert job.agent.command("resume", gpus=[0, 1])["type"] == "done"
    assert not differences(outcome(job.succeeds()), reference())
    assert job.attempt.record.gpus == [1]
