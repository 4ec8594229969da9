import pytest

from rota.model.allocation import Allocation
from rota.model.cluster import parse_cluster
from rota.policy.base import Policy
from rota.sim.machine import FREE
from rota.sim.simulation import simulate
from rota.sim.speeds import CatalogSpeeds, coverage, describe_unknown, typical_speed, with_profiles
from rota.testing.builders import job, trace
from rota.workload.catalog import find
from rota.workload.trace import Trace

TOGETHER = Allocation(((0, 0b11),))
APART = Allocation(((0, 0b1), (1, 0b1)))


class Place(Policy):
    """Starts each job at once on given GPUs."""

    def __init__(self, allocation):
        self.allocation = allocation

    def decide(self, view):
        what_if = view.what_if()
        for row in view.active:
            if what_if.target(row) is None:
                what_if.give(row, self.allocation)
        return what_if.plan()


def jct_s(model, allocation, cluster="2x4:p100"):
    nodes = parse_cluster(cluster)
    jobs = trace(job("a", 2, lasts=100, model=model))
    result = simulate(jobs, nodes, Place(allocation), FREE, speeds=CatalogSpeeds(nodes))
    return result.state.finish_s[0]


def test_a_gang_takes_its_duration_where_it_is_consolidated():
    assert jct_s("vgg16", TOGETHER) == pytest.approx(100)


def test_scattering_slows_vgg16_and_hardly_resnet50():
    vgg, resnet = jct_s("vgg16", APART), jct_s("resnet50", APART)
    assert vgg == pytest.approx(119.3, abs=0.1)
    assert resnet == pytest.approx(103.2, abs=0.1)


def test_a_model_that_the_catalogue_does_not_have_runs_at_speed_one():
    assert jct_s("mystery", APART) == 100
    assert jct_s("", APART) == 100


def test_a_faster_gpu_type_shortens_a_job():
    nodes = parse_cluster("1x4:k80,1x4:p100")
    speeds = CatalogSpeeds(nodes)
    spec = job("a", 2, model="vgg16")
    assert speeds.speed(spec, TOGETHER, nodes) == 1.0
    on_p100 = speeds.speed(spec, Allocation(((1, 0b11),)), nodes)
    assert on_p100 == pytest.approx(4.58, abs=0.01)


def test_a_gang_on_two_types_runs_at_the_slower_one():
    nodes = parse_cluster("1x4:p100,1x4:k80")
    speeds = CatalogSpeeds(nodes)
    spec = job("a", 2, model="vgg16")
    k80 = speeds.speed(spec, Allocation(((1, 0b11),)), nodes)
    assert speeds.speed(spec, APART, nodes) == pytest.approx(k80, rel=0.01)


def test_the_reference_type_can_be_named():
    nodes = parse_cluster("1x4:k80,1x4:p100")
    speeds = CatalogSpeeds(nodes, reference="P100")
    spec = job("a", 2, model="vgg16")
    assert speeds.speed(spec, Allocation(((1, 0b11),)), nodes) == 1.0
    assert speeds.speed(spec, TOGETHER, nodes) < 0.25


def test_without_types_only_the_placement_counts():
    nodes = parse_cluster("2x4")
    speeds = CatalogSpeeds(nodes)
    spec = job("a", 2, model="vgg16")
    assert speeds.speed(spec, TOGETHER, nodes) == 1.0
    assert 0.5 < speeds.speed(spec, APART, nodes) < 1.0


def test_a_gang_larger_than_a_node_is_measured_against_the_fewest_nodes():
    nodes = parse_cluster("4x4:p100")
    speeds = CatalogSpeeds(nodes)
    spec = job("a", 8, model="vgg16")
    assert speeds.speed(spec, Allocation(((0, 0b1111), (1, 0b1111))), nodes) == 1.0


def test_what_the_trace_tells_of_a_type_counts_and_the_catalogue_of_the_placement():
    nodes = parse_cluster("2x4:p100")
    speeds = CatalogSpeeds(nodes)
    spec = job("a", 2, model="vgg16", speeds=(("p100", 3.0),))
    assert speeds.speed(spec, TOGETHER, nodes) == 3.0
    apart = speeds.speed(job("a", 2, model="vgg16"), APART, nodes)
    assert speeds.speed(spec, APART, nodes) == pytest.approx(3.0 * apart)
    assert speeds.speed(job("a", 2, speeds=(("p100", 2.0),)), APART, nodes) == 2.0


def test_a_type_that_a_model_was_not_measured_on_has_the_typical_ratio():
    nodes = parse_cluster("1x4:p100,1x4:a100")
    speeds = CatalogSpeeds(nodes)
    spec = job("a", 2, model="cyclegan")
    on_a100 = speeds.speed(spec, Allocation(((1, 0b11),)), nodes)
    assert on_a100 == pytest.approx(typical_speed("a100", "p100"))
    assert on_a100 > 2


def test_a_type_that_nobody_measured_is_taken_as_the_reference():
    assert typical_speed("h100", "p100") == 1.0
    nodes = parse_cluster("2x4:h100")
    spec = job("a", 2, model="vgg16")
    assert CatalogSpeeds(nodes).speed(spec, TOGETHER, nodes) == 1.0
    assert CatalogSpeeds(nodes).speed(spec, APART, nodes) < 1.0


def test_typical_ratios_agree_both_ways():
    assert typical_speed("p100", "k80") * typical_speed("k80", "p100") == pytest.approx(1, rel=0.1)
    assert typical_speed("a100", "t4") > 1, "measured together with neither, but both with p100"


def test_slow_links_between_racks_slow_what_crosses_them():
    nodes = parse_cluster("2x4:p100:rack=1")
    spec = job("a", 2, model="vgg16")
    level = CatalogSpeeds(nodes).speed(spec, APART, nodes)
    slow = CatalogSpeeds(nodes, oversubscription=4.0).speed(spec, APART, nodes)
    assert slow < level


def test_profiles_fill_in_skew_and_speeds_by_type():
    nodes = parse_cluster("1x4:K80,1x4:P100")
    known, told, unknown = with_profiles(
        trace(
            job(0, 2, model="vgg16"),
            job(1, 2, model="vgg16", skew=0.5, speeds=(("K80", 1.0),)),
            job(2, 2, model="mystery"),
        ),
        nodes,
    )
    assert known.skew == find("vgg16").skew
    assert dict(known.speeds) == pytest.approx({"K80": 1.0, "P100": 4.58}, abs=0.01)
    assert (told.skew, told.speeds) == (0.5, (("K80", 1.0),))
    assert (unknown.skew, unknown.speeds) == (None, ())


def test_speeds_that_were_filled_in_change_nothing():
    nodes = parse_cluster("2x4:k80,2x4:p100")
    bare = trace(job(0, 2, model="vgg16"))
    filled = with_profiles(bare, nodes)
    speeds = CatalogSpeeds(nodes)
    for parts in (((0, 3),), ((2, 3),), ((2, 1), (3, 1)), ((0, 1), (2, 1))):
        allocation = Allocation(parts)
        plain = speeds.speed(bare.jobs[0], allocation, nodes)
        assert speeds.speed(filled.jobs[0], allocation, nodes) == pytest.approx(plain)


def test_coverage_counts_what_neither_the_catalogue_nor_the_trace_knows():
    jobs = [job(0, model="vgg16"), job(1, model="mystery"), job(2), job(3, model="gpt2")]
    told = {"speeds": (("k80", 0.5),)}
    assert coverage(jobs) == (1, 2, 1)
    assert coverage([*jobs, job(4, **told), job(5, model="mystery", **told)]) == (3, 2, 1)


def test_jobs_that_nobody_knows_the_speeds_of_are_told():
    jobs = trace(job(0, model="vgg16"), job(1, model="mystery"), job(2))
    (sentence,) = describe_unknown(jobs, parse_cluster("1x4:p100"))
    assert "has speeds for 2 of 3 jobs: they run at 1" in sentence
    assert describe_unknown(trace(job(0, model="vgg16")), parse_cluster("2x4:P100,1x4:k80")) == []


@pytest.mark.parametrize(
    ("cluster", "kind", "near"),
    [("16x4:t4,4x8:a10O", "'a10O'", "'a100'"), ("16x4:t40,4x8:a100", "'t40'", "'t4'")],
)
def test_a_mistyped_gpu_type_is_told_with_the_near_one(cluster, kind, near):
    jobs = trace(job(0, model="vgg16"), job(1, model="bert"))
    (sentence,) = describe_unknown(jobs, parse_cluster(cluster))
    assert f"on GPU type {kind} (did you mean {near}?)" in sentence
    assert "how fast 2 of 2 jobs run" in sentence


def test_a_gpu_type_that_the_trace_names_is_known_and_another_is_not():
    told = {"speeds": (("H200", 1.0), ("b100", 2.0))}
    jobs = trace(job(0, **told), job(1, **told, model="vgg16"))
    assert describe_unknown(jobs, parse_cluster("1x2:h200,1x2:B100")) == []
    (sentence,) = describe_unknown(jobs, parse_cluster("1x2:b10O"))
    assert "on GPU type 'b10O' (did you mean 'b100'?)" in sentence


def test_the_only_gpu_type_is_the_one_that_durations_are_for():
    assert describe_unknown(trace(job(0, model="vgg16")), parse_cluster("4x8:h200")) == []


def test_a_step_is_timed_where_the_duration_is_for():
    speeds = CatalogSpeeds(parse_cluster("2x2:p100,1x8:k80"))
    vgg = find("vgg16")
    timed = vgg.step_times["p100"].step_s(4, 2, vgg.batch)
    assert speeds.step_s(job(0, 4, model="vgg16")) == timed
    assert speeds.step_s(job(0, 4, model="mystery")) is None
    assert speeds.step_s(job(0, 4)) is None


def test_profiles_keep_what_was_said_of_the_trace():
    read = Trace([job(0)], "x", num_rejected=1, rejected=[(3, "why")], notes=["what"])
    filled = with_profiles(read, parse_cluster("1x4:k80"))
    assert (filled.name, filled.num_rejected) == ("x", 1)
    assert (filled.rejected, filled.notes) == ([(3, "why")], ["what"])
