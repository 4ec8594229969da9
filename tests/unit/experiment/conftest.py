"""Invented data in the form of Pollux' simulator, small enough to simulate in no time."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

BATCHES = (128, 256, 512, 1024, 2048)
SIZES = (128, 181, 256, 362, 512)  # so that the largest batch is shared among 16 GPUs at most
EPOCHS = 4


def compute_s(size: int) -> float:
    return 0.02 + 0.001 * size


def exchange_s(gpus: int, nodes: int) -> float:
    """As the model has it, without any overlap with computing."""
    if gpus == 1:
        return 0.0
    return (0.05 if nodes == 1 else 0.2) + (0.002 if nodes == 1 else 0.01) * max(0, gpus - 2)


def placements() -> list[str]:
    """All ways to lay up to four GPUs on each of up to four nodes, turned so as to come first."""
    found = set()
    for nodes in (1, 2, 3, 4):
        for digits in product("1234", repeat=nodes):
            found.add(min("".join(digits[at:] + digits[:at]) for at in range(nodes)))
    return sorted(found)


def write_profile(folder: Path, steps: float = 100.0) -> None:
    """A profile whose steps and gains are those of the model, each epoch of so many steps."""
    folder.mkdir(parents=True)
    lines = ["placement,local_bsz,step_time,sync_time"]
    for place, size in product(placements(), SIZES):
        gpus, nodes = sum(map(int, place)), len(place)
        sync_s = exchange_s(gpus, nodes)
        lines.append(f"{place},{size},{compute_s(size) + sync_s},{sync_s}")
    (folder / "placements.csv").write_text("\n".join(lines) + "\n")
    for batch in BATCHES:
        rows = ["progress,iteration,metric,grad_sqr,grad_var"]
        scale, progress, taken = batch / BATCHES[0], 0.0, 0.0
        for epoch in range(1, EPOCHS + 1):
            sqr, var = 1.0, 4.0 * epoch
            progress += steps
            taken += steps / ((var + sqr) / (var / scale + sqr))
            rows.append(f"{progress},{taken},0.5,{sqr},{var}")
        (folder / f"validation-{batch}.csv").write_text("\n".join(rows) + "\n")


@pytest.fixture(scope="session")
def pollux_data(tmp_path_factory) -> Path:
    """A folder with the profile of one application and four workloads of four jobs each."""
    data = tmp_path_factory.mktemp("data")
    write_profile(data / "pollux" / "profiles" / "cifar10")
    workloads = data / "pollux" / "workloads"
    workloads.mkdir()
    for number in (1, 2, 3, 4):
        rows = ["name,time,application,num_replicas,batch_size"]
        for job in range(4):
            gpus, batch = (1, 2, 4)[job % 3], (128, 256, 512, 1024)[job]
            rows.append(f"cifar10-{job},{45 * job + 10 * number},cifar10,{gpus},{batch}")
        (workloads / f"workload-{number}.csv").write_text("\n".join(rows) + "\n")
    return data


@pytest.fixture(scope="session", name="write_profile")
def _write_profile() -> Callable[..., None]:
    """Writes a profile of an application into a folder."""
    return write_profile
