"""What a rank prints comes to its log through a pipe, which nothing that it does can empty."""

import asyncio
import contextlib
import hashlib
import json
from collections import Counter

import psutil
import pytest

from rota.live.agent.zygote_link import Zygote
from rota.train.outlet import BUFFER_BYTES, PIPE_BYTES
from support.forked_ranks import powerless, rank_request, until, without_rights
from support.small_disk import fill, small_disk

OPENED_ANEW = {
    "> /dev/stderr": "echo oops > /dev/stderr",
    "> /dev/stdout": "echo oops > /dev/stdout",
    "> /proc/self/fd/2": "echo oops > /proc/self/fd/2",
    "exec": "exec > /dev/stdout 2> /dev/stderr; echo oops",
    "tee": "echo oops | tee /dev/stderr > /dev/null",
    "dd": "echo oops | dd of=/dev/stdout 2> /dev/null",
    "logging": """python -c 'import logging
logging.basicConfig(filename="/dev/stdout", filemode="w", format="%(message)s")
logging.error("oops")'""",
    "fdopen": """python -c 'import os
os.fdopen(os.open("/dev/fd/2", os.O_RDWR | os.O_TRUNC), "w").write("oops\\n")'""",
    "truncate": "truncate --size 0 /dev/stdout 2> /dev/null; echo oops",
}


@contextlib.asynccontextmanager
async def a_zygote(folder):
    zygote = Zygote(str(folder / "zygote.log"))
    try:
        yield zygote
    finally:
        await zygote.close()


async def start(zygote, folder, **program):
    """Have a rank forked: the process of its shim."""
    return psutil.Process(await zygote.fork(rank_request(folder, **program)))


def run(folder, **program):
    """What the log has once its rank has ended."""

    async def story():
        async with a_zygote(folder) as zygote:
            await start(zygote, folder, **program)
            await until((folder / "rank0.exit").is_file)

    asyncio.run(story())
    return (folder / "log").read_bytes()


@pytest.mark.parametrize("how", OPENED_ANEW)
def test_a_job_that_opens_its_output_anew_loses_nothing(tmp_path, how):
    log = run(tmp_path, run=f"echo before; {OPENED_ANEW[how]}; echo after")
    assert log == b"before\noops\nafter\n"


def test_a_script_in_a_forked_interpreter_may_do_so_too(tmp_path):
    script = "print('before')\nopen('/dev/stderr', 'w').write('oops\\n')\nprint('after')\n"
    (tmp_path / "script.py").write_text(script)
    assert run(tmp_path, argv=["python", "script.py"], fork=True) == b"before\noops\nafter\n"


def test_a_worker_has_no_other_descriptors(tmp_path):
    script = """import os
for each in sorted(map(int, os.listdir("/proc/self/fd"))):
    try:
        print(each, os.readlink(f"/proc/self/fd/{each}").split(":")[0])
    except OSError:
        pass  # the folder that was read
"""
    (tmp_path / "script.py").write_text(script)
    assert (
        run(tmp_path, argv=["python", "script.py"], fork=True) == b"0 /dev/null\n1 pipe\n2 pipe\n"
    )


def test_all_that_was_printed_is_in_the_log_before_the_end_is_told(tmp_path):
    """Also of a worker that is killed, whatever the pipe still has."""
    script = f"""import hashlib, os, signal
told, part = hashlib.sha256(), os.urandom(1 << 20)
for _ in range(24):
    told.update(part)
    os.write(1, part)
open("told", "w").write(told.hexdigest())
os.write(2, bytes({PIPE_BYTES // 2}))
os.kill(os.getpid(), signal.SIGKILL)
"""
    (tmp_path / "script.py").write_text(script)
    log = run(tmp_path, run="python script.py")
    told = hashlib.sha256(log[: 24 << 20]).hexdigest()
    assert (told, len(log)) == ((tmp_path / "told").read_text(), (24 << 20) + PIPE_BYTES // 2)


def test_a_log_that_is_removed_is_begun_anew(tmp_path):
    run(tmp_path, run="echo one; until [ -s log ]; do sleep 0.01; done; rm log; echo two")
    assert (tmp_path / "log").read_bytes() == b"two\n"


def test_lines_of_several_processes_stay_whole(tmp_path):
    """Each is written at once, and as long as it may be."""
    script = """import os, sys
for _ in range(1000):
    os.write(1, (sys.argv[1] * 4095 + "\\n").encode())
"""
    (tmp_path / "script.py").write_text(script)
    each = "python script.py"
    log = run(tmp_path, run=f"{each} a & {each} b & {each} c & wait")
    assert Counter(log.split()) == {letter * 4095: 1000 for letter in (b"a", b"b", b"c")}


def test_a_job_that_does_not_wait_for_room_in_the_pipe_changes_nothing_for_its_shim(tmp_path):
    script = """import fcntl, os
fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_NONBLOCK)
shim = os.getppid()
info = open(f"/proc/{shim}/fdinfo/1").read().split("flags:")[1].split()[0]
print(os.get_blocking(1), int(info, 8) & os.O_NONBLOCK)
"""
    (tmp_path / "script.py").write_text(script)
    assert run(tmp_path, run="exec python script.py") == b"False 0\n"


def test_output_goes_on_while_nobody_else_is_there_and_the_worker_is_stopped(tmp_path):
    async def story():
        async with a_zygote(tmp_path) as zygote:
            shim = await start(zygote, tmp_path, run="echo begun; kill -STOP $$; echo ended")
            await until(shim.children)
            (worker,) = shim.children()
            await until(lambda: worker.status() == psutil.STATUS_STOPPED)
            log = tmp_path / "log"
            await until(lambda: log.exists() and log.read_bytes() == b"begun\n")
        worker.resume()
        await until((tmp_path / "rank0.exit").is_file)

    asyncio.run(story())
    assert (tmp_path / "log").read_bytes() == b"begun\nended\n"


PRINTS_ON = """
import os, signal
os.setuid(65534)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
open("other", "w").write(f"{os.getpid()}")
while True:
    os.write(1, b"other\\n")
"""


@powerless
def test_a_process_of_another_user_that_prints_on_keeps_no_job_from_ending(tmp_path, monkeypatch):
    python = without_rights(tmp_path, monkeypatch)
    (tmp_path / "other.py").write_text(PRINTS_ON)
    log = run(tmp_path, run=f"{python} other.py & until [ -s other ]; do sleep 0.01; done; exit 3")
    assert json.loads((tmp_path / "rank0.exit").read_text())["code"] == 3
    assert b"may run on" in log


# -- a full disk -----------------------------------------------------------------------------------


def test_output_that_has_no_room_is_kept_or_named_and_nobody_waits(tmp_path):
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        log, filler = disk / "log", None

        async def story():
            nonlocal filler
            async with a_zygote(tmp_path) as zygote:
                most = BUFFER_BYTES + 3 * PIPE_BYTES
                command = (
                    "echo begun; until [ -e full ]; do sleep 0.01; done; echo kept; "
                    f"head -c {most} /dev/zero | tr '\\0' x; touch printed; "
                    "until [ -e room ]; do sleep 0.01; done; sleep 1000"
                )
                shim = await start(zygote, tmp_path, run=command, log=str(log))
                await until(lambda: log.exists() and log.read_bytes() == b"begun\n")
                filler = fill(disk)
                (tmp_path / "full").touch()
                await until((tmp_path / "printed").exists)
                size = log.stat().st_size
                filler.unlink()
                await until(lambda: b"no room" in log.read_bytes())
                for each in shim.children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):  # a `sleep` that is over
                        each.kill()
                await until((tmp_path / "rank0.exit").is_file)
                return size

        assert asyncio.run(story()) < BUFFER_BYTES
        text = log.read_bytes()
    printed, told = text.split(b"\nrota: ")
    assert printed.startswith(b"begun\nkept\nxxx")
    lost = int(told.split()[0])
    assert lost > 0
    assert len(printed) + lost == len(b"begun\nkept\n") + BUFFER_BYTES + 3 * PIPE_BYTES


def test_an_end_is_told_once_there_is_room_for_what_was_printed_before(tmp_path):
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        log = disk / "log"

        async def story():
            async with a_zygote(tmp_path) as zygote:
                command = "until [ -e full ]; do sleep 0.01; done; head -c 100000 /dev/zero"
                shim = await start(zygote, tmp_path, run=command, log=str(log))
                filler = fill(disk)
                (tmp_path / "full").touch()
                await until(lambda: not shim.children())
                assert not (tmp_path / "rank0.exit").exists()
                filler.unlink()
                await until((tmp_path / "rank0.exit").is_file)

        asyncio.run(story())
        assert log.read_bytes() == bytes(100_000)
