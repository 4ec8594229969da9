"""Compiled functions: what a shard of one is given, how it runs, what it may return.

A *compiled function* is an SPMD function of tensors. It runs once on each shard of a slice, on that
shard's tensors, and returns one tensor, or a tuple or list of tensors. Its rules:

* Its inputs are read only. It may not write to them, nor to tensors made outside it: it keeps no
  state. A worker sees ordinary writes by version counters (:class:`Watch`); an outline sees
  collectives in place as well.
* Autograd is on, as in any torch code. Inputs arrive without ``requires_grad``, so a function that
  needs gradients asks for them: ``x = x.detach().requires_grad_()``. What it returns is detached.
* What it returns owns its memory: a tensor that is a view, is not contiguous, or is an input itself
  is copied. So each output can be freed alone, and counts its own bytes only.
* Random numbers come from torch's default generator. A call that is given a seed sets it first, so
  its numbers depend neither on the worker nor on the calls before it.
* Collectives take the slice's group: ``dist.all_reduce(x, group=flow.shard().group)``. Peers are
  named by their rank in it: ``group_src=0``.
"""

import hashlib
import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from rota.errors import InputError

Function = Callable[..., Any]


class Spec(msgspec.Struct, frozen=True):
    """Shape and dtype of a tensor, before there is one.

    Attributes:
        shape: Sizes of the dimensions, each at least 0.
        dtype: Name of the torch dtype, such as ``"float32"``.

    Raises:
        InputError: A size is not a whole number of at least 0, or torch has no such dtype.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        sizes = self.shape if isinstance(self.shape, tuple) else None
        if sizes is None or any(type(size) is not int or size < 0 for size in sizes):
            raise InputError(
                f"shape {self.shape!r} of a Spec must be a tuple of whole numbers of at least 0, "
                "such as (2, 3)"
            )
        if not isinstance(self.dtype, str) or not isinstance(
            getattr(torch, self.dtype, None), torch.dtype
        ):
            raise InputError(
                f"dtype {self.dtype!r} of a Spec must be the name of a torch dtype, "
                "such as 'float32'"
            )

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Spec":
        """Returns the spec of a tensor."""
        return cls(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch dtype."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def nbytes(self) -> int:
        """Bytes of a contiguous tensor of this shape and dtype."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.torch_dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Shard:
    """The place of a running function in its slice.

    Attributes:
        rank: Number of this shard, 0 to size - 1.
        size: Number of shards of the slice.
    """

    __slots__ = ("_group", "rank", "size")

    def __init__(self, rank: int, size: int, group: dist.ProcessGroup | None = None) -> None:
        if not 0 <= rank < size:
            raise InputError(f"rank {rank} of a shard must be from 0 to {size - 1}")
        self.rank = rank
        self.size = size
        self._group = group

    @property
    def group(self) -> dist.ProcessGroup:
        """Process group of the slice.

        A slice of one shard has a group too, whose collectives answer at once, so that a function
        with collectives runs on slices of any size.

        Raises:
            InputError: The slice has several shards, and its worker gave it no group.
        """
        if self._group is None:
            if self.size > 1:
                raise InputError(f"a slice of {self.size} shards was given no process group")
            self._group = group_of_one()
        return self._group

    def __repr__(self) -> str:
        return f"Shard(rank={self.rank}, size={self.size})"


_shard: Shard | None = None


def shard() -> Shard:
    """Returns the shard that the running function works on.

    Raises:
        InputError: No compiled function is running.
    """
    if _shard is None:
        raise InputError(
            "flow.shard() was called where no compiled function runs; call it inside the function"
        )
    return _shard


class on:
    """A context in which :func:`shard` returns a shard."""

    __slots__ = ("_before", "_place")

    def __init__(self, place: Shard) -> None:
        self._place = place

    def __enter__(self) -> None:
        global _shard
        self._before, _shard = _shard, self._place

    def __exit__(self, *_: object) -> None:
        global _shard
        _shard = self._before


_group_numbers = itertools.count()


def group_from(backend: Any, rank: int, size: int) -> dist.ProcessGroup:
    """Returns a process group around one c10d backend, such as a ``dist.ProcessGroupGloo``.

    It needs no default group, and leaves one that exists as it is. Rank i of the group counts as
    global rank i, so that ``src=`` and ``group_src=`` mean the same. :func:`drop_group` ends it.
    """
    name = f"rota-flow-{next(_group_numbers)}"
    group = dist.ProcessGroup(dist.HashStore(), rank, size)
    group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    for device in ("cpu", "cuda"):
        group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
    group._set_group_name(name)
    c10d._world.pg_group_ranks[group] = {peer: peer for peer in range(size)}
    c10d._world.pg_names[group] = name
    c10d._world.pg_map[group] = (backend.name(), None)
    c10d._register_process_group(name, group)
    return group


def drop_group(group: dist.ProcessGroup) -> None:
    """Forgets a group of :func:`group_from`. Its backend ends with the last reference to it."""
    name = c10d._world.pg_names.pop(group)
    c10d._world.pg_group_ranks.pop(group)
    c10d._world.pg_map.pop(group)
    c10d._unregister_process_group(name)


def fake_group(rank: int, size: int) -> dist.ProcessGroup:
    """Returns a group whose collectives talk to nobody; they copy what a shard has itself."""
    from torch._C._distributed_c10d import FakeProcessGroup

    options = FakeProcessGroup.Options()  # type: ignore[call-arg]
    backend = FakeProcessGroup._create_internal(rank, size, options)  # type: ignore[call-arg]
    return group_from(backend, rank, size)


@cache
def group_of_one() -> dist.ProcessGroup:
    """Returns the group of a slice of one shard, whose collectives copy input to output."""
    return fake_group(0, 1)


def name_of(function: Function) -> str:
    """Returns the name of a function for messages."""
    return str(getattr(function, "__name__", type(function).__name__))


class Watch:
    """Sees writes to tensors by their version counters, in a fraction of a microsecond each.

    Torch does not count collectives in place, so they go unseen here; an outline does see them.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._versions = [tensor._version for tensor in tensors]

    def check(self, name: str) -> None:
        """Raises InputError if a tensor was written to since. Its data are then lost."""
        for index, (tensor, version) in enumerate(zip(self._tensors, self._versions, strict=True)):
            if tensor._version != version:
                raise writes_to_input(name, index)


def writes_to_input(name: str, index: int) -> InputError:
    """Returns the error of a function that writes to its input."""
    return InputError(
        f"{name} writes to its input {index}, which others may read: return a new tensor instead "
        "(x.add_(1) -> x.add(1); before a collective in place: x = x.clone())"
    )


def returned_tensors(name: str, returned: Any) -> tuple[tuple[torch.Tensor, ...], bool]:
    """Returns the tensors that a function returned, and True if it was a single bare one.

    Raises:
        InputError: It is no strided tensor, nor a tuple or list of at least one of them.
    """
    single = isinstance(returned, torch.Tensor)
    outputs = (returned,) if single else returned
    if not isinstance(outputs, tuple | list):
        raise InputError(
            f"{name} returned {_a(returned)}: return one tensor, or a tuple or list of tensors"
        )
    if not outputs:
        raise InputError(f"{name} returned an empty {type(returned).__name__}: return a tensor")
    for index, output in enumerate(outputs):
        if not isinstance(output, torch.Tensor):
            raise InputError(
                f"output {index} of {name} is {_a(output)}: return tensors only, side by side, "
                "such as (x, y, z) for (x, (y, z)) and torch.tensor(1.0) for 1.0"
            )
        if output.layout != torch.strided:
            raise InputError(
                f"output {index} of {name} has the layout {output.layout}: return a dense tensor, "
                "such as x.to_dense()"
            )
        if output.device.type == "meta":
            raise InputError(
                f"output {index} of {name} is on the device meta, and has no data: return a tensor "
                "on the device of its inputs"
            )
    return tuple(outputs), single


def _a(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def owned(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Returns outputs detached, contiguous, each alone in its memory; copies those that are not."""
    taken = {tensor.untyped_storage()._cdata for tensor in inputs}
    own = []
    for output in outputs:
        tensor = output.detach()
        storage = tensor.untyped_storage()
        if (
            storage._cdata in taken
            or storage.nbytes() != tensor.numel() * tensor.element_size()
            or not tensor.is_contiguous()
            or tensor.is_conj()
            or tensor.is_neg()
            or tensor.is_inference()
        ):
            tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(
                tensor
            )
        taken.add(tensor.untyped_storage()._cdata)
        own.append(tensor)
    return tuple(own)


def call(
    function: Function,
    inputs: Sequence[torch.Tensor],
    place: Shard,
    *,
    seed: int | None = None,
) -> tuple[tuple[torch.Tensor, ...], bool]:
    """Runs a function on one shard; returns its outputs, and True if it returned a bare tensor.

    Args:
        function: The function, as :func:`rota.flow.naming.found` returns it.
        inputs: Tensors of this shard. The function sees aliases of them that have no gradient.
        place: What :func:`shard` returns inside the function.
        seed: Set in torch's default generators before the call; None leaves them as they are.

    Raises:
        InputError: The function wrote to an input, or returned something else than tensors.
        Exception: Whatever the function raises.
    """
    watch = Watch(inputs)
    if seed is not None:
        _set_seed(seed)
    name = name_of(function)
    if not torch.is_grad_enabled():  # a function before has left it so
        torch.set_grad_enabled(True)
    global _shard  # without a context manager: it would take a tenth of a short call
    before, _shard = _shard, place
    try:
        returned = function(*[tensor.detach() for tensor in inputs])
    finally:
        _shard = before
        watch.check(name)
    outputs, single = returned_tensors(name, returned)
    return owned(outputs, inputs), single


def _set_seed(seed: int) -> None:
    # A tenth of the time of torch.manual_seed, which asks every kind of device.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)


def seed_for(*numbers: int) -> int:
    """Returns a seed for a call that depends on all the numbers: program's seed, node, rank."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def check_results(name: str, tried: Sequence[Spec], results: Sequence[torch.Tensor]) -> None:
    """Refuses results of a call that have other shapes or dtypes than in the function's trial.

    Raises:
        InputError: Names the function, the result, what the trial gave and what the call gave.
    """
    for index, (spec, result) in enumerate(zip(tried, results, strict=True)):
        if tuple(result.shape) != spec.shape or result.dtype is not spec.torch_dtype:
            raise InputError(
                f"result {index} of {name} is {Spec.of(result)}, and was {spec} in its trial with "
                "fake tensors: return the same shapes and types always, or give most_bytes=..."
            )


def check(name: str, expected: Sequence[Spec], given: Sequence[Spec]) -> None:
    """Refuses inputs of a call whose number, shapes or dtypes are not those of the function.

    Raises:
        InputError: Names the function, the argument, what it takes and what was given.
    """
    if len(expected) != len(given):
        raise InputError(
            f"{name} takes {len(expected)} tensors ({', '.join(map(str, expected)) or 'none'}), "
            f"and was given {len(given)}"
        )
    for index, (want, have) in enumerate(zip(expected, given, strict=True)):
        if want != have:
            fix = (
                f"convert it with x.to(torch.{want.dtype})"
                if want.shape == have.shape
                else "reshape it, or compile the function for this shape"
            )
            raise InputError(
                f"argument {index} of {name} must be {want}, and was given {have}: {fix}"
            )
