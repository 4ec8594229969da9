from collections.abc import Callable, Iterable

import pytest

from rota.model.allocation import Allocation
from rota.model.cluster import FreeGpus, parse_cluster
from rota.model.events import JobSubmitted, joined
from rota.model.job import JobSpec
from rota.model.state.state import ClusterState
from rota.model.view import View

MakeView = Callable[..., View]


@pytest.fixture
def make_view() -> MakeView:
    """A view of a cluster on which jobs of these gangs, of these skews, wait as rows 0, 1, ..."""

    def make(
        cluster: str, gangs: Iterable[int], skews: Iterable[float | None] | None = None
    ) -> View:
        state = ClusterState(keep_stories=False)
        for node in parse_cluster(cluster):
            state.apply(joined(0.0, node))
        gangs = list(gangs)
        skews = [None] * len(gangs) if skews is None else list(skews)
        for i, (gpus, skew) in enumerate(zip(gangs, skews, strict=True)):
            state.apply(JobSubmitted(0.0, JobSpec(str(i), gpus, 0.0, 60.0, skew=skew)))
        return View(state, 0.0, None)

    return make


@pytest.fixture
def free_of() -> Callable[..., FreeGpus]:
    """Free GPUs from one mask per node, or from the number of the lowest free ones."""

    def make(*counts: int) -> FreeGpus:
        free = FreeGpus()
        for node, count in enumerate(counts):
            free.set_mask(node, (1 << count) - 1)
        return free

    return make


@pytest.fixture
def shape() -> Callable[[Allocation | None], dict[int, int]]:
    """How many GPUs an allocation has on which node."""

    def make(allocation: Allocation | None) -> dict[int, int]:
        assert allocation is not None
        return {node: mask.bit_count() for node, mask in allocation.parts}

    return make
