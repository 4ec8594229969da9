"""Measured layer times of a model: DeepPool's published files, and Rota's own JSON.

>>> graph = read_layer_profile("vgg16.json")    # doctest: +SKIP
"""

import json
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

from rota.errors import InputError, did_you_mean
from rota.model.layer_graph import FORMAT, Layer, LayerGraph, LayerTime, Network
from rota.workload.readers.files import read_bytes

MAX_BYTES = 64 << 20
FIELDS = {
    *("format", "version", "model", "bytes_per_value", "bytes_per_parameter", "network", "layers")
}
LAYER_FIELDS = {*Layer._fields}


def read_layer_profile(path: str | Path) -> LayerGraph:
    """The layers of a profile, with their times. Raises InputError naming the line or the layer."""
    path = Path(path)
    content = read_bytes(path, what="layer profile", most=MAX_BYTES)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise InputError(f"layer profile {path}: it is not text in UTF-8") from None
    try:
        if text.lstrip().startswith("{"):
            return _from_json(text, path.stem)
        from rota.workload.deeppool_profiles import graph_of

        return graph_of(text, path.stem)
    except InputError as error:
        raise InputError(f"layer profile {path}: {error}") from None


def _from_json(text: str, name: str) -> LayerGraph:
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"it is no JSON: {error}") from None
    _only(found, FIELDS, "the profile")
    if found.get("format") != FORMAT or found.get("version") != 1:
        raise InputError(
            f"format is {found.get('format')!r} and version {found.get('version')!r}; "
            f"they are {FORMAT!r} and 1"
        )
    layers = found.get("layers")
    if not isinstance(layers, list):
        raise InputError("layers is no list; give a list of layers")
    width = _field(found, "bytes_per_value", _whole, "the profile", 4)
    return LayerGraph(
        _field(found, "model", _text, "the profile", name),
        [_layer(each, f"layer {at}") for at, each in enumerate(layers, 1)],
        bytes_per_value=width,
        bytes_per_parameter=_field(found, "bytes_per_parameter", _whole, "the profile", 3 * width),
        network=_network(found.get("network")),
    )


def _network(found: Any) -> Network | None:
    if found is None:
        return None
    _only(found, {*Network._fields}, "network")
    network = Network(
        _field(found, "bandwidth_bytes_s", _number, "network"),
        _field(found, "latency_s", _number, "network"),
        _field(found, "reduce_bandwidth_bytes_s", _number, "network", None),
        _field(found, "reduce_latency_s", _number, "network", 0.0),
    )
    for field, value in network._asdict().items():
        least = "above 0" if "bandwidth" in field else "at least 0"
        if value is not None and not (0.0 < value < inf or (value == 0.0 and "latency" in field)):
            raise InputError(f"network: {field} is {value:g}; it is {least}")
    return network


def _layer(found: Any, where: str) -> Layer:
    _only(found, LAYER_FIELDS, where)
    name = _field(found, "name", _text, where)
    where = f"layer {name}"
    return Layer(
        name,
        tuple(_time(each, where) for each in _field(found, "times", _list, where)),
        tuple(_text(each) for each in _field(found, "inputs", _list_of_text, where, [])),
        _field(found, "parameters", _whole, where, 0),
        _field(found, "output_values", _whole, where, 0),
        _field(found, "activation_values", _whole, where, 0),
        _field(found, "keeps_size", _truth, where, False),
        _field(found, "tied_to", _text, where, None),
    )


def _time(found: Any, where: str) -> LayerTime:
    _only(found, {*LayerTime._fields}, f"{where}, times")
    return LayerTime(
        _field(found, "batch", _whole, where),
        _field(found, "forward_s", _number, where),
        _field(found, "backward_s", _number, where),
    )


def _only(found: Any, known: set[str], where: str) -> None:
    if not isinstance(found, dict):
        raise InputError(f"{where} is {_short(found)}; it is an object with fields")
    for field in found:
        if field not in known:
            hint = did_you_mean(field, known)
            raise InputError(f"{where}: there is no field {field!r}{hint}")


_NEEDED = object()


def _field(
    found: dict[str, Any],
    field: str,
    check: Callable[[Any], Any],
    where: str,
    default: Any = _NEEDED,
) -> Any:
    value = found.get(field)
    if value is None:
        if default is _NEEDED:
            raise InputError(f"{where}: {field} is missing; give it")
        return default
    try:
        return check(value)
    except ValueError as error:
        raise InputError(f"{where}: {field} is {_short(value)}; it is {error}") from None


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise ValueError("a whole number from 0")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("a number") from None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("a text of printable characters that is not empty")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("a list")
    return value


def _list_of_text(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("a list of names of layers")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
