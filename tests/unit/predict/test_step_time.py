import pytest

from rota.errors import InputError
from rota.predict.step_time import Shape, StepTime, fewest_nodes, relative_speed
from rota.workload.catalog import find

# The fit to all measured placements of BERT on T4 GPUs, published with Pollux.
BERT = StepTime(0.1692, 0.0586, 0.2871, 0.01118, 1.352, 0.01425, 1.90)


def test_one_gpu_exchanges_nothing():
    assert BERT.step_s(1, 1, 12) == pytest.approx(0.1692 + 12 * 0.0586)


def test_without_overlap_computing_and_exchanging_add_up():
    model = StepTime(1.0, 0.5, 0.25, 0.125, 2.0, 0.5, gamma=1.0)
    assert model.step_s(2, 1, 4) == pytest.approx(3.0 + 0.25)
    assert model.step_s(4, 1, 4) == pytest.approx(3.0 + 0.25 + 2 * 0.125)
    assert model.step_s(4, 2, 4) == pytest.approx(3.0 + 2.0 + 2 * 0.5)


def test_with_full_overlap_the_longer_hides_the_shorter():
    model = StepTime(3.0, 0.0, 1.0, 0.0, 1.0, 0.0, gamma=10.0)
    assert model.step_s(2, 1, 1) == pytest.approx(3.0, rel=1e-4)


def test_what_nobody_measured_costs_nothing():
    assert StepTime(1.0, 0.0).step_s(8, 8, 1) == 1.0


def test_crossing_racks_slows_the_exchange():
    model = StepTime(1.0, 0.0, 0.1, 0.0, 0.5, 0.0)
    assert model.step_s(2, 2, 1, slower_links=4.0) == pytest.approx(1.0 + 4 * 0.5)
    assert model.step_s(2, 1, 1, slower_links=4.0) == pytest.approx(1.1), "not within a node"


@pytest.mark.parametrize(
    ("model", "kind", "gpus", "nodes", "batch", "measured_s"),
    [
        # Images per second with synthetic data, TensorFlow benchmarks of May 2017.
        ("vgg16", "p100", 1, 1, 64, 64 / 154),
        ("vgg16", "p100", 4, 1, 64, 256 / 584),
        ("vgg16", "k80", 8, 1, 32, 256 / 234),
        ("inception3", "p100", 8, 1, 64, 512 / 1131),
        ("inception3", "k80", 64, 8, 64, 4096 / 1783),
        ("resnet152", "k80", 32, 4, 32, 1024 / 565),
        ("alexnet", "k80", 4, 1, 512, 2048 / 2328),
        # Scaling efficiency of Horovod: 128 servers with 4 Pascal GPUs each.
        ("vgg16", "p100", 512, 128, 64, 64 / 154 / 0.68),
        # Sum of the layers' times on one A100, DeepPool's profile.
        ("vgg16", "a100", 1, 1, 32, 0.05373),
    ],
)
def test_measured_steps_are_met_about_within_the_stated_error(
    model, kind, gpus, nodes, batch, measured_s
):
    profile = find(model)
    predicted_s = profile.step_times[kind].step_s(gpus, nodes, batch)
    error = max(2 * profile.fits[kind].p90_error, 0.01)  # one point in ten lies outside p90
    assert predicted_s == pytest.approx(measured_s, rel=error)


def test_speed_is_relative_to_the_reference_shape():
    slow, fast = StepTime(2.0, 0.0, 0.0, 0.0, 2.0, 0.0), StepTime(1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    types = {"slow": slow, "fast": fast}
    reference = Shape("slow", 2, 1)
    assert relative_speed(types, 1, reference, reference) == 1.0
    assert relative_speed(types, 1, Shape("fast", 2, 1), reference) == 2.0
    assert relative_speed(types, 1, Shape("fast", 2, 2), reference) == 1.0
    assert relative_speed(types, 1, Shape("slow", 2, 2), reference) == 0.5


def test_gangs_feel_the_links_that_they_cross():
    types = {"t4": StepTime(1.0, 0.0, 0.0, 0.0, 1.0, 0.0)}
    at = [Shape("t4", 2, 2, slower_links) for slower_links in (1.0, 3.0)]
    speeds = [relative_speed(types, 1, s, Shape("t4", 2, 1)) for s in at]
    assert speeds == pytest.approx([1 / 2, 1 / 4])


@pytest.mark.parametrize(
    ("sizes", "gpus", "nodes"),
    [((8, 4, 4), 8, 1), ((8, 4, 4), 9, 2), ((8, 4, 4), 13, 3), ((8, 4, 4), 99, 3), ((), 1, 0)],
)
def test_the_fewest_nodes_are_the_largest(sizes, gpus, nodes):
    assert fewest_nodes(sizes, gpus) == nodes


def test_an_unknown_type_is_told():
    with pytest.raises(InputError, match="no step time is known for 'h100'; known: t4"):
        relative_speed({"t4": BERT}, 12, Shape("h100", 1, 1), Shape("t4", 1, 1))
