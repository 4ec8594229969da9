"""Handles a batch, chosen by the scheduler, that does not fit into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.errors import InputError

if TYPE_CHECKING:
    from rota.train.adaptation import Adaptation
    from rota.train.training import Training

WORDS = ("can't allocate memory", "out of memory")  # of torch's allocators for CPUs and for GPUs


def is_shortage(error: object) -> bool:
    """True if an exception means a lack of memory, by its class or by torch's wording."""
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in WORDS)


def complaint(error: object, adaptation: Adaptation | None) -> str | None:
    """For the user: an error of Rota's that ends the job.

    That includes the error of a batch chosen by the scheduler that does not fit. None for any other
    error, which is in the job's log.
    """
    if isinstance(error, InputError):
        return str(error)
    if adaptation is None or adaptation.size <= adaptation.limits.initial or not is_shortage(error):
        return None
    return (
        f"{_what(adaptation)}; set batch.max_per_gpu in the job file to less than "
        f"{adaptation.per_rank}"
    )


def step_back(error: object, training: Training) -> str | None:
    """Make the next attempt start with the last batch that fit. Returns a description.

    The batch that did not fit has changed nothing but gradients and buffers. The buffers are
    restored, and whichever rank ran out of memory writes the state of training from before that
    batch, all of whose samples are still to come. Returns None if there is no smaller batch to
    return to (the job's first batch does not fit), nowhere to write, or if writing fails.
    """
    adaptation, batch = training.adaptation, training.batch
    if adaptation is None or batch is None or not is_shortage(error):
        return None
    if not batch.begun or batch.complete:
        return None
    what = _what(adaptation)
    if not adaptation.step_back():
        return None
    try:
        batch.undo()
        training.epoch_over = False  # the exception has left the loop over batches as a break does
        if not training.checkpoint.save_alone():
            return None
    except Exception:  # any error: the original one matters more
        return None
    limits = adaptation.limits
    return (
        f"{what}; it goes on with batches of {adaptation.size}, of {limits.most} at most, and at "
        f"most {limits.most_per_rank} samples at once"
    )


def _what(adaptation: Adaptation) -> str:
    return (
        f"out of memory with {adaptation.per_rank} samples at once on each GPU, of a batch of "
        f"{adaptation.size} that the scheduler chose"
    )
