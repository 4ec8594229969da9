"""The order in which the sizes of a graph's layers are decided, one after the other.

Layers that must have one size are one *variable*. A *piece* is a part of the graph of which only
the sizes of a few variables at its border, its *scope*, still matter to the rest. Deciding a
variable joins the pieces that it borders into one. In a chain every piece has a scope of one; a
block of branches becomes a piece between its fork and its join.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rota.model.layer_graph import LayerGraph

MOST_SIZES = 4  # variables that a decision may depend on, the decided one included


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of the graph; ``scope`` are the variables at its border, rising.

    ``ends`` are its fork and its join if all of it lies on paths from the one to the other.
    """

    scope: tuple[int, ...]
    ends: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class Transfer(Piece):
    """The output of layer ``source`` goes from one variable to another, ``between`` them."""

    source: int = 0
    between: tuple[int, int] = (0, 0)


@dataclass(frozen=True, eq=False)
class Decision(Piece):
    """The size of ``variable``, with all pieces that it borders."""

    variable: int = 0
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, eq=False)
class Branches(Piece):
    """Pieces from one fork to one join: each runs beside those before it, or after them."""

    pieces: tuple[Piece, ...] = ()


class Structure:
    """A graph's variables and the order of decisions.

    ``variable`` has the variable of each layer, ``members`` the layers of each variable. ``pieces``
    are in the order in which they can be computed; ``rest`` are those that none contains.
    ``tangled`` are layers that share a size only because they are too entangled to decide alone.
    """

    def __init__(self, graph: LayerGraph) -> None:
        self.variable = _of_one_size(graph)
        self.tied = {self.variable[i] for i, layer in enumerate(graph.layers) if layer.tied_to}
        joined: set[int] = set()
        while (tangle := self._decide(graph)) is not None:
            joined.add(min(tangle))
            self.variable = [min(tangle) if v in tangle else v for v in self.variable]
            self.tied.add(min(tangle))
        self.members: dict[int, list[int]] = {}
        for layer, variable in enumerate(self.variable):
            self.members.setdefault(variable, []).append(layer)
        self.tangled = [i for i, variable in enumerate(self.variable) if variable in joined]

    def _decide(self, graph: LayerGraph) -> set[int] | None:
        """Find the order; else the variables that have to be joined into one first."""
        variable = self.variable
        self.pieces: list[Piece] = []
        open_pieces: list[Piece] = []
        for source, taker in graph.edges:
            ends = (variable[source], variable[taker])
            if ends[0] != ends[1]:
                free = self.tied.isdisjoint(ends)
                scope = (min(ends), max(ends))
                open_pieces.append(Transfer(scope, ends if free else None, source, ends))
        self.pieces += open_pieces
        left = set(variable)
        near: dict[int, set[int]] = {v: {v} for v in left}
        for piece in open_pieces:
            for v in piece.scope:
                near[v].update(piece.scope)
        while left:
            chosen = min(left, key=lambda v: (len(near[v]), v))
            if len(near[chosen]) > MOST_SIZES:
                return near[chosen]
            own = [piece for piece in open_pieces if chosen in piece.scope]
            open_pieces = [piece for piece in open_pieces if chosen not in piece.scope]
            made = self._decision(chosen, self._gathered(own))
            self.pieces.append(made)
            open_pieces.append(made)
            left.remove(chosen)
            around = near.pop(chosen) - {chosen}
            for v in around:
                near[v] |= around
                near[v].discard(chosen)
        self.rest = tuple(open_pieces)
        return None

    def _gathered(self, pieces: Sequence[Piece]) -> list[Piece]:
        """The pieces, those from one fork to one join as the branches that they are."""
        by_ends: dict[tuple[int, int], list[Piece]] = {}
        others: list[Piece] = []
        for piece in pieces:
            if piece.ends is None:
                others.append(piece)
            else:
                by_ends.setdefault(piece.ends, []).append(piece)
        for ends, together in by_ends.items():
            if len(together) == 1:
                others += together
            else:
                branches = Branches(together[0].scope, ends, tuple(together))
                self.pieces.append(branches)
                others.append(branches)
        return others

    def _decision(self, chosen: int, own: Sequence[Piece]) -> Decision:
        scope = tuple(sorted({v for piece in own for v in piece.scope} - {chosen}))
        ends = None
        if len(own) == 2 and len(scope) == 2 and chosen not in self.tied:
            into = [piece.ends for piece in own if piece.ends and piece.ends[1] == chosen]
            out = [piece.ends for piece in own if piece.ends and piece.ends[0] == chosen]
            if len(into) == len(out) == 1:
                ends = (into[0][0], out[0][1])
        return Decision(scope, ends, chosen, tuple(own))


def _of_one_size(graph: LayerGraph) -> list[int]:
    """For each layer the first one of those that share its size."""
    first = list(range(len(graph.layers)))

    def root(i: int) -> int:
        while first[i] != i:
            i = first[i]
        return i

    for i, layer in enumerate(graph.layers):
        shared: Iterable[str] = layer.inputs if layer.keeps_size else ()
        for name in (*shared, *([layer.tied_to] if layer.tied_to else ())):
            a, b = sorted((root(i), root(graph.index[name])))
            first[b] = a
    return [root(i) for i in range(len(first))]
