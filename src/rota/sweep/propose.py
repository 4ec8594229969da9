"""Parameters for a search's next trials: from Optuna, which is given all trials so far.

No state is kept between calls: the same trials, number and seed give the same parameters, whichever
process asks.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rota.errors import JobFileError
from rota.model.sweep import Value
from rota.model.trial_standing import Standing
from rota.request.array import IN_ORDER
from rota.request.searchspace import Choice, Dimension, Numbers, grid_point, grid_size
from rota.request.sweepfile import BY_OPTUNA, SweepRequest
from rota.sweep.trial import Trial

if TYPE_CHECKING:
    import optuna

AGAIN = 10  # further proposals if the very same parameters were tried before


def import_optuna() -> None:
    """Import Optuna, which existed when the search was accepted. Raises JobFileError."""
    try:
        import optuna  # noqa: F401
    except Exception as error:  # any error of a broken installation
        raise JobFileError(
            f"sweep.algorithm: Optuna, which proposes trials, can't be imported ({error!r}); mend "
            "it in the controller's Python: pip install --force-reinstall optuna"
        ) from error


class Proposals:
    """The next parameters of a search, given its trials so far. Raises JobFileError."""

    def __init__(self, request: SweepRequest, trials: Sequence[Trial]) -> None:
        self._request = request
        self._study: optuna.Study | None = None
        if request.algorithm in BY_OPTUNA:
            import_optuna()
            with _quiet():
                self._study = _study_of(request, trials)

    def next(self, number: int) -> dict[str, Value]:
        """The parameters of the trial of that number, which counts as a trial from now on."""
        request = self._request
        if self._study is None:
            size = grid_size(request.space)
            assert size is not None, "a grid has an end"
            if request.algorithm == IN_ORDER:
                return grid_point(request.space, number % size)
            order = random.Random(request.seed).sample(range(size), size)
            return grid_point(request.space, order[number % size])
        with _quiet():
            self._study.sampler = _sampler(request, number)
            return self._ask(self._study)

    def _ask(self, study: optuna.Study) -> dict[str, Value]:
        space = self._request.space
        tried = [trial.params for trial in study.get_trials(deepcopy=False)]
        for _ in range(AGAIN):
            trial = study.ask({name: _distribution(each) for name, each in space})
            if trial.params not in tried:
                break
        return {name: _value(each, trial.params[name]) for name, each in space}


def _sampler(request: SweepRequest, number: int) -> optuna.samplers.BaseSampler:
    import numpy as np
    from optuna.samplers import RandomSampler, TPESampler

    seed = int(np.random.SeedSequence([request.seed, number]).generate_state(1)[0])
    if request.algorithm == "random":
        return RandomSampler(seed=seed)
    # Trials that are not over yet count as poor ones, so that others are tried beside them.
    return TPESampler(seed=seed, constant_liar=True)


def _study_of(request: SweepRequest, trials: Sequence[Trial]) -> optuna.Study:
    """A study that knows the trials."""
    import optuna

    study = optuna.create_study(direction="maximize" if request.maximize else "minimize")
    study.add_trials([_frozen(request, trial) for trial in trials])
    return study


def _frozen(request: SweepRequest, trial: Trial) -> optuna.trial.FrozenTrial:
    """A trial in Optuna's form, with only its last value: its samplers look at no other.

    The step of that value is the number of the report.
    """
    import optuna

    value = trial.best(request.maximize)
    numbered = zip(range(len(trial.reports), 0, -1), reversed(trial.reports), strict=True)
    last = next(((step, each.value) for step, each in numbered if each.value is not None), None)
    return optuna.create_trial(
        state=_state(trial),
        value=value if trial.standing in (Standing.DONE, Standing.STOPPED) else None,
        params={name: _internal(each, trial.params[name]) for name, each in request.space},
        distributions={name: _distribution(each) for name, each in request.space},
        intermediate_values=dict([last] if last is not None else ()),
    )


def _state(trial: Trial) -> optuna.trial.TrialState:
    from optuna.trial import TrialState

    if trial.standing is Standing.CANCELLED:  # its reports remain valid
        return TrialState.PRUNED if trial.reports else TrialState.FAIL
    return {
        Standing.OPEN: TrialState.RUNNING,
        Standing.DONE: TrialState.COMPLETE,
        Standing.STOPPED: TrialState.PRUNED,
        Standing.FAILED: TrialState.FAIL,
    }[trial.standing]


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if isinstance(dimension, Choice):  # by index, because Optuna takes true and 1 for the same
        return CategoricalDistribution(tuple(range(len(dimension.values))))
    if dimension.step is not None:  # by index as well: numbers a step apart need not be exact
        return IntDistribution(0, _last_index(dimension))
    if dimension.whole:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(float(dimension.low), float(dimension.high), log=dimension.log)


def _internal(dimension: Dimension, value: Value) -> int | float:
    """A value as its distribution has it."""
    if isinstance(dimension, Choice):
        return dimension.values.index(dimension.check("params", value))
    assert isinstance(value, int | float), "the controller has checked it"
    if dimension.step is None:
        return value
    return min(round((value - dimension.low) / dimension.step), _last_index(dimension))


def _value(dimension: Dimension, found: Any) -> Value:
    """Optuna's value, converted to the dimension's type."""
    if isinstance(dimension, Choice) or dimension.step is not None:
        return dimension.at(int(found))
    if dimension.whole:
        return int(found)
    return min(max(float(found), float(dimension.low)), float(dimension.high))


def _last_index(dimension: Numbers) -> int:
    size = dimension.size()
    assert size is not None, "with steps, a dimension has an end"
    return size - 1


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna's remarks are about this module's use of it, and none of the user's business."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
