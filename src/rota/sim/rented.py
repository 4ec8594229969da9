"""Nodes that a simulated cluster rents as its policy wishes, and their cost."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from rota.errors import InputError
from rota.model.cluster import Node
from rota.model.decide.in_use import nodes_in_use
from rota.model.events import NodeLost, joined
from rota.model.notes import DesiredNodes
from rota.policy.base import Policy
from rota.sim.engine import FAULT
from rota.sim.simulation import Simulation


class Scaler(Protocol):
    """A policy that asks for nodes: the limits of their number, and its band of utility."""

    @property
    def least(self) -> int: ...
    @property
    def most(self) -> int: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class RentedNodes:
    """A cluster of as many nodes as its policy asks for, of those that can be rented.

    It begins with the least. A node is there ``start_s`` seconds after the request, and costs from
    the request on; it is given back when it is beyond the desired number and no job has GPUs or
    state on it. One object serves one simulation.
    """

    def __init__(self, start_s: float) -> None:
        self._start_s = start_s
        self._nodes: list[Node] = []
        self._there: set[int] = set()
        self._due_s: dict[int, float] = {}  # of starting nodes
        self._tally = Tally()

    def attach(self, simulation: Simulation, nodes: list[Node]) -> list[Node]:
        """The least nodes. Raises InputError if the policy asks for none, or for more."""
        self._scaler = _scaler(simulation.policy, nodes)
        self._nodes = nodes
        self._there = set(range(self._scaler.least))
        return nodes[: self._scaler.least]

    def follow(self, simulation: Simulation) -> None:
        """Count the time that has passed, and ask for nodes or give some back."""
        state, now_s = simulation.state, simulation.engine.now_s
        wish = state.notes.nodes
        if not state.spec or wish is None:
            return
        if simulation.all_arrived and not (state.active or state.background):
            self._due_s.clear()
            self._tally.note(now_s, 0, Standing.BOUNDED, 0.0)
            return
        rented = len(self._there) + len(self._due_s)
        if rented < wish.desired:
            away = set(range(len(self._nodes))) - self._there - self._due_s.keys()
            for index in sorted(away)[: wish.desired - rented]:
                self._start(simulation, index)
        elif rented > wish.desired:
            self._give_back(simulation, rented - wish.desired)
        rented = len(self._there) + len(self._due_s)
        self._tally.note(now_s, rented, _standing(self._scaler, wish), wish.utility)

    def figures(self) -> dict[str, float | None]:
        """The use and cost of rented nodes; see docs/reference/simulator.md."""
        return self._tally.figures()

    def _start(self, simulation: Simulation, index: int) -> None:
        due_s = simulation.engine.now_s + self._start_s
        self._due_s[index] = due_s
        self._tally.starts += 1

        def joins(simulation: Simulation) -> None:
            if self._due_s.get(index) == due_s:  # and was not given back, perhaps asked for anew
                del self._due_s[index]
                self._there.add(index)
                node = self._nodes[index]._replace(kind="gpu")
                simulation.state.apply(joined(due_s, node))

        simulation.engine.at(due_s, FAULT, joins)

    def _give_back(self, simulation: Simulation, number: int) -> None:
        """Give back ``number`` nodes: first starting ones, then those without jobs; latest first.

        If too few are without jobs, the others go when their jobs have gone elsewhere.
        """
        starting = sorted(self._due_s, reverse=True)[:number]
        for index in starting:
            del self._due_s[index]
        state, used = simulation.state, nodes_in_use(simulation.state)
        for index in sorted(self._there, reverse=True):
            name = self._nodes[index].name
            if number > len(starting) and state.node_index[name] not in used:
                number -= 1
                self._there.remove(index)
                state.apply(NodeLost(simulation.engine.now_s, name, given_back=True))


class Tally:
    """Sums over time: of rented nodes, and of the utility that they had."""

    def __init__(self) -> None:
        self.starts = 0
        self._now: tuple[float, int, Standing, float] | None = None
        self._seconds = self._node_s = self._utility_s = 0.0
        self._within_s = self._outside_s = 0.0

    def note(self, at_s: float, nodes: int, standing: Standing, utility: float) -> None:
        """Record the nodes rented from ``at_s`` on, and their utility. None ends the record."""
        if self._now is not None:
            since_s, rented, stood, had = self._now
            seconds = at_s - since_s if rented else 0.0
            self._seconds += seconds
            self._node_s += rented * seconds
            self._utility_s += had * seconds
            self._within_s += seconds if stood is Standing.WITHIN else 0.0
            self._outside_s += seconds if stood is Standing.OUTSIDE else 0.0
        self._now = at_s, nodes, standing, utility

    def figures(self) -> dict[str, float | None]:
        """The figures by name; None where no time has passed."""
        told = self._within_s + self._outside_s
        return {
            "node_hours": self._node_s / 3600,
            "node_starts": self.starts,
            "avg_nodes": self._node_s / self._seconds if self._seconds else None,
            "avg_utility": self._utility_s / self._seconds if self._seconds else None,
            "time_in_band": self._within_s / told if told else None,
        }


class Standing(Enum):
    """Utility: in its band, outside, or outside with no more nodes to rent or give back."""

    WITHIN = 1
    OUTSIDE = 2
    BOUNDED = 3


def _standing(scaler: Scaler, wish: DesiredNodes) -> Standing:
    if scaler.low <= wish.utility <= scaler.high:
        return Standing.WITHIN
    bound = scaler.most if wish.utility > scaler.high else scaler.least
    bounded = wish.desired == bound and scaler.least < scaler.most
    return Standing.BOUNDED if bounded else Standing.OUTSIDE


def _scaler(policy: Policy, nodes: list[Node]) -> Scaler:
    scaler = policy.autoscaler
    if scaler is None:
        raise InputError(
            "nodes can't be rented: the policy asks for no number of nodes; give "
            f"--policy pollux --set nodes=1,{len(nodes)}, or leave out --node-start-s"
        )
    if scaler.most > len(nodes):
        raise InputError(
            f"nodes={scaler.least},{scaler.most}: the cluster has {len(nodes)} nodes to rent; "
            "give a larger --cluster or fewer nodes"
        )
    if len({(node.num_gpus, node.gpu_type) for node in nodes}) > 1:
        raise InputError(
            "nodes can't be rented: they are to have the same number of GPUs each, of one type; "
            "give a --cluster of one kind, for example 16x4"
        )
    return scaler
