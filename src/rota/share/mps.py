"""Variables for clients of the CUDA Multi-Process Service; unverified on a GPU."""

from collections.abc import Mapping

LOW, HIGH = "1", "0"  # CUDA_MPS_CLIENT_PRIORITY: below normal, and normal


def mps_environment(
    environment: Mapping[str, str], *, background: bool, percentage: int = 100
) -> dict[str, str]:
    """The variables of a process to be started where a daemon of MPS serves; {} where none does.

    ``percentage`` is of the processors that a background may occupy at once. Both are read when the
    process makes its context, and stay.
    """
    if "CUDA_MPS_PIPE_DIRECTORY" not in environment:
        return {}
    told = {"CUDA_MPS_CLIENT_PRIORITY": LOW if background else HIGH}
    if background:
        told["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(min(max(percentage, 1), 100))
    return told
