"""What a node has to offer: NVIDIA GPUs, or one device slot per CPU core."""

import os
from typing import NamedTuple


class Devices(NamedTuple):
    """The devices of a node. Slots of kind ``cpu`` stand for one core each."""

    kind: str  # "cuda" or "cpu"
    num_gpus: int
    cores: tuple[int, ...] = ()  # core of each slot, for kind "cpu"

    def cores_of(self, gpus: list[int]) -> list[int]:
        """The cores to bind a job to that holds these slots; empty for no binding."""
        return [self.cores[index] for index in gpus] if self.kind == "cpu" else []


def discover(limit: int | None) -> Devices:
    """The GPUs that NVML finds, or a slot per core that this process may use.

    ``limit`` is how many to offer (None: all). Without GPUs it may exceed the cores, which are then
    shared in turn.
    """
    found = count_gpus()
    if found:
        return Devices("cuda", min(found, limit or found))
    cores = sorted(os.sched_getaffinity(0))
    count = limit or len(cores)
    return Devices("cpu", count, tuple(cores[i % len(cores)] for i in range(count)))


def count_gpus() -> int:
    """How many NVIDIA GPUs the driver manages; 0 without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()
