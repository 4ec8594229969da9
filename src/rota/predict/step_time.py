"""Time of one step of data-parallel training, by GPUs, nodes and batch size.

The model of Qiao et al., *Pollux*, OSDI 2021, section 3.2: each GPU computes the gradient of its
batch, the GPUs exchange gradients, and the two overlap as far as gamma says.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rota.errors import InputError


class StepTime(NamedTuple):
    """One model's parameters on one type of GPU, in seconds (per sample, per GPU).

    Terms of synchronisation that nobody measured are None: ``alpha_r``, ``beta_r`` between GPUs of
    one node, ``alpha_n``, ``beta_n`` between nodes. ``gamma`` is 1 for no overlap; at 10 the
    shorter of computing and exchanging is all but hidden.
    """

    alpha_c: float
    beta_c: float
    alpha_r: float | None = None
    beta_r: float | None = None
    alpha_n: float | None = None
    beta_n: float | None = None
    gamma: float = 1.0

    def compute_s(self, batch: float) -> float:
        """Seconds for the gradient of ``batch`` samples on one GPU."""
        return self.alpha_c + self.beta_c * batch

    def sync_s(self, gpus: int, nodes: int, slower_links: float = 1.0) -> float:
        """Seconds for exchanging gradients if nothing overlaps; 0 where nobody measured it.

        ``slower_links`` is by how much the slowest links that the gang crosses are slower than
        those of its nodes.
        """
        if gpus == 1:
            return 0.0
        if nodes == 1:
            return (self.alpha_r or 0.0) + (self.beta_r or 0.0) * (gpus - 2)
        return slower_links * ((self.alpha_n or 0.0) + (self.beta_n or 0.0) * (gpus - 2))

    def step_s(self, gpus: int, nodes: int, batch: float, slower_links: float = 1.0) -> float:
        """Seconds for a step with ``batch`` samples on each of the GPUs."""
        compute_s = self.compute_s(batch)
        sync_s = self.sync_s(gpus, nodes, slower_links)
        if not sync_s:
            return compute_s
        longer, shorter = max(compute_s, sync_s), min(compute_s, sync_s)
        return longer * (1.0 + (shorter / longer) ** self.gamma) ** (1.0 / self.gamma)


class Shape(NamedTuple):
    """A gang's place: type of its GPUs, number of nodes, and links between them.

    ``slower_links`` as in :meth:`StepTime.sync_s`: above 1 where the gang spans racks whose links
    to each other are slower than those of the nodes.
    """

    gpu_type: str
    gpus: int
    nodes: int
    slower_links: float = 1.0


def fewest_nodes(sizes: Iterable[int], gpus: int) -> int:
    """The fewest nodes of these sizes, largest first, that a gang fits on; all if on none."""
    nodes = 0
    for size in sizes:
        if gpus <= 0:
            break
        gpus -= size
        nodes += 1
    return nodes


def relative_speed(
    types: Mapping[str, StepTime], batch: float, at: Shape, reference: Shape
) -> float:
    """The speed of a job at one shape, in units of its speed at the reference shape.

    ``batch`` is per GPU and the same in both. Raises InputError if a type of GPU is not in
    ``types``.
    """

    def step_s(shape: Shape) -> float:
        if shape.gpu_type not in types:
            raise InputError(
                f"GPU type: no step time is known for {shape.gpu_type!r}; "
                f"known: {', '.join(types) or 'none'}"
            )
        model = types[shape.gpu_type]
        return model.step_s(shape.gpus, shape.nodes, batch, shape.slower_links)

    return step_s(reference) / step_s(at)
