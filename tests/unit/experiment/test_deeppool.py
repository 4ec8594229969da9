"""The experiments on DeepPool's layers, on invented profiles and invented runs."""

import pytest

from rota.burst.planner.plan import Group
from rota.burst.planner.timeline import FORWARD, Span, Timeline
from rota.errors import DataMissingError
from rota.experiment import deeppool_layers, deeppool_scaling, deeppool_throughput
from rota.experiment.deeppool_scaling import GPUS, NETWORKS, Reached
from rota.experiment.deeppool_throughput import Shared, filled

ROWS = [
    ('conv2d{"in_channels":3,"kernel_size":3,"out_channels":4,"padding":1,"stride":1}', "[3,4,4]"),
    ('ReLU2d{"inplace":true}', "[4,4,4]"),
    ('flatten{"kernel_size":1}', "[4,4,4]"),
    ('linear{"bias":true,"in_features":64,"out_features":9}', "64"),
]


@pytest.fixture
def data(tmp_path):
    """Three profiles of one invented model, whose linear layer gains nothing from more GPUs."""
    folder = tmp_path / "deeppool"
    folder.mkdir()
    lines = []
    for batch in (64, 32, 16, 8, 4, 2, 1):
        for what, shape in ROWS:
            ms = 5.0 if what.startswith("linear") else 0.1 * batch
            lines.append(f"{what}[{batch}]{shape} {ms} 300 700\n")
        lines.append("sum: 1.0\n")
    for name in ("vgg", "wrn", "inception"):
        (folder / f"A100_{name}.prof").write_text("".join(lines))
    return tmp_path


@pytest.mark.parametrize("experiment", [deeppool_layers, deeppool_scaling, deeppool_throughput])
def test_without_data_it_says_which_is_needed(experiment, tmp_path):
    with pytest.raises(DataMissingError, match=r"in which deeppool/\*\.prof lie as --data"):
        experiment.run()
    with pytest.raises(DataMissingError, match=r"there is no .*A100_vgg\.prof"):
        experiment.run(tmp_path)


def test_a_layer_is_timed_with_what_follows_in_place(data, monkeypatch):
    published = {"convolution": ("conv2d-1", 32.0), "linear": ("linear-1", 2.0)}
    monkeypatch.setattr(deeppool_layers, "PUBLISHED", published)
    outcome = deeppool_layers.run(data)
    ours = {figure.name: figure for figure in outcome.figures}
    assert ours["convolution: speed-up"].ours == pytest.approx(32.0)
    assert ours["linear: speed-up"].ours == pytest.approx(1.0)
    assert [figure.name for figure in outcome.figures if not figure.ok] == ["linear: speed-up"]


def ways(optimal=1.0, per_gpu=1):
    """What each way to scale reaches; batch-optimal so many times as late as the others."""
    times = [1.0 / (gpus / GPUS[0]) ** 0.5 for gpus in GPUS]
    best = [Reached(time * optimal, 64) for time in times[:-1]]
    return {
        "weak": [Reached(time, 64) for time in times],
        "strong": [Reached(time, 64) for time in times],
        "batch-optimal": [*best, Reached(times[-1] * optimal, per_gpu)],
    }


@pytest.mark.parametrize(
    ("found", "failing"),
    [
        (ways(), 0),
        (ways(optimal=1.1), len(NETWORKS)),
        (ways(per_gpu=64), len(NETWORKS)),
    ],
    ids=["as published", "later than the others", "no smaller batches"],
)
def test_the_verdict_is_on_batch_optimal_scaling(found, failing):
    made = deeppool_scaling.figures(dict.fromkeys(NETWORKS, found))
    assert sum(not figure.ok for figure in made) == failing


def test_scaling_runs_on_data(data):
    ours = {figure.name: figure.ours for figure in deeppool_scaling.run(data).figures}
    assert all(ours[f"{name}: strong, part of linear speed-up"] < 0.1 for name in NETWORKS)
    assert ours["strong: gain from the fastest network over the others'"] > 0.9


def course(*spans, gpus=1, step_s=10e-3):
    whole = Group(0, gpus)
    return Timeline(
        tuple(Span(FORWARD, 0, (whole,), start, end) for start, end in spans), gpus, step_s
    )


def test_pieces_fill_gaps_and_overrun_as_far_as_the_limit_allows():
    busy = course((0.0, 4e-3), (6.2e-3, 10e-3))  # a gap of 2.2 ms: four pieces, and 0.2 ms
    assert filled(busy, 10e-3) == pytest.approx((10e-3, 2e-3))
    assert filled(busy, 11e-3) == pytest.approx((10.3e-3, 2.5e-3))
    assert filled(course((0.0, 10e-3)), 11e-3) == (10e-3, 0.0)


def test_gaps_at_the_end_of_a_step_and_the_beginning_of_the_next_are_one():
    busy = course((0.3e-3, 9.7e-3))
    assert filled(busy, 10e-3) == pytest.approx((10e-3, 0.5e-3))


@pytest.mark.parametrize(
    ("work", "failing"),
    [
        (1.7, []),
        (1.1, ["work", "part of the temporal bound"]),
        (1.4, ["part of the temporal bound"]),
    ],
)
def test_the_verdict_is_on_work_and_its_bounds(work, failing):
    shared = Shared(work, 1.75, 1.8, 0.95)
    made = deeppool_throughput.figures({("VGG-16", 8): (shared, shared)})
    assert [f.name.removeprefix("VGG-16, 8 GPUs: ") for f in made if not f.ok] == failing


def test_throughput_is_found_from_data(data):
    plain, overlapped = deeppool_throughput.measured(data, "VGG-16", 8)
    for shared in (plain, overlapped):
        assert 1.2 < shared.work <= shared.most * (1 + 1e-9)
        assert shared.foreground >= 1 / 1.1 - 1e-9
