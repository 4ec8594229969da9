"""Chooses how a job without a session of ``rota.train`` is suspended, and gives the reason.

What it asks for counts as far as its node can do it. On CPU slots a stopped process frees its core.
On a GPU it does not free the memory that it has there: that takes a checkpoint of the CUDA state,
or the end of the process, which only a job can stand that goes on from a checkpoint of its own.
"""

from typing import Any, NamedTuple

from rota.model.job import GRACE_S

STOP, CHECKPOINT, RESTART = "stop", "cuda-checkpoint", "restart"
SUSPENSIONS = {STOP: "process", CHECKPOINT: "checkpoint", RESTART: "restart"}  # by method
STOP_GRACE_S = 5.0  # of a job that has not asked for a grace
STAYS = "its device memory stays in use, and it goes on on the same GPUs alone"


class Method(NamedTuple):
    """One of the three methods, and the reason for it: a clause for ``rota show``."""

    kind: str
    why: str


def grace_of(program: dict[str, Any]) -> float:
    """Seconds from SIGTERM to SIGKILL for a job with this program, for whatever reason it ends."""
    if program.get("suspend") != RESTART:
        return STOP_GRACE_S
    return float(program.get("grace_s", GRACE_S))


def choose(program: dict[str, Any], device_kind: str, num_gpus: int, refusal: str | None) -> Method:
    """The method for a job with this program on so many devices of a node, at most.

    ``refusal`` says why the node can't checkpoint CUDA processes; None if it can.
    """
    wish = program.get("suspend", "auto")
    if wish == RESTART:
        after = f"SIGKILL follows SIGTERM after {grace_of(program):g} s"
        return Method(RESTART, f"it asked for that; {after}")
    if wish == STOP:
        return Method(STOP, _asked_to_stop(device_kind))
    if device_kind == "cpu":
        if wish == CHECKPOINT:
            return Method(STOP, "it asked for cuda-checkpoint, but this node has no GPU")
        return Method(STOP, "on a slot that frees its core")
    if num_gpus > 1:
        refusal = (
            f"it has {num_gpus} GPUs, and processes that share GPU memory (NCCL) "
            "can't be checkpointed"
        )
    if refusal is None:
        asked = "it asked for that" if wish == CHECKPOINT else "it has no session of rota.train"
        return Method(CHECKPOINT, f"{asked}, and driver and cuda-core can")
    if wish == CHECKPOINT:
        return Method(STOP, f"it asked for cuda-checkpoint, but {refusal}; {STAYS}")
    hint = "`suspend: restart` is for jobs that go on from a checkpoint of their own"
    return Method(STOP, f"{refusal}; {STAYS}; {hint}")


def _asked_to_stop(device_kind: str) -> str:
    return "it asked for that" + (f"; {STAYS}" if device_kind == "cuda" else "")
