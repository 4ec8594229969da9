"""``python -m rota.burst.profile``: the layers of a script's model, measured into a file."""

import json
import subprocess
import sys

import pytest

from rota.burst.profile import main
from rota.workload.layer_profiles import read_layer_profile

SCRIPT = """
import torch
from torch import nn

def make_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2))

def make_all():
    return make_model(), torch.randn(3, 12), lambda out: out.square().mean()

def make_inputs(batch):
    return torch.randn(batch, 3, 4)

def make_words():
    return nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 2))

def three(): return 3
def fails(): raise ValueError("no weights here")
def four(): return make_model(), 1, 2, 3
def no_loss(): return make_model(), torch.randn(3, 12), 7
def uneven(): return make_model(), (torch.randn(3, 12), torch.randn(2, 12))
"""

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def profiled(script, function, *arguments):
    out = script.with_name("layers.json")
    main(
        [f"{script}:{function}", "--batch", "4", "--budget", "0.01s", "--out", str(out), *arguments]
    )
    return read_layer_profile(out)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("make_all", []),
        ("make_model", ["--inputs", "3x4,float32"]),
        ("make_model", ["--inputs", "make_inputs", "--blocks", "1"]),
    ],
)
def test_a_model_of_a_script_is_measured_and_read(script, function, arguments):
    graph = profiled(script, function, *arguments)
    assert [layer.name for layer in graph.layers] == ["1", "3"]
    assert graph.name == f"train:{function}" and graph.network is None
    assert (graph.least_batch, graph.most_batch) == (1, 4)


def test_words_below_a_number_are_drawn(script):
    assert len(profiled(script, "make_words", "--inputs", "5,int64,7").layers) == 2


def test_progress_is_told_beside_the_profile(script, capsys):
    main([f"{script}:make_all", "--batch", "2", "--budget", "0.01s"])
    out, err = capsys.readouterr()
    assert json.loads(out)["format"] == "rota-layer-profile"
    assert "rota.burst.profile: 2 layers\n" in err


BAD = {
    "no file": (["nowhere.py:make", "--batch", "4"], "there is no file"),
    "no function": (["train.py:make_modle", "--batch", "4"], "no function 'make_modle' (did you"),
    "no colon": (["train.py", "--batch", "4"], "name a script and its function"),
    "no module": (["train.py:three", "--batch", "4"], "yields a int as the model"),
    "raises": (["train.py:fails", "--batch", "4"], "failed: ValueError: no weights here"),
    "four values": (["train.py:four", "--batch", "4"], "yields 4 values"),
    "no loss": (["train.py:no_loss", "--batch", "4"], "a int as the loss function"),
    "no inputs": (["train.py:make_model", "--batch", "4"], "yields no example inputs"),
    "uneven inputs": (["train.py:uneven", "--batch", "4"], "have [3, 2] samples"),
    "wrong inputs": (["train.py:make_model", "--batch", "4", "--inputs", "7"], "inputs of 2x7"),
    "no shape": (["train.py:make_all", "--batch", "4", "--inputs", "3y4"], "give a shape and type"),
    "no type": (["train.py:make_all", "--batch", "4", "--inputs", "3,real"], "give a shape and"),
    "batch 0": (["train.py:make_all", "--batch", "0"], "--batch is 0; it is 1 or more"),
    "one rank": (["train.py:make_all", "--batch", "4", "--ranks", "1"], "--ranks is 1; it is 2"),
    "no time": (["train.py:make_all", "--batch", "4", "--budget", "soon"], "--budget: 'soon'"),
    "no device": (["train.py:make_all", "--batch", "4", "--device", "cud"], "--device cud: "),
    "no folder": (["train.py:make_all", "--batch", "4", "--out", "no/p.json"], "no folder no"),
    "no block": (["train.py:make_all", "--batch", "4", "--blocks", "9"], "no submodule '9'"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_told_in_one_line(script, arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(script.parent)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    told = [line for line in capsys.readouterr().err.splitlines() if " layers" not in line]
    assert ended.value.code == 2 and len(told) == 1 and message in told[0]


@pytest.mark.process
def test_the_links_between_two_processes_are_in_the_profile(script, tmp_path):
    out = tmp_path / "layers.json"
    command = [sys.executable, "-m", "rota.burst.profile", f"{script}:make_all", "--batch", "4"]
    command += ["--budget", "0.01s", "--ranks", "2", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    network = read_layer_profile(out).network
    assert network.bandwidth_bytes_s > 0.0 and network.reduce_bandwidth_bytes_s > 0.0
    assert network.latency_s >= 0.0 and network.reduce_latency_s >= 0.0
    assert not list(tmp_path.glob(".rota-profile-*"))
