"""Programs of Lightning and Hugging Face under a real agent, and plain ones under torchrun."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from support.lone_agent import LoneAgent

from .conftest import Cluster, until

SCRIPT = Path(__file__).parent / "scripts" / "integrations.py"
LIMIT_S = 100.0
FREE = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneAgent]:
    """An agent of two slots, for all tests of this module."""
    with LoneAgent(tmp_path_factory.mktemp("agent"), num_gpus=2) as agent:
        yield agent


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    """For what goes on beside the test."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """Makes the traces of a plain program that goes at least so many steps by itself."""
    known: dict[str, tuple[int, Path]] = {}

    def make(kind: str, steps: int) -> Path:
        if known.get(kind, (0, None))[0] < steps:
            folder = tmp_path_factory.mktemp(kind)
            known[kind] = (steps, alone(kind, folder, "--limit", steps))
        return known[kind][1]

    return make


def command(kind: str, out: Path, *more: object) -> list[str]:
    return ["python", str(SCRIPT), kind, "--out", str(out), *map(str, more)]


def alone(kind: str, out: Path, *more: object) -> Path:
    """Run the program without Rota, from beginning to end; the folder with its traces."""
    out.mkdir(exist_ok=True)
    (out / "go").touch()
    words = [sys.executable, *command(kind, out, *more)[1:]]
    done = subprocess.run(words, env=FREE, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def result(out: Path, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / f"rank{rank}.json").read_text())
    return found


def digests(out: Path) -> dict[int, tuple[str, set[int]]]:
    """By step: the digest of the weights, equal on all ranks, and the sizes seen by the ranks."""
    found: dict[int, tuple[str, set[int]]] = {}
    for file in out.glob("digests*"):
        for line in file.read_text().splitlines():
            step, digest, size = line.split()
            known, sizes = found.setdefault(int(step), (digest, set()))
            assert known == digest, f"the ranks differ after step {step}"
            sizes.add(int(size))
    return found


def same_steps(out: Path, other: Path) -> bool:
    """Whether the weights were the same, bit for bit, after every step that ``out`` has made."""
    seen, expected = digests(out), digests(other)
    return all(expected[step][0] == digest for step, (digest, _) in seen.items())


def ends(agent: LoneAgent, exit_code: int = 0) -> None:
    """Wait for the end of the latest attempt, with this exit code."""
    name = {"job_id": agent.attempt.job_id, "attempt": agent.attempt.number}
    ended = agent.await_(
        lambda m: m["type"] in ("ended", "lost") and name.items() <= m.items(), 100
    )
    logs = "".join(file.read_text() for file in agent.attempt.folder.glob("rank*.log"))
    assert ended.get("exit_code") == exit_code, f"{ended} {logs[-3000:]}"


def done(answer: dict[str, Any]) -> None:
    assert answer["type"] == "done", answer


def suspend_behind_the_gate(agent: LoneAgent, out: Path) -> list[int]:
    """Suspend the latest attempt, which waits in its sixth step; the steps at which ranks stop."""
    until((out / "at").exists, "it is in its sixth step", LIMIT_S)
    suspension = agent.begin("suspend")
    agent.heeded()
    (out / "go").touch()
    done(agent.answer(suspension))
    assert agent.attempt.record.suspension == "boundary"
    return [rank.suspended["step"] for rank in agent.attempt.members if rank.suspended]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("kind", "plainly"), [("fabric", "plain"), ("accelerate", "plain_gpt2")])
def test_a_loop_of_its_own_is_resized_and_gives_what_plain_torch_gives(
    agent: LoneAgent,
    reference: Callable[[str, int], Path],
    tmp_path: Path,
    kind: str,
    plainly: str,
) -> None:
    out = tmp_path / kind
    done(agent.launch(" ".join(command(kind, out)), [0], 2))
    agent.await_step(3)
    done(agent.command("resize", gpus=[0, 1]))
    agent.await_step(agent.attempt.progress["step"] + 3)
    done(agent.command("suspend"))
    done(agent.command("resume", gpus=[0, 1]))
    agent.await_step(agent.attempt.progress["step"] + 3)
    done(agent.command("resize", gpus=[1]))
    stop = agent.attempt.progress["step"] + 20
    (out / "stop").write_text(str(stop))
    ends(agent)
    seen = digests(out)
    assert set(seen) == set(range(stop))
    assert [size for _, size in (seen[2], seen[stop - 1])] == [{1}, {1}]
    assert {2} in [sizes for _, sizes in seen.values()]
    assert same_steps(out, reference(plainly, stop))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["lightning", "trainer"])
def test_a_trainer_is_suspended_and_goes_on_from_its_checkpoint_in_a_new_attempt(
    agent: LoneAgent, pool: ThreadPoolExecutor, tmp_path: Path, kind: str
) -> None:
    expected = pool.submit(alone, kind, tmp_path / "alone")
    out = tmp_path / kind
    run = " ".join(command(kind, out, "--die"))
    done(agent.launch(run, [0], 2))
    first = agent.attempt
    until((out / "at").exists, "it is in its sixth step", LIMIT_S)
    refused = agent.command("resize", gpus=[0, 1])
    assert refused["type"] == "failed"
    assert "no s.loader(...)" in refused["error"]
    assert suspend_behind_the_gate(agent, out) == [6]
    assert agent.attempt.progress["step"] == 6
    done(agent.command("resume", gpus=[1]))
    ends(agent, exit_code=3)
    program = first.record.program
    place = {"job_id": first.job_id, "attempt": 2, "gpus": [0], "max_gpus": 2}
    done(agent.command("launch", name="again", program=program, at_s=time.time(), **place))
    assert agent.attempt.number == 2
    ends(agent)
    assert result(out) == result(expected.result())
    reports = (agent.attempt.folder / "metrics.jsonl").read_text().splitlines()
    begun, ended = json.loads(reports[0]), json.loads(reports[-1])
    assert begun["step"] > 6, "it began at a checkpoint"
    assert (ended["step"], ended["total"], ended["samples"]) == (12, 12, 12 * 8)
    assert 0 < ended["loss"] < 10
    size = sum(value.numel() * 4 for value in torch.load(out / "weights.pt").values())
    assert 0.5 * size <= agent.attempt.record.model["model_bytes"] <= size


@pytest.mark.parametrize("kind", ["lightning", "trainer"])
def test_a_gang_of_a_trainer_is_suspended_at_one_step(
    agent: LoneAgent, tmp_path: Path, kind: str
) -> None:
    """At which one is the machine's choice: a rank that holds goes on for one that is slow."""
    out = tmp_path / kind
    done(agent.launch(" ".join(command(kind, out)), [0, 1], 2))
    first, second = suspend_behind_the_gate(agent, out)
    assert first == second >= 6
    done(agent.command("resume", gpus=[0, 1]))
    ends(agent)
    assert result(out)["world"] == 2
    assert result(out, 1)["digest"] == result(out)["digest"]


@pytest.mark.parametrize(
    ("launcher", "count"),
    [
        ("torchrun {script}", 2),
        ("python -m torch.distributed.run {script}", 2),
        ("accelerate launch --cpu --num_processes 1 {script}", 1),  # of GPUs, it has several
    ],
)
def test_a_launcher_is_started_once_and_finds_its_number_of_ranks(
    shared_cluster: Cluster, tmp_path: Path, launcher: str, count: int
) -> None:
    script = tmp_path / "script.py"
    line = "f'rank {os.environ.get(\"RANK\", 0)}\\n'.encode()"  # one write, which nothing divides
    script.write_text(f"import os; os.write(1, {line})\n")
    job = shared_cluster.submit(launcher.format(script=script), gpus=2)
    assert shared_cluster.ends(job)["state"] == "SUCCEEDED"
    lines = "".join(shared_cluster.client.logs(job)).splitlines()
    ranks = sorted(line for line in lines if line.startswith("rank "))
    assert ranks == [f"rank {rank}" for rank in range(count)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reduction", ["tree", "ddp"])
def test_torchrun_starts_two_ranks_that_train_together(
    reference: Callable[[str, int], Path], tmp_path: Path, reduction: str
) -> None:
    out = tmp_path / "pair"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    more = ("--limit", 12, "--reduction", reduction)
    words = [*launcher, "--nproc-per-node", "2", *command("plain", out, *more)[1:]]
    ran = subprocess.run(words, env=FREE, capture_output=True, text=True, timeout=LIMIT_S)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert result(out)["world"] == 2
    assert result(out, 1)["digest"] == result(out)["digest"]
    if reduction == "tree":  # torch's own sums differ in their last bits
        assert same_steps(out, reference("plain", 12))
