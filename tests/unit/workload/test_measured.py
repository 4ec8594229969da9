from pathlib import Path

import pytest

from rota.errors import SimulationError, TraceError
from rota.workload.measured import Batch, Epochs, Measured, Step, smallest_rotation
from rota.workload.measured_files import read_profile, read_profiles

PLACES = "placement,local_bsz,step_time,sync_time\n"
EPOCHS = "progress,iteration,metric,grad_sqr,grad_var\n"


def toy(**more: int) -> Measured:
    one, two = Step(1.0, 0.0), Step(2.0, 0.0)
    apart = {4: Step(1.5, 0.5), 8: Step(2.5, 0.5)}
    placements = {(1,): {4: one, 8: two}, (2,): apart, (1, 2): apart, (1, 1): apart}
    by_batch = {
        8: Epochs((10.0, 30.0), (10.0, 30.0), (1.0, 1.0), (1.0, 3.0)),
        32: Epochs((12.0, 40.0), (5.0, 14.0), (3.0, 1.0), (1.0, 3.0)),
    }
    return Measured("toy", placements, (), by_batch, **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    toy = tmp_path / "toy"
    toy.mkdir()
    (toy / "placements.csv").write_text(f"{PLACES}1,4,1.0,0.25\n12,4,1.5,0.5\n")
    (toy / "scalability.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n6,6,4,2.0,1.0\n"
    )
    (toy / "validation-8.csv").write_text(f"{EPOCHS}10,10,0.1,1,2\n20,20,0.2,1,3\n")
    return tmp_path


def test_a_measured_placement_is_linear_in_the_samples():
    assert toy().step((1,), 4) == (1.0, 0.0)
    assert toy().step((1,), 6) == (1.5, 0.0)


def test_rings_of_the_same_gpus_are_one_placement():
    assert smallest_rotation((4, 2, 3)) == (2, 3, 4)
    assert toy().step((2, 1), 4) == toy().step((1, 2), 4)


def test_samples_beyond_those_that_were_measured_are_an_error():
    with pytest.raises(SimulationError, match="toy was measured neither with 9 samples"):
        toy().step((2,), 9)


def test_between_placements_it_is_linear_in_nodes_and_gpus():
    points = {(1,): 1.0, (2,): 2.0, (1, 1): 3.0, (2, 2): 5.0}
    placements = {place: {4: Step(s, 0.0), 8: Step(s, 0.0)} for place, s in points.items()}
    by_batch = {8: Epochs((1.0,), (1.0,), (1.0,), (1.0,))}
    measured = Measured("toy", placements, [((2, 6, 4), Step(7.0, 0.0))], by_batch)
    assert measured.step((1, 2), 4).step_s == pytest.approx(4.0)
    with pytest.raises(SimulationError, match="7 of 1 nodes"):
        measured.step((7,), 4)


def test_noise_is_linear_between_batches_and_constant_beyond():
    assert toy().noise(8, 0) == (1.0, 1.0)
    assert toy().noise(20, 0) == (2.0, 1.0)
    assert toy().noise(4, 0) == toy().noise(8, 0)
    assert toy().noise(64, 0) == toy().noise(32, 0)


def test_a_step_of_the_initial_batch_gains_one():
    assert toy().gain(8, 0) == 1.0
    assert toy().gain(32, 1) == pytest.approx((3.0 + 1.0) / (3.0 / 4 + 1.0))


def test_progress_is_the_least_of_all_batches():
    assert [toy().progress(epoch) for epoch in (0, 1, 2)] == [0.0, 10.0, 30.0]


def test_steps_are_linear_between_batches():
    assert toy().steps(8) == (10.0, 30.0)
    assert toy().steps(20) == (7.5, 22.0)
    assert toy().steps(None) == toy().steps(8)


@pytest.mark.parametrize(
    ("batch", "gpus", "split"),
    [
        (8, 1, Batch(8, 0)),
        (16, 1, Batch(8, 1)),  # two parts at least, whose difference tells the noise
        (12, 1, Batch(6, 1)),
        (12, 2, Batch(6, 0)),
        (32, 2, Batch(8, 1)),
        (30, 4, Batch(8, 0)),
        (8, 4, Batch(4, 0)),
        (None, 1, Batch(8, 0)),
        (None, 4, Batch(4, 0)),
    ],
)
def test_a_batch_is_split_into_as_few_parts_as_fit(batch, gpus, split):
    assert toy().split(batch, gpus) == split


def test_a_split_batch_is_never_larger_than_the_largest():
    assert toy().split(31, 3) == Batch(5, 1)  # 6 on each GPU would come to 36


def test_an_epoch_takes_its_steps_times_their_time():
    # 10 and 20 steps' worth of progress, of 2 s each.
    assert toy().epochs_s((1,), Batch(8, 0)) == (20.0, 40.0)
    gain = toy().gain(16, 0)
    assert toy().epochs_s((1,), Batch(8, 1))[0] == pytest.approx(10 / gain * 4.0)


def test_limits_are_those_that_were_measured_unless_told():
    measured, told = toy(), toy(most_per_gpu=6, most_gpus=1)
    assert (measured.least_per_gpu, measured.most_per_gpu, measured.most_gpus) == (4, 8, 8)
    assert (told.most_per_gpu, told.most_gpus) == (6, 1)


# -- files -----------------------------------------------------------------------------------------


def test_a_folder_is_read(folder):
    measured = read_profiles(folder, ["toy"])["toy"]
    assert measured.step((2, 1), 4) == Step(1.5, 0.5)
    assert (measured.num_epochs, measured.init_batch, measured.noise(8, 1)) == (2, 8, (1.0, 3.0))


def test_the_bounds_of_the_published_simulator_hold_for_its_applications(folder):
    assert read_profile((folder / "toy").rename(folder / "ncf")).most_gpus == 1


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("placements.csv", f"{PLACES}1,4,1,0\n102,4,1,0\n", r"placements.csv, line 3: .*'102'"),
        ("placements.csv", f"{PLACES}1,4,0,0\n", r"line 2: step_time is '0'; it must be above"),
        ("placements.csv", f"{PLACES}1,4,nan,0\n", r"line 2: step_time is 'nan'"),
        ("placements.csv", f"{PLACES}1,4,1,2\n", r"line 2: sync_time is '2'; it is a part of"),
        ("placements.csv", f"{PLACES}1,4.5,1,0\n", r"line 2: local_bsz is '4.5'"),
        ("placements.csv", f"{PLACES}12,4,1,0\n21,4,1,0\n", r"line 3: .*stands there twice"),
        ("placements.csv", PLACES, "has a header but no rows"),
        ("placements.csv", "placement,local_bsz\n1,4\n", "column 'step_time' is missing"),
        (
            "scalability.csv",
            "num_nodes,num_replicas,local_bsz,step_time,sync_time\n6,5,4,2,1\n",
            r"line 2: num_replicas is '5'; there must be one on each of the 6 nodes",
        ),
        ("validation-8.csv", f"{EPOCHS}10,10,0,1,1\n9,20,0,1,1\n", r"line 3: progress is '9'"),
        ("validation-8.csv", f"{EPOCHS}10,10,0,-1,1\n", r"line 2: grad_sqr is '-1'"),
        ("validation-8.csv", f"{EPOCHS}10,10,0,0,0\n", r"line 2: .*can't both be zero"),
        ("validation-x.csv", EPOCHS, "name it validation-B.csv"),
    ],
)
def test_a_wrong_file_is_refused_by_line_and_value(folder, file, text, says):
    (folder / "toy" / file).write_text(text)
    with pytest.raises(TraceError, match=says):
        read_profiles(folder, ["toy"])


def test_a_folder_or_a_file_that_is_not_there_is_told(folder):
    with pytest.raises(TraceError, match="no profile of application 'other'; it has toy"):
        read_profiles(folder, ["other"])
    with pytest.raises(TraceError, match="is no folder"):
        read_profiles(folder / "toy" / "placements.csv", ["toy"])
    (folder / "toy" / "validation-8.csv").unlink()
    with pytest.raises(TraceError, match=r"has no validation-B.csv"):
        read_profiles(folder, ["toy"])
