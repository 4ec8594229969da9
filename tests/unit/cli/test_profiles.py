"""What was measured of kinds of jobs, as `rota profiles` and `rota show` print it."""

import json

import pytest

from rota.folder import Folder
from rota.model.events import ModelReported, WorkerReported
from support.served import served


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    for name in ("ROTA_SERVER", "ROTA_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with served(Folder().create()) as it:
        yield it


def tell(cluster, row, at_s, step, **more):
    told = {"at_s": at_s, "step": step, "batch": 32} | more
    cluster.apply(WorkerReported(at_s, row, told))


def measured(cluster):
    """A job on one slot: 0.25 s per step, 1.5 cores, a device that is busy half of the time."""
    cluster.do(cluster.controller.turn)
    at_s = cluster.controller.now_s() + 1.0
    cluster.apply(ModelReported(at_s, 0, 3 << 20, 1 << 20))
    tell(cluster, 0, at_s, 1, cpu_s=0.0, cpu_at_s=at_s)
    usage = {"cpu_s": 15.0, "cpu_at_s": at_s + 10.0, "device_util": 0.5, "util_since_s": at_s + 5.0}
    memory = {"memory_least_bytes": 300 << 20, "memory_most_bytes": 2 << 30}
    tell(cluster, 0, at_s + 10.0, 41, **usage, **memory)


def test_without_a_measurement_there_is_an_empty_table_and_nothing_in_show(rota, cluster):
    rota("run", "--", "python", "train.py")
    code, out, _ = rota("profiles")
    assert (code, len(out.splitlines())) == (0, 1)
    assert json.loads(rota("profiles", "--json")[1]) == []
    assert "  kind " not in rota("show", "1")[1]
    profile = json.loads(rota("show", "1", "--json")[1])["profile"]
    assert profile == {"kind": None, "certain": False, "of_kind": None, "own": None}


def test_what_was_measured_of_a_kind_is_told_for_all_its_jobs(rota, cluster):
    rota("run", "--", "python", "train.py", "--lr", "0.1")
    measured(cluster)
    (known,) = json.loads(rota("profiles", "--json")[1])
    assert known["command"] == "python train.py --lr 0.1"
    assert (known["model_bytes"], known["batch"], known["jobs"]) == (3 << 20, 32, 1)
    assert (known["device_util"], known["cpu_cores"]) == (0.5, 1.5)
    (speed,) = known["speeds"]
    assert (speed["step_s"], speed["count"], speed["relative"]) == (0.25, 1, 1.0)
    header, line = rota("profiles")[1].splitlines()
    words = ["KIND", "WHERE", "JOBS", "MODEL", "BATCH", "STEP_S", "SPEED", "BUSY", "CORES", "MEM"]
    assert header.split() == words
    cells = " ".join(line.split()[1:])
    assert cells == "1 GPU 1 3 MiB 32 0.25 100% 50% 1.5 300 MiB to 2 GiB"
    shown = rota("show", "1")[1]
    assert f"  kind         {known['kind']}: 1 job so far\n" in shown
    assert "    1 GPU: 0.25 s per step (mean of 1, the last 0.25)\n" in shown
    assert "    device busy 50%, CPU cores 1.5, GPU memory 300 MiB to 2 GiB\n" in shown
    rota("run", "--", "python", "train.py", "--lr", "0.2")
    assert f"{known['kind']}: 1 job so far; as the last with this command" in rota("show", "2")[1]


def test_on_a_narrow_terminal_there_is_a_paragraph_that_fits_for_each_kind(
    rota, cluster, monkeypatch
):
    name = "x" * 80  # a kind is called by half of it
    rota("run", "--", "python", f"{name}.py", "--lr", "0.1")
    measured(cluster)
    (known,) = json.loads(rota("profiles", "--json")[1])
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = rota("profiles")
    lines = out.splitlines()
    assert (code, max(map(len, lines)) <= 80) == (0, True)
    assert lines[0].startswith(f"{known['kind']}: 1 job, ")
    assert " ".join(out.split()).endswith(
        "device busy 50%, CPU cores 1.5, GPU memory 300 MiB to 2 GiB"
    )
    monkeypatch.setenv("COLUMNS", "200")
    assert rota("profiles")[1].split()[:2] == ["KIND", "WHERE"]


def test_one_kind_is_told_with_its_command(rota, cluster):
    rota("run", "--", "python", "train.py", "--lr", "0.1")
    measured(cluster)
    (known,) = json.loads(rota("profiles", "--json")[1])
    lines = rota("profiles", known["kind"])[1].splitlines()
    assert lines[0] == f"{known['kind']}: 1 job, model of 3 MiB, batches of 32"
    assert lines[1] == "  1 GPU: 0.25 s per step (mean of 1, the last 0.25)"
    assert lines[-1] == "  command: python train.py --lr 0.1"
    assert json.loads(rota("profiles", known["kind"], "--json")[1]) == [known]
    code, out, err = rota("profiles", known["kind"][:-1])
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"did you mean '{known['kind']}'?" in err
    assert "`rota profiles` lists them" in rota("profiles", "nothing like it")[2]


def test_a_command_can_not_play_tricks_on_the_terminal(rota, cluster):
    rota("run", "--name", "x", "--", "python", "tr\x1b[31main.py")
    measured(cluster)
    assert "\x1b" not in rota("profiles")[1]
    assert "\x1b" not in rota("show", "1")[1]
