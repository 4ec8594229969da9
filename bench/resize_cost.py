"""What a change of size costs a training: the pause from the last step before to the first after.

    python bench/resize_cost.py [--millions 1 25] [--times 5]

Side by side, for models of so many million parameters with AdamW: Rota's resize of a running job
(1 to 2 ranks, and back), and what everybody else does, saving a checkpoint, ending the job and
starting it again with another number of ranks: in fresh interpreters, in processes forked from the
warm zygote, and by torch's own elastic launcher after it has lost a rank (it starts all workers
anew, at the same size; inf: not within a minute). The floor of growing is the time for the state
over the loopback interface, and for a new process group, both measured in the same run. Median,
with minimum and maximum.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median

import psutil
from _agent import LoneAgent

from rota.live.agent.launching import free_port

SCRIPT = """
import math, os, sys, time
import torch, rota.train
torch.set_num_threads(1)
width, steps_file = int(math.sqrt(float(sys.argv[1]) * 1e6 / 4)), sys.argv[2]
data = [torch.randn(width) for _ in range(64)]
with rota.train.session() as s:
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(4)))
    model, optimizer = s.prepare(model, torch.optim.AdamW(model.parameters()))
    s.loader(data, batch_size=8, shards=2)
    for step in s.steps():
        for x in s.next_batch():
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if s.rank == 0:
            with open(steps_file, "a") as file:
                file.write(f"{step} {s.world_size} {time.time()}\\n")
        if os.path.exists(steps_file + ".save"):
            s.checkpoint()
            if s.rank == 0:
                os.replace(steps_file + ".save", steps_file + ".saved")
"""
STATE_COPIES = 3  # parameters, and AdamW's two moments
DEADLINE_S = 60
USUAL_S: dict[tuple[float, int], float] = {}  # a step, by millions of parameters and ranks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 25])
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    print("pause in ms: median (minimum, maximum), and how many times Rota's growth;")
    print("then the same without the usual step that it ends with")
    for millions in options.millions:
        with tempfile.TemporaryDirectory(prefix="rota-bench-") as folder:
            measure(Path(folder), millions, options.times)


def measure(folder: Path, millions: float, times: int) -> None:
    """All ways, one after the other in each repeat, so that all see the same load."""
    (folder / "train.py").write_text(SCRIPT)
    ways: dict[str, Callable[[Path, float], float]] = {
        "Rota, 1 to 2 ranks": grow,
        "Rota, 2 to 1 ranks": shrink,
        "checkpoint, warm fork": restart_warm,
        "checkpoint, fresh process": restart_fresh,
        "torchrun, after a lost rank": restart_torchrun,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(times):
        for name, way in ways.items():
            place = folder / f"{number}{len(found[name])}{list(ways).index(name)}"
            place.mkdir()
            os.chdir(folder)
            found[name].append(way(place, millions) * 1e3)
    state_bytes = STATE_COPIES * millions * 4e6
    print(f"\n{millions:g} million parameters, state {state_bytes / 1e6:.0f} MB")
    ours = median(found["Rota, 1 to 2 ranks"])
    step = {ranks: USUAL_S[millions, ranks] * 1e3 for ranks in (1, 2)}
    for name, pauses in found.items():
        middle, usual = median(pauses), step[1 if name == "Rota, 2 to 1 ranks" else 2]
        print(
            f"  {name:30}{middle:9.0f} ({min(pauses):.0f}, {max(pauses):.0f}){middle / ours:10.1f}x"
            f"{middle - usual:9.0f}{(middle - usual) / (ours - step[2]):10.1f}x"
        )
    transfer_s, group_s = floor(state_bytes)
    print(f"  floor of growing: state over loopback {transfer_s * 1e3:.0f}", end="")
    print(f" + new process group {group_s * 1e3:.0f}")
    print(f"  a usual step: {step[1]:.0f} with 1 rank, {step[2]:.0f} with 2")


class Steps:
    """What rank 0 has written at each step: (step, ranks, seconds)."""

    def __init__(self, place: Path) -> None:
        self.path = place / "steps"

    def lines(self) -> list[tuple[int, int, float]]:
        """All whole lines so far."""
        text = self.path.read_text() if self.path.exists() else ""
        rows = [line.split() for line in text.split("\n")[:-1]]
        return [(int(step), int(ranks), float(at_s)) for step, ranks, at_s in rows]

    def wait(self, enough: Callable[[list[tuple[int, int, float]]], bool]) -> None:
        """Wait until the lines are enough. Raises TimeoutError."""
        deadline = time.monotonic() + DEADLINE_S
        while not enough(self.lines()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.path} stays at {self.lines()[-1:]}")
            time.sleep(0.01)

    def pause_s(self, ranks: int) -> float:
        """From the end of the last step before to that of the first one with so many ranks."""
        lines = self.lines()
        first = next(i for i, line in enumerate(lines) if i and line[1] == ranks != lines[i - 1][1])
        return lines[first][2] - lines[first - 1][2]

    def usual_s(self, ranks: int) -> float:
        """The median time of a step with so many ranks, without the first one."""
        lines = [line for line in self.lines() if line[1] == ranks]
        return median(after[2] - before[2] for before, after in pairwise(lines))


def grow(place: Path, millions: float) -> float:
    return _resize(place, millions, [0], [0, 1])


def shrink(place: Path, millions: float) -> float:
    return _resize(place, millions, [0, 1], [0])


def _resize(place: Path, millions: float, before: list[int], after: list[int]) -> float:
    steps = Steps(place)
    with LoneAgent(place / "agent", num_gpus=2) as agent:
        agent.launch(f"python train.py {millions} {steps.path}", before, 2)
        steps.wait(lambda lines: len(lines) > 5)
        agent.command("resize", gpus=after)
        steps.wait(lambda lines: sum(line[1] == len(after) for line in lines) > 5)
        USUAL_S[millions, len(after)] = steps.usual_s(len(after))
        return steps.pause_s(len(after))


def restart_warm(place: Path, millions: float) -> float:
    """Checkpoint, end, start anew by a fork of the zygote, which has torch loaded."""
    steps = Steps(place)
    with LoneAgent(place / "agent", num_gpus=2) as agent:
        run = f"python train.py {millions} {steps.path}"
        agent.launch(run, [0], 2)
        _save(steps)
        agent.attempt.kill()
        agent.await_(lambda message: message["type"] == "ended")
        agent.launch(run, [0, 1], 2, job_id=agent.attempt.job_id, attempt=2)
        steps.wait(lambda lines: any(line[1] == 2 for line in lines))
        return steps.pause_s(2)


def _save(steps: Steps) -> None:
    """Let the training write a checkpoint, and wait for it."""
    steps.wait(lambda lines: len(lines) > 5)
    Path(f"{steps.path}.save").touch()
    steps.wait(lambda _: Path(f"{steps.path}.saved").exists())


def restart_fresh(place: Path, millions: float) -> float:
    """Checkpoint, end, start anew in fresh interpreters."""
    steps = Steps(place)
    first = _start(steps, place, millions, 1)
    _save(steps)
    _kill(first)
    second = _start(steps, place, millions, 2)
    steps.wait(lambda lines: any(line[1] == 2 for line in lines))
    _kill(second)
    return steps.pause_s(2)


def _start(steps: Steps, place: Path, millions: float, ranks: int) -> list[subprocess.Popen[bytes]]:
    shared = os.environ | {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(free_port()), "ROTA_CHECKPOINT_DIR": str(place)}
    command = [sys.executable, "train.py", str(millions), str(steps.path)]
    return [
        subprocess.Popen(command, env=shared | {"RANK": str(rank)}, stderr=subprocess.DEVNULL)
        for rank in range(ranks)
    ]


def _kill(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def restart_torchrun(place: Path, millions: float) -> float:
    """torch's elastic launcher starts all workers anew after one is killed."""
    steps = Steps(place)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["--max-restarts=1", "--monitor-interval=0.1", "train.py"]
    command += [str(millions), str(steps.path)]
    environment = os.environ | {"ROTA_CHECKPOINT_DIR": str(place), "OMP_NUM_THREADS": "1"}
    # Without this, workers that are started again read the addresses of those before them:
    # https://github.com/pytorch/pytorch/issues/135712
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    launcher = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _save(steps)
    workers = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    killed_s = time.time()
    os.kill(int(workers[-1]), signal.SIGKILL)
    with contextlib.suppress(TimeoutError):  # it may not come back
        steps.wait(lambda lines: lines[-1][2] > killed_s + 1)
    for process in [*psutil.Process(launcher.pid).children(recursive=True), launcher]:
        process.kill()  # its workers have sessions of their own
    launcher.wait()
    pauses = [b[2] - a[2] for a, b in pairwise(steps.lines()) if b[2] > killed_s]
    return max(pauses, default=inf)


def floor(state_bytes: float) -> tuple[float, float]:
    """Seconds to bring so many bytes to another process, and to make a process group."""
    script = (
        "import sys, time, torch, torch.distributed as dist\n"
        "torch.set_num_threads(1)\n"
        "dist.init_process_group('gloo')\n"
        "dist.barrier(); began = time.perf_counter(); dist.new_group()\n"
        "made = time.perf_counter() - began\n"
        "data = torch.ones(int(float(sys.argv[1])), dtype=torch.uint8)\n"
        "times = []\n"
        "for _ in range(5):\n"
        "    dist.barrier(); began = time.perf_counter()\n"
        "    dist.send(data, 1) if dist.get_rank() == 0 else dist.recv(data, 0)\n"
        "    dist.barrier(); times.append(time.perf_counter() - began)\n"
        "    dist.destroy_process_group() if len(times) == 5 else None\n"
        "print(min(times), made) if sys.argv[2] == '0' else None\n"
    )
    shared = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(state_bytes), str(rank)],
            env=shared | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]
    transfer_s, group_s = map(float, ranks[0].communicate()[0].split())
    ranks[1].wait()
    return transfer_s, group_s


if __name__ == "__main__":
    main()
