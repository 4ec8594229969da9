import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from rota.errors import InputError
from rota.workload import learning_curves
from rota.workload.learning_curves import Run, load, names

BENCH = Path(__file__).parents[3] / "bench"


def test_two_searches_were_recorded():
    assert names() == ("clusters-mlp", "digits-resnet")


@pytest.mark.parametrize("name", names())
def test_every_run_is_whole_and_has_the_parameters_of_its_search(name):
    search = load(name)
    assert (search.name, search.epochs) == (name, 81)
    assert search.task
    assert search.recorded.startswith("torch ")
    assert [run.number for run in search.runs] == list(range(200))
    kinds = [(key, type(value)) for key, value in search.runs[0].parameters]
    assert "learning_rate" in dict(kinds)
    for run in search.runs:
        assert [(key, type(value)) for key, value in run.parameters] == kinds
        assert len(run.accuracies) == search.epochs
        assert all(0 <= accuracy <= 1 for accuracy in run.accuracies)
        assert 0 < run.epoch_s < 1


@pytest.mark.parametrize("name", names())
def test_a_run_that_diverged_has_one_accuracy_from_then_on(name):
    for run in load(name).runs:
        if run.diverged is not None:
            assert 1 <= run.diverged <= 81
            assert len(set(run.accuracies[run.diverged - 1 :])) == 1


@pytest.mark.parametrize("name", names())
def test_each_half_of_a_search_is_one_in_which_few_configurations_are_good(name):
    runs = load(name).runs
    for half in (runs[:100], runs[100:]):
        above = [sum(max(run.accuracies) > level for run in half) for level in (0.7, 0.8, 0.9)]
        assert 40 <= above[0] <= 50
        assert 25 <= above[1] <= 40
        assert 5 <= above[2] <= 10


def test_a_search_can_be_sent_to_another_process_and_not_be_changed():
    search = load("digits-resnet")
    assert pickle.loads(pickle.dumps(search)) == search
    with pytest.raises(AttributeError):
        search.runs[0].epoch_s = 1.0
    assert isinstance(search.runs[0].accuracies, tuple)


def test_a_search_that_was_not_recorded_is_told_with_the_close_one():
    with pytest.raises(InputError, match=r"search: 'digits-resnets' .*did you mean 'digits-resnet"):
        load("digits-resnets")


def test_reading_them_loads_no_numpy():
    code = "import sys; from rota.workload.learning_curves import load; load('digits-resnet'); "
    code += "print(sorted({'numpy', 'scipy', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_they_are_small():
    assert sum(path.stat().st_size for path in learning_curves.FOLDER.glob("*.json")) < 300_000


# -- how they are recorded -------------------------------------------------------------------------


@pytest.fixture
def script(monkeypatch):
    import torch

    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(BENCH)
    yield importlib.import_module("record_learning_curves")
    torch.set_num_threads(threads)


@pytest.fixture
def empty(monkeypatch, tmp_path):
    """No search is recorded, and what is recorded goes into a folder of the test's."""
    monkeypatch.setattr(learning_curves, "FOLDER", tmp_path)
    load.cache_clear()
    yield tmp_path
    load.cache_clear()


@pytest.mark.parametrize("name", names())
def test_the_recorder_draws_the_parameters_that_were_recorded(script, name):
    for run in load(name).runs:
        assert tuple(script.parameters_of(name, run.number).items()) == run.parameters


def test_a_training_gives_the_same_curve_again(script, monkeypatch):
    short = {name: of._replace(epochs=3) for name, of in script.SEARCHES.items()}
    monkeypatch.setattr(script, "SEARCHES", short)
    first, again = (script.train(("clusters-mlp", 3)) for _ in range(2))
    assert first.accuracies == again.accuracies
    assert len(set(first.accuracies)) > 1


def test_a_training_whose_loss_is_no_number_is_not_gone_on_with(script, monkeypatch):
    epochs = []
    monkeypatch.setattr(script, "train_epoch", lambda *_: epochs.append(0) or len(epochs) < 4)
    run = script.train(("clusters-mlp", 0))
    assert (run.diverged, len(epochs), len(run.accuracies)) == (4, 4, 81)


class Cut(Exception):
    """The recorder is cut off."""


class Pool:
    """Trains here, nothing really, and is cut off after so many trainings."""

    def __init__(self, after):
        self.left, self.trained = after, []

    def imap_unordered(self, _, jobs):
        for search, number in jobs:
            if not self.left:
                raise Cut
            self.left -= 1
            self.trained.append((search, number))
            yield search, Run(number, (("width", 8), ("optimizer", "sgd")), 0.01, None, (0.5, 0.75))


def test_a_recorder_that_was_cut_off_goes_on_where_it_was(script, empty, capsys):
    every = [(name, number) for number in range(3) for name in script.SEARCHES]
    cut = Pool(after=2)
    with pytest.raises(Cut):
        script.record(cut, {name: script.recorded_runs(name) for name in script.SEARCHES}, 3)
    load.cache_clear()
    rest = Pool(after=9)
    script.record(rest, {name: script.recorded_runs(name) for name in script.SEARCHES}, 3)
    assert cut.trained == every[:2]
    assert rest.trained == every[2:]
    load.cache_clear()
    for name in script.SEARCHES:
        runs = load(name).runs
        assert [run.number for run in runs] == [0, 1, 2]
        assert runs[2] == Run(2, (("width", 8), ("optimizer", "sgd")), 0.01, None, (0.5, 0.75))
    assert not list(empty.glob("*.new"))
    assert "0.750" in capsys.readouterr().out
