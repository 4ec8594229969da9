"""The group of ranks of each layer: from the user's own sizes, or from a profile by the planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

from rota.burst.layers.trace import Layered
from rota.burst.planner.costs import Costs
from rota.burst.planner.frontier import Frontier, Timed
from rota.burst.planner.plan import Group
from rota.burst.runtime.groups import broadcast_json, device_of, talk
from rota.burst.runtime.outlook import chosen_of
from rota.errors import InputError, did_you_mean
from rota.model.layer_graph import LayerGraph, Network

SMALL_BYTES, LARGE_BYTES, ROUNDS = 4 << 10, 4 << 20, 5


def given(split: Layered, sizes: Mapping[str, int], ranks: int) -> list[Group]:
    """Groups from rank 0 on of these sizes, at most ``ranks``, by layer.

    A layer that is not named has all ranks, or those of its input if it keeps these. Raises
    InputError for a name that is no layer's, or for a size that is no number from 1.
    """
    names = [piece.name for piece in split.pieces]
    for name, size in sizes.items():
        if name not in names:
            raise InputError(
                f"plan: there is no layer {name!r}{did_you_mean(name, names)}; the layers are "
                f"{', '.join(names[:20])}{' ...' if len(names) > 20 else ''}"
            )
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InputError(f"plan: layer {name} has {size!r} ranks; give a whole number from 1")
    found: dict[str, Group] = {}
    for piece in split.pieces:
        follows = found.get(piece.inputs[0]) if piece.keeps_size else None
        own = Group(0, min(sizes.get(piece.name, ranks), ranks))
        found[piece.name] = own if piece.name in sizes or follows is None else follows
    return [found[name] for name in names]


def planned(
    split: Layered,
    graph: LayerGraph,
    batch: int,
    ranks: int,
    tell: Callable[[Frontier, Timed], None] | None = None,
) -> list[Group]:
    """Groups by the plan with which all GPUs together do most; all ranks call it.

    Links are those of the profile, or are measured now. ``tell`` is called on rank 0, while the
    others wait. Raises InputError if the profile is not of this model.
    """
    missing = [piece.name for piece in split.pieces if piece.name not in graph.index]
    if missing or len(graph.layers) != len(split.pieces):
        raise InputError(
            f"plan: the profile {graph.name} has {len(graph.layers)} layers and the model "
            f"{len(split.pieces)}{f', among them {missing[0]}' if missing else ''}; make a profile "
            "of this model by python -m rota.burst.profile"
        )
    network = graph.network or measured_links()
    told: Sequence[Group] = ()
    if dist.get_rank() == 0:
        frontier = Frontier(Costs(graph, batch, ranks, network))
        chosen = chosen_of(frontier)
        told = chosen.plan.groups
        if tell is not None:
            tell(frontier, chosen)
    groups = [Group(*each) for each in talk(broadcast_json, told, 0)]
    return [groups[graph.index[piece.name]] for piece in split.pieces]


def measured_links() -> Network:
    """Latency and bandwidth of an exchange among all ranks, as rank 0 measures them."""
    ranks, device = dist.get_world_size(), device_of()
    small_s, large_s = (_exchange_s(size, device) for size in (SMALL_BYTES, LARGE_BYTES))
    moved_bytes = (LARGE_BYTES - SMALL_BYTES) * (ranks - 1) / ranks
    bandwidth = moved_bytes / max(large_s - small_s, 1e-9)
    return Network(bandwidth, small_s)


def _exchange_s(num_bytes: int, device: torch.device) -> float:
    ranks = dist.get_world_size()
    sent = torch.zeros(num_bytes // ranks * ranks, dtype=torch.uint8, device=device)
    taken, found = torch.empty_like(sent), []
    for _ in range(ROUNDS):
        since_s = perf_counter()
        talk(dist.all_to_all_single, taken, sent)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(perf_counter() - since_s)
    return median(found)
