"""Measured seconds and sizes of the layers of a torch model: the graph that the planner takes.

A measured step runs all layers forward, then all backward, as a training does, so that each finds
the caches as there. What a batch took is the least of the medians of rounds that lie apart: what
else runs on the machine makes a round longer, and none shorter.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import torch

from rota.burst.layers.symbolic import first_line
from rota.burst.layers.trace import (
    INPUT,
    Layered,
    as_inputs,
    parameters_of,
    samples_like,
    unchanged,
)
from rota.errors import InputError
from rota.model.layer_graph import Layer, LayerGraph, LayerTime

STEPS = 3  # a round's, whose median counts
ROUNDS = 12


class Moment(NamedTuple):
    """Forward and backward seconds of each piece in one step."""

    forward_s: dict[str, float]
    backward_s: dict[str, float]


def measured(
    model: torch.nn.Module,
    split: Layered,
    example_inputs: Any,
    batch: int,
    *,
    name: str,
    loss: Callable[[torch.Tensor], torch.Tensor] | None = None,
    at_most: int | None = None,
    threads: int = 1,
    budget_s: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
    tell: Callable[[str], None] = lambda line: None,
) -> LayerGraph:
    """The layers of ``model``, which is split into ``split``, with their times at each batch.

    Measured are ``batch`` samples and fewer: 1, powers of two, and the divisors of the batch, not
    above ``at_most``; each with ``threads`` threads, in training. Samples are like those of
    ``example_inputs``. ``loss(output)`` is measured with the last layer. After ``budget_s`` nothing
    more is begun, but for the largest and the smallest batch, which a plan needs. The model's
    buffers, gradients and generators are as before. Raises InputError for a batch that does not fit
    into memory, or that the model or the loss does not take.
    """
    inputs = as_inputs(example_inputs)
    most = min(batch, at_most or batch)
    steps: dict[int, list[Moment]] = {}
    ends_s = clock() + budget_s
    kept: dict[str, float] = {}
    with unchanged(model), _threads(threads), _gradients_kept(model):
        model.train()
        stepper = _Stepper(split, loss)
        first = batches_of(batch, most)
        for size in first:
            if clock() >= ends_s and len(steps) >= min(2, len(first)):
                break
            tell(f"batch {size}")
            given = tuple(samples_like(each, size) for each in inputs)
            try:
                with _told(size):
                    if size == most:
                        kept = stepper.kept_bytes(given)
                    stepper.step(given)
                    steps[size] = [_round(stepper, given, STEPS if clock() < ends_s else 1)]
            except _TooFewValues:
                if size == most:
                    raise
                tell(f"batch {size} is left out: BatchNorm needs several values of a channel")
        for number in range(1, ROUNDS):
            for size in sorted(steps):
                if clock() >= ends_s:
                    break
                if size == min(steps):
                    tell(f"round {number + 1} of at most {ROUNDS}")
                given = tuple(samples_like(each, size) for each in inputs)
                stepper.step(given)
                steps[size].append(_round(stepper, given, STEPS))
    width = next((each.element_size() for each in model.parameters()), 4)
    return LayerGraph(
        name, _layers(split, steps, stepper, kept, most, width), bytes_per_value=width
    )


def batches_of(batch: int, most: int) -> list[int]:
    """The batches to measure, the most needed first: the ends, powers of two, then divisors."""
    powers = [1 << at for at in range(most.bit_length())]
    divisors = [size for size in range(1, most + 1) if batch % size == 0]
    return list(dict.fromkeys([most, 1, *reversed(powers), *reversed(divisors)]))


class _Stepper:
    """Runs steps of a model piece by piece. What crosses a border is cut from the graph there."""

    def __init__(self, split: Layered, loss: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        self.split, self.loss = split, loss
        self.output_values: dict[str, float] = {}

    def step(self, inputs: tuple[torch.Tensor, ...]) -> Moment:
        """One step, forward and backward, with the seconds of each piece."""
        timer = _timer(inputs[0])
        values: dict[str, torch.Tensor] = {f"{INPUT}{at}": x for at, x in enumerate(inputs)}
        gradients: dict[str, torch.Tensor] = {}
        taken: dict[str, list[torch.Tensor]] = {}
        for piece in self.split.pieces:
            given = [_leaf(values[name]) for name in piece.inputs]
            taken[piece.name] = given
            timer.start(piece.name)
            values[piece.name] = piece.module(*given)
            timer.stop()
        last = values[self.split.output]
        if self.loss is not None:
            out = _leaf(last)
            timer.start(self.split.output)
            lost = self.loss(out)
            timer.stop()
            _check_loss(lost)
            timer.start(self.split.output, backward=True)
            lost.backward()
            timer.stop()
            gradients[self.split.output] = out.grad
        elif last.requires_grad:
            gradients[self.split.output] = torch.ones_like(last) / last.numel()
        for piece in reversed(self.split.pieces):
            gradient = gradients.pop(piece.name, None)
            value = values.pop(piece.name)
            self.output_values[piece.name] = value.numel() / len(value)
            if gradient is not None and value.requires_grad:
                timer.start(piece.name, backward=True)
                value.backward(gradient)
                for source, leaf in zip(piece.inputs, taken[piece.name], strict=True):
                    if leaf.grad is not None:
                        held = gradients.get(source)
                        gradients[source] = leaf.grad if held is None else held + leaf.grad
                timer.stop()
            del value
            taken.pop(piece.name)
        for piece in self.split.pieces:
            for parameter in piece.module.parameters():
                parameter.grad = None
        return timer.moment()

    def kept_bytes(self, inputs: tuple[torch.Tensor, ...]) -> dict[str, float]:
        """Bytes a sample keeps for each piece's backward pass, in what it is the first to keep."""
        owned = {
            each.untyped_storage().data_ptr()
            for piece in self.split.pieces
            for each in (*piece.module.parameters(), *piece.module.buffers())
        }
        seen: dict[int, torch.Tensor] = {}  # held, so that no address is taken twice
        found = dict.fromkeys((piece.name for piece in self.split.pieces), 0.0)
        values: dict[str, torch.Tensor] = {f"{INPUT}{at}": x for at, x in enumerate(inputs)}
        for piece in self.split.pieces:

            def keep(tensor: torch.Tensor, name: str = piece.name) -> torch.Tensor:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in owned and storage.data_ptr() not in seen:
                    seen[storage.data_ptr()] = tensor
                    found[name] += storage.nbytes() / len(inputs[0])
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                values[piece.name] = piece.module(*(_leaf(values[name]) for name in piece.inputs))
        return found


class _WallTimer:
    """Seconds by the clock; operations on a CPU are done when they return."""

    def __init__(self) -> None:
        self._found: tuple[dict[str, float], dict[str, float]] = ({}, {})
        self._at: tuple[str, bool, float] = ("", False, 0.0)

    def start(self, name: str, backward: bool = False) -> None:
        self._at = (name, backward, time.perf_counter())

    def stop(self) -> None:
        ended = time.perf_counter()
        name, backward, began = self._at
        found = self._found[backward]
        found[name] = found.get(name, 0.0) + ended - began

    def moment(self) -> Moment:
        return Moment(*self._found)


class _CudaTimer:
    """Seconds between events on the current stream; read once the step is done."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, bool, Any, Any]] = []
        torch.cuda.synchronize()

    def start(self, name: str, backward: bool = False) -> None:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self._spans.append((name, backward, begin, end))

    def stop(self) -> None:
        self._spans[-1][3].record()

    def moment(self) -> Moment:
        torch.cuda.synchronize()
        found: tuple[dict[str, float], dict[str, float]] = ({}, {})
        for name, backward, begin, end in self._spans:
            seconds = begin.elapsed_time(end) / 1e3
            found[backward][name] = found[backward].get(name, 0.0) + seconds
        return Moment(*found)


def _timer(like: torch.Tensor) -> _WallTimer | _CudaTimer:
    return _CudaTimer() if like.is_cuda else _WallTimer()


def _leaf(value: torch.Tensor) -> torch.Tensor:
    """The value as a layer takes it from another one: its gradient is asked for if it has one."""
    return value.detach().requires_grad_(value.requires_grad)


def _check_loss(lost: Any) -> None:
    if not isinstance(lost, torch.Tensor) or lost.numel() != 1 or not lost.requires_grad:
        raise InputError(
            f"the loss function yields {type(lost).__name__}; it takes the model's output and "
            "yields one value with a gradient"
        )


def _round(stepper: _Stepper, inputs: tuple[torch.Tensor, ...], steps: int) -> Moment:
    """The medians of some steps."""
    moments = [stepper.step(inputs) for _ in range(steps)]
    names = [piece.name for piece in stepper.split.pieces]
    return Moment(
        *(
            {name: median(moment[way].get(name, 0.0) for moment in moments) for name in names}
            for way in (0, 1)
        )
    )


def _layers(
    split: Layered,
    steps: dict[int, list[Moment]],
    stepper: _Stepper,
    kept: dict[str, float],
    most: int,
    width: int,
) -> Iterator[Layer]:
    own = parameters_of(split)
    for piece in split.pieces:
        times = tuple(
            LayerTime(
                size,
                min(moment.forward_s[piece.name] for moment in rounds),
                min(moment.backward_s[piece.name] for moment in rounds),
            )
            for size, rounds in sorted(steps.items())
        )
        yield Layer(
            piece.name,
            times,
            tuple(name for name in piece.inputs if not name.startswith(INPUT)),
            sum(each.numel() for each in own[piece.name] if each.requires_grad),
            round(stepper.output_values[piece.name]),
            round(kept[piece.name] / width),
            piece.keeps_size,
            piece.tied_to,
        )


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _gradients_kept(model: torch.nn.Module) -> Iterator[None]:
    before = [(each, each.grad) for each in model.parameters()]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


class _TooFewValues(InputError):
    """BatchNorm refuses a batch that leaves it one value of a channel."""


@contextmanager
def _told(size: int) -> Iterator[None]:
    """Makes one sentence of a batch that does not fit, or on which a layer fails."""
    try:
        yield
    except InputError:
        raise
    except (MemoryError, RuntimeError, ValueError) as error:
        if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or (
            "allocate memory" in str(error)
        ):
            fix = f"give --most {size // 2}" if size > 1 else "take a smaller model"
            raise InputError(f"memory is over with {size} samples on a GPU; {fix}") from error
        kind = _TooFewValues if "more than 1 value per channel" in str(error) else InputError
        raise kind(
            f"the model fails in training with {size} samples ({first_line(error)}); "
            "its forward and the loss function must take any number of samples"
        ) from error
