"""Measured layer times of a model: DeepPool's published files, and Rota's own JSON.

>>> graph = read_layer_profile("vgg16.json")    # doctest: +SKIP
"""

import json
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Any

from rota.errors import InputError, did_you_mean
from rota.model.layer_graph import FORMAT, MOST_S, Layer, LayerGraph, LayerTime, Network
from rota.workload.readers.files import read_bytes

MAX_BYTES = 64 << 20
# By field the function that gives its value, or raises ValueError with what it should be.
Checks = dict[str, Callable[[Any], Any]]


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
    form, version = found.pop("format", None), found.pop("version", None)
    if (form, version) != (FORMAT, 1):
        raise InputError(
            f"format is {_short(form)} and version {_short(version)}; they are {FORMAT!r} and 1"
        )
    fields = _fields(found, PROFILE, ["layers"], "the profile")
    layers = [_layer(each, at) for at, each in enumerate(fields.pop("layers"), 1)]
    if (network := fields.get("network")) is not None:
        fields["network"] = Network(**_fields(network, NETWORK, _needed(Network), "network"))
    return LayerGraph(fields.pop("model", name), layers, **fields)


def _layer(found: Any, at: int) -> Layer:
    name = found.get("name") if isinstance(found, dict) else None
    where = f"layer {name if _is_text(name) else at}"
    fields = _fields(found, LAYER, _needed(Layer), where)
    times = (_fields(each, TIME, _needed(LayerTime), where) for each in fields.pop("times"))
    return Layer(times=tuple(LayerTime(**each) for each in times), **fields)


def _needed(kind: Any) -> list[str]:
    return [field for field in kind._fields if field not in kind._field_defaults]


def _fields(found: Any, checks: Checks, needed: Iterable[str], where: str) -> dict[str, Any]:
    """The fields of a JSON object that are there, checked; null is as good as none."""
    if not isinstance(found, dict):
        raise InputError(f"{where} is {_short(found)}; it is an object with fields")
    checked = {}
    for field, value in found.items():
        if field not in checks:
            raise InputError(f"{where}: there is no field {field!r}{did_you_mean(field, checks)}")
        if value is not None:
            try:
                checked[field] = checks[field](value)
            except ValueError as error:
                raise InputError(f"{where}: {field} is {_short(value)}; it is {error}") from None
    for field in needed:
        if field not in checked:
            raise InputError(f"{where}: {field} is missing; give it")
    return checked


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


def _bandwidth(value: Any) -> float:
    if not 1.0 <= _number(value) < inf:
        raise ValueError("a number of bytes per second, from 1 on")
    return float(value)


def _latency(value: Any) -> float:
    if not 0.0 <= _number(value) <= MOST_S:
        raise ValueError(f"a number of seconds, from 0 to {MOST_S:g}")
    return float(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != "" and value.isprintable()


def _text(value: Any) -> str:
    if not _is_text(value):
        raise ValueError("a text of printable characters that is not empty")
    return str(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("a list")
    return value


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(map(_is_text, value)):
        raise ValueError("a list of names of layers")
    return tuple(value)


def _any(value: Any) -> Any:
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


PROFILE: Checks = {
    "model": _text,
    "bytes_per_value": _whole,
    "bytes_per_parameter": _whole,
    "network": _any,
    "layers": _list,
}
NETWORK: Checks = {
    "bandwidth_bytes_s": _bandwidth,
    "latency_s": _latency,
    "reduce_bandwidth_bytes_s": _bandwidth,
    "reduce_latency_s": _latency,
}
LAYER: Checks = {
    "name": _text,
    "times": _list,
    "inputs": _names,
    "parameters": _whole,
    "output_values": _whole,
    "activation_values": _whole,
    "keeps_size": _truth,
    "tied_to": _text,
}
TIME: Checks = {"batch": _whole, "forward_s": _number, "backward_s": _number}
