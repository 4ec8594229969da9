"""What is told where Ray can't be spoken with, before anything is asked for."""

from pathlib import Path

import pytest

from rota.live.provider.ray import RayDriver, RayError, Started


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
