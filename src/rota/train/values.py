"""Values that ranks hand over: JSON and tensors. Nothing that a socket brings is ever unpickled.

What JSON lacks is an object of one entry, which names the kind: ``{"tuple": [...]}``. A tensor
stands there as its number, and travels beside the text.
"""

from __future__ import annotations

import base64
import json
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from rota.burst.runtime.groups import broadcast_bytes, device_of, dtype_of, name_of

MOST_DEPTH = 100
FACTORIES = {kind.__name__: kind for kind in (list, dict, set, tuple, int, float, str)}
NUMBERS = "biufc"  # kinds of numpy arrays
ADVICE = "give numbers, text, tensors, numpy arrays, and lists, tuples, sets and dicts of them"


def encode(value: Any) -> tuple[str, list[torch.Tensor]]:
    """The value as text, and its tensors, in order. Raises TypeError for what can't be told."""
    tensors: list[torch.Tensor] = []
    return json.dumps(_told(value, tensors, 0)), tensors


def decode(text: str | bytes | bytearray, tensors: Sequence[torch.Tensor]) -> Any:
    """The inverse of :func:`encode`. Raises ValueError for text that it did not make."""
    try:
        return _made(json.loads(text), tensors)
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not the text of a value: {error!r}") from None


def broadcast(value: Any, source: int) -> Any:
    """The value of rank ``source``, on all ranks. Raises RuntimeError, TypeError as above."""
    device = device_of()
    tensors: list[torch.Tensor] = []
    head = b""
    if is_source := dist.get_rank() == source:
        text, tensors = encode(value)
        forms = [[list(each.shape), name_of(each.dtype), each.device.type] for each in tensors]
        head = json.dumps([forms, text]).encode()
    forms, text = json.loads(broadcast_bytes(head, source))
    if not is_source:
        tensors = [torch.empty(shape, dtype=dtype_of(name)) for shape, name, _ in forms]
    for number, (_, _, place) in enumerate(forms):
        moved = tensors[number].to(device).contiguous()
        dist.broadcast(moved, source)
        tensors[number] = moved if place == "cuda" else moved.cpu()
    return value if is_source else decode(text, tensors)


def _told(value: Any, tensors: list[torch.Tensor], depth: int) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth > MOST_DEPTH:
        raise TypeError(f"a value is more than {MOST_DEPTH} levels deep")

    def told(inner: Any) -> Any:
        return _told(inner, tensors, depth + 1)

    if isinstance(value, torch.Tensor):
        return {"tensor": _tensor(value, told, tensors)}
    if type(value) is list:
        return [told(each) for each in value]
    for kind, (exact, parts_of, _) in KINDS.items():
        if type(value) is exact:
            return {kind: told(parts_of(value))}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        cls = type(value)
        return {"namedtuple": [cls.__module__, cls.__qualname__, told(list(value))]}
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        array = numpy.asarray(value)
        if array.dtype.kind in NUMBERS:
            is_array = isinstance(value, numpy.ndarray)
            flat = torch.from_numpy(numpy.frombuffer(array.tobytes(), dtype=numpy.uint8).copy())
            return {"array": [told(flat), array.dtype.str, list(array.shape), is_array]}
    raise TypeError(f"a {type(value).__name__} can't be handed to another process; {ADVICE}")


def _tensor(value: torch.Tensor, told: Callable[[Any], Any], tensors: list[torch.Tensor]) -> Any:
    """A tensor's number, or the parts of a sparse one."""
    if value.layout == torch.sparse_coo:
        value = value.detach().coalesce()
        return [told(value.indices()), told(value.values()), list(value.shape)]
    if value.layout != torch.strided or value.is_quantized:
        raise TypeError(f"a tensor of {value.layout} can't be handed to another process; {ADVICE}")
    tensors.append(value.detach())
    return len(tensors) - 1


def _made(told: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(told, list):
        return [_made(each, tensors) for each in told]
    if not isinstance(told, dict):
        return told
    ((kind, parts),) = told.items()
    if kind in KINDS:
        return KINDS[kind][2](_made(parts, tensors))
    if kind == "tensor" and isinstance(parts, list):
        indices, values = (_made(each, tensors) for each in parts[:2])
        return torch.sparse_coo_tensor(indices, values, parts[2], check_invariants=True)
    if kind == "tensor":
        return tensors[parts]
    if kind == "array":
        return _array(_made(parts[0], tensors), *parts[1:])
    if kind == "namedtuple":
        return _named(*parts[:2])._make(_made(parts[2], tensors))
    raise ValueError(f"there is no kind {kind!r} of values")


def _named(module: str, name: str) -> Any:
    """The class of a named tuple, if this process has loaded it. Raises ValueError."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_make")):
        raise ValueError(f"{module}.{name} is no named tuple of this program")
    return found


def _array(flat: torch.Tensor, dtype: str, shape: list[int], is_array: bool) -> Any:
    import numpy

    kind = numpy.dtype(dtype)
    if kind.kind not in NUMBERS:
        raise ValueError(f"{dtype} is no type of numbers")
    array = numpy.frombuffer(flat.cpu().numpy().tobytes(), dtype=kind).reshape(shape).copy()
    return array if is_array else array[()]


def _pairs(value: Mapping[Any, Any]) -> list[list[Any]]:
    return [[key, inner] for key, inner in value.items()]


def _factory_of(value: defaultdict[Any, Any]) -> list[Any]:
    factory = value.default_factory
    name = getattr(factory, "__name__", None)
    if factory is not None and FACTORIES.get(str(name)) is not factory:
        raise TypeError(f"a defaultdict of {name} can't be handed to another process; {ADVICE}")
    return [name, _pairs(value)]


# By name: the very type, its parts as values of other kinds, and how it is made of these.
KINDS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "dict": (dict, _pairs, dict),
    "tuple": (tuple, list, tuple),
    "set": (set, list, set),
    "frozenset": (frozenset, list, frozenset),
    "ordered": (OrderedDict, _pairs, OrderedDict),
    "counter": (Counter, _pairs, lambda pairs: Counter(dict(pairs))),
    "default": (
        defaultdict,
        _factory_of,
        lambda parts: defaultdict(parts[0] and FACTORIES[parts[0]], parts[1]),
    ),
    "deque": (
        deque,
        lambda value: [list(value), value.maxlen],
        lambda parts: deque(parts[0], parts[1]),
    ),
    "complex": (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "bytes": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
    "bytearray": (
        bytearray,
        lambda value: base64.b64encode(value).decode(),
        lambda text: bytearray(base64.b64decode(text)),
    ),
    "size": (torch.Size, list, torch.Size),
    "dtype": (torch.dtype, name_of, dtype_of),
    "device": (torch.device, str, torch.device),
}
