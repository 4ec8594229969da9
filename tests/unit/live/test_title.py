"""Titles of processes: command lines that others see, and nothing else of the process."""

import subprocess
import sys
from pathlib import Path

import psutil

TITLED = """
import os, subprocess, sys, time
from rota.live.wire.title import title, title_role
before = open("/proc/self/environ").read(), list(sys.argv), os.environ["HELD"]
{call}
assert (open("/proc/self/environ").read(), sys.argv, os.environ["HELD"]) == before
print("titled", flush=True)
sys.stdin.read()
"""
NAME = 15  # bytes of a name in the kernel


def shown(call: str, *arguments: str) -> tuple[list[str], str]:
    """Command line and name of a process that has called this."""
    process = subprocess.Popen(
        [sys.executable, "-c", TITLED.format(call=call), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"HELD": "held"},
    )
    try:
        assert process.stdout.readline() == "titled\n"
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        name = Path(f"/proc/{process.pid}/comm").read_text().rstrip("\n")
        return [word.decode() for word in words], name
    finally:
        process.communicate()
        assert process.returncode == 0


def test_a_process_is_shown_by_its_title():
    words = "rota job 51.1 rank 0: python gan.py"
    assert shown(f"title({words!r})") == ([words], "rota-job-51.1-rank"[:NAME])


def test_a_shorter_title_takes_the_place_of_a_longer_one():
    assert shown("title('rota job 51.1 rank 0'); title('rota', 'job')")[0] == ["rota", "job"]


def test_a_title_ends_where_the_words_of_the_process_end_and_leaves_its_environment():
    (word,), _ = shown("title('x' * 100_000)")
    assert set(word) == {"x"}
    assert len(word) < 1000


def test_a_process_of_rota_is_shown_by_its_role_and_keeps_its_arguments():
    words, name = shown("title_role('agent')", "--home", "/a folder", "--node", "n1")
    assert (words[0], name) == ("rota agent", "rota-agent")
    assert words[-4:] == ["--home", "/a folder", "--node", "n1"]


def test_what_a_titled_process_executes_has_its_own_words():
    call = "title('rota'); print(subprocess.run(['cat', '/proc/self/cmdline'], "
    call += "capture_output=True, check=True).stdout == b'cat\\0/proc/self/cmdline\\0', flush=True)"
    done = subprocess.run(
        [sys.executable, "-c", TITLED.format(call=call)],
        input="",
        capture_output=True,
        text=True,
        env={"HELD": "held"},
        check=True,
    )
    assert done.stdout == "True\ntitled\n"


def test_where_the_kernel_tells_no_words_a_process_keeps_them(monkeypatch):
    from rota.live.wire.title import title

    own, words = psutil.Process(), psutil.Process().cmdline()
    name = own.name()
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"1 (a) b) S 2 3")
    title(name)
    assert psutil.Process().cmdline() == words


def test_the_name_in_the_kernel_is_one_word_for_those_who_read_it_as_one():
    assert shown("title('a (b) c')")[1] == "a--b--c"
