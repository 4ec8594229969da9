"""Whatever is free, a placement gives a gang whole, on free GPUs, or not at all."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.model.cluster import FreeGpus, parse_cluster
from rota.model.events import JobSubmitted, joined
from rota.model.job import JobSpec
from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.policy.placement.ilp import lowest_peak
from rota.policy.placement.registry import PLACEMENTS, placement
from rota.policy.registry import create
from rota.sim.simulation import simulate
from rota.sim.speeds import CatalogSpeeds, with_profiles
from rota.workload.trace import Trace
from support.strategies import traces

CLUSTERS = ("3x4", "5x8:island=4", "6x4:rack=2", "2x8:a100:rack=1:island=2,4x2:t4", "1x1")


def view_of(cluster: str, num_gpus: int, skew: float | None) -> View:
    state = ClusterState(keep_stories=False)
    for node in parse_cluster(cluster):
        state.apply(joined(0.0, node))
    state.apply(JobSubmitted(0.0, JobSpec("a", num_gpus, 0.0, 60.0, skew=skew)))
    state.apply(JobSubmitted(0.0, JobSpec("b", 2, 0.0, 60.0)))
    return View(state, 0.0, None)


@st.composite
def situations(draw: st.DrawFn) -> tuple[View, FreeGpus]:
    cluster = draw(st.sampled_from(CLUSTERS))
    free = FreeGpus()
    for i, node in enumerate(parse_cluster(cluster)):
        free.set_mask(i, draw(st.integers(0, (1 << node.num_gpus) - 1)))
    skew = draw(st.sampled_from([None, 0.05, 0.7]))
    return view_of(cluster, draw(st.integers(1, 20)), skew), free


@pytest.mark.parametrize("name", PLACEMENTS)
@settings(max_examples=60, deadline=None)
@given(situation=situations())
def test_a_gang_is_whole_and_on_free_gpus_or_absent(name, situation):
    view, free = situation
    before = free.copy()
    num_gpus = view.num_gpus[0]
    found = placement(name)(view, free, 0)
    assert (free.masks, free.by_count, free.count) == (
        before.masks,
        before.by_count,
        before.count,
    ), "a placement only looks"
    if found is None:
        assert num_gpus > free.count or name.endswith("-strict")
        return
    assert found.num_gpus == num_gpus
    assert free.fits(found)
    nodes = [node for node, _ in found.parts]
    assert nodes == sorted(set(nodes))
    assert all(mask for _, mask in found.parts)
    assert placement(name)(view, free, 0) == found, "the same each time"


@pytest.mark.parametrize("name", PLACEMENTS)
@settings(max_examples=10, deadline=None)
@given(jobs=traces(max_jobs=8, gangs=(1, 2, 3, 5, 8)))
def test_every_job_ends_under_every_placement(name, jobs):
    policy = create("tiresias", {"placement": name, "thresholds": "300"})
    nodes = parse_cluster("2x4:p100:rack=1:island=2")
    specs = [job._replace(model=("vgg16", "resnet50")[i % 2]) for i, job in enumerate(jobs)]
    filled = with_profiles(Trace(specs), nodes)
    state = simulate(filled, nodes, policy, speeds=CatalogSpeeds(nodes)).state
    assert all(finish_s >= 0 for finish_s in state.finish_s)


@settings(max_examples=60, deadline=None)
@given(situation=situations())
def test_spreading_reaches_as_many_nodes_as_can_be_and_consolidating_as_few(situation):
    view, free = situation
    if view.num_gpus[0] > free.count:
        return
    used = {name: len(placement(name)(view, free, 0).parts) for name in ("spread", "consolidate")}
    assert used["spread"] == min(view.num_gpus[0], sum(mask > 0 for mask in free.masks))
    assert used["consolidate"] <= used["spread"]


@settings(max_examples=40, deadline=None)
@given(
    nodes=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=4),
    data=st.data(),
)
def test_the_lowest_peak_is_what_trying_everything_finds(nodes, data):
    free, loads = [f for f, _ in nodes], [load for _, load in nodes]
    num_gpus = data.draw(st.integers(1, sum(free)))
    peaks = [
        max(load + x for load, x in zip(loads, given_, strict=True) if x)
        for given_ in product(*(range(f + 1) for f in free))
        if sum(given_) == num_gpus
    ]
    assert lowest_peak(free, loads, num_gpus) == min(peaks)
