"""Trainings for demonstrations and benchmarks: real models on data that every machine has."""

from pathlib import Path
from typing import NamedTuple

from rota.errors import InputError
from rota.model.job import WARM


class Training(NamedTuple):
    """One job and its target; ``at_s`` is the time of its submission, from the beginning on.

    Progress is shown by ``steps``, about how many it takes to the target, and ``seconds``, about
    how long these take on quiet cores.
    """

    name: str
    script: str
    metric: str
    target: float
    higher_is_better: bool
    options: str = ""
    gpus: int = 1
    at_s: float = 0.0
    steps: int = 1
    seconds: float = 1.0


# A long training is ahead of short ones, and a small one comes late.
MIX = (
    Training(
        *("long-mlp", "rota_gang.py", "val_acc", 0.962, True, "--batch-size 2048", 2),
        steps=250,
        seconds=21.0,
    ),
    Training(
        *("digits-cnn", "rota_digits_cnn.py", "val_acc", 0.78, True),
        at_s=1.0,
        steps=200,
        seconds=4.5,
    ),
    Training(
        *("digits-vit", "rota_digits_vit.py", "val_acc", 0.53, True, "--batch-size 32"),
        at_s=1.5,
        steps=300,
        seconds=5.5,
    ),
    Training(
        *("char-lstm", "rota_char_lstm.py", "val_loss", 2.33, False),
        at_s=2.0,
        steps=300,
        seconds=5.5,
    ),
    Training(
        *("late-mlp", "rota_digits_mlp.py", "val_acc", 0.74, True),
        at_s=8.0,
        steps=225,
        seconds=2.5,
    ),
)

# The same, and longer: about a minute under each policy.
LONG_MIX = (
    MIX[0]._replace(
        target=0.971, options="--batch-size 1024 --steps 4000", steps=1075, seconds=43.0
    ),
    MIX[1]._replace(target=0.93, steps=600, seconds=9.0),
    MIX[2]._replace(target=0.88, steps=850, seconds=11.0),
    MIX[3]._replace(target=2.0, steps=800, seconds=13.0),
    MIX[4]._replace(target=0.88, at_s=12.0, steps=750, seconds=5.0),
)

# Six of about the same length, which take turns in benchmarks.
EQUALS = (
    Training("digits-cnn", "rota_digits_cnn.py", "val_acc", 0.96, True),
    Training("digits-vit", "rota_digits_vit.py", "val_acc", 0.93, True, "--batch-size 32"),
    Training("char-gpt", "rota_char_gpt.py", "val_loss", 1.95, False, "--batch-size 8"),
    Training("char-lstm", "rota_char_lstm.py", "val_loss", 1.85, False),
    Training("recsys-mf", "rota_recsys_mf.py", "val_mse", 0.13, False),
    Training("digits-mlp", "rota_digits_mlp.py", "val_acc", 0.95, True),
)


def examples_folder() -> Path:
    """The examples of this checkout. Raises InputError if Rota is installed without them."""
    for folder in (Path.cwd() / "examples", Path(__file__).parents[3] / "examples"):
        if (folder / MIX[0].script).exists():
            return folder
    raise InputError("examples: not found here; run the demo in a checkout of the repository")


def fields(training: Training, folder: Path, steps: int | None = None) -> dict[str, object]:
    """The job file of one training, as fields; ``steps`` ends it after so many."""
    more = f"--steps {steps}" if steps else ""
    options = f"--target {training.target} {training.options} {more}"
    run = " ".join(f"python {training.script} {options}".split())
    resources = {"gpus": training.gpus}
    return {
        "name": training.name,
        "run": run,
        "workdir": str(folder),
        "start": WARM,
        "resources": resources,
    }
