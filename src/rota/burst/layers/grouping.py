"""Operations of a model, grouped so that one tensor with the batch in front leaves each group.

What crosses a border is cut by samples and sent to other ranks. Where that is impossible (tuples,
shapes, tensors with the batch elsewhere), an operation shares a group with all that use its result.
Values that need no samples (masks, positions, sizes) are computed anew in each group.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from rota.burst.layers.symbolic import module_path, of_shapes, reads_shape
from rota.errors import UntraceableModelError

PROBES = (2, 3)

CHEAP_MODULES: tuple[type[nn.Module], ...] = (
    nn.Identity,
    nn.Flatten,
    nn.Unflatten,
    nn.modules.dropout._DropoutNd,
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    *(
        getattr(nn.modules.activation, name)
        for name in nn.modules.activation.__all__
        if name != "MultiheadAttention"
    ),
)
JOINS = {"add", "iadd", "sub", "isub", "mul", "imul", "truediv", "itruediv", "div"}
VIEWS = {
    *("chunk", "detach", "expand", "flatten", "getitem", "narrow", "permute", "reshape", "select"),
    *("split", "squeeze", "swapaxes", "t", "transpose", "unbind", "unflatten", "unsqueeze", "view"),
}


class Seen(NamedTuple):
    """What a node yielded with a probe of samples: a tensor's shape and type, or a plain value."""

    value: Any
    shape: tuple[int, ...] | None
    floating: bool
    random: bool


class Group(NamedTuple):
    """Nodes that make a piece, in order, the values that it takes, and the one that it yields."""

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    output: fx.Node
    cheap: bool


def seen(value: Any, random: bool) -> Seen:
    """The record of a node's result."""
    if isinstance(value, torch.Tensor):
        return Seen(None, tuple(value.shape), value.is_floating_point(), random)
    if _has_tensor(value):
        return Seen(None, None, False, random)
    return Seen(value, None, False, random)


class Grouping:
    """The groups of a graph, whose nodes yielded ``probes`` with 2 and 3 samples.

    ``named`` has what the graph's targets name. Raises UntraceableModelError for a graph whose
    inputs or output have no batch in dimension 0.
    """

    def __init__(
        self,
        graph: fx.Graph,
        named: dict[str, Any],
        probes: tuple[dict[fx.Node, Seen], dict[fx.Node, Seen]],
    ) -> None:
        self.graph, self.named, self.probes = graph, named, probes
        self.order = {node: at for at, node in enumerate(graph.nodes)}
        self.output = next(node for node in graph.nodes if node.op == "output").args[0]
        self._free: dict[fx.Node, bool] = {}
        for node in graph.nodes:
            self._free[node] = self._is_free(node)
        self.work = [
            node
            for node in graph.nodes
            if node.op not in ("placeholder", "output") and not self._free[node]
        ]
        self._needs = {node: self._needed(node.all_input_nodes) for node in self.work}
        self._users: dict[fx.Node, list[fx.Node]] = {node: [] for node in graph.nodes}
        for node in self.work:
            for source in self._needs[node]:
                self._users[source].append(node)
        self._root = {node: node for node in self.work}

    def groups(self) -> list[Group]:
        """The groups, each after those whose output it takes."""
        self._check_ends()
        self._join_forced()
        self._fold()
        while True:
            self._condense()
            if not self._join_outputs():
                return [self._group(members) for members in self._sorted()]

    # What each node is.

    def is_free(self, node: fx.Node) -> bool:
        """True if the node is computed anew in each group that needs it."""
        return self._free[node]

    def crosses(self, node: fx.Node) -> bool:
        """True for a tensor with the batch in dimension 0, and the same size for each sample."""
        few, more = (probe[node].shape for probe in self.probes)
        if not few or not more:
            return False
        return (few[0], more[0]) == PROBES and few[1:] == more[1:]

    def plain(self, node: fx.Node) -> bool:
        """True if the node yields no tensor and nothing that has one."""
        return all(probe[node].shape is None and _is_plain(probe[node]) for probe in self.probes)

    def _is_free(self, node: fx.Node) -> bool:
        if node.op == "get_attr":
            return True
        if node.op in ("placeholder", "output") or self.probes[0][node].random:
            return False
        if of_shapes(node) or (reads_shape(node) and self.plain(node)):
            return True
        sources = node.all_input_nodes
        if node.op == "call_module":
            return all(self._free[each] for each in sources)
        if all(self._free[each] for each in sources):
            return True
        # A mask or positions from the model's inputs: no gradient flows, and nobody sends them.
        early = all(self._free[each] or each.op == "placeholder" for each in sources)
        shaped = self.probes[0][node].shape is not None
        return early and shaped and not self.probes[0][node].floating

    def _needed(self, sources: Iterable[fx.Node]) -> list[fx.Node]:
        """Nodes with samples that these take, themselves or through free ones."""
        found: dict[fx.Node, None] = {}
        for each in sources:
            if each.op == "placeholder" or not self._free[each]:
                found[each] = None
            elif not self.plain(each):
                found |= dict.fromkeys(self._needed(each.all_input_nodes))
        return list(found)

    def cheap(self, node: fx.Node) -> bool:
        """True for an operation that is not worth other ranks than those of its input."""
        if node.op == "call_module":
            return isinstance(self.named[node.target], CHEAP_MODULES)
        if not any(True for _ in self._parameters([node])):
            return len(self._needs[node]) == 1
        return _target_name(node) in JOINS and len(self._needs[node]) == 1

    def _parameters(self, nodes: Iterable[fx.Node]) -> Iterator[fx.Node]:
        for node in nodes:
            for each in node.all_input_nodes:
                if each.op == "get_attr":
                    if isinstance(self.named[each.target], nn.Parameter):
                        yield each
                elif each.op != "placeholder" and self._free[each]:
                    yield from self._parameters([each])

    def _check_ends(self) -> None:
        for at, node in enumerate(n for n in self.graph.nodes if n.op == "placeholder"):
            if not self.crosses(node):
                raise UntraceableModelError(
                    f"input {at} of the model ({node.target}) has no batch in dimension 0; "
                    "give each input as a tensor of samples, and keep others in the model"
                )
        out = self.output
        if isinstance(out, fx.Node) and out in self._root and self.crosses(out):
            return
        what = "no tensor that it computed"
        if isinstance(out, tuple | list | dict):
            what = f"a {type(out).__name__} of {len(out)} values"
        elif isinstance(out, fx.Node) and not self._free[out] and out.op != "placeholder":
            shapes = [probe[out].shape for probe in self.probes]
            what = f"{_shape(shapes[0])} for 2 samples and {_shape(shapes[1])} for 3"
        raise UntraceableModelError(
            f"the model yields {what}; it must yield one tensor with the batch in dimension 0 "
            "(compute the loss outside, and wrap a model that yields more)"
        )

    # Which nodes share a group.

    def _join_forced(self) -> None:
        for node in self.work:
            if node is not self.output and (not self.crosses(node) or not self._needs[node]):
                for user in self._users[node]:
                    self._join(node, user)
            if self._in_place(node):
                self._join_mutated(node, node.args[0])

    def _in_place(self, node: fx.Node) -> bool:
        if not node.args or not isinstance(node.args[0], fx.Node):
            return False
        if node.op == "call_module":
            return bool(getattr(self.named[node.target], "inplace", False))
        if node.kwargs.get("inplace") is True:
            return True
        return changes_its_input(node)

    def _join_mutated(self, node: fx.Node, changed: fx.Node) -> None:
        if changed not in self._root:
            return
        self._join(node, changed)
        for user in self._users[changed]:  # some of them read it before it changes
            self._join(node, user)
        if _target_name(changed) in VIEWS and changed.args and isinstance(changed.args[0], fx.Node):
            self._join_mutated(changed, changed.args[0])

    def _fold(self) -> None:
        """Cheap operations join the only one whose result they take, if no other takes it."""
        for node in self.work:
            needs = self._needs[node]
            if not self.cheap(node):
                continue
            source = needs[0] if len(needs) == 1 else None
            if source in self._root and source is not self.output:
                if all(self._same(user, node) for user in self._users[source]):
                    self._join(node, source)
            elif all(each.op == "placeholder" for each in needs):
                users = self._users[node]
                if len(users) == 1 and node is not self.output:
                    self._join(node, users[0])

    def _join_outputs(self) -> bool:
        """Joins a group that yields several values with all that take them; False if none does."""
        joined = False
        for members in self._members().values():
            ends = self._ends(members)
            if len(ends) > 1 or not self.crosses(ends[0]):
                for end in ends:
                    for user in self._users[end]:
                        joined |= not self._same(end, user)
                        self._join(end, user)
            if joined:
                return True
        return False

    def _ends(self, members: list[fx.Node]) -> list[fx.Node]:
        inside = set(members)
        return [
            node
            for node in members
            if node is self.output or any(user not in inside for user in self._users[node])
        ]

    def _condense(self) -> None:
        """Joins groups that would each wait for the other."""
        while True:
            after = self._after()
            cycle = _cycle(after)
            if cycle is None:
                return
            for other in cycle[1:]:
                self._join(cycle[0], other)

    def _after(self) -> dict[fx.Node, set[fx.Node]]:
        """The groups that run after each group: they take its output, or draw random numbers."""
        after: dict[fx.Node, set[fx.Node]] = {self._find(node): set() for node in self.work}
        last: fx.Node | None = None
        for node in self.work:
            here = self._find(node)
            for source in self._needs[node]:
                if source in self._root and self._find(source) is not here:
                    after[self._find(source)].add(here)
            if self.probes[0][node].random:
                if last is not None and last is not here:
                    after[last].add(here)
                last = here
        return after

    def _sorted(self) -> list[list[fx.Node]]:
        after, members = self._after(), self._members()
        waits = dict.fromkeys(after, 0)
        for users in after.values():
            for user in users:
                waits[user] += 1
        ready = [(self.order[members[g][-1]], g) for g, number in waits.items() if not number]
        heapify(ready)
        found = []
        while ready:
            _, group = heappop(ready)
            found.append(members[group])
            for user in after[group]:
                waits[user] -= 1
                if not waits[user]:
                    heappush(ready, (self.order[members[user][-1]], user))
        return found

    def _group(self, members: list[fx.Node]) -> Group:
        inside = set(members)
        inputs: dict[fx.Node, None] = {}
        for node in members:
            inputs |= {each: None for each in self._needs[node] if each not in inside}
        cheap = all(self.cheap(node) for node in members)
        return Group(tuple(members), tuple(inputs), self._ends(members)[0], cheap)

    def _members(self) -> dict[fx.Node, list[fx.Node]]:
        found: dict[fx.Node, list[fx.Node]] = {}
        for node in self.work:
            found.setdefault(self._find(node), []).append(node)
        return found

    def _find(self, node: fx.Node) -> fx.Node:
        while self._root[node] is not node:
            self._root[node] = self._root[self._root[node]]
            node = self._root[node]
        return node

    def _same(self, one: fx.Node, other: fx.Node) -> bool:
        return self._find(one) is self._find(other)

    def _join(self, one: fx.Node, other: fx.Node) -> None:
        one, other = self._find(one), self._find(other)
        if one is not other:
            first, second = sorted((one, other), key=self.order.__getitem__)
            self._root[second] = first


def changes_its_input(node: fx.Node) -> bool:
    """True for ``x.relu_()`` and ``x += y``, which change their first argument."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op == "call_method":
        return name.endswith("_") and not name.endswith("__")
    if node.op != "call_function":
        return False
    module = getattr(node.target, "__module__", "")
    if module == "_operator":
        return name in ("iadd", "isub", "imul", "itruediv", "setitem", "ipow", "iand", "ior")
    return name.partition(".")[0].endswith("_") and not name.endswith("__")


def unmutated(graph: fx.Graph) -> None:
    """Lets all that comes after ``x.relu_()`` take its result, which is ``x`` itself."""
    order = {node: at for at, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if changes_its_input(node) and node.args and isinstance(node.args[0], fx.Node):
            if getattr(node.target, "__name__", "") == "setitem":
                continue
            at = order[node]
            node.args[0].replace_all_uses_with(node, lambda user, at=at: order[user] > at)


def pruned(graph: fx.Graph) -> None:
    """Takes what the output does not depend on out of a graph: assertions, what is not used."""
    needed: set[fx.Node] = set()
    while True:
        before = len(needed)
        for node in reversed(graph.nodes):
            if node.op in ("output", "placeholder") or node in needed or _changes(node, needed):
                needed |= {node, *node.all_input_nodes}
        if len(needed) == before:
            break
    for node in reversed(list(graph.nodes)):
        if node not in needed:
            graph.erase_node(node)


def _changes(node: fx.Node, needed: set[fx.Node]) -> bool:
    """True if the node changes what one of the ``needed`` nodes yields, or what it is a view of."""
    if not changes_its_input(node):
        return False
    while node.args and isinstance(node.args[0], fx.Node):
        node = node.args[0]
        if node in needed:
            return True
        if _target_name(node) not in VIEWS:
            return False
    return False


def _target_name(node: fx.Node) -> str:
    """The plain name of what a node calls: ``add`` of ``operator.add`` and of ``x.add_(y)``."""
    if node.op not in ("call_function", "call_method"):
        return ""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.strip("_").partition(".")[0]


def path_of(nodes: Iterable[fx.Node]) -> str:
    """The qualified name of the innermost module that made all of these nodes."""
    common: list[str] | None = None
    for node in nodes:
        parts = module_path(node).split(".")
        if common is None:
            common = parts
        while parts[: len(common)] != common:
            common.pop()
    return ".".join(common or [])


def _cycle(after: dict[fx.Node, set[fx.Node]]) -> list[fx.Node] | None:
    """Groups that come after one another, in a ring; None if there are none."""
    state: dict[fx.Node, int] = {}
    for start in after:
        if start in state:
            continue
        path, stack = [start], [iter(after[start])]
        state[start] = 1
        while stack:
            following = next(stack[-1], None)
            if following is None:
                state[path.pop()] = 2
                stack.pop()
            elif state.get(following) == 1:
                return path[path.index(following) :]
            elif following not in state:
                state[following] = 1
                path.append(following)
                stack.append(iter(after[following]))
    return None


def _has_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, dict):
        return any(_has_tensor(each) for each in value.values())
    return isinstance(value, tuple | list) and any(_has_tensor(each) for each in value)


def _is_plain(record: Seen) -> bool:
    return record.shape is None and record.value is not None


def _shape(shape: tuple[int, ...] | None) -> str:
    return "no tensor" if shape is None else "x".join(map(str, shape)) or "one value"
