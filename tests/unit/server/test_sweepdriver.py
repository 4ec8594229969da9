"""The process that drives searches, with small programs in its place."""

import asyncio
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from rota.errors import InputError
from rota.folder import Folder
from rota.server import sweepdriver
from rota.server.sweepdriver import SweepDriver, require_optuna

pytestmark = pytest.mark.process

# They tell what happens to them in a file of the folder that they are given.
TELLS = """
import os, sys
def tell(line):
    with open(os.path.join(sys.argv[2], "told"), "a") as file:
        print(line, file=file, flush=True)
"""
PROGRAMS = {
    "obedient": 'tell(f"began {os.getpid()}"); sys.stdin.read(); tell("ended")',
    "stubborn": 'tell(f"began {os.getpid()}")\nimport signal\nwhile True: signal.pause()',
    "broken": 'tell(f"began {os.getpid()}"); sys.exit("there is no study\\n\\n")',
    "listening": 'tell("began 0")\nwhile os.read(0, 64): tell("news")',
    "talking": """
for n in range(501): print(f"line {n}", flush=True)
import time
while not os.path.exists(os.path.join(sys.argv[2], "go on")): time.sleep(0.01)
print("line 501", flush=True); sys.stdin.read()
""",
    "curious": 'tell([os.environ.get(f"ROTA_{n}") for n in ("SERVER", "TOKEN")]); sys.stdin.read()',
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, code in PROGRAMS.items():
        (programs / f"{name}_driver.py").write_text(TELLS + code)
    monkeypatch.setenv("PYTHONPATH", str(programs), prepend=os.pathsep)
    return Folder(tmp_path / "home").create()


def told(folder):
    file = folder.path / "told"
    return file.read_text().splitlines() if file.exists() else []


def starts(folder):
    return [int(line.split()[1]) for line in told(folder) if line.startswith("began")]


async def until(condition):
    async with asyncio.timeout(60):
        while not (found := condition()):
            await asyncio.sleep(0.01)
    return found


async def begun(driver, folder, times=1):
    """The pids of drivers so far, once the last of them is known to who started it.

    One that is told to end while it is being started is killed by asyncio.
    """
    return await until(lambda: driver._input and len(starts(folder)) >= times and starts(folder))


def with_driver(folder, name, act, needed=True):
    """Run ``act(driver, set_needed)`` while a driver is watched over; whatever it returns."""
    is_needed = [needed]

    async def main():
        driver = SweepDriver(lambda: is_needed[0], folder, f"{name}_driver")
        driver.start()

        def set_needed(value):
            is_needed[0] = value
            driver.look()

        try:
            return await act(driver, set_needed)
        finally:
            await driver.stop()

    return asyncio.run(main())


def test_it_lives_while_it_is_needed(folder, monkeypatch):
    monkeypatch.setattr(sweepdriver, "GRACE_S", 60.0)  # to tell of its end on a busy machine

    async def act(driver, set_needed):
        assert not folder.sweep_log.exists()
        set_needed(True)
        await begun(driver, folder)
        set_needed(True)  # another search
        set_needed(False)
        await until(lambda: told(folder)[-1] == "ended")
        set_needed(True)
        await begun(driver, folder, 2)
        assert driver.error is None

    with_driver(folder, "obedient", act, needed=False)
    assert told(folder)[-1] == "ended"


def test_it_is_needed_from_the_start_by_a_search_of_before(folder):
    async def act(driver, set_needed):
        await begun(driver, folder)

    with_driver(folder, "obedient", act)


def test_one_that_is_killed_is_started_again_and_it_says_so(folder):
    async def act(driver, set_needed):
        (first,) = await begun(driver, folder)
        os.kill(first, signal.SIGKILL)
        await begun(driver, folder, 2)
        return driver.error

    error = with_driver(folder, "obedient", act)
    assert f"was killed by SIGKILL; see {folder.sweep_log}" in error


def test_one_that_fails_is_started_after_ever_longer_pauses(folder, monkeypatch):
    pauses = []
    sleep = asyncio.sleep

    async def count(seconds):
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(sweepdriver.asyncio, "sleep", count)

    async def act(driver, set_needed):
        while len(pauses) < 10:
            await sleep(0.01)
        set_needed(False)
        while driver.error is not None:
            await sleep(0.01)
        return None

    with_driver(folder, "broken", act)
    assert pauses[:9] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
    assert folder.sweep_log.read_text().count("there is no study") == len(starts(folder))


def test_its_last_words_are_told(folder):
    async def act(driver, set_needed):
        return await until(lambda: driver.error)

    assert "ended with status 1 (there is no study); see" in with_driver(folder, "broken", act)


def test_one_that_can_not_be_started_is_told_of(folder, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    async def act(driver, set_needed):
        return await until(lambda: driver.error)

    assert "can't be started" in with_driver(folder, "obedient", act)


def test_one_that_does_not_heed_the_end_is_killed(folder):
    async def act(driver, set_needed):
        (pid,) = await begun(driver, folder)
        return psutil.Process(pid)

    assert not with_driver(folder, "stubborn", act).is_running()


def test_other_children_do_not_keep_it_alive(folder, monkeypatch):
    monkeypatch.setattr(sweepdriver, "GRACE_S", 60.0)

    async def act(driver, set_needed):
        await begun(driver, folder)
        other = await asyncio.create_subprocess_exec("sleep", "1000")
        try:
            await driver.stop()
            assert other.returncode is None
        finally:
            other.kill()
            await other.wait()

    with_driver(folder, "obedient", act)
    assert told(folder)[-1] == "ended", "it saw the end of its stdin and was not killed"


def test_which_controller_it_serves_is_not_said_by_the_environment(folder, monkeypatch):
    monkeypatch.setenv("ROTA_SERVER", "http://127.0.0.1:1")
    monkeypatch.setenv("ROTA_TOKEN", "of another cluster")

    async def act(driver, set_needed):
        await until(lambda: told(folder))

    with_driver(folder, "curious", act)
    assert told(folder) == ["[None, None]"]


def test_news_is_told_at_once(folder):
    async def act(driver, set_needed):
        driver.tell_news()  # to nobody
        set_needed(True)
        await begun(driver, folder)
        for times in (1, 2):
            driver.tell_news()
            await until(lambda times=times: told(folder).count("news") == times)

    with_driver(folder, "listening", act, needed=False)


def test_one_that_does_not_listen_costs_no_memory(folder):
    async def act(driver, set_needed):
        await begun(driver, folder)
        for _ in range(200_000):  # more than a pipe takes
            driver.tell_news()
        return driver._input.transport.get_write_buffer_size()

    assert with_driver(folder, "stubborn", act) <= 1


def test_of_a_long_log_the_last_part_is_kept(folder, monkeypatch):
    monkeypatch.setattr(sweepdriver, "MOST_LOG_BYTES", 1000)
    monkeypatch.setattr(sweepdriver, "KEPT_LOG_BYTES", 500)
    folder.sweep_log.write_text("".join(f"line {n}\n" for n in range(500)))

    async def act(driver, set_needed):
        await until(lambda: len(starts(folder)) == 3)

    with_driver(folder, "broken", act)
    lines = folder.sweep_log.read_text().splitlines()
    assert lines[0].startswith("line ") and "line 499" in lines and "line 400" not in lines
    assert lines.count("there is no study") >= 2


def test_a_log_is_cut_while_its_process_goes_on(folder, monkeypatch):
    monkeypatch.setattr(sweepdriver, "MOST_LOG_BYTES", 1000)
    monkeypatch.setattr(sweepdriver, "KEPT_LOG_BYTES", 500)

    async def act(driver, set_needed):
        printed = "line 500\n"  # it waits then: a cut in the middle of its lines leaves less to cut
        await until(lambda: folder.sweep_log.exists())
        await until(lambda: folder.sweep_log.read_text().endswith(printed))
        set_needed(True)
        await until(lambda: folder.sweep_log.stat().st_size <= 500)
        (folder.path / "go on").touch()
        await until(lambda: folder.sweep_log.read_text().endswith("line 501\n"))

    with_driver(folder, "talking", act)
    assert folder.sweep_log.read_text().startswith("line ")


PARENT = """
import asyncio, sys
from rota.folder import Folder
from rota.server.sweepdriver import SweepDriver

async def main():
    SweepDriver(lambda: True, Folder(sys.argv[1]), "obedient_driver").start()
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_it_ends_with_a_controller_that_is_killed(folder):
    with subprocess.Popen([sys.executable, "-c", PARENT, str(folder.path)]) as parent:
        try:
            asyncio.run(until(lambda: starts(folder)))
        finally:
            parent.kill()
    asyncio.run(until(lambda: told(folder)[-1] == "ended"))


def test_optuna_is_asked_for_by_name_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(sweepdriver, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install"):
        require_optuna("tpe")
    require_optuna("manual")


class Ending:
    """A process that ends when it is told to."""

    stdin, returncode = SimpleNamespace(close=lambda: None), None

    def __init__(self):
        self.ended = asyncio.get_running_loop().create_future()

    async def wait(self):
        self.returncode = await self.ended

    def kill(self):
        assert self.returncode is None


@pytest.mark.parametrize("turns", range(4))
def test_who_waits_for_its_end_can_be_stopped_just_when_it_ends(turns):
    async def main():
        process = Ending()
        waiting = asyncio.create_task(sweepdriver._end(process))
        await asyncio.sleep(0)
        process.ended.set_result(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        was_over = waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled() or was_over

    asyncio.run(main())
