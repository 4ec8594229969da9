"""GPUs of a gang over several nodes, as whole numbers.

Messages about such a gang have ``nodes``: its nodes, that of its agent first. A GPU's *place* tells
its node by the position among these; on the first node it is the GPU's index itself.
"""

from collections.abc import Iterable, Sequence

STRIDE = 4096  # more GPUs than a node has
FURTHEST = 1000 * STRIDE


def place_of(node: int, gpu: int) -> int:
    """The place of a GPU of the node at this position."""
    return node * STRIDE + gpu


def node_and_gpu(place: int) -> tuple[int, int]:
    """The position of a place's node, and the GPU there."""
    return divmod(place, STRIDE)


def is_far(place: int) -> bool:
    """True if a place is on another node than that of the gang's agent."""
    return place >= STRIDE


def here(places: Iterable[int]) -> list[int]:
    """The GPUs of the first node among these places."""
    return [place for place in places if not is_far(place)]


def renamed(places: Iterable[int], names: Sequence[str], others: Sequence[str]) -> list[int]:
    """The places by positions among ``others``, which were told by positions among ``names``."""
    found = []
    for place in places:
        node, gpu = node_and_gpu(place)
        found.append(place_of(others.index(names[node]), gpu))
    return found
