"""The trainings of the demo: real models on data that is on every machine."""

from pathlib import Path
from typing import NamedTuple

from rota.errors import InputError


class Training(NamedTuple):
    """One job of the demo and what it is to reach."""

    name: str
    script: str
    metric: str
    target: float
    higher_is_better: bool
    options: str = ""


TRAININGS = (
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
        if (folder / TRAININGS[0].script).exists():
            return folder
    raise InputError("examples: not found here; run the demo in a checkout of the repository")


def fields(training: Training, folder: Path, extra: str = "") -> dict[str, object]:
    """The job file of one training, as fields; ``extra`` options go to the script."""
    options = f"--target {training.target} {training.options} {extra}"
    run = " ".join(f"python {training.script} {options}".split())
    return {"name": training.name, "run": run, "workdir": str(folder)}
