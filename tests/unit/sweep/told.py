"""What a controller tells of a search, for tests: only what they are about has to be said."""

from rota.request.sweepfile import parse_sweep
from rota.sweep.decide import decide
from rota.sweep.trial import reports_of, trial_of

SPACE = {"lr": {"log": [1e-4, 1e-1]}}


def search(gpus=1, **block):
    """A request; by default twelve trials of one parameter that maximise ``acc``."""
    fields = {"metric": "acc", "goal": "maximize", "space": SPACE, "max_trials": 12} | block
    job = {"name": "s", "run": "python train.py", "resources": {"gpus": gpus}}
    return parse_sweep(job | {"sweep": fields}, workdir="/w")


def trial(number, *values, state="RUNNING", why=None, start_s=0.0, every_s=10.0, **more):
    """A trial that has reported these values, ``every_s`` seconds apart."""
    curve = [[step, start_s + every_s * step, value] for step, value in enumerate(values, start=1)]
    told = {"number": number, "state": state, "why": why, "curve": curve, "message": None}
    return told | {"job_id": str(number + 1), "params": {"lr": 0.01}, "gpu_s": 0.0} | more


def sweep(*trials, gpus=2, state="RUNNING", gpu_s=0.0):
    """The whole search."""
    return {"name": "s", "state": state, "gpus": gpus, "gpu_s": gpu_s, "trials": list(trials)}


def decided(request, told):
    """What is to happen next, where all that is known has been told just now."""
    return decide(request, told, trials_of(request, told))


def trials_of(request, told):
    """The trials in what the controller tells of a search."""
    return [trial_of(request, each, reports_of(each["curve"])) for each in told["trials"]]
