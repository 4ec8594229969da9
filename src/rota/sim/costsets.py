"""Named sets of command costs: for each job, by its size as far as it is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from rota.model.figure import rounded
from rota.model.job import JobSpec
from rota.sim.machine import FREE, Costs, restarts
from rota.workload.trace import COOPERATIVE, PLAIN, RESTART, SUSPENSIONS

if TYPE_CHECKING:
    from rota.workload.catalog import ModelProfile

RESTART_S = 30.0  # from a checkpoint, on average over Pollux' models (OSDI 2021, section 5)
COPY_BYTES_S = 10e9  # between a GPU and its host: of the 16 GB/s of PCIe 3.0, what copies reach
NETWORK_BYTES_S = 1.25e9  # between nodes: 10 Gbit/s
STATES = 3  # weights, and Adam's two moments of each
UNKNOWN_BYTES = 8e9  # the state of a job whose size nobody tells: of about 700 million parameters


@lru_cache(maxsize=4096)
def state_bytes(model: str, memory_gb: float | None) -> float:
    """Bytes of state on each of a job's GPUs: by its model, else at most its memory."""
    profile = _profile(model)
    if profile is not None and profile.size_mib:
        return STATES * profile.size_mib * 2**20
    return UNKNOWN_BYTES if memory_gb is None else memory_gb * 1e9


def cooperative(spec: JobSpec) -> Costs:
    """Costs of a job that uses ``rota.train``: its state moves to host memory, its processes stay.

    Costs that do not depend on its size are as measured with small models (:class:`Costs`).
    """
    return _cooperative(spec.model, spec.memory_gb)


@lru_cache(maxsize=4096)
def _cooperative(model: str, memory_gb: float | None) -> Costs:
    known, size = Costs(), state_bytes(model, memory_gb)
    copy_s = size / COPY_BYTES_S
    return Costs(
        suspend_s=known.suspend_s + copy_s,
        resume_s=known.resume_s + copy_s,
        migrate_s=known.migrate_s + size / NETWORK_BYTES_S,
        cold_start_s=_restart_s(model),
        resize_s=known.resize_s + copy_s,
        resize_pause_s=known.resize_pause_s + copy_s,
    )


def restart(spec: JobSpec) -> Costs:
    """Costs of a job whose processes end, and are started again from its own checkpoint."""
    return _restart(spec.model)


@lru_cache(maxsize=4096)
def _restart(model: str) -> Costs:
    return restarts(_restart_s(model))


def _restart_s(model: str) -> float:
    profile = _profile(model)
    return profile.restart_s if profile is not None and profile.restart_s else RESTART_S


def _profile(model: str) -> ModelProfile | None:
    """The catalog's profile of a model; None for an unknown or empty name."""
    if not model:
        return None
    from rota.workload.catalog import look_up  # here: many traces name no models

    return look_up(model)


def plain(spec: JobSpec) -> Costs:
    """Costs of a job that keeps its GPUs until it ends: none, as its run time has its start."""
    return FREE


def by_job(spec: JobSpec) -> Costs:
    """Costs of a job by how it is suspended."""
    return OF_SUSPENSION.get(spec.suspension, restart)(spec)


# By the words for how jobs are suspended.
SETS: dict[str, Callable[[JobSpec], Costs]] = {
    COOPERATIVE: cooperative,
    RESTART: restart,
    PLAIN: plain,
}
OF_SUSPENSION = {kind: SETS[word] for word, kind in SUSPENSIONS.items()}
BY_JOB = "by job"  # where jobs are suspended in several ways
UNKNOWN = JobSpec("", 1, 0.0)  # a job of which nothing is known


def costs_text(name: str, costs: Costs) -> str:
    """Clause that names the costs; ``name`` is the set they are from, "" for none.

    ``costs`` are those of a job whose size is not known.
    """
    if name == PLAIN:
        return (
            f"{name}: none, as jobs keep their GPUs until they end; so do commands that can't be "
            "suspended with their state"
        )
    if costs == FREE:
        return "none"
    if costs == restarts(costs.resume_s):
        told = f"{costs.resume_s:g} s without progress whenever a job gets GPUs, or others"
    else:
        told = ", ".join(
            f"{field.removesuffix('_s').replace('_', ' ')} {rounded(seconds)} s"
            for field, seconds in costs._asdict().items()
            if seconds
        )
    if name == COOPERATIVE:
        told += "; less or more by the size of models that are known"
    if name == BY_JOB:
        told += f"; less of jobs that are {COOPERATIVE}, and {PLAIN} ones stay until they end"
    return f"{name}: {told}" if name else told
