"""Devices of a node: NVIDIA GPUs, or one slot per CPU core."""

import os
from typing import NamedTuple


class Devices(NamedTuple):
    """The devices of a node. Slots of kind ``cpu`` stand for one core each."""

    kind: str  # "cuda" or "cpu"
    num_gpus: int
    cores: tuple[int, ...] = ()  # core of each slot, for kind "cpu"
    ids: tuple[str, ...] = ()  # names of GPUs in CUDA_VISIBLE_DEVICES, for kind "cuda"
    gpu_type: str = ""  # the type given at the node's start, if any
    memory_gb: float = 0.0  # of the GPU that has least; 0 for kind "cpu", and if not known

    def cores_of(self, gpus: list[int]) -> list[int]:
        """The cores to bind a job to that holds these slots; empty for no binding."""
        return [self.cores[index] for index in gpus] if self.kind == "cpu" else []


def discover(limit: int | None, first: int = 0) -> Devices:
    """The GPUs that NVML finds, or a slot per core that this process may use, from ``first`` on.

    ``limit`` is how many to offer (None: all). Without GPUs it may exceed the cores, which are then
    shared in turn. GPUs that this process's own CUDA_VISIBLE_DEVICES hides are not offered.
    """
    found = offered_ids()
    if found:
        ids = found[first:][:limit]
        return Devices("cuda", len(ids), ids=ids, memory_gb=least_memory_gb(ids))
    cores = sorted(os.sched_getaffinity(0))
    count = limit or len(cores)
    return Devices("cpu", count, tuple(cores[(first + i) % len(cores)] for i in range(count)))


def offered_ids() -> tuple[str, ...]:
    """The ids of the GPUs that this process may use; none without a driver."""
    return visible_ids(count_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible_ids(found: int, setting: str | None) -> tuple[str, ...]:
    """The ids of the GPUs that may be used, of ``found`` ones and a CUDA_VISIBLE_DEVICES setting.

    As CUDA reads it: the list ends at the first entry that is no GPU, such as -1.
    """
    if setting is None or not found:
        return tuple(str(index) for index in range(found))
    ids = []
    for entry in (part.strip() for part in setting.split(",")):
        if not (entry.startswith(("GPU-", "MIG-")) or (entry.isdigit() and int(entry) < found)):
            break
        ids.append(entry)
    return tuple(ids)


def count_gpus() -> int:
    """Number of NVIDIA GPUs that the driver manages; 0 without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def least_memory_gb(ids: tuple[str, ...]) -> float:
    """Memory in GB of the GPU with the least, of those with these ids; 0 if NVML does not tell.

    Of a part of a GPU (MIG) too, if it goes by its UUID.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0.0
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(int(gpu))
            if gpu.isdigit()
            else pynvml.nvmlDeviceGetHandleByUUID(gpu)
            for gpu in ids
        ]
        memory = [int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles]
        return min(memory, default=0) / 1e9
    except pynvml.NVMLError:
        return 0.0
    finally:
        pynvml.nvmlShutdown()
