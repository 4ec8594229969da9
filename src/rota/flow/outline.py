"""Outlines: the shapes, dtypes and memory of a function's outputs, before inputs exist.

A function runs once on fake tensors, which have shapes and no data, beside a fake process group.
"""

import logging
import sys
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rota.errors import InputError
from rota.flow.functions import (
    Function,
    Shard,
    Spec,
    call,
    drop_group,
    fake_group,
    name_of,
    writes_to_input,
)


class Outline(msgspec.Struct, frozen=True):
    """What a function does to memory on one shard.

    Attributes:
        outputs: Specs of its outputs, in order.
        single: True if it returns a bare tensor, False if a tuple or list.
        peak_bytes: Most bytes held at once by tensors that the function makes, outputs included.
            Not counted: its inputs, tensors made outside it (weights of an exported module),
            sparse tensors, workspaces of kernels and collectives, rounding by the allocator.
        random: True if it draws random numbers, so that a call needs a seed to be repeatable.
    """

    outputs: tuple[Spec, ...]
    single: bool
    peak_bytes: int
    random: bool


def outline(
    function: Function, specs: Sequence[Spec], rank: int, size: int, *, device: str = "cpu"
) -> Outline:
    """Returns the outline of a function for shard ``rank`` of ``size``, given its inputs' specs.

    The function's Python code runs once in this process. Its tensors hold no data, its collectives
    reach nobody, the state of torch's CPU generator and the default process group stay as they are.
    An operation on tensors made outside the function alone (a module's own mask) does compute.

    Args:
        function: The function, as :func:`rota.flow.naming.found` returns it.
        specs: Specs of this shard's inputs.
        rank: What ``flow.shard().rank`` is.
        size: What ``flow.shard().size`` is.
        device: Type of the fake device. ``"cuda"`` finds tensors made on the CPU by mistake. It
            needs no GPU, but for ``dist.broadcast`` and what else asks for a GPU's properties.

    Raises:
        InputError: The function writes to an input or to a tensor made outside it, returns
            something else than tensors, uses another process group than its shard's, raises, has
            outputs whose shapes depend on data, or uses an operation that fake tensors lack.
    """
    name = name_of(function)
    with _group(rank, size) as group, _generator_kept(), _eager(), _quiet(), _fakes():
        inputs = [torch.empty(spec.shape, dtype=spec.torch_dtype, device=device) for spec in specs]
        with _Account(name, inputs, group) as account:
            try:
                outputs, single = call(function, inputs, Shard(rank, size, group))
            except InputError:
                raise
            except (DataDependentOutputException, DynamicOutputShapeException) as error:
                raise InputError(
                    f"{name} can't be outlined, its outputs' shapes depend on data: give "
                    f"most_bytes=..., or split it ({error}{_where(error)})"
                ) from error
            except (
                NotImplementedError,
                UnsupportedFakeTensorException,
                UnsupportedOperatorException,
            ) as error:
                raise InputError(
                    f"{name} can't be outlined, fake tensors lack an operation: give "
                    f"most_bytes=... ({error}{_where(error)})"
                ) from error
            except (Exception, SystemExit) as error:
                given = ", ".join(map(str, specs)) or "no inputs"
                raise InputError(
                    f"{name} raised {type(error).__name__} for {given}{_where(error)}: "
                    f"{error}{_advice(error)}"
                ) from error
        return Outline(
            tuple(Spec.of(output) for output in outputs), single, account.peak, account.random
        )


class _Account(TorchDispatchMode):
    """Counts the bytes that operations make and free; refuses writes to what others own.

    An operation's schema names the arguments that it writes. Collectives of other process groups
    are refused too: they would reach real peers.
    """

    supports_higher_order_operators = True

    def __init__(self, name: str, inputs: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
        super().__init__()
        self._name = name
        self._group = group
        self._inputs = {
            tensor.untyped_storage()._cdata: index for index, tensor in enumerate(inputs)
        }
        self._made: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._live = 0
        self.peak = 0
        self.random = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        view_of_outside = False
        if not isinstance(func, HigherOrderOperator):  # its own operations come here as well
            for tensor in _written(func, args, kwargs):
                self._refuse_write(tensor)
            if func.namespace == "c10d":
                self._refuse_other_groups(args)
            self.random = self.random or torch.Tag.nondeterministic_seeded in func.tags
            # A view of a tensor made outside has no memory of its own.
            view_of_outside = _is_view(func) and any(
                isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor)
                for leaf in tree_leaves((args, kwargs))
            )
        result = func(*args, **kwargs)
        if not view_of_outside:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self._count(leaf)
        return result

    def _refuse_write(self, tensor: torch.Tensor) -> None:
        if tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()._cdata
        if storage in self._inputs:
            raise writes_to_input(self._name, self._inputs[storage])
        if storage not in self._made:
            raise InputError(
                f"{self._name} writes to a tensor of shape {list(tensor.shape)} that was made "
                "outside it, and functions keep no state: take it as an argument, and return the "
                "new one"
            )

    def _refuse_other_groups(self, args: tuple[Any, ...]) -> None:
        for arg in args:
            if (
                isinstance(arg, torch.ScriptObject)
                and arg._type().qualified_name().endswith(".ProcessGroup")
                and dist.ProcessGroup.unbox(arg) != self._group
            ):
                raise InputError(
                    f"a collective of {self._name} uses another process group than its slice's: "
                    "give it group=flow.shard().group"
                )

    def _count(self, tensor: torch.Tensor) -> None:
        if tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._made or key in self._inputs:
            return
        size = storage.nbytes()
        self._made[key] = weakref.ref(storage, partial(self._freed, key, size))
        self._live += size
        self.peak = max(self.peak, self._live)

    def _freed(self, key: int, size: int, _: object) -> None:
        del self._made[key]
        self._live -= size


_BATCH_NORMS = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")


@cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Returns position and name of each argument that an operation writes."""
    if func.namespace == "c10d":  # its schemas don't say; all but send write their first argument
        return () if func._opname == "send" else ((0, func._schema.arguments[0].name),)
    return tuple(
        (index, argument.name)
        for index, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    written = _written_arguments(func)
    if func._opname in _BATCH_NORMS and args[5]:  # in training, though its schema does not say
        written = ((3, "running_mean"), (4, "running_var"))
    for index, name in written:
        value = args[index] if index < len(args) else kwargs.get(name)
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                yield leaf


@cache
def _is_view(func: Any) -> bool:
    if func._opname == "lift_fresh":  # torch.tensor(...) passes what it has just made
        return False
    return any(answer.alias_info is not None for answer in func._schema.returns)


@contextmanager
def _group(rank: int, size: int) -> Iterator[dist.ProcessGroup]:
    group = fake_group(rank, size)
    try:
        yield group
    finally:
        drop_group(group)


@contextmanager
def _generator_kept() -> Iterator[None]:
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


@contextmanager
def _eager() -> Iterator[None]:
    """Lets functions under ``torch.compile`` run as written: fake tensors can't be compiled for."""
    loaded = "torch._dynamo" in sys.modules
    with torch.compiler.set_stance("force_eager") if loaded else nullcontext():
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps torch from logging the traceback of a wrong shape beside raising it."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@cache
def _fakes() -> FakeTensorMode:
    """Returns the one mode of this process, so that what functions cache fits later outlines."""
    return FakeTensorMode(allow_non_fake_inputs=True)


_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent))


def _where(error: BaseException) -> str:
    """Returns the innermost line of the user's code in a traceback, such as `` at a.py:3``."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_LIBRARIES):
            return f" at {frame.filename}:{frame.lineno}"
    return ""


def _advice(error: BaseException) -> str:
    if "Default process group" in str(error):
        return (
            " (give collectives group=flow.shard().group, and ask flow.shard() for rank and size)"
        )
    return " (if it does not for real tensors, give most_bytes=...)"
