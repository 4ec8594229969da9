"""Commands that are told: who may put one there, what it is given, and that it ends."""

import asyncio
import os
import time
from contextlib import suppress

import psutil
import pytest

from rota.errors import InputError
from rota.server.notify.program import checked, tell


@pytest.fixture
def put(folder):
    """Puts a program into the folder of commands; the name is ``it``."""
    folder.commands.mkdir(mode=0o700)

    def it(text, mode=0o700):
        path = folder.commands / "it"
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(mode)
        return path

    return it


def test_a_command_gets_the_body_and_few_variables(folder, put, monkeypatch):
    monkeypatch.setenv("ROTA_TOKEN", "s3cret")
    put("cat > got; env > env; pwd > where")
    assert asyncio.run(tell(folder, "it", '{"id":"a-1"}')) == (True, "status 0")
    assert (folder.commands / "got").read_text() == '{"id":"a-1"}\n'
    assert (folder.commands / "where").read_text().strip() == str(folder.commands)
    environment = (folder.commands / "env").read_text()
    assert "s3cret" not in environment
    assert "PATH=" in environment


def test_one_that_does_not_read_and_one_that_fails_are_told(folder, put):
    put("exec true")
    assert asyncio.run(tell(folder, "it", "x" * 1_000_000)).arrived
    put("yes | head -c 100000 >&2; echo no pager today >&2; exit 3")
    arrived, answer = asyncio.run(tell(folder, "it", "{}"))
    assert not arrived
    assert answer.startswith("status 3: ")
    assert answer.endswith("no pager today")


def test_one_that_does_not_end_is_killed_with_what_it_started(folder, put):
    put("sleep 1000 & echo $! > child; wait")
    outcome = asyncio.run(tell(folder, "it", "{}", time_limit_s=0.5))
    assert outcome == (False, "it had not ended after 0.5 s")
    child = folder.commands / "child"
    if child.exists() and child.read_text():  # else it was killed before
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(child.read_text()))
            while process.status() != psutil.STATUS_ZOMBIE:  # whose parent does not look after it
                time.sleep(0.01)


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_one_that_others_can_change_is_refused(folder, put, mode):
    put("true", mode)
    with pytest.raises(InputError, match=r"others can change .*/notify/it"):
        checked(folder, "it")
    assert not asyncio.run(tell(folder, "it", "{}")).arrived


def test_a_folder_that_others_can_change_is_refused(folder, put):
    put("true")
    folder.commands.chmod(0o770)
    with pytest.raises(InputError, match=r"others can change .*/notify;"):
        checked(folder, "it")


def test_what_is_no_program_of_the_folder_is_refused(folder, put):
    put("true", 0o600)
    with pytest.raises(InputError, match="chmod 700"):
        checked(folder, "it")
    (folder.commands / "link").symlink_to("/bin/true")
    for name in ("link", "other"):
        with pytest.raises(InputError, match=f"notify/{name}"):
            checked(folder, name)
    for name in ("../it", "/bin/true", ""):
        with pytest.raises(InputError, match=r"name of a file|no program"):
            checked(folder, name)


def test_one_that_was_removed_is_told(folder, put):
    os.unlink(put("true"))
    assert "can't be used" in asyncio.run(tell(folder, "it", "{}")).answer
