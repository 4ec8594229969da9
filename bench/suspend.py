"""What suspension and resumption cost, by the size of the model, beside a checkpoint.

    python bench/suspend.py [--millions 1 25 100] [--times 5]

A training is suspended and resumed by a live agent, in place (the process waits) and vacated (its
state goes into an arena in host memory, the process ends, another one is forked and adopts it);
and, in the same run, saved by torch.save to host memory and loaded by a fresh process. Printed as
median with minimum and maximum, in milliseconds: from the step boundary until all is put away and
what is to end has ended; from the resume command until training goes on; and until the first step
after it is done. The first time, which makes the memory that the others use again, is listed by
itself. The last table has ratios: torch.save and a fresh process to the vacated job.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from _agent import LoneAgent

TRAINING = """
import math, os, sys, time, torch, rota.train
torch.set_num_threads(1)
width = int(math.sqrt(float(sys.argv[1]) * 1e6 / 4))
saved = sys.argv[3] if len(sys.argv) > 3 else None

def tell(what):
    with open(sys.argv[2], "a") as file:
        print(what, time.time(), file=file)

with rota.train.session() as s:
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(4)))
    model, optimizer = s.prepare(model, torch.optim.AdamW(model.parameters()))
    if saved and os.path.exists(saved):
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        tell("loaded")
    for step in s.steps():
        optimizer.zero_grad()
        loss = model(torch.randn(8, width, device=s.device)).square().mean()
        loss.backward()
        optimizer.step()
        s.report(loss=loss.item(), samples=8)
        tell("step")
        if saved and step == 2:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state["random"] = torch.get_rng_state()
            torch.save(state, saved + ".new")
            os.replace(saved + ".new", saved)
            os._exit(0)
"""
STEPS_BETWEEN = 3
WAYS = ("in place", "vacated", "torch.save")


class Times(NamedTuple):
    """One suspension and resumption, in seconds."""

    suspend_s: float
    resume_s: float
    first_step_s: float  # from the resume command
    num_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 25, 100])
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    print(f"{'parameters':>12}{'way':>12}{'GB':>7}{'first, ms':>22}", end="")
    for name in ("suspend", "resume", "first step"):
        print(f"{name + ', ms (min, max)':>30}", end="")
    print()
    ratios = []
    for millions in options.millions:
        with tempfile.TemporaryDirectory(prefix="rota-bench-") as folder:
            ratios.append((millions, measure(Path(folder), millions, options.times)))
    print("\ntorch.save and a fresh process, in times of a vacated job")
    for millions, (suspend, resume, first_step) in ratios:
        print(
            f"{millions:>10g} M: suspend {suspend:.1f}, resume {resume:.1f}, "
            f"until the first step is done {first_step:.1f}"
        )


def measure(folder: Path, millions: float, times: int) -> list[float]:
    """Print the lines of one size; the ratios of medians, torch.save over vacated."""
    (folder / "train.py").write_text(TRAINING)
    found = {}
    with LoneAgent(folder / "agent", 1) as agent:
        for way in WAYS[:2]:
            found[way] = suspended(agent, folder, millions, times, vacate=way == "vacated")
    found["torch.save"] = [saved(folder, millions) for _ in range(times + 1)]
    medians = {}
    for way, (first, *others) in found.items():
        columns = list(zip(*others, strict=True))
        medians[way] = [median(column) for column in columns[:3]]
        first_ms = " + ".join(f"{1e3 * seconds:.0f}" for seconds in first[:2])
        print(
            f"{millions:>10g} M{way:>12}{first.num_bytes / 1e9:>7.2f}{first_ms:>22}"
            + "".join(f"{spread(column):>30}" for column in columns[:3]),
            flush=True,
        )
    return [
        slow / fast for slow, fast in zip(medians["torch.save"], medians["vacated"], strict=True)
    ]


def suspended(
    agent: LoneAgent, folder: Path, millions: float, times: int, *, vacate: bool
) -> list[Times]:
    """A training that the agent suspends and resumes."""
    told = folder / f"told{vacate}"
    agent.launch(f"python {folder}/train.py {millions} {told}", [0], 1)
    job_id, found = agent.attempt.job_id, []
    for _ in range(times + 1):
        lines_of(told, "step", len(lines_of(told, "step")) + STEPS_BETWEEN)
        away = agent.command("suspend", vacate=vacate, timeout_s=600)
        assert not vacate or away["kept"] is None, away
        state_bytes = away["vacated"]["bytes"] if vacate else int(16e6 * millions)
        before = len(lines_of(told, "step"))
        resumed_s = time.time()
        back = agent.command("resume", gpus=[0], timeout_s=600)
        first_step_s = lines_of(told, "step", before + 1)[before] - resumed_s
        suspend_s = away["at_s"] - away["stopped_s"]
        found.append(Times(suspend_s, back["at_s"] - resumed_s, first_step_s, state_bytes))
    agent.begin("stop")
    agent.await_(lambda message: message["type"] == "ended" and message["job_id"] == job_id)
    return found


def saved(folder: Path, millions: float) -> Times:
    """A training that saves itself and ends, and a fresh process that goes on from there."""
    shm = tempfile.mkdtemp(prefix="rota-bench-", dir="/dev/shm")
    told, file = folder / "told", Path(shm, "state.pt")
    told.unlink(missing_ok=True)
    command = [sys.executable, folder / "train.py", str(millions), told, file]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ROTA_")}
    try:
        subprocess.run(command, check=True, env=environment | {"OMP_NUM_THREADS": "1"})
        suspend_s = time.time() - lines_of(told, "step")[2]
        resumed_s = time.time()
        process = subprocess.Popen(command, env=environment | {"OMP_NUM_THREADS": "1"})
        first_step_s = lines_of(told, "step", 4)[3] - resumed_s
        process.kill()
        process.wait()
        (loaded_s,) = lines_of(told, "loaded")
        return Times(suspend_s, loaded_s - resumed_s, first_step_s, file.stat().st_size)
    finally:
        for each in Path(shm).iterdir():
            each.unlink()
        os.rmdir(shm)


def lines_of(file: Path, what: str, at_least: int = 0) -> list[float]:
    """When the training said so; waits until it has said it often enough."""
    while True:
        text = file.read_text() if file.exists() else ""
        lines = [line.split() for line in text.splitlines(keepends=True) if line[-1] == "\n"]
        found = [float(at_s) for name, at_s in lines if name == what]
        if len(found) >= at_least:
            return found
        time.sleep(0.002)


def spread(seconds: tuple[float, ...]) -> str:
    """Median, minimum and maximum in milliseconds."""
    values = [1e3 * value for value in seconds]
    return f"{median(values):.1f} ({min(values):.1f}, {max(values):.1f})"


if __name__ == "__main__":
    main()
