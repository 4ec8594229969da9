"""DeepPool's published layer profiles, for the experiments on them."""

from pathlib import Path

from rota.errors import DataMissingError
from rota.model.layer_graph import LayerGraph
from rota.workload.layer_profiles import read_layer_profile

MODELS = {"VGG-16": "vgg", "WideResNet-101-2": "wrn", "Inception-v3": "inception"}


def require(data: Path | None) -> Path:
    """The folder, which has all profiles. Raises DataMissingError."""
    if data is None:
        raise DataMissingError(
            "it needs the published layer profiles; give the folder in which deeppool/*.prof lie "
            "as --data"
        )
    for name in MODELS.values():
        if not _file(data, name).exists():
            raise DataMissingError(
                f"there is no {_file(data, name)}; give the folder in which deeppool/*.prof lie "
                "as --data"
            )
    return data


def model(data: Path, name: str) -> LayerGraph:
    """The layers of one of the ``MODELS``."""
    return read_layer_profile(_file(data, MODELS[name]))


def _file(data: Path, name: str) -> Path:
    return data / "deeppool" / f"A100_{name}.prof"
