"""A job's use of GPUs and CPU while it has its GPUs to itself."""

from collections.abc import Iterable
from typing import NamedTuple

from rota.model.state.state import ClusterState

MEMORY_FRACTION = 0.9  # of a GPU's memory may be filled by several jobs; the rest is CUDA's own


class Usage(NamedTuple):
    """Part of the time in which a job's GPUs compute, GB of memory of each, and CPU cores in use.

    None where unknown.
    """

    gpu_util: float | None
    memory_gb: float | None
    cpu_cores: float | None = None


def fit_together(needs_gb: Iterable[float | None], has_gb: float) -> bool:
    """True if jobs of these needs fit into a GPU's memory together; False if one is not known."""
    total_gb = 0.0
    for need_gb in needs_gb:
        if need_gb is None:
            return False
        total_gb += need_gb
    return total_gb <= MEMORY_FRACTION * has_gb


def usage_of(state: ClusterState, row: int) -> Usage:
    """The job's resource use, as far as it is known.

    Measurements of the job itself come first, then those of its kind, then its last report, then
    its spec.
    """
    spec, told = state.spec[row], state.progress[row] or {}
    held, memory_gb, cores = state.held[row], None, None
    util = None if held is not None and held.shared else told.get("device_util")
    profiles = state.profiles
    for known in (
        () if profiles is None else (profiles.of_signature(state, row), profiles.of_job(row))
    ):
        if known is not None:
            util = util if known.device_util.mean is None else known.device_util.mean
            cores = cores if known.cpu_cores.mean is None else known.cpu_cores.mean
            if known.most_bytes is not None:
                memory_gb = known.most_bytes / 1e9
    return Usage(
        spec.gpu_util if util is None else util,
        spec.memory_gb if memory_gb is None else memory_gb,
        cores,
    )
