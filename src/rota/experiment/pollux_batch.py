"""The goodput model against measured curves: step times, batches and what they teach (Pollux 2021).

For each of the six measured applications, three questions. How far off are the step times of a
model that is fitted to everything that was measured, and of one that was fitted to at most so many
GPUs and is asked about up to twice as many, as when a job grows? How far off is what a step of a
larger batch gains, told from the gradient noise at the initial one? And what is the batch worth
that the model chooses, on 1 to 16 GPUs in the first, middle and last epoch, of the best one?

The bounds are on means. They were fixed beforehand: errors of step times may be what 5 % of noise
in each of a few points brings, and twice that where a model is carried on to twice the GPUs; a
batch must be worth nine tenths of the best.
"""

from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rota.errors import DataMissingError
from rota.experiment.base import Figure, Outcome
from rota.predict.goodput import BatchLimits, Goodput, Noise
from rota.predict.goodput_table import best_choice
from rota.predict.step_points import Point
from rota.predict.step_time import StepTime
from rota.predict.throughput_fit import fit
from rota.sim.measured import consolidated
from rota.workload.measured import Batch, Measured
from rota.workload.measured_files import read_profiles

NAME = "pollux-batch"
APPLICATIONS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
SEEN = (4, 8, 16, 32)  # GPUs that a model was fitted to at most, when it is asked about twice those
GPUS = (1, 2, 4, 8, 16)
FIT_ERROR = (0.0, 15.0)  # %
GROWTH_ERROR = (0.0, 30.0)
GAIN_ERROR = (0.0, 15.0)
BATCH_WORTH = (90.0, 105.0)  # % of the best measured; a batch between two measured ones may beat it
Errors = list[float]


class Found(NamedTuple):
    """Relative errors of one application's model, and chosen batches' worth over the best."""

    fitted: Errors
    grown: Errors
    gain: Errors
    worth: list[float]


def run(data: Path | None = None) -> Outcome:
    """Fit and compare. Raises DataMissingError."""
    folder = None if data is None else data / "pollux" / "profiles"
    if folder is None or not folder.is_dir():
        raise DataMissingError(
            f"there is no {folder or 'pollux/profiles'}; give the folder in which pollux/profiles "
            "lies as --data"
        )
    found = {
        name: compared(profile) for name, profile in read_profiles(folder, APPLICATIONS).items()
    }
    figures = [figure for name, each in found.items() for figure in _figures(name, each)]
    return Outcome(NAME, [], _settings(folder), figures)


def compared(profile: Measured) -> Found:
    """The model of an application beside what was measured of it."""
    points = [
        Point(*place, step.step_s - step.sync_s, step.step_s)
        for place, step in profile.measurements()
    ]
    grown: Errors = []
    for most in SEEN:
        near = [point for point in points if point.gpus <= most]
        far = [point for point in points if most < point.gpus <= 2 * most]
        if near and far:
            grown += _errors(_model(near), far)
    model = _model(points)
    return Found(_errors(model, points), grown, _gain_errors(profile), _worths(profile, model))


def _model(points: list[Point]) -> StepTime:
    found, _ = fit(points)
    assert found is not None  # profiles hold nothing but usable steps
    return found.step_time


def _errors(model: StepTime, points: list[Point]) -> Errors:
    return [abs(model.step_s(p.gpus, p.nodes, p.batch) / p.step_s - 1) for p in points]


def _gain_errors(profile: Measured) -> Errors:
    """Relative errors of the predicted gain of a step at each larger batch, in each epoch."""
    found = []
    for batch, epochs in profile.epochs().items():
        if batch == profile.init_batch:
            continue
        before_progress = before_steps = 0.0
        for epoch in range(profile.num_epochs):
            progress, steps = epochs.progress[epoch], epochs.steps[epoch]
            gained = (progress - before_progress) / (steps - before_steps)
            told = _noise(profile, epoch).efficiency(batch, profile.init_batch)
            found.append(abs(told * batch / profile.init_batch / gained - 1))
            before_progress, before_steps = progress, steps
    return found


def _noise(profile: Measured, epoch: int) -> Noise:
    """The gradient noise measured with the initial batch."""
    sqr, var = profile.noise(profile.init_batch, epoch)
    return Noise(sqr, var)


def _worths(profile: Measured, model: StepTime) -> list[float]:
    """Goodput of the chosen batches over that of the best measured ones."""
    limits = BatchLimits(
        profile.init_batch, profile.max_batch, profile.least_per_gpu, profile.most_per_gpu
    )
    worths = []
    for epoch in sorted({0, profile.num_epochs // 2, profile.num_epochs - 1}):
        job = Goodput(model, _noise(profile, epoch), limits)
        for gpus in GPUS:
            placement = consolidated(gpus)
            choice = best_choice(job, gpus, len(placement))
            if gpus > profile.most_gpus or not choice.goodput:
                continue
            batches = _batches(profile, gpus)
            best = max(goodput(profile, gpus, batch, epoch) for batch in batches)
            chosen = Batch(choice.batch, choice.accumulation)
            worths.append(goodput(profile, gpus, chosen, epoch) / best)
    return worths


def _batches(profile: Measured, gpus: int) -> list[Batch]:
    """Batches of every measured size and of the largest one, with each accumulation allowed."""
    nodes, low, high = len(consolidated(gpus)), profile.least_per_gpu, profile.most_per_gpu
    measured = {place[2] for place, _ in profile.measurements() if place[:2] == (nodes, gpus)}
    found = []
    for times in range(1, profile.max_batch // (gpus * low) + 1):
        most = profile.max_batch // (gpus * times)
        for size in sorted({*measured, most}):
            whole = size * gpus * times
            known = low <= size <= min(most, high) and whole >= profile.init_batch
            if known and (times > 1 or gpus > 1 or size <= profile.init_batch):
                found.append(Batch(size, times - 1))
    return found


def goodput(profile: Measured, gpus: int, batch: Batch, epoch: int) -> float:
    """Steps of the initial batch that a job truly gains in a second."""
    return profile.gain(batch.total(gpus), epoch) / profile.step_s(consolidated(gpus), batch)


def _figures(name: str, found: Found) -> list[Figure]:
    percent = [[100 * value for value in values] for values in found]
    fitted, grown, gain, worth = percent
    return [
        *_both(f"{name}: step time, fitted to all", fitted, FIT_ERROR),
        *_both(f"{name}: step time, twice the GPUs fitted to", grown, GROWTH_ERROR),
        *_both(f"{name}: gain of a larger batch", gain, GAIN_ERROR),
        Figure(f"{name}: goodput of chosen batches", "% of best", None, None, fmean(worth))
        ._replace(low=BATCH_WORTH[0], high=BATCH_WORTH[1], least=min(worth), most=max(worth)),
    ]  # fmt: skip


def _both(name: str, errors: Errors, bounds: tuple[float, float]) -> list[Figure]:
    """The mean of errors in percent, which is judged, with the extremes."""
    if not errors:
        return []
    mean, least, most = fmean(errors), min(errors), max(errors)
    return [Figure(f"{name}, error", "%", None, None, mean, *bounds, least, most)]


def _settings(folder: Path) -> dict[str, Any]:
    return {
        "profiles": str(folder),
        "figures": "the mean over places; beside it the least and the largest",
        "GPUs fitted to": list(SEEN),
        "GPUs that batches are chosen for": list(GPUS),
    }
