"""Ray that can't be spoken with, claims of its nodes, and what keeps agents alive there."""

import fcntl
import os
from pathlib import Path

import pytest

from rota.live.provider.ray import RayDriver, RayError, Started
from rota.live.provider.ray_driver import Keeper, claims, is_over


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("raise ImportError(\"No module named 'ray'\")", "No module named 'ray'; install it: pip"),
        ("__version__ = '2.55.1'", "ray 2.55.1 is installed here, and Rota needs ray>=2.60,<2.61"),
        (
            "__version__ = '2.60.0'\n"
            "def init(**words): raise RuntimeError('Version mismatch: Python: 3.10.4')",
            "Version mismatch: Python: 3.10.4; run rota with the cluster's Ray and Python",
        ),
    ],
)
def test_another_ray_or_python_is_refused_with_the_fix(module, said, tmp_path, monkeypatch):
    (tmp_path / "ray.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    driver = RayDriver("auto", None, "lab")
    with pytest.raises(RayError) as refused:
        driver.connect()
    assert str(refused.value).startswith(said)
    assert not refused.value.is_silence


@pytest.mark.process
def test_a_ray_of_its_own_is_never_started(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "local")
    with pytest.raises(RayError, match="RAY_ADDRESS=local would start a Ray of its own"):
        RayDriver(None, None, "lab").connect()


def test_a_node_keeps_its_host_and_what_lets_it_in_until_it_is_forgotten(tmp_path: Path):
    file = tmp_path / "ray-hosts.json"
    started = Started(file)
    started.add("lab-1", "host-a", "token-1")
    started.add("lab-2", "host-b", "token-2")
    assert file.stat().st_mode & 0o777 == 0o600
    started.keep(["lab-2", "lab-3"])
    again = Started(file)
    assert (again.hosts, again.admitted) == ({"lab-2": "host-b"}, {"lab-2": "token-2"})


def nodes(**resources: dict[str, float]) -> list[dict]:
    return [
        {"NodeID": name, "Alive": name != "dead", "Resources": each}
        for name, each in resources.items()
    ]


@pytest.mark.parametrize(
    ("found", "taken", "gpus", "claimed"),
    [
        (nodes(a={"CPU": 8}, b={"CPU": 4}), [], None, [{"CPU": 8}, {"CPU": 4}, {"CPU": 8}]),
        (nodes(a={"CPU": 8}, b={"CPU": 4}), ["a"], None, [{"CPU": 4}, {"CPU": 8}]),
        (nodes(a={"CPU": 8}, b={"CPU": 4, "GPU": 2}), [], None, [{"GPU": 2}, {"GPU": 2}]),
        (nodes(a={"CPU": 8, "GPU": 8}), [], 4, [{"GPU": 4}]),
        (nodes(a={"CPU": 8}), ["a"], 4, [{"CPU": 8}]),
        (nodes(a={"CPU": 2}, dead={"GPU": 8}), [], None, [{"CPU": 2}, {"CPU": 2}]),
        (nodes(), [], None, [{"CPU": 1}]),
    ],
)
def test_whole_nodes_are_claimed_the_largest_free_ones_first(found, taken, gpus, claimed):
    assert claims(found, taken, gpus) == claimed


@pytest.mark.process
def test_an_agent_is_kept_alive_once_until_it_ends_in_good_order(tmp_path):
    keeper, place = Keeper(str(tmp_path), "lab-1"), tmp_path / "nodes" / "lab-1"
    agent = ["-c", "import os, time\nopen('runs', 'a').write('x')\nopen('gate').read()"]
    place.mkdir(parents=True)
    os.mkfifo(place / "gate")
    assert is_over(str(tmp_path), "lab-1")  # it was never here
    keeper.start("admitted", agent)
    keeper.start("another", agent)
    assert keeper.is_alive()
    assert not is_over(str(tmp_path), "lab-1")
    assert (place / "joined.json").read_text() == "admitted"
    (place / "gate").write_text("")  # returns when the agent reads it
    with open(place / "keeper.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # returns when it has ended
    assert keeper.state() == {"is_alive": False, "code": 0, "words": ""}
    assert is_over(str(tmp_path), "lab-1")
    keeper.start("admitted", agent)
    assert not keeper.is_alive()
    assert (place / "runs").read_text() == "x"
