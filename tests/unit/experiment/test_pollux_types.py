"""The experiment on two GPU types, on invented data and on invented runs."""

import pytest

from rota.errors import DataMissingError
from rota.experiment import pollux_types
from rota.experiment.pollux_types import A100_OVER_T4, figures, run, with_speeds
from rota.experiment.runs.pollux import Run


@pytest.fixture
def data(tmp_path, write_profile):
    """Jobs of an application that gains much on the fast type, and of one that gains little."""
    for name in ("cifar10", "ncf"):
        write_profile(tmp_path / "pollux" / "profiles" / name, 1000.0)
    workloads = tmp_path / "pollux" / "workloads"
    workloads.mkdir()
    for number in (1, 2, 3, 4):
        rows = ["name,time,application,num_replicas,batch_size"]
        for job in range(6):
            name = ("cifar10", "ncf")[job % 2]
            rows.append(f"{name}-{job},{100 * job + number},{name},1,256")
        (workloads / f"workload-{number}.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_jobs_end_sooner_where_types_count(data, monkeypatch):
    monkeypatch.setattr(pollux_types, "SEEDS", [0])
    monkeypatch.setattr(pollux_types, "CLUSTER", "1x4:t4,1x4:a100")
    found = {figure.name: figure for figure in run(data).figures}
    ratio, mean = found["average JCT over type-blind"], found["average JCT"]
    assert ratio.ours < 0.9
    assert ratio.ours == pytest.approx(mean.ours / mean.baseline)


def test_each_job_is_as_fast_on_the_types_as_its_application(data):
    jobs = with_speeds(0, data, 2)
    assert [dict(spec.speeds) for spec in jobs] == [
        {"t4": 1.0, "a100": A100_OVER_T4[spec.model]} for spec in jobs
    ]
    assert {spec.model for spec in jobs} == {"cifar10", "ncf"}
    at_s = [spec.submit_s for spec in with_speeds(1, data, 2)]
    assert at_s != [spec.submit_s for spec in jobs]


@pytest.mark.parametrize(
    ("aware_s", "holds"),
    [((80.0, 80.0), True), ((99.0, 99.0), False), ((80.0, 99.0), False), ((30.0, 80.0), False)],
    ids=["saved", "hardly saved", "hardly with one seed", "too good to be true with one seed"],
)
def test_the_verdict_is_on_what_types_save_with_every_seed(aware_s, holds):
    blind = [[Run([100.0], 200.0, 0, 0.0)] * 4] * 2
    aware = [[Run([each_s], 180.0, 0, 0.0)] * 4 for each_s in aware_s]
    assert all(figure.ok for figure in figures({"off": blind, "on": aware})) is holds


def test_workloads_stand_beside_themselves():
    blind = [[Run([float(number)], 200.0, 0, 0.0) for number in (1, 2, 3, 4)]]
    aware = [[Run([number / 2], 180.0, 0, 0.0) for number in (1, 2, 3, 4)]]
    found = {figure.name: figure for figure in figures({"off": blind, "on": aware})}
    third = found["workload 3: average JCT"]
    assert (third.baseline, third.ours) == (3.0, 1.5)
    assert (found["makespan"].baseline, found["makespan"].ours) == (200.0, 180.0)


def test_without_data_it_says_which_is_needed(tmp_path):
    with pytest.raises(DataMissingError, match=r"there is no .*profiles; give the folder"):
        run(tmp_path)
