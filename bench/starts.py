"""The time from a job's launch to its end, by the way in which its program is started.

    python bench/starts.py [--times 5]

Each program runs plainly (`python SCRIPT`), as a job that is executed (`start: fresh`), and as one
that is forked from a process that has torch loaded (`start: warm`), in turns. Printed as median
with minimum and maximum in milliseconds, and as ratios of medians to the plain run. Then come a
suspended training whose process was given up, from its resumption until it trains, and the trials
of a search, one after another; each executed and forked.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from _agent import LoneAgent

PROGRAMS = {
    "prints a line": "print(1)\n",
    "imports torch": "import torch; print(torch.rand(1))\n",
    "takes a step": "import torch\nmodel = torch.nn.Linear(9, 9)\n"
    "optimizer = torch.optim.AdamW(model.parameters())\n"
    "model(torch.rand(3, 9)).sum().backward(); optimizer.step()\n",
}
TRAINING = """
import sys, torch, rota.train
with rota.train.session() as s:
    model = torch.nn.Linear(9, 9)
    model, optimizer = s.prepare(model, torch.optim.AdamW(model.parameters()))
    for step in s.steps():
        model(torch.rand(3, 9, device=s.device)).sum().backward()
        optimizer.step(); optimizer.zero_grad()
        s.report(loss=0.0, samples=3)
"""
TRIALS = 8
STARTS = ("fresh", "warm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as name:
        folder = Path(name)
        with LoneAgent(folder / "agent", 1) as agent:
            (folder / "warm.py").write_text("")
            ran_s(agent, folder / "warm.py", "warm")  # the process with torch is there from now on
            print(f"{'a program that':>16}{'plain':>22}{'fresh':>22}{'warm':>22}{'ratios':>14}")
            for what, source in PROGRAMS.items():
                tell_starts(agent, folder, what, source, options.times)
            for start in STARTS:
                print(f"resumed, {start}: {shown(resumed_s(agent, folder, start, options.times))}")
            for start in STARTS:
                script = folder / "program.py"
                script.write_text(PROGRAMS["takes a step"])
                took_s = [ran_s(agent, script, start) for _ in range(TRIALS)]
                print(f"{TRIALS} trials, {start}: {sum(took_s):.2f} s")


def tell_starts(agent: LoneAgent, folder: Path, what: str, source: str, times: int) -> None:
    """Print the line of one program."""
    script = folder / "program.py"
    script.write_text(source)
    took_s: dict[str, list[float]] = {"plain": [], "fresh": [], "warm": []}
    for _ in range(times):
        began_s = time.perf_counter()
        subprocess.run([sys.executable, script], stdout=subprocess.DEVNULL, check=True)
        took_s["plain"].append(time.perf_counter() - began_s)
        for start in STARTS:
            took_s[start].append(ran_s(agent, script, start))
    plain = median(took_s["plain"])
    ratios = " ".join(f"{median(took_s[start]) / plain:.2f}" for start in STARTS)
    columns = "".join(f"{shown(each):>22}" for each in took_s.values())
    print(f"{what:>16}{columns}{ratios:>14}", flush=True)


def ran_s(agent: LoneAgent, script: Path, start: str) -> float:
    """Run a script as a job to its end; the seconds from its launch."""
    before, began_s = len(agent.said), time.perf_counter()
    agent.launch(f"python {script}", [0], 1, start=start)
    job = agent.attempt.job_id
    while not any(
        each["type"] == "ended" and each["job_id"] == job for each in agent.said[before:]
    ):
        time.sleep(0.001)
    return time.perf_counter() - began_s


def resumed_s(agent: LoneAgent, folder: Path, start: str, times: int) -> list[float]:
    """Seconds from the command to resume a training without a process until it trains."""
    script = folder / "training.py"
    script.write_text(TRAINING)
    agent.launch(f"python {script}", [0], 1, start=start)
    took_s = []
    for _ in range(times):
        agent.await_step(agent.attempt.progress.get("step", 0) + 3)
        away = agent.command("suspend", vacate=True, timeout_s=600)
        assert away["kept"] is None, away
        began_s = time.perf_counter()
        agent.command("resume", gpus=[0], timeout_s=600)
        took_s.append(time.perf_counter() - began_s)
    job = agent.attempt.job_id
    agent.begin("stop")
    agent.await_(lambda each: each["type"] == "ended" and each["job_id"] == job)
    return took_s


def shown(took_s: Sequence[float]) -> str:
    """Median, minimum and maximum in milliseconds."""
    low, middle, high = min(took_s), median(took_s), max(took_s)
    return f"{1e3 * middle:.0f} ({1e3 * low:.0f}, {1e3 * high:.0f})"


if __name__ == "__main__":
    main()
