"""The order of a step: runs of layers on one group of ranks, and what moves between them.

Every rank follows this one order, forward and then backward from its end, and leaves out what it
has no part in. So no two ranks ever wait for each other, whatever their part of the model is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from rota.burst.planner.plan import Group
from rota.burst.runtime.placement import Placement, in_order, spread
from rota.errors import InputError

END = -1  # the number of what takes the model's output: each rank, for its own samples


class Stage(NamedTuple):
    """Layers that run one after another on one group.

    ``takes`` names what they read from elsewhere, ``gives`` what others read of them.
    """

    layers: tuple[int, ...]
    group: Group
    takes: tuple[str, ...]
    gives: tuple[str, ...]


class Schedule:
    """The stages of a model.

    ``names`` and ``inputs`` are those of its layers, each after all that it reads; an input is a
    layer's name or ``input:k``. Raises InputError unless each layer has a group of these ``ranks``.
    """

    def __init__(
        self,
        names: Sequence[str],
        inputs: Sequence[Sequence[str]],
        output: str,
        groups: Sequence[Group],
        ranks: int,
    ) -> None:
        if len(groups) != len(names):
            raise InputError(
                f"the plan has {len(groups)} layers and the model {len(names)}; make the plan from "
                "a profile of this model"
            )
        for name, group in zip(names, groups, strict=True):
            if group.first < 0 or group.size < 1 or group.end > ranks:
                raise InputError(
                    f"layer {name}: its ranks are {group.first} to {group.end - 1}, and there are "
                    f"{ranks}; a plan's groups lie in 0 to {ranks - 1}"
                )
        self.ranks, self.output = ranks, output
        runs: list[tuple[Group, list[int]]] = []
        for layer, group in enumerate(groups):
            if runs and runs[-1][0] == group:
                runs[-1][1].append(layer)
            else:
                runs.append((group, [layer]))
        self.stage_of = {layer: at for at, (_, layers) in enumerate(runs) for layer in layers}
        made_in = {name: self.stage_of[layer] for layer, name in enumerate(names)}
        takes: list[dict[str, None]] = [{} for _ in runs]
        takers: dict[str, dict[int, None]] = {}
        for layer, sources in enumerate(inputs):
            at = self.stage_of[layer]
            for source in sources:
                if made_in.get(source) != at:
                    takes[at][source] = None
                    takers.setdefault(source, {})[at] = None
        takers.setdefault(output, {})[END] = None
        self.takers = {name: tuple(found) for name, found in takers.items()}
        self.made_in = made_in
        self.inputs = tuple(name for name in self.takers if name not in made_in)
        self.stages = tuple(
            Stage(
                tuple(layers),
                group,
                tuple(takes[at]),
                tuple(names[layer] for layer in layers if names[layer] in self.takers),
            )
            for at, (group, layers) in enumerate(runs)
        )

    @cached_property
    def in_one(self) -> bool:
        """True if one stage has the whole model, on all ranks: data parallelism."""
        return len(self.stages) == 1 and self.stages[0].group == Group(0, self.ranks)


class Way(NamedTuple):
    """A value on its way to one group: ``takers`` are the stages there that read it."""

    value: str
    source: Placement
    target: Placement
    back: Placement  # the target, without samples of which no gradient comes
    takers: tuple[int, ...]


class Layout:
    """Where the samples of one batch are in each stage.

    ``counts`` has the samples that each rank brings. ``wants`` says of how many samples from the
    first on a rank gets outputs that has none of its own; no gradients come back from these.
    """

    def __init__(
        self, schedule: Schedule, counts: Sequence[int], wants: Sequence[int] | None = None
    ) -> None:
        self.schedule, self.counts, self.samples = schedule, tuple(counts), sum(counts)
        home = in_order(counts)
        self.home = home
        wanted = wants or [0] * len(home)
        self.end: Placement = tuple(
            own or tuple(range(min(want, self.samples)))
            for own, want in zip(home, wanted, strict=True)
        )
        everyone = Group(0, schedule.ranks)
        fair = max(counts) - min(counts) <= 1 or (schedule.in_one and all(counts))
        fair = fair and counts[0] > 0  # so that rank 0 learns what the layers do
        known = {everyone: home} if fair else {}
        self.placements: list[Placement] = []
        for stage in schedule.stages:
            if stage.group not in known:
                known[stage.group] = spread(self._of(stage.takes), stage.group)
            self.placements.append(known[stage.group])
        self.ways = tuple(self._ways())
        self.leaving: dict[int, list[int]] = {}  # by stage, END for inputs: the ways of its values
        self.arriving: dict[tuple[int, str], int] = {}  # by stage and value: the way
        for at, way in enumerate(self.ways):
            self.leaving.setdefault(schedule.made_in.get(way.value, END), []).append(at)
            for taker in way.takers:
                self.arriving[taker, way.value] = at

    def _of(self, values: Iterable[str]) -> Placement:
        """Where the first of these values is that a stage has made, else where the inputs are."""
        made = (self.schedule.made_in[v] for v in values if v in self.schedule.made_in)
        first = next(made, None)
        return self.home if first is None else self.placements[first]

    def _ways(self) -> Iterator[Way]:
        schedule = self.schedule
        for value in (*schedule.inputs, *(v for s in schedule.stages for v in s.gives)):
            made = schedule.made_in.get(value)
            source = self.home if made is None else self.placements[made]
            found: dict[tuple[Placement, bool], list[int]] = {}
            for taker in schedule.takers[value]:
                target = self.end if taker == END else self.placements[taker]
                found.setdefault((target, taker == END), []).append(taker)
            for (target, is_end), takers in found.items():
                back = self.home if is_end else target
                yield Way(value, source, target, back, tuple(takers))

    def active(self, stage: int) -> tuple[int, ...]:
        """The ranks that have samples in a stage."""
        return tuple(rank for rank, own in enumerate(self.placements[stage]) if own)
