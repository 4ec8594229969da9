"""A torch model split into the layers that the planner sizes and the runtime runs.

>>> split = layered(model, (images,))                                 # doctest: +SKIP
>>> outputs = split.run(images)    # equals model(images) bit for bit  # doctest: +SKIP
"""

import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import getattr_static
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional as F

from rota.burst.layers.grouping import (
    CHEAP_MODULES,
    PROBES,
    Group,
    Grouping,
    Seen,
    path_of,
    pruned,
    seen,
    unmutated,
)
from rota.burst.layers.symbolic import (
    Constants,
    RootUntraceable,
    Traced,
    first_line,
    marked,
    reads_shape,
    traced,
)
from rota.errors import InputError, UntraceableModelError, did_you_mean

INPUT = "input:"
MARK = (
    "mark the modules whose chain is the model with rota.burst.layers.block, or name them in blocks"
)


class Piece(NamedTuple):
    """A layer of a model: ``module(*inputs)`` yields one tensor, with the batch in dimension 0.

    ``inputs`` are names of pieces, or ``input:0`` ... for those of the model. The module shares
    its parameters and buffers with the model. A piece with ``keeps_size`` runs where its only input
    is. ``tied_to`` names the first piece that has a parameter in common with this one.
    """

    name: str
    module: nn.Module
    inputs: tuple[str, ...]
    keeps_size: bool = False
    tied_to: str | None = None


class Layered(NamedTuple):
    """The pieces of a model, each after its inputs; ``output`` names the one that yields its.

    The pieces have ``constants`` of the model, as they were when it was split.
    """

    pieces: tuple[Piece, ...]
    output: str
    constants: Constants = Constants()

    def run(self, *inputs: torch.Tensor) -> torch.Tensor:
        """What the model yields for ``inputs``, piece by piece."""
        values = {f"{INPUT}{at}": value for at, value in enumerate(inputs)}
        for piece in self.pieces:
            values[piece.name] = piece.module(*(values[name] for name in piece.inputs))
        return values[self.output]


def block(module: nn.Module) -> nn.Module:
    """Marks a module that stays whole when its model is split; returns it."""
    module.__dict__["_rota_block"] = True
    return module


def layered(
    model: nn.Module, example_inputs: Any, *, blocks: Sequence[str] | None = None
) -> Layered:
    """The layers of ``model``, whose forward takes tensors like ``example_inputs``.

    ``example_inputs`` is a tensor or a tuple of tensors, with the batch in dimension 0. Submodules
    named in ``blocks``, or marked with :func:`block`, stay whole; so do those that torch.fx can't
    follow. If it can't follow the model itself, the blocks must be a chain that is the model. The
    pieces were run: they yield what the model yields, bit for bit. Weights, buffers, modes and
    generators are as before. Raises UntraceableModelError naming the module and the fix.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a {type(model).__name__}; give a torch.nn.Module")
    names = _block_names(model, blocks)
    inputs = as_inputs(example_inputs)
    probes = tuple(tuple(samples_like(each, number) for each in inputs) for number in PROBES)
    with unchanged(model), torch.no_grad():
        _tried(model, probes[0])
        try:
            split = _followed(model, probes, set(names))
            how = "the model does something that its graph of operations does not have"
        except RootUntraceable as reason:
            chain = names or [name for name, each in model.named_modules() if marked(each)]
            if not chain:
                raise UntraceableModelError(
                    f"{type(model).__name__} can't be split into layers ({reason}): {MARK}"
                ) from reason
            split = _chain(model, chain, len(inputs))
            how = f"the model is not the chain of its blocks {', '.join(chain)} ({reason})"
        _check_equal(model, split, probes, how)
        try:
            _check_samples(model, split, probes[1])
        except UntraceableModelError:
            raise
        except Exception as error:
            raise UntraceableModelError(
                f"{type(model).__name__} does not run on each of its samples alone, so that it "
                f"can't be cut by samples ({first_line(error)}); let it take any number of samples"
            ) from error
    return split


def as_inputs(example_inputs: Any) -> tuple[torch.Tensor, ...]:
    """The example inputs as a tuple of tensors of equally many samples, else InputError."""
    given = example_inputs if isinstance(example_inputs, tuple | list) else (example_inputs,)
    for at, each in enumerate(given):
        if not isinstance(each, torch.Tensor) or not each.dim():
            raise InputError(
                f"example input {at} is a {type(each).__name__} without samples; give tensors "
                "with the batch in dimension 0, and keep other values in the model"
            )
    batches = [len(each) for each in given]
    if not batches or len(set(batches)) > 1 or not batches[0]:
        raise InputError(
            f"the example inputs have {batches} samples; give one or more, of the same batch"
        )
    return tuple(given)


def parameters_of(split: Layered) -> dict[str, list[nn.Parameter]]:
    """The parameters that each piece owns: a tied one belongs to the piece it is tied to."""
    owned: dict[str, dict[int, nn.Parameter]] = {piece.name: {} for piece in split.pieces}
    taken: set[int] = set()
    for piece in split.pieces:
        for parameter in piece.module.parameters():
            if id(parameter) not in taken:
                taken.add(id(parameter))
                owned[piece.tied_to or piece.name][id(parameter)] = parameter
    return {name: list(parameters.values()) for name, parameters in owned.items()}


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restores a model's attributes and buffers, and torch's generators, at the end.

    The modes are among the attributes. Gradients of the parameters are taken away meanwhile.
    """
    state = _State(model)
    gradients = [(each, each.grad) for each in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with torch.random.fork_rng(enabled=True):
            yield
    finally:
        state.restore()
        for parameter, gradient in gradients:
            parameter.grad = gradient


class _State:
    """The attributes and buffers of a model's modules, which :meth:`restore` brings back."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = [
            (each, dict(vars(each)), dict(each._buffers))
            for each in model.modules()
            if not isinstance(each, torch.jit.ScriptModule)  # which lets nobody do this
        ]
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]

    def restore(self) -> None:
        """Bring back what modules had, by name and by value."""
        for module, attributes, buffers in self._modules:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)


def whole(model: nn.Module, example_inputs: Any) -> Layered:
    """The model as one piece, which each rank runs on samples of its own.

    Raises UntraceableModelError if its result for a sample depends on others of the batch. A model
    that does not take one to three samples is not looked at.
    """
    inputs = as_inputs(example_inputs)
    names = tuple(f"{INPUT}{at}" for at in range(len(inputs)))
    split = Layered((Piece("", model, names),), "")
    probe = tuple(samples_like(each, PROBES[1]) for each in inputs)
    with unchanged(model), torch.no_grad():
        try:
            _check_samples(model, split, probe)
        except UntraceableModelError:
            raise
        except Exception:
            return split
    return split


def check_again(model: nn.Module, split: Layered, example_inputs: Any) -> None:
    """Raises UntraceableModelError unless the pieces equal the model for inputs of these shapes."""
    inputs = as_inputs(example_inputs)
    shapes = ", ".join("x".join(map(str, each.shape[1:])) or "1" for each in inputs)
    with unchanged(model), torch.no_grad():
        probes = [tuple(samples_like(each, number) for each in inputs) for number in PROBES]
        how = (
            f"its layers were found for samples of other shapes than {shapes}; "
            "pad all to one shape, or leave the plan out"
        )
        _check_equal(model, split, probes, how, fix="")


def _block_names(model: nn.Module, blocks: Sequence[str] | None) -> list[str]:
    known = dict(model.named_modules())
    for name in blocks or ():
        if name not in known or not name:
            raise InputError(
                f"blocks: the model has no submodule {name!r}{did_you_mean(name, known)}"
            )
    return list(blocks or ())


def samples_like(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """``number`` samples like those of ``tensor``, each unlike the others."""
    given = tensor.detach()
    made = []
    for at in range(number):
        one = given[at % len(given)].clone()
        again = at // len(given)
        if again and one.is_floating_point():
            one = one * (1.0 + 0.25 * again)
        elif again and one.dim():
            one = one.roll(again, -1)
        made.append(one)
    return torch.stack(made)


def _tried(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """Runs the model itself once, so that what fails in it is not taken for a fault of tracing."""
    model.eval()
    try:
        model(*(each.clone() for each in inputs))
    except Exception as error:
        shapes = ", ".join("x".join(map(str, each.shape)) for each in inputs)
        raise InputError(
            f"{type(model).__name__} fails with inputs of {shapes} ({first_line(error)}); "
            "give example inputs that its forward takes"
        ) from error


def _followed(
    model: nn.Module, probes: tuple[tuple[torch.Tensor, ...], ...], names: set[str]
) -> Layered:
    """The pieces by torch.fx. Raises RootUntraceable if most of the model can't be followed."""
    found = traced(model, probes, names)
    total = sum(parameter.numel() for parameter in model.parameters())
    for name, reason in found.whole.items():
        module = model.get_submodule(name)
        within = sum(parameter.numel() for parameter in module.parameters())
        children = [each for each in module.children() if any(True for _ in each.parameters())]
        if 2 * within > total and len(children) > 1:
            raise RootUntraceable(f"in {name}: {reason}")
    return pieces_of(found, model, probes)


def pieces_of(
    found: Traced, model: nn.Module, probes: tuple[tuple[torch.Tensor, ...], ...]
) -> Layered:
    """The pieces of a traced graph."""
    graph, named = found.graph, found.named
    unmutated(graph)
    pruned(graph)
    model.train()
    records = (_probed(graph, named, probes[0]), _probed(graph, named, probes[1]))
    grouping = Grouping(graph, named, records)
    groups = grouping.groups()
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    names = {node: f"{INPUT}{at}" for at, node in enumerate(placeholders)}
    taken: set[str] = set()
    pieces: list[Piece] = []
    for group in groups:
        name = _unique(_name(group, named), taken)
        names[group.output] = name
        pieces.append(_piece(group, name, names, grouping, named))
    return Layered(_tied(pieces), names[grouping.output], found.constants)


def _probed(
    graph: fx.Graph, named: dict[str, Any], inputs: tuple[torch.Tensor, ...]
) -> dict[fx.Node, Seen]:
    """What each node yields for ``inputs``."""
    values: dict[fx.Node, Any] = {}
    records: dict[fx.Node, Seen] = {}
    left = iter([each.clone() for each in inputs])
    for node in graph.nodes:
        before = _generators(inputs[0])
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "placeholder":
            value = next(left)
        elif node.op == "output":
            break
        elif node.op == "get_attr":
            value = named[node.target]
        elif node.op == "call_module":
            value = named[node.target](*args, **kwargs)
        elif node.op == "call_method":
            value = getattr(args[0], node.target)(*args[1:], **kwargs)
        else:
            value = node.target(*args, **kwargs)
        values[node] = value
        drawn = any(
            not torch.equal(one, other)
            for one, other in zip(before, _generators(inputs[0]), strict=True)
        )
        records[node] = seen(value, drawn)
    return records


def _generators(like: torch.Tensor) -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if like.is_cuda:
        states.append(torch.cuda.get_rng_state(like.device))
    return states


def _name(group: Group, named: dict[str, Any]) -> str:
    """The module that owns the parameters, or in which several do; else the first operation."""
    calls = [str(node.target) for node in group.nodes if node.op == "call_module"]
    owning = [name for name in calls if any(True for _ in named[name].parameters())]
    heavy = [name for name in owning if not isinstance(named[name], CHEAP_MODULES)] or owning
    if len(set(heavy)) == 1:
        return heavy[0]
    if heavy:
        return path_of(group.nodes) or heavy[0]
    first = group.nodes[0]
    if first.op == "call_module":
        return str(first.target)
    path = path_of([first])
    return f"{path}.{first.name}" if path else first.name


def _unique(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found


def _piece(
    group: Group, name: str, names: dict[fx.Node, str], grouping: Grouping, named: dict[str, Any]
) -> Piece:
    inputs = tuple(names[node] for node in group.inputs)
    alone = len(inputs) == 1 and not inputs[0].startswith(INPUT)
    only = group.nodes[0]
    if (
        len(group.nodes) == 1
        and only.op == "call_module"
        and only.args == group.inputs
        and not only.kwargs
    ):
        module = named[only.target]
    else:
        module = _Extract(group, grouping, named).module(name)
    return Piece(name, module, inputs, keeps_size=alone and group.cheap)


class _Extract:
    """A group as a module of its own, with all that is computed anew in it."""

    def __init__(self, group: Group, grouping: Grouping, named: dict[str, Any]) -> None:
        self.group, self.grouping, self.named = group, grouping, named
        self.graph = fx.Graph()
        self.here: dict[fx.Node, fx.Node] = {}
        self.used: dict[str, Any] = {}
        for at, node in enumerate(group.inputs):
            self.here[node] = self.graph.placeholder(f"input_{at}")

    def module(self, name: str) -> fx.GraphModule:
        for node in self.group.nodes:
            self.here[node] = self._copied(node)
        self.graph.output(self.here[self.group.output])
        return fx.GraphModule(self.used, self.graph, class_name="Piece")

    def _copied(self, node: fx.Node) -> fx.Node:
        for each in node.all_input_nodes:
            self._ready(each)
        if node.op in ("call_module", "get_attr"):
            self.used[node.target] = self.named[node.target]
        return self.graph.node_copy(node, self._taken)

    def _taken(self, node: fx.Node) -> Any:
        return self.here[node]

    def _ready(self, node: fx.Node) -> None:
        if node in self.here:
            return
        if reads_shape(node) and node.all_input_nodes[0] not in self.here:
            value = self._size(node)
            self.here[node] = value
            return
        self.here[node] = self._copied(node)

    def _size(self, node: fx.Node) -> Any:
        """The shape of a tensor that is not in the piece, from that of its first input."""
        few, more = (probe[node].value for probe in self.grouping.probes)
        if isinstance(few, tuple):
            return tuple(self._length(a, b, node) for a, b in zip(few, more, strict=True))
        return self._length(few, more, node)

    def _length(self, few: Any, more: Any, node: fx.Node) -> Any:
        if few == more:
            return few
        each = few // PROBES[0]
        if (each * PROBES[0], each * PROBES[1]) != (few, more) or not self.group.inputs:
            raise UntraceableModelError(
                f"{node.name} of {path_of([node]) or 'the model'} is {few} for 2 samples and "
                f"{more} for 3, and is needed elsewhere; {MARK}"
            )
        batch = self.graph.call_method("size", (self.here[self.group.inputs[0]], 0))
        if each == 1:
            return batch
        return self.graph.call_function(operator.mul, (batch, each))


def _tied(pieces: list[Piece]) -> tuple[Piece, ...]:
    """The pieces, each tied to the first one with which it has a parameter in common."""
    first = list(range(len(pieces)))
    owner: dict[int, int] = {}
    for at, piece in enumerate(pieces):
        for parameter in piece.module.parameters():
            other = first[owner.setdefault(id(parameter), at)]
            least, most = sorted((other, first[at]))
            first = [least if each == most else each for each in first]
    return tuple(
        piece if first[at] == at else piece._replace(tied_to=pieces[first[at]].name)
        for at, piece in enumerate(pieces)
    )


def _chain(model: nn.Module, names: list[str], taken: int) -> Layered:
    """The pieces of a chain of submodules, of which the first takes the model's inputs."""
    modules = dict(model.named_modules())
    inputs = tuple(f"{INPUT}{at}" for at in range(taken))
    pieces: list[Piece] = []
    for name in names:
        cheap = bool(pieces) and isinstance(modules[name], CHEAP_MODULES)
        pieces.append(Piece(name, modules[name], inputs, cheap))
        inputs = (name,)
    return Layered(_tied(pieces), names[-1])


def _check_equal(
    model: nn.Module,
    split: Layered,
    probes: Iterable[tuple[torch.Tensor, ...]],
    how: str,
    fix: str = f"; {MARK}",
) -> None:
    """Raises UntraceableModelError unless outputs, gradients and buffers are those of the model."""
    own = {id(each) for piece in split.pieces for each in piece.module.parameters()}
    for training in (True, False):
        model.train(training)
        mode = "training" if training else "evaluation"
        for inputs in probes:
            known = _ran(model, model, inputs, training)
            try:
                found = _ran(model, split.run, inputs, training)
            except Exception as error:
                raise UntraceableModelError(
                    f"{type(model).__name__} can't be run layer by layer in {mode} "
                    f"({first_line(error)}): {how}{fix}"
                ) from error
            what = _difference(known, found)
            for name, parameter in model.named_parameters():
                if known.gradients.get(name) is not None and id(parameter) not in own:
                    what = f"nothing for {name}, which none of its layers has"
            if what is not None:
                raise UntraceableModelError(
                    f"{type(model).__name__}, run layer by layer in {mode}, yields {what}: "
                    f"{how}{fix}"
                )


class _Ran(NamedTuple):
    """What a run yielded, and left: gradients of a fixed weighting of the output, buffers."""

    output: Any
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]


def _ran(model: nn.Module, run: Any, inputs: tuple[torch.Tensor, ...], training: bool) -> _Ran:
    """A run forward, in training backward too; the model's buffers are as before."""
    state = _State(model)
    torch.manual_seed(20)
    with torch.set_grad_enabled(training):
        output = run(*(each.clone() for each in inputs))
    gradients: dict[str, torch.Tensor | None] = {}
    if training and isinstance(output, torch.Tensor) and output.requires_grad:
        weights = torch.arange(output.numel(), device=output.device).cos().view(output.shape)
        output.backward(weights.to(output.dtype))
        gradients = {name: each.grad for name, each in model.named_parameters()}
        for parameter in model.parameters():
            parameter.grad = None
    buffers = {name: each.detach().clone() for name, each in model.named_buffers()}
    state.restore()
    return _Ran(output.detach() if isinstance(output, torch.Tensor) else output, gradients, buffers)


def _difference(known: _Ran, found: _Ran) -> str | None:
    """What is not the same in two runs; None if all is."""
    if not _equal(known.output, found.output):
        return "something else than whole"
    for name, value in known.buffers.items():
        if not _equal(value, found.buffers.get(name)):
            return f"another value of the buffer {name} than whole"
    given = [each for each in known.gradients.values() if each is not None and each.numel()]
    # Some are zero but for rounding, as those of a bias before a normalisation.
    least = 1e-2 * max((float(each.abs().max()) for each in given), default=0.0)
    for name, gradient in known.gradients.items():
        other = found.gradients.get(name)
        same = gradient is other is None or (
            gradient is not None and other is not None and _close(gradient, other, least)
        )
        if not same:
            return f"another gradient of {name} than whole"
    return None


def _equal(whole: Any, other: Any) -> bool:
    if not isinstance(whole, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    if whole.shape != other.shape:
        return False
    if whole.is_cuda:  # some kernels add up in any order
        return torch.allclose(whole, other, equal_nan=True)
    return bool(((whole == other) | ((whole != whole) & (other != other))).all())


def _check_samples(model: nn.Module, split: Layered, inputs: tuple[torch.Tensor, ...]) -> None:
    """Refuses a piece whose output for a sample depends on others of its batch, or its buffers."""
    for training in (False, True):
        model.train(training)
        for module in model.modules():  # what they draw would hide all else
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.eval()
        values = {f"{INPUT}{at}": each.clone() for at, each in enumerate(inputs)}
        for piece in split.pieces:
            name = piece.name or type(model).__name__
            given = [values[source] for source in piece.inputs]
            before = _generators(inputs[0])
            output, buffers = _sampled(piece.module, given, slice(None))
            drawn = any(
                not torch.equal(a, b) for a, b in zip(before, _generators(inputs[0]), strict=True)
            )
            if not isinstance(output, torch.Tensor) or output.shape[:1] != (PROBES[1],):
                raise UntraceableModelError(
                    f"{name} yields no tensor with the batch in dimension 0; "
                    "let it, or the block, end where one does"
                )
            values[piece.name] = output
            if drawn or (training and calls_batch_norm(piece.module)):
                continue
            first, first_buffers = _sampled(piece.module, given, slice(0, 2))
            if not _normalises_batch(piece.module, training):
                others, _ = _sampled(piece.module, given, slice(2, None))
                if first.shape[1:] != others.shape[1:] or not _close(
                    output, torch.cat([first, others])
                ):
                    raise UntraceableModelError(
                        f"{name} mixes the samples of a batch, so that it can't be cut by "
                        "samples; compute it for each sample alone, or use torch.nn.BatchNorm"
                    )
            for each, value in buffers.items():
                if not _close(value, first_buffers[each]):
                    raise UntraceableModelError(
                        f"{name} computes its buffer {each} from the samples of a batch, of which "
                        "a rank has only some; use torch.nn.BatchNorm, or compute it outside of "
                        "the model from all samples"
                    )


def _sampled(
    module: nn.Module, given: Sequence[torch.Tensor], part: slice
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """What a module yields for some samples, and its buffers then, but for those of BatchNorm.

    The module's buffers are as before.
    """
    state = _State(module)
    output = module(*(each[part].clone() for each in given))
    buffers = {
        f"{path}.{name}" if path else name: buffer.detach().clone()
        for path, each in module.named_modules()
        if not isinstance(each, nn.modules.batchnorm._BatchNorm)
        for name, buffer in each._buffers.items()
        if buffer is not None
    }
    state.restore()
    return output, buffers


def normalises(module: nn.Module) -> bool:
    """True if a module may normalise the batch, by a module of torch or by itself."""
    norm = nn.modules.batchnorm._BatchNorm
    return any(isinstance(each, norm) for each in module.modules()) or calls_batch_norm(module)


def calls_batch_norm(module: nn.Module) -> bool:
    """True if a forward may call ``F.batch_norm`` itself, and not by a module of torch."""
    for each in module.modules():
        if isinstance(each, nn.modules.batchnorm._BatchNorm):
            continue
        if isinstance(each, fx.GraphModule):
            if any(node.target in (F.batch_norm, torch.batch_norm) for node in each.graph.nodes):
                return True
        else:
            code = getattr(getattr_static(type(each), "forward"), "__code__", None)
            if code is not None and "batch_norm" in code.co_names:
                return True
    return False


def _normalises_batch(module: nn.Module, training: bool) -> bool:
    return any(
        isinstance(each, nn.modules.batchnorm._BatchNorm)
        and (training or not each.track_running_stats)
        for each in module.modules()
    )


def _close(whole: torch.Tensor, parts: torch.Tensor, least: float = 0.0) -> bool:
    """True if the values are equal but for rounding; of magnitudes from ``least`` on."""
    if whole.shape != parts.shape:
        return False
    if not (whole.is_floating_point() or whole.is_complex()):
        return torch.equal(whole, parts)
    kinds = [whole.dtype]
    if torch.is_autocast_enabled(whole.device.type):
        kinds.append(torch.get_autocast_dtype(whole.device.type))
    within = max(1e-3, *(16 * torch.finfo(kind).eps for kind in kinds))
    most = float(whole.abs().nan_to_num().max()) if whole.numel() else 0.0
    return torch.allclose(
        whole, parts, rtol=within, atol=within * max(most, least) + 1e-6, equal_nan=True
    )
