"""Options of ways to an island that have no effect are refused."""

import tempfile

import pytest

from rota import flow
from rota.errors import FlowError, InputError
from rota.live.wire.island import KEY


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "does not run in a flow job"),
        ({"folder": "/none", "gpus": 2}, "gpus=2 are of a job"),
        ({"folder": "/none", "idle_s": 5.0}, "idle_s=5.0 are of a job"),
        ({"gpus": 1, "devices": [0]}, r"devices=\[0\] are of an island's folder"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, says, monkeypatch):
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(InputError, match=says):
        flow.connect(**options)


@pytest.mark.parametrize(
    "option", [{"weight": 2.0}, {"memory_bytes": 9}, {"devices": 2}, {"gpus": 2}]
)
def test_a_job_says_what_its_program_has(option, monkeypatch):
    monkeypatch.setenv(KEY, "1.1.secret")
    [name] = option
    with pytest.raises(InputError, match=f"{name}=.* are the job's: set them in its file"):
        flow.connect(**option)


@pytest.mark.parametrize("devices", [0, "2"])
def test_an_island_of_no_number_of_devices_is_refused(devices):
    with pytest.raises(InputError, match=f"^devices: {devices!r}; write how many"):
        flow.local(devices)


def test_a_notebook_without_room_for_a_socket_is_told_of_tmpdir(tmp_path, monkeypatch):
    far = tmp_path / ("x" * 100)
    far.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(far))
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(FlowError, match="set TMPDIR to a folder"):
        flow.connect(gpus=1)
    assert not list(far.iterdir())
