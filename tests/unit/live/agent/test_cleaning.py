"""Files of ended jobs are moved aside at once and then removed, whoever is killed between."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from rota.errors import AgentError
from rota.folder import Folder
from rota.live.agent.answers import look_up
from rota.live.agent.cleaning import clean, remove_cleaned
from rota.live.wire.questions import Clean, Freed, NoAnswer


@pytest.fixture
def folder(tmp_path):
    """A node where job 3 has left two attempts and checkpoints."""
    folder = Folder(tmp_path)
    for attempt in (1, 2):
        write(folder.log("here", "3", attempt, 0), b"x" * 10_000)
        write(folder.attempt("here", "3", attempt) / "ended.json", b"{}")
    write(folder.node("here") / "jobs/3/origin", b"this log")
    write(folder.checkpoints("3") / "step-1" / "weights", b"w" * 100_000)
    write(folder.path / "checkpoints/3.origin", b"this log")
    write(folder.log("here", "30", 1, 0), b"of another job")
    return folder


def write(file, data):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def asked(**how):
    return Clean(**{"node": "here", "job_id": "3", "origin": "this log", "checkpoints": True} | how)


def left(folder):
    """All files that are left, less those that are moved aside."""
    files = (file.relative_to(folder.path) for file in folder.path.rglob("*") if file.is_file())
    return sorted(str(file) for file in files if "cleaned" not in file.parts)


def test_everything_of_the_job_is_removed_and_nothing_else(folder):
    num_bytes = clean(folder, "here", asked())
    assert 120_000 <= num_bytes <= 200_000
    assert left(folder) == ["nodes/here/jobs/30/1/rank0.log"]
    remove_cleaned(folder, "here")
    assert sum(file.is_file() for file in folder.path.rglob("*")) == 1
    assert clean(folder, "here", asked()) == 0


@pytest.fixture
def as_nobody():
    """A folder of a user who may not enter what its mode forbids; the test is that user."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    path = Path(tempfile.mkdtemp())
    try:
        yield path
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_folders_that_their_owner_may_not_change_are_removed_too(as_nobody, mode):
    folder = Folder(as_nobody)
    closed = folder.checkpoints("3") / "cache" / "closed"
    write(closed / "weights", b"w" * 100_000)
    for each in (closed, closed.parent):
        each.chmod(mode)
    assert clean(folder, "here", asked(dry_run=True)) is not None
    assert clean(folder, "here", asked()) >= 100_000
    (aside,) = (folder.path / "checkpoints" / "cleaned").iterdir()
    aside.chmod(mode)  # as an agent of before may have left it
    remove_cleaned(folder, "here")
    assert not aside.exists()


def test_a_dry_run_tells_the_same_and_removes_nothing(folder):
    before = left(folder)
    num_bytes = clean(folder, "here", asked(dry_run=True))
    assert left(folder) == before
    assert clean(folder, "here", asked()) == num_bytes


def test_checkpoints_are_kept_if_they_are_not_asked_for(folder):
    assert 20_000 <= clean(folder, "here", asked(checkpoints=False)) < 100_000
    assert "checkpoints/3/step-1/weights" in left(folder)
    assert "checkpoints/3.origin" in left(folder)


def test_an_agent_that_was_killed_in_between_leaves_a_rest_that_the_next_one_removes(folder):
    clean(folder, "here", asked())
    write(folder.log("here", "3", 1, 0), b"an id that was given again")
    clean(folder, "here", asked())
    assert (folder.path / "checkpoints/cleaned/3.1/step-1/weights").exists()
    remove_cleaned(folder, "here")
    assert not [*folder.path.glob("*/cleaned/*"), *folder.path.glob("nodes/*/cleaned/*")]


def test_files_of_another_job_that_had_the_id_stay(folder):
    before = left(folder)
    assert clean(folder, "here", asked(origin="another log")) == 0
    assert left(folder) == before


def test_checkpoints_behind_a_link_stay_where_they_are(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    os.rename(folder.checkpoints("3"), elsewhere)
    folder.checkpoints("3").symlink_to(elsewhere)
    assert clean(folder, "here", asked()) < 100_000
    remove_cleaned(folder, "here")
    assert not os.path.lexists(folder.checkpoints("3"))
    assert (elsewhere / "step-1" / "weights").exists()


@pytest.mark.parametrize("name", ["attempt.json", "arrival.json"])
def test_what_the_agent_still_has_is_left_alone(folder, name):
    write(folder.attempt("here", "3", 2) / name, b"{}")
    before = left(folder)
    with pytest.raises(AgentError, match="not heard of the end of job 3 yet; try again"):
        clean(folder, "here", asked())
    assert left(folder) == before
    assert isinstance(look_up(folder, "here", asked()), NoAnswer)


def test_another_agent_of_the_machine_cleans_for_a_node_that_is_gone(folder):
    write(folder.attempt("here", "3", 2) / "attempt.json", b"{}")
    assert isinstance(look_up(folder, "there", asked()), Freed)
    assert look_up(folder, "there", asked()).not_here


def test_an_agent_of_the_controllers_machine_removes_copies_of_another_nodes_outputs(folder):
    for job in ("3", "30"):
        write(folder.copies("afar", job) / "1/rank0.log", b"x" * 10_000)
    before = left(folder)
    assert clean(folder, "here", asked(node="afar", checkpoints=False)) >= 10_000
    assert set(before) - set(left(folder)) == {"copies/afar/3/1/rank0.log"}
    assert list(folder.node("here").joinpath("cleaned").iterdir())
    remove_cleaned(folder, "here")
    assert not list(folder.node("here").joinpath("cleaned").iterdir())
    assert clean(folder, "here", asked(node="afar", checkpoints=False)) is None
