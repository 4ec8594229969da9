"""``rota doctor``: what this machine offers to jobs, and whether a job can be suspended on it."""

import os
import platform
import resource
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import click

from rota import __version__
from rota.cli.table import render
from rota.cli.text import size_text
from rota.errors import RotaError, pip_install
from rota.folder import HOST_MEMORY, Folder
from rota.report.text import printable

if TYPE_CHECKING:
    from rota.client.client import Client

OK, NOTE, WARNING, FAILS = "ok", "-", "warning", "fails"
LEAST_FILES = 4096  # open files of a cluster with a few hundred jobs
CLOCKS_APART_S = 5.0  # of this machine and of what keeps the state folder
TIMES, TRIAL_S = 5, 180.0
POLL_S = 0.001
MOUNTS = Path("/proc/mounts")
SCRIPT = """\
import torch
import rota.train
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters())
with rota.train.session() as s:
    model, optimizer = s.prepare(model, optimizer)
    for _ in s.steps(1_000_000):
        loss = model(torch.randn(8, 512, device=s.device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        s.report(loss=loss.item(), samples=8)
"""
MODEL_BYTES = 4 * 4 * 512 * 513 * 3  # parameters and both moments, 4 bytes each


class Finding(NamedTuple):
    """The object that was checked, a verdict (OK, NOTE, WARNING or FAILS), and a sentence."""

    what: str
    verdict: str
    text: str


@click.command()
@click.option("--quick", is_flag=True, help="Leave out the cluster and the job that are tried.")
def doctor(quick: bool) -> int:
    """Look at this machine: devices, memory, limits; then suspend and resume a small training.

    The training runs on a cluster of its own, in a folder that is removed. The exit code is 1 if
    something fails.
    """
    found = list(findings(Folder()))
    if not quick:
        click.echo("a cluster is started, and a small training suspended...", err=True)
        found.append(tried_suspension())
    rows = [[each.what, each.verdict, printable(each.text)] for each in found]
    click.echo(render(("CHECK", "", "FOUND"), rows, text_columns=3))
    return int(any(each.verdict == FAILS for each in found))


def findings(folder: Folder) -> Iterator[Finding]:
    """Findings that need no process to be started."""
    yield _software()
    yield from _devices()
    yield host_memory(HOST_MEMORY)
    yield _ports()
    yield clock(folder.path)
    yield held_cores(*_tried_groups())
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield state_folder(folder.path)


def _software() -> Finding:
    try:
        torch = f"torch {version('torch')}"
    except PackageNotFoundError:
        torch = f"no torch: {pip_install('train')} for jobs that use rota.train"
    return Finding(
        "software", OK, f"Python {platform.python_version()}, Rota {__version__}, {torch}"
    )


def _devices() -> Iterator[Finding]:
    from rota.live.agent.cuda_checkpoint import Checkpoints, NvidiaDriver, driver_version
    from rota.live.agent.devices import discover

    devices = discover(None)
    if devices.kind == "cpu":
        yield Finding("devices", NOTE, f"no NVIDIA GPU; {devices.num_gpus} slots, one per core")
        return
    ids = ", ".join(devices.ids)
    memory = f"{devices.memory_gb:.0f} GB each" if devices.memory_gb else "of unknown memory"
    yield Finding("devices", OK, f"{devices.num_gpus} GPUs ({ids}), {memory}")
    yield Finding("driver", OK, f"NVIDIA {driver_version()}")
    refusal = Checkpoints(NvidiaDriver(), devices.ids).refusal
    if refusal is None:
        yield Finding("CUDA checkpoints", OK, "commands without rota.train can give their GPU up")
        return
    kept = "commands without rota.train keep their GPU until they end; see docs/start/gpu.md"
    yield Finding("CUDA checkpoints", WARNING, f"{refusal}: {kept}")


def host_memory(path: Path) -> Finding:
    """Host memory for the state of suspended jobs."""
    what = "host memory"
    if not os.access(path, os.W_OK):
        text = f"{path} can't be written: suspended jobs keep their processes, or go to the disk"
        return Finding(what, WARNING, text)
    free = shutil.disk_usage(path).free
    return Finding(what, OK, f"{size_text(free)} free in {path}, for the state of suspended jobs")


def _ports() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)):
            return Finding("ports", OK, "the loopback interface can be listened on")
    except OSError as error:
        return Finding("ports", FAILS, f"127.0.0.1 can't be listened on: {error.strerror}")


def clock(path: Path) -> Finding:
    """Warns if other machines see the state folder: its times are those of one machine."""
    there = next(each for each in (path, *path.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
            file.flush()
            ahead_s = os.fstat(file.fileno()).st_mtime - time.time()
    except OSError as error:
        return Finding("clock", FAILS, f"{there} can't be written: {error.strerror}")
    if abs(ahead_s) > CLOCKS_APART_S:
        text = f"files in {there} are {ahead_s:+.0f} s off this machine's clock; set one of the two"
        return Finding("clock", WARNING, text)
    return Finding("clock", OK, "it agrees with that of the state folder")


def _tried_groups() -> tuple[str, list[str]]:
    """The control groups that hold a process when tried, if any, and what is against others."""
    from rota.live.agent.cpu_groups import find

    groups, reasons = find(f"doctor-{os.getpid()}", lambda: [os.getpid()])
    return (groups.name if groups is not None else ""), reasons


def held_cores(works: str, reasons: Sequence[str]) -> Finding:
    """The means that hold jobs to their CPU cores."""
    if works:
        return Finding("CPU cores", OK, f"{works} holds jobs to any part of a core")
    text = f"affinity holds jobs to whole cores ({'; '.join(reasons)}); see docs/reference/cpus.md"
    return Finding("CPU cores", NOTE, text)


def open_files(most: int) -> Finding:
    """The hard limit on open files of a process."""
    if most != resource.RLIM_INFINITY and most < LEAST_FILES:
        text = f"a process may open {most}; raise the hard limit (ulimit -Hn) to {LEAST_FILES}"
        return Finding("open files", WARNING, text)
    known = "any number" if most == resource.RLIM_INFINITY else f"up to {most}"
    return Finding("open files", OK, f"a process may open {known}")


def state_folder(path: Path, mounts: Path = MOUNTS) -> Finding:
    """The file system of the event log, and its free space."""
    there = next(each for each in (path, *path.parents) if each.exists())
    kind = _filesystem(there, mounts)
    free = size_text(shutil.disk_usage(there).free)
    if kind.startswith(("nfs", "cifs", "smb", "lustre", "fuse.sshfs")):
        text = f"{path} is on {kind}, where the event log may be damaged; name a local --home"
        return Finding("state folder", WARNING, text)
    return Finding(
        "state folder", OK, f"{path}, on {kind or 'an unknown file system'}, {free} free"
    )


def _filesystem(path: Path, mounts: Path) -> str:
    """The kind of file system on which a folder is; empty if that is not known."""
    best, kind = "", ""
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        _, point, what, *_ = line.split()
        if Path(os.path.realpath(path)).is_relative_to(point) and len(point) >= len(best):
            best, kind = point, what
    return kind


def tried_suspension() -> Finding:
    """A training on a cluster of its own, suspended and resumed some times."""
    from rota.experiment.runs.live import cluster

    what = "suspend, resume"
    if find_spec("torch") is None:
        return Finding(what, NOTE, "left out: there is no torch")
    with tempfile.TemporaryDirectory(prefix="rota-doctor-") as folder:
        (Path(folder) / "train.py").write_text(SCRIPT)
        try:
            with cluster(Path(folder) / "home", gpus=1, policy="fifo") as client:
                away, back = _suspensions(client, Path(folder))
        except (RotaError, TimeoutError) as error:
            return Finding(what, FAILS, str(error))
    took = f"suspended after {_figures(away)}, went on after {_figures(back)}"
    return Finding(what, OK, f"{took}; {TIMES} times, {size_text(MODEL_BYTES)} of state")


def _suspensions(client: "Client", folder: Path) -> tuple[list[float], list[float]]:
    """Seconds from asking to each suspension, and to each continuation."""
    run = shlex.join([sys.executable, "train.py"])
    job_id = client.submit({"name": "trial", "run": run, "workdir": str(folder)})["id"]
    away, back = list[float](), list[float]()

    def until(true: Callable[[dict[str, object]], bool]) -> float:
        began_s = time.monotonic()
        while not true(told := client.job(job_id)):
            if told["state"] in ("FAILED", "LOST") or time.monotonic() - began_s > TRIAL_S:
                words = "".join(client.logs(job_id, tail=5)).strip() or told["message"]
                raise TimeoutError(f"the training is {told['state']}; its last words: {words}")
            time.sleep(POLL_S)
        return time.monotonic() - began_s

    until(lambda told: told["suspension"] == "BOUNDARY")
    for _ in range(TIMES):
        client.suspend(job_id)
        away.append(until(lambda told: told["state"] == "SUSPENDED"))
        client.resume(job_id)
        back.append(until(lambda told: told["state"] == "RUNNING"))
    client.cancel(job_id)
    return away, back


def _figures(seconds: list[float]) -> str:
    """``12 ms (8 to 20)``: the median and the extremes."""
    least, most = 1e3 * min(seconds), 1e3 * max(seconds)
    return f"{1e3 * median(seconds):.0f} ms ({least:.0f} to {most:.0f})"
