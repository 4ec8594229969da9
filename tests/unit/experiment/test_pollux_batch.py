import pytest

from rota.errors import DataMissingError
from rota.experiment import pollux_batch
from rota.experiment.pollux_batch import goodput, run
from rota.workload.measured import Batch
from rota.workload.measured_files import read_profile

from .conftest import write_profile


@pytest.fixture(autouse=True)
def one_application(monkeypatch):
    monkeypatch.setattr(pollux_batch, "APPLICATIONS", ("cifar10",))


def figures(data):
    return {figure.name: figure for figure in run(data).figures}


def test_what_follows_the_model_is_told_rightly(pollux_data):
    found = figures(pollux_data)
    assert found["cifar10: step time, fitted to all, error"].ours < 5
    assert found["cifar10: step time, twice the GPUs fitted to, error"].ours < 10
    assert found["cifar10: gain of a larger batch, error"].ours == pytest.approx(0, abs=1e-6)
    assert found["cifar10: goodput of chosen batches"].ours > 98
    assert run(pollux_data).holds


def test_steps_that_no_model_fits_are_found(tmp_path):
    folder = tmp_path / "pollux" / "profiles" / "cifar10"
    write_profile(folder)
    header, *rows = (folder / "placements.csv").read_text().splitlines()
    for at, row in enumerate(rows):  # every other place is four times as slow
        place, size, step_s, sync_s = row.split(",")
        rows[at] = f"{place},{size},{float(step_s) * (1 + 3 * (at // 5 % 2))},{sync_s}"
    (folder / "placements.csv").write_text("\n".join([header, *rows]))
    assert not figures(tmp_path)["cifar10: step time, fitted to all, error"].ok


def test_gradient_noise_that_batches_do_not_keep_to_is_found(tmp_path):
    folder = tmp_path / "pollux" / "profiles" / "cifar10"
    write_profile(folder)
    rows = (folder / "validation-2048.csv").read_text().splitlines()
    header, *epochs = [row.split(",") for row in rows]
    for epoch in epochs:  # a step gained half as much as the noise says
        epoch[1] = str(2 * float(epoch[1]))
    (folder / "validation-2048.csv").write_text(
        "\n".join(",".join(row) for row in [header, *epochs])
    )
    found = figures(tmp_path)["cifar10: gain of a larger batch, error"]
    assert found.most == pytest.approx(100)
    assert not found.ok


def test_goodput_is_what_steps_gain_in_a_second(pollux_data):
    profile = read_profile(pollux_data / "pollux" / "profiles" / "cifar10")
    # Two GPUs of one node: 0.02 + 0.128 s of computing and 0.05 s of exchange; (4 + 1) / (2 + 1).
    assert goodput(profile, 2, Batch(128), 0) == pytest.approx(5 / 3 / 0.198)


def test_absent_profiles_are_told(tmp_path):
    with pytest.raises(DataMissingError, match="--data"):
        run()
    with pytest.raises(DataMissingError, match="pollux/profiles"):
        run(tmp_path)
