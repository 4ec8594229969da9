"""The graph of operations of a torch model, in training and in evaluation alike.

torch.fx traces the model twice. Where the two graphs differ in constants alone, as the rate of
``F.dropout(x, p, self.training)`` does, the constant is read from the module's mode when the graph
runs. A submodule that torch.fx can't follow, or whose two graphs differ in more, stays whole.
"""

import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate

SHAPE_METHODS = {"size", "dim", "ndimension", "numel", "nelement", "is_floating_point"}
SHAPE_FIELDS = {"shape", "ndim", "dtype", "device", "is_cuda", "itemsize"}
HOOKS = {"register_hook", "register_post_accumulate_grad_hook", "retain_grad"}
PLAIN = {bool, int, float, str, type(None)}
OWN = {*vars(nn.Module()), "_rota_block"}
PYTHON_MODULES = {"operator", "_operator", "math", "builtins"}


class Traced(NamedTuple):
    """A graph, and what its nodes name: modules, parameters, buffers and constants by target.

    ``whole`` has the submodules that could not be followed, with what torch.fx said. ``constants``
    are attributes that the graph took from the model when it was traced.
    """

    graph: fx.Graph
    named: dict[str, Any]
    whole: dict[str, str]
    constants: "Constants"


class Constants(NamedTuple):
    """What a graph has of the model's attributes: ``plain`` values, and tensors by identity.

    Each is (module, name of the attribute, value).
    """

    plain: tuple[tuple[nn.Module, str, Any], ...] = ()
    tensors: tuple[tuple[Any, str, Any], ...] = ()

    def changed(self) -> str | None:
        """The first attribute that has another value by now, as ``rate of Tower``; else None."""
        for module, name, value in self.plain:
            now = vars(module).get(name)
            if now is not value and (type(now) is not type(value) or now != value):
                return f"{name} of {type(module).__name__}"
        for owner, name, value in self.tensors:
            if getattr(owner, name, None) is not value:
                return f"{name} of {type(owner).__name__}"
        return None


class ByMode(nn.Module):
    """A constant that differs between training and evaluation, by the mode of its owner."""

    def __init__(self, owner: nn.Module, training: Any, evaluation: Any) -> None:
        super().__init__()
        self.owner = (owner,)  # in a tuple, so that the owner becomes no submodule
        self.values = (training, evaluation)

    def forward(self) -> Any:
        """The constant for the mode in which the owner is now."""
        return self.values[0 if self.owner[0].training else 1]


class RootUntraceable(Exception):
    """torch.fx can't follow the model's own forward; the message is torch's."""


def traced(model: nn.Module, probes: tuple[tuple[Any, ...], ...], leaves: set[str]) -> Traced:
    """The graph of ``model`` for inputs like those of each probe, whose numbers of samples differ.

    ``leaves`` are submodules kept whole.

    Raises RootUntraceable if the model itself can't be followed. The model is left in evaluation.
    """
    whole: dict[str, str] = {}
    while True:
        graphs = []
        named: dict[str, Any] = {}
        read: dict[tuple[int, str], tuple[nn.Module, str, Any]] = {}
        for training in (True, False):
            model.train(training)
            tracer = _Tracer(probes, leaves | set(whole), read)
            before = set(vars(model)) | set(model._buffers) | set(model._parameters)
            try:
                with torch.enable_grad(), tracer.reading():
                    graph = tracer.trace(model)
                _check_kept(model, tracer, read.values())
            except Exception as error:
                if tracer.failed is None or tracer.failed in whole:
                    raise RootUntraceable(first_line(error)) from error
                whole[tracer.failed] = first_line(error)
                break
            finally:
                named |= _taken_back(model, before)
            graphs.append(graph)
        if len(graphs) < 2:
            continue
        differs = _by_mode(graphs[0], graphs[1], model, named)
        if differs is None:
            tensors = _resolve(graphs[0], model, named)
            return Traced(graphs[0], named, whole, Constants(tuple(read.values()), tensors))
        if not differs or differs in whole:
            raise RootUntraceable("its forward takes other ways in training than in evaluation")
        whole[differs] = "its forward takes other ways in training than in evaluation"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without its full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")


def module_path(node: fx.Node) -> str:
    """The qualified name of the innermost module that made the node; "" for the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] if isinstance(entry, tuple) else str(entry) for entry in stack.values()]
    return paths[-1] if paths else ""


def reads_shape(node: fx.Node) -> bool:
    """True if the node reads the shape or type of a tensor, and none of its values."""
    if node.op == "call_method":
        return node.target in SHAPE_METHODS
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] in SHAPE_FIELDS
    return node.target is len or getattr(node.target, "__name__", "").startswith("sym_size")


def of_shapes(node: fx.Node) -> bool:
    """True if the value follows from the shapes of tensors alone."""
    if reads_shape(node):
        return True
    if node.op != "call_function" or getattr(node.target, "__module__", "") not in PYTHON_MODULES:
        return False
    return bool(node.all_input_nodes) and all(of_shapes(each) for each in node.all_input_nodes)


class _Concrete(fx.Proxy):
    """A traced value that answers questions about its shape with that of the example."""

    def __len__(self) -> int:
        return self.tracer.length(self.node)

    def __index__(self) -> int:
        return operator.index(self.tracer.shape_value(self.node))

    def __int__(self) -> int:
        return int(self.tracer.shape_value(self.node))

    def __float__(self) -> float:
        return float(self.tracer.shape_value(self.node))


class _Tracer(fx.Tracer):
    def __init__(
        self,
        probes: tuple[tuple[Any, ...], ...],
        leaves: set[str],
        read: dict[tuple[int, str], tuple[nn.Module, str, Any]],
    ) -> None:
        super().__init__()
        self.leaves = leaves
        self._read = read
        self._autocast = _autocast()
        self.failed: str | None = None
        self._probes = probes
        self._values: tuple[dict[fx.Node, Any], ...] = tuple({} for _ in probes)
        self._evaluating = False

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        if name in self.leaves or marked(module):
            return True
        if module._backward_hooks or module._backward_pre_hooks:
            return True  # its graph would have none of them
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            return True  # the runtime finds it by its class
        return super().is_leaf_module(module, name)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Notes the plain attributes that forwards read: the graph has them as constants."""
        plain = nn.Module.__getattribute__

        def noted(module: nn.Module, name: str) -> Any:
            value = plain(module, name)
            own = name in plain(module, "__dict__") and name not in OWN
            if own and type(value) in PLAIN and not self._evaluating:
                self._read.setdefault((id(module), name), (module, name, value))
            return value

        nn.Module.__getattribute__ = noted
        try:
            yield
        finally:
            del nn.Module.__getattribute__

    def create_node(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        if kind.startswith("call_") and not self._evaluating:
            if not torch.is_grad_enabled():
                raise fx.proxy.TraceError(
                    "it computes without gradients, or has a torch.autograd.Function"
                )
            if _autocast() != self._autocast:
                raise fx.proxy.TraceError("it has a torch.autocast of its own")
            if kind == "call_method" and target in HOOKS:
                raise fx.proxy.TraceError(f"it calls {target}")
        return super().create_node(kind, target, *args, **kwargs)

    def call_module(self, module: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if self._evaluating:
            return forward(*args, **kwargs)
        try:
            if _unrolled(module, args, kwargs):
                value = args[0]
                for layer in module.layers:
                    value = layer(value)
                return value if module.norm is None else module.norm(value)
            return super().call_module(module, forward, args, kwargs)
        except Exception:
            name = self.path_of_module(module)
            if self.failed is None and not self.is_leaf_module(module, name):  # else its caller
                self.failed = name
            raise

    def getattr(self, attr: str, value: Any, cache: dict[str, Any]) -> Any:
        return value if self._evaluating else super().getattr(attr, value, cache)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Concrete(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self.shape_value(obj.node))

    def iter(self, obj: fx.Proxy) -> Any:
        return iter([obj[at] for at in range(len(obj))])

    def shape_value(self, node: fx.Node) -> Any:
        """The value of a node that follows from the shapes of samples; TraceError for any other."""
        if not of_shapes(node):
            raise fx.proxy.TraceError("its control flow depends on the values of a tensor")
        return _agreed(self._concrete(node))

    def length(self, node: fx.Node) -> int:
        """The number of elements of a node's value; TraceError if it is that of samples."""
        return int(_agreed([len(value) for value in self._concrete(node)]))

    def _concrete(self, node: fx.Node) -> list[Any]:
        """The value of a node for each probe."""
        before, self._evaluating = self._evaluating, True
        try:
            with torch.no_grad():
                for each in _ancestors(node):
                    for values, probe in zip(self._values, self._probes, strict=True):
                        if each not in values:
                            values[each] = self._computed(each, values, probe)
            return [values[node] for values in self._values]
        finally:
            self._evaluating = before

    def _computed(self, node: fx.Node, values: dict[fx.Node, Any], probe: tuple[Any, ...]) -> Any:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "placeholder":
            names = [each for each in node.graph.nodes if each.op == "placeholder"]
            return probe[names.index(node)].clone()
        if node.op == "get_attr":
            return attribute(self.root, node.target)
        if node.op == "call_module":
            return self.root.get_submodule(node.target)(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        return node.target(*args, **kwargs)


def _autocast() -> tuple[Any, ...]:
    return tuple(
        torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
        for kind in ("cpu", "cuda")
    )


def _check_kept(
    model: nn.Module, tracer: _Tracer, read: Iterable[tuple[nn.Module, str, Any]]
) -> None:
    """Raises TraceError if a forward has changed an attribute that it reads."""
    for module, name, value in read:
        now = vars(module).get(name)
        if type(now) is not type(value) or now != value:
            path = next(path for path, each in model.named_modules() if each is module)
            tracer.failed = path or None
            setattr(module, name, value)
            raise fx.proxy.TraceError(f"its forward changes {name} of {type(module).__name__}")


def _agreed(values: list[Any]) -> Any:
    if any(value != values[0] for value in values):
        raise fx.proxy.TraceError("its control flow depends on the number of samples")
    return values[0]


def marked(module: nn.Module) -> bool:
    """True if the user marked the module with :func:`rota.burst.layers.trace.block`."""
    return vars(module).get("_rota_block", False) is True


def attribute(root: Any, target: str) -> Any:
    """What ``root`` has under a dotted name."""
    for part in target.split("."):
        root = getattr(root, part)
    return root


def _unrolled(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True for a TransformerEncoder without masks: its layers in turn are all that it does."""
    plain = len(args) == 1 and all(value is None or value is False for value in kwargs.values())
    return type(module) is nn.TransformerEncoder and plain and not marked(module)


def _ancestors(node: fx.Node) -> list[fx.Node]:
    needed, left = {node}, [node]
    while left:
        for each in left.pop().all_input_nodes:
            if each not in needed:
                needed.add(each)
                left.append(each)
    return [each for each in node.graph.nodes if each in needed]


def _taken_back(model: nn.Module, before: set[str]) -> dict[str, Any]:
    """What tracing left on the model (constants of its forward), taken off it, by their names."""
    found = {}
    for holder in (vars(model), model._buffers):
        for name in [name for name in holder if name not in before]:
            found[name] = holder.pop(name)
    return found


def _by_mode(train: fx.Graph, evaluation: fx.Graph, model: nn.Module, named: Any) -> str | None:
    """Makes the graph of training that of both modes.

    Returns None, or the name of the module in which the two graphs differ in more than constants:
    "" if that is the model itself.
    """
    same: dict[fx.Node, fx.Node] = {}
    changed: list[tuple[fx.Node, list[tuple[int, Any, Any]]]] = []
    if len(train.nodes) != len(evaluation.nodes):
        return _differing(train, evaluation)
    for one, other in zip(train.nodes, evaluation.nodes, strict=True):
        same[one] = other
        arguments, others = (one.args, one.kwargs), (other.args, other.kwargs)
        if _call(one) != _call(other) or _form(arguments) != _form(others):
            return _differing(train, evaluation)
        constants = []
        for at, (ours, its) in enumerate(zip(leaves_of(arguments), leaves_of(others), strict=True)):
            if isinstance(ours, fx.Node) or isinstance(its, fx.Node):
                if not isinstance(ours, fx.Node) or same.get(ours) is not its:
                    return _differing(train, evaluation)
            elif type(ours) is not type(its) or ours != its:
                constants.append((at, ours, its))
        if constants:
            changed.append((one, constants))
    for node, constants in changed:
        owner = model.get_submodule(module_path(node))
        flat = leaves_of((node.args, node.kwargs))
        for at, in_training, in_evaluation in constants:
            name = f"_by_mode_{node.name}_{at}"
            named[name] = ByMode(owner, in_training, in_evaluation)
            with train.inserting_before(node):
                flat[at] = train.create_node("call_module", name)
        node.args, node.kwargs = _refilled((node.args, node.kwargs), flat)
    return None


def _call(node: fx.Node) -> tuple[str, Any]:
    return node.op, node.target


def _differing(train: fx.Graph, evaluation: fx.Graph) -> str:
    """The innermost module that calls other operations in training than in evaluation."""
    calls: tuple[dict[str, list[Any]], ...] = ({}, {})
    for found, graph in zip(calls, (train, evaluation), strict=True):
        for node in graph.nodes:
            found.setdefault(module_path(node), []).append(_call(node))
    paths = [path for path in calls[0] | calls[1] if calls[0].get(path) != calls[1].get(path)]
    return max(paths, key=lambda path: path.count("."), default="")


def leaves_of(arguments: Any) -> list[Any]:
    """The nodes and constants in the arguments of a node, slices included."""
    found: list[Any] = []
    map_aggregate(arguments, lambda leaf: found.append(leaf))
    return found


def _refilled(arguments: Any, leaves: list[Any]) -> Any:
    left = iter(leaves)
    return map_aggregate(arguments, lambda _: next(left))


def _form(arguments: Any) -> str:
    return repr(map_aggregate(arguments, lambda _: None))


def _common_path(one: fx.Node, other: fx.Node) -> str:
    """The innermost module that made both nodes."""
    ours, theirs = module_path(one).split("."), module_path(other).split(".")
    common = []
    for mine, its in zip(ours, theirs, strict=False):
        if mine != its:
            break
        common.append(mine)
    return ".".join(common)


def _resolve(
    graph: fx.Graph, model: nn.Module, named: dict[str, Any]
) -> tuple[tuple[Any, str, Any], ...]:
    """Completes ``named``; returns the model's own tensors in it, with their owners."""
    tensors = []
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr") and node.target not in named:
            named[node.target] = attribute(model, node.target)
            if node.op == "get_attr":
                path, _, name = node.target.rpartition(".")
                owner = attribute(model, path) if path else model
                if getattr(owner, name) is named[node.target]:  # no property that makes a new one
                    tensors.append((owner, name, named[node.target]))
    return tuple(tensors)
