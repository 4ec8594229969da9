"""The block ``batch`` of a job file: limits of the batches that the scheduler may choose."""

from typing import Any

from rota.model.job import Adapt
from rota.request.values import check_keys, refuse, whole_within

BATCH = ("mode", "max_global", "min_per_gpu", "max_per_gpu")
MODES = ("adapt", "fixed")
EXAMPLE = "write for example: {mode: adapt, max_global: 4096}"
MAX_SAMPLES = (1 << 24) - 1  # of a batch


def adapt_of(value: Any, gpus: int) -> Adapt | None:
    """The limits that the block sets; None if the program chooses its own batches.

    ``gpus`` is the least number that the job has. Raises JobFileError.
    """
    if value is None:
        return None
    check_keys(value, BATCH, "batch.", EXAMPLE)
    mode = value.get("mode")
    if not isinstance(mode, str) or mode not in MODES:
        refuse("batch.mode", mode, f"write one of {', '.join(MODES)}")
    if mode == "fixed":
        for key in BATCH[1:]:
            if key in value:
                refuse(f"batch.{key}", value[key], "it is for mode: adapt; leave it out")
        return None
    if "max_global" not in value:
        refuse("batch", dict(value), f"max_global is missing, the largest batch: {EXAMPLE}")
    most = _samples("batch.max_global", value["max_global"])
    least_per_gpu, most_per_gpu = value.get("min_per_gpu"), value.get("max_per_gpu")
    least_per_gpu = 1 if least_per_gpu is None else _samples("batch.min_per_gpu", least_per_gpu)
    if most_per_gpu is not None:
        most_per_gpu = _samples("batch.max_per_gpu", most_per_gpu)
    adapt = Adapt(most, most_per_gpu, least_per_gpu)
    _check_pieces(adapt, gpus)
    return adapt


def batch_fields(adapt: Adapt) -> dict[str, Any]:
    """The block from which :func:`adapt_of` makes these limits."""
    fields = {"mode": "adapt", "max_global": adapt.most}
    if adapt.least_per_gpu > 1:
        fields["min_per_gpu"] = adapt.least_per_gpu
    if adapt.most_per_gpu is not None:
        fields["max_per_gpu"] = adapt.most_per_gpu
    return fields


def _check_pieces(adapt: Adapt, gpus: int) -> None:
    """Refuse limits within which some number of samples can't be cut into pieces."""
    most, most_per_gpu, least_per_gpu = adapt
    if most_per_gpu is not None and most_per_gpu > most:
        fix = f"it is above batch.max_global, {most}: lower it, or leave it out"
        refuse("batch.max_per_gpu", most_per_gpu, fix)
    if least_per_gpu * gpus > most:
        on = f" on {gpus} GPUs" if gpus > 1 else ""
        fix = f"that is more than batch.max_global, {most}{on}: lower the one or raise the other"
        refuse("batch.min_per_gpu", least_per_gpu, fix)
    if most_per_gpu is not None and 2 * least_per_gpu - 1 > most_per_gpu:
        # One sample more than the most is to come out in two pieces, each of the least.
        fix = (
            f"batch.max_per_gpu is {most_per_gpu}, and batches of any size are to come out in "
            f"pieces between the two: write {(most_per_gpu + 1) // 2} or less, or raise "
            f"batch.max_per_gpu to {2 * least_per_gpu - 1} or more"
        )
        refuse("batch.min_per_gpu", least_per_gpu, fix)


def _samples(field: str, value: Any) -> int:
    return whole_within(field, value, 1, MAX_SAMPLES, "a whole number of samples")
