"""Steps that policies are composed of: choose who runs by count, then place them."""

from collections.abc import Sequence

from rota.model.reason import Reason
from rota.model.view import Trial
from rota.policy.placement.consolidate import consolidate


def run_first_that_fit(
    trial: Trial,
    order: Sequence[int],
    *,
    preempted: Reason = Reason.PREEMPTED_BY,
    waits: Reason = Reason.WAIT_RESOURCES,
) -> list[int]:
    """Walk active rows in ``order``; each whose gang still fits runs, the others wait.

    Jobs that run keep the GPUs they have; those that lose theirs are released with the reason
    ``preempted``; the rest wait with ``waits``. Returns the rows that run, in walk order.
    """
    num_gpus, total = trial.view.num_gpus, trial.view.total_gpus
    free = total
    runs: list[int] = []
    starts: list[int] = []
    for row in order:
        has_gpus = trial.target(row) is not None
        if num_gpus[row] <= free:
            free -= num_gpus[row]
            runs.append(row)
            if not has_gpus:
                starts.append(row)
        elif has_gpus:
            trial.release(row, preempted)
        elif num_gpus[row] > total:
            trial.wait(row, Reason.NEVER_FITS)
        else:
            trial.wait(row, waits)
    # Those that can go on only where they were choose first; what they can't use goes to the next.
    starts.sort(key=trial.view.must_stay, reverse=True)
    left_out = {row for row in starts if not place(trial, row)}
    if not left_out:
        return runs
    for row in order:
        if trial.target(row) is None and num_gpus[row] <= trial.free.count and row not in left_out:
            if place(trial, row):
                runs.append(row)
            else:
                trial.wait(row, waits)
    return [row for row in order if row in set(runs) - left_out]


def place(trial: Trial, row: int) -> bool:
    """Give a job GPUs: those it was suspended on if they are free, else as few nodes as can be.

    False, with the reason noted, if it does not fit: too few GPUs are free, or it can go on only
    where it was.
    """
    home = trial.view.home[row]
    if home is not None and trial.free.fits(home):
        trial.give(row, home)
        return True
    if home is not None and trial.view.must_stay(row):
        trial.wait(row, Reason.WAIT_TOPOLOGY)
        return False
    allocation = consolidate(trial.free, trial.view.num_gpus[row])
    if allocation is None:
        trial.wait(row, Reason.WAIT_RESOURCES)
        return False
    trial.give(row, allocation)
    return True
