"""`rota up` on a folder that can't be used: one line says why, and what to do."""

import os
import re
import subprocess
import sys

import pytest

from rota.cli.up import node_bounds
from rota.errors import InputError
from rota.folder import Folder

pytestmark = pytest.mark.process


def up(home, *options, **environment):
    command = [sys.executable, "-m", "rota.cli.main", "up", "--gpus", "1", "--home", str(home)]
    command += options
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


@pytest.mark.parametrize("text", ["0", "65", "3..2", "1..", "..4", "1...4", "many"])
def test_a_number_of_nodes_that_is_none_is_refused(tmp_path, text):
    with pytest.raises(InputError, match=re.escape(f"--nodes: {text!r} is no number of nodes")):
        node_bounds(text)


def test_numbers_of_nodes_are_one_or_the_least_and_the_most():
    assert (node_bounds("3"), node_bounds("1..4")) == ((None, 3), (1, 4))


def test_nodes_that_come_and_go_need_a_policy_that_asks_for_them(tmp_path):
    asked = ["--nodes", "1..3", "--policy", "fifo"]
    ended = up(tmp_path / "home", *asked)
    assert ended.returncode == 2
    assert "1..3 needs a policy that asks for nodes, which fifo does not" in ended.stderr
    assert "--policy pollux --set nodes=1,3" in ended.stderr
