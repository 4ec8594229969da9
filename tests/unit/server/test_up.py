"""`rota up` on a folder that can't be used: one line says why, and what to do."""

import os
import subprocess
import sys

import pytest

from rota.folder import Folder

pytestmark = pytest.mark.process


def up(home, **environment):
    command = [sys.executable, "-m", "rota.cli.main", "up", "--gpus", "1", "--home", str(home)]
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | environment, check=False
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("controller.lock", "Is a directory"),
        ("controller.log", "Is a directory"),
        ("server.json", "Is a directory"),
        ("nodes", "File exists"),
    ],
)
def test_what_stands_in_the_way_in_the_folder_is_named(tmp_path, name, why):
    home = tmp_path / "home"
    (home / name).mkdir(parents=True)
    if name == "nodes":
        (home / name).rmdir()
        (home / name).touch()
    ended = up(home)
    assert (ended.returncode, ended.stdout) == (2, "")
    fix = "set ROTA_HOME, or --home, to a folder of yours"
    assert ended.stderr == f"error: state folder {home} ({name}): {why}; {fix}\n"


def test_a_folder_for_sockets_that_somebody_else_has_is_told_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    place = Folder(tmp_path / "home").socket("here").parent
    place.rmdir()
    place.touch()
    ended = up(tmp_path / "home")
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: {place} can't be the folder for the sockets")
    assert "XDG_RUNTIME_DIR" in ended.stderr
    assert "rota is up" not in ended.stderr
