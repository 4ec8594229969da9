"""Experiments on Pollux' workloads, with small invented ones in their place."""

import pytest

from rota.errors import DataMissingError
from rota.experiment import pollux_interference, pollux_types
from rota.experiment.runs import pollux_workloads
from rota.experiment.runs.pollux_workloads import Run

JOBS = """name,time,application,num_replicas,batch_size
a,0,bert,1,12
b,30,deepspeech2,2,40
c,60,bert,8,96
d,90,deepspeech2,1,20
"""
PLACEMENTS = {1: 0.0, 2: 0.1, 3: 0.1, 4: 0.1, 44: 0.2}
SHAPES = [(1, 1), (1, 4), (2, 8), (8, 8)]


def write_application(folder, batches, sizes, epochs=3, steps=100):
    folder.mkdir(parents=True)
    rows = [
        f"{place},{size},{size / 20 + sync_s},{sync_s}"
        for place, sync_s in PLACEMENTS.items()
        for size in sizes
    ]
    (folder / "placements.csv").write_text(
        "\n".join(["placement,local_bsz,step_time,sync_time", *rows])
    )
    rows = [
        f"{nodes},{gpus},{size},{size / 20 + 0.2},0.2" for nodes, gpus in SHAPES for size in sizes
    ]
    (folder / "scalability.csv").write_text(
        "\n".join(["num_nodes,num_replicas,local_bsz,step_time,sync_time", *rows])
    )
    for batch in batches:
        ends = [steps * epoch for epoch in range(1, epochs + 1)]
        rows = [f"{end},{end},1.0,40.0" for end in ends]
        header = "progress,iteration,grad_sqr,grad_var"
        (folder / f"validation-{batch}.csv").write_text("\n".join([header, *rows]))


@pytest.fixture
def data(tmp_path, monkeypatch):
    profiles, workloads = tmp_path / "pollux" / "profiles", tmp_path / "pollux" / "workloads"
    write_application(profiles / "bert", (12, 48, 96), (12, 24))
    write_application(profiles / "deepspeech2", (20, 40, 80), (10, 20))
    workloads.mkdir()
    (workloads / "workload-1.csv").write_text(JOBS)
    for module in (pollux_interference, pollux_types, pollux_workloads):
        monkeypatch.setattr(module, "WORKLOADS", (1,))
    return tmp_path


@pytest.mark.parametrize("experiment", [pollux_interference, pollux_types])
def test_without_data_it_says_which_is_needed(experiment, tmp_path):
    with pytest.raises(DataMissingError, match=r"pollux/profiles as --data"):
        experiment.run()
    with pytest.raises(DataMissingError, match=r"there is no .*profiles; give the folder"):
        experiment.run(tmp_path)


def test_interference_is_measured_with_avoidance_and_without(data):
    outcome = pollux_interference.run(data)
    ours = {figure.name: figure.ours for figure in outcome.figures}
    assert ours["avoided: time beside another job on a node"] == 0
    assert ours["not avoided, 0% lost: over avoided"] == pytest.approx(
        ours["not avoided, 0% lost: average JCT"] / ours["avoided: average JCT"]
    )
    assert all(ours[f"not avoided, {lost}% lost: average JCT"] > 0 for lost in (0, 25, 50))


@pytest.mark.parametrize(
    ("times", "beside", "holds"),
    [
        ((100.0, 101.0, 112.0, 140.0), 0.0, True),
        ((100.0, 101.0, 100.0, 140.0), 0.0, False),  # a quarter is lost and nobody feels it
        ((100.0, 101.0, 112.0, 140.0), 0.1, False),  # avoided, and yet beside each other
    ],
)
def test_the_verdict_is_on_what_avoidance_saves(times, beside, holds):
    avoided, *others = times
    runs = {("avoid", 0.5): [Run(avoided, 1.0, beside)]}
    runs |= {
        ("ignore", lost): [Run(each, 1.0, 0.4)]
        for lost, each in zip((0.0, 0.25, 0.5), others, strict=True)
    }
    figures = pollux_interference.figures(runs)
    assert all(figure.ok for figure in figures) is holds


def test_jobs_on_two_types_end_sooner_where_types_count(data):
    outcome = pollux_types.run(data)
    [ratio] = [figure for figure in outcome.figures if figure.judged]
    [mean] = [figure for figure in outcome.figures if figure.name == "average JCT"]
    assert ratio.ours == pytest.approx(mean.ours / mean.baseline)


@pytest.mark.parametrize(("aware_s", "holds"), [(80.0, True), (99.0, False)])
def test_the_verdict_is_on_what_types_save(aware_s, holds):
    runs = {"off": [Run(100.0, 200.0, 0.0)] * 4, "on": [Run(aware_s, 180.0, 0.0)] * 4}
    assert all(figure.ok for figure in pollux_types.figures(runs)) is holds


def test_jobs_that_are_alone_on_their_nodes_are_beside_nobody(data):
    found = pollux_workloads.play(data, 1, {"interference": "avoid"})
    assert found.beside == 0
    assert 0 < found.avg_jct_s < found.makespan_s
