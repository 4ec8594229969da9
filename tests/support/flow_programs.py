"""Random programs of several clients, and an interpreter that runs them in this process.

A story has clients on random devices, which take steps in random order: they put arrays, call
functions with and without collectives, move arrays between slices, trace programs, fetch and free.
Each step is taken on the island and by the interpreter, which has all shards of an array in a list
and emulates collectives. At the end all arrays must be equal bit for bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from rota import flow
from rota.flow.layout import Layout

HERE = "support.flow_functions"
Body = Callable[[Any, Any], Any]  # of a backend and an array
DTYPES = (torch.float64, torch.int64, torch.float32, torch.int32)


class Array(NamedTuple):
    """An array as the interpreter has it: on a slice, in a layout, with all its shards."""

    slice: int
    layout: Layout
    shards: list[torch.Tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        whole = list(self.shards[0].shape)
        if isinstance(self.layout, flow.Split):
            whole[self.layout.dim] = sum(each.shape[self.layout.dim] for each in self.shards)
        return tuple(whole)


class Interpreter:
    """Takes steps in this process. ``sizes`` are those of the slices."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes

    def put(self, tensor: torch.Tensor, where: int, layout: Layout) -> Array:
        size = self.sizes[where]
        if isinstance(layout, flow.Split):
            shards = tensor.tensor_split(size, layout.dim)
            return Array(where, layout, [each.contiguous() for each in shards])
        return Array(where, layout, [tensor] * size)

    def call(self, name: str, where: int, out: Layout, *values: Array) -> list[Array]:
        shards = _FUNCTIONS[name](*(each.shards for each in values))
        return [Array(where, out, list(each)) for each in shards]

    def to(self, value: Array, where: int, layout: Layout) -> Array:
        size = self.sizes[where]
        if isinstance(value.layout, flow.Each) and len(value.shards) == size:
            return Array(where, layout, value.shards)
        whole = value.shards[0]
        if isinstance(value.layout, flow.Split):
            whole = torch.cat(value.shards, value.layout.dim)
        return self.put(whole, where, layout)

    def cond(self, predicate: Array, yes: Body, no: Body, value: Array) -> Array:
        return (yes if bool(predicate.shards[0]) else no)(self, value)

    def traced(self, body: Callable[..., list[Any]], inputs: Sequence[Array]) -> list[Array]:
        return body(self, *inputs)


def _summed(shards: Sequence[torch.Tensor]) -> torch.Tensor:
    totals = [each.sum() for each in shards]
    total = totals[0]
    for each in totals[1:]:
        total = total + each
    return total


def _plus(
    reduced: Callable[[Sequence[torch.Tensor]], torch.Tensor],
) -> Callable[[Sequence[torch.Tensor]], list[list[torch.Tensor]]]:
    def function(shards: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        found = reduced(shards)
        return [[each + found.to(each.dtype) for each in shards]]

    return function


def _pairs(x: Sequence[torch.Tensor], y: Sequence[torch.Tensor]) -> Any:
    return zip(x, y, strict=True)


_FUNCTIONS: dict[str, Callable[..., list[list[torch.Tensor]]]] = {
    "scaled": lambda x: [[each * 3 + 1 for each in x]],
    "doubled_ranks": lambda x: [[each * 2 + rank for rank, each in enumerate(x)]],
    "added": lambda x, y: [[a + b for a, b in _pairs(x, y)]],
    "two": lambda x, y: [[b - a for a, b in _pairs(x, y)], [a * 2 for a in x]],
    "plus_total": _plus(_summed),
    "plus_largest": _plus(lambda x: torch.stack([each.sum() for each in x]).max()),
    "plus_first": _plus(lambda x: x[0].sum()),
    "positive": lambda x: [[torch.stack([each.sum() for each in x]).max() > 0 for _ in x]],
    "sums": lambda x: [[torch.stack([each.sum() for each in x]) for _ in x]],
}
PLAIN = ("scaled", "doubled_ranks", "added", "two")
COLLECTIVE = ("plus_total", "plus_largest", "plus_first", "sums")


class OnIsland:
    """Takes the same steps on an island, for one client."""

    def __init__(self, client: flow.Client, sizes: Sequence[int]) -> None:
        self.client = client
        self.slices = [client.slice(each) for each in sizes]
        self._functions: dict[tuple[str, int, Layout], flow.Function] = {}

    def put(self, tensor: torch.Tensor, where: int, layout: Layout) -> Any:
        return self.slices[where].put(tensor, layout)

    def call(self, name: str, where: int, out: Layout, *values: Any) -> list[Any]:
        key = (name, where, out)
        if key not in self._functions:
            self._functions[key] = self.slices[where].function(f"{HERE}:{name}", out)
        made = self._functions[key](*values)
        return list(made) if isinstance(made, tuple) else [made]

    def to(self, value: Any, where: int, layout: Layout) -> Any:
        return value.to(self.slices[where], layout)

    def cond(self, predicate: Any, yes: Body, no: Body, value: Any) -> Any:
        return flow.cond(predicate, lambda x: yes(self, x), lambda x: no(self, x), value)

    def traced(self, body: Callable[..., list[Any]], inputs: Sequence[Any]) -> list[Any]:
        program = self.client.program(lambda *values: tuple(body(self, *values)))
        return list(program(*inputs))


class Pair(NamedTuple):
    """An array on the island, and as it should be."""

    real: Any
    right: Array


class RandomClient:
    """A client that takes random steps. ``pairs`` are the arrays that it has."""

    def __init__(self, client: flow.Client, draw: random.Random) -> None:
        self.draw = draw
        devices = len(client.devices)
        self.sizes = [devices, *(draw.randint(1, devices) for _ in range(draw.randint(1, 2)))]
        self.island, self.right = OnIsland(client, self.sizes), Interpreter(self.sizes)
        self.pairs: list[Pair] = []
        self.compared = 0

    def step(self) -> None:
        """Take one step."""
        kinds = {"put": 2, "call": 6, "to": 2, "cond": 1, "program": 2, "free": 2, "fetch": 0.5}
        if not self.pairs:
            kinds = {"put": 1}
        [kind] = self.draw.choices(list(kinds), list(kinds.values()))
        getattr(self, f"_{kind}")()
        while len(self.pairs) > 8:
            self._free()

    def finish(self) -> None:
        """Compare all arrays, and let go of them."""
        while self.pairs:
            self._compare(self.pairs.pop())

    def _compare(self, pair: Pair) -> None:
        found = pair.real.shards()
        for have, want in zip(found, pair.right.shards, strict=True):
            assert have.dtype == want.dtype and have.shape == want.shape, (have, want)
            same = have.numpy().tobytes() == want.contiguous().numpy().tobytes()
            assert same, f"{have} is not {want}"
        self.compared += 1

    def _fetch(self) -> None:
        self._compare(self.draw.choice(self.pairs))

    def _free(self) -> None:
        pair = self.pairs.pop(self.draw.randrange(len(self.pairs)))
        if self.draw.random() < 0.5:
            pair.real.free()

    def _put(self) -> None:
        draw = self.draw
        shape = [draw.randint(0, 7) for _ in range(draw.randint(0, 2))]
        values = torch.tensor([draw.randint(-99, 99) for _ in range(_count(shape))])
        tensor = values.reshape(shape).to(draw.choice(DTYPES))
        if tensor.is_floating_point():
            tensor = tensor / 7
        where = draw.randrange(len(self.sizes))
        layout = self._layout(shape)
        self.pairs.append(self._both(lambda backend: backend.put(tensor, where, layout)))

    def _layout(self, shape: Sequence[int]) -> Layout:
        choices: list[Layout] = [flow.Replicated()]
        choices += [flow.Split(each) for each in range(len(shape))] * 2
        return self.draw.choice(choices)

    def _both(self, step: Callable[[Any], Any]) -> Pair:
        return Pair(step(self.island), step(self.right))

    def _call(self) -> None:
        inputs, step = self._drawn_call([each.right for each in self.pairs])
        real = step(self.island, *(self.pairs[each].real for each in inputs))
        right = step(self.right, *(self.pairs[each].right for each in inputs))
        self.pairs += map(Pair, real, right)

    def _to(self) -> None:
        index = self.draw.randrange(len(self.pairs))
        step = self._drawn_move(self.pairs[index].right)
        pair = self.pairs[index]
        [real], [right] = step(self.island, pair.real), step(self.right, pair.right)
        self.pairs.append(Pair(real, right))

    def _drawn_move(self, value: Array) -> Callable[..., list[Any]]:
        where = self.draw.randrange(len(self.sizes))
        layout = self._layout(value.shape)
        if isinstance(value.layout, flow.Each) and len(value.shards) > 1:
            alike = [i for i, size in enumerate(self.sizes) if size == len(value.shards)]
            where, layout = self.draw.choice(alike), value.layout
        return lambda backend, x: [backend.to(x, where, layout)]

    def _drawn_call(self, values: Sequence[Array]) -> tuple[list[int], Callable[..., list[Any]]]:
        """A random call for some of the values: their places, and what it does."""
        draw = self.draw
        first = draw.randrange(len(values))
        x = values[first]
        alike = [i for i, y in enumerate(values) if _alike(x, y)]
        name = draw.choice(PLAIN + COLLECTIVE if draw.random() < 0.5 else COLLECTIVE)
        where, wide = x.slice, len(x.shards)
        if name == "plus_total" and wide > 2 and x.shards[0].is_floating_point():
            name = "plus_largest"  # the order of a sum of three is the backend's affair
        out = flow.Each() if draw.random() < 0.1 else x.layout
        if name == "sums":
            out = flow.Replicated()
        elif name in ("doubled_ranks",) and wide > 1 and not isinstance(x.layout, flow.Split):
            out = flow.Each()
        if isinstance(out, flow.Each) and len({each.shape for each in x.shards}) > 1:
            out = x.layout
        inputs = [first, draw.choice(alike)] if name in ("added", "two") else [first]
        return inputs, lambda backend, *given: backend.call(name, where, out, *given)

    def _cond(self) -> None:
        used, step = self._drawn_cond([each.right for each in self.pairs])
        real = step(self.island, *(self.pairs[each].real for each in used))
        right = step(self.right, *(self.pairs[each].right for each in used))
        self.pairs += map(Pair, real, right)

    def _drawn_cond(self, values: Sequence[Array]) -> tuple[list[int], Callable[..., list[Any]]]:
        """A random choice: the places of what decides and of what is changed, and what it does."""
        used = [self.draw.randrange(len(values)) for _ in range(2)]
        decides, changed = (values[each] for each in used)
        chosen = self._chosen(decides, changed, 0)
        return used, lambda backend, *given: [chosen(backend, *given)]

    def _chosen(self, decides: Array, changed: Array, depth: int) -> Callable[..., Any]:
        branches = [self._branch(changed, depth) for _ in range(2)]

        def step(backend: Any, decides_now: Any, changed_now: Any) -> Any:
            where, out = decides.slice, flow.Replicated()
            [predicate] = backend.call("positive", where, out, decides_now)
            return backend.cond(predicate, *branches, changed_now)

        return step

    def _branch(self, value: Array, depth: int) -> Body:
        """Random steps after which an array has the shape, type and layout of before."""
        draw, where, out = self.draw, value.slice, value.layout
        steps: list[Body] = []
        for _ in range(draw.randint(0, 3)):
            if draw.random() < 0.2 and depth < 2:
                inner = self._chosen(value, value, depth + 1)
                steps.append(lambda backend, x, inner=inner: inner(backend, x, x))
            elif not isinstance(out, flow.Each) and draw.random() < 0.3:
                [there] = self._drawn_move(value)(self.right, value)
                steps.append(
                    lambda backend, x, there=there: backend.to(
                        backend.to(x, there.slice, there.layout), where, out
                    )
                )
            else:
                name = draw.choice(("scaled", "plus_largest", "plus_first"))
                steps.append(lambda backend, x, name=name: backend.call(name, where, out, x)[0])

        def body(backend: Any, x: Any) -> Any:
            for step in steps:
                x = step(backend, x)
            return x

        return body

    def _program(self) -> None:
        """Trace a program of several calls and moves, and run it; or run one of before again."""
        draw = self.draw
        count = min(len(self.pairs), draw.randint(1, 3))
        inputs = draw.sample(range(len(self.pairs)), count)
        values = [self.pairs[each].right for each in inputs]
        steps = []
        for _ in range(draw.randint(1, 10)):
            if draw.random() < 0.3:
                used = [draw.randrange(len(values))]
                step = self._drawn_move(values[used[0]])
            elif draw.random() < 0.2:
                used, step = self._drawn_cond(values)
            else:
                used, step = self._drawn_call(values)
            values += step(self.right, *(values[each] for each in used))
            steps.append((used, step))
        kept = draw.sample(range(len(values)), draw.randint(1, min(3, len(values))))

        def body(backend: Any, *given: Any) -> list[Any]:
            found = list(given)
            for used, step in steps:
                found += step(backend, *(found[each] for each in used))
            return [found[each] for each in kept]

        real = self.island.traced(body, [self.pairs[each].real for each in inputs])
        right = self.right.traced(body, [self.pairs[each].right for each in inputs])
        self.pairs += map(Pair, real, right)


def _alike(x: Array, y: Array) -> bool:
    """True if a function may take both, shard by shard."""
    shapes = [[each.shape for each in value.shards] for value in (x, y)]
    same = (x.slice, x.layout, x.shards[0].dtype) == (y.slice, y.layout, y.shards[0].dtype)
    return same and shapes[0] == shapes[1]


def _count(shape: Sequence[int]) -> int:
    found = 1
    for each in shape:
        found *= each
    return found


class Story:
    """Some clients of one island of three devices, each with programs drawn from a seed."""

    def __init__(self, island: Any, seed: int) -> None:
        self.draw = random.Random(seed)
        devices = [[0, 1], [1, 2], [0, 2], [0, 1, 2], [1]]
        chosen = self.draw.sample(devices, self.draw.randint(2, 4))
        weights = [self.draw.choice((1.0, 2.0, 5.0)) for _ in chosen]
        pairs = zip(chosen, weights, strict=True)
        self.connections = [island.connect(devices=d, weight=w) for d, w in pairs]
        self.clients = [RandomClient(each, self.draw) for each in self.connections]

    def program(self, steps: int) -> None:
        """One program of each client: they take steps in random order."""
        turns = [each for each in self.clients for _ in range(steps)]
        self.draw.shuffle(turns)
        for client in turns:
            client.step()
        self.draw.shuffle(self.clients)
        for client in self.clients:
            client.finish()

    @property
    def compared(self) -> int:
        """How many arrays were compared."""
        return sum(each.compared for each in self.clients)

    def close(self) -> None:
        for each in self.connections:
            each.close()
