"""One zygote has torch loaded for programs that are forked; all others are executed without."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import site
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rota.errors import AgentError
from rota.folder import Folder
from rota.live.agent import processes
from rota.live.agent.agent import Agent
from rota.live.agent.devices import Devices
from rota.live.agent.endpoint import FolderEndpoint
from rota.live.agent.rank import Rank
from rota.live.agent.zygote_link import ZygoteLink
from support.forked_ranks import powerless, rank_request, until, without_rights
from support.shortage import no_descriptors


@contextlib.asynccontextmanager
async def a_link(folder):
    link = ZygoteLink(str(folder / "zygote.log"))
    try:
        yield link
    finally:
        await link.close()


def has_torch() -> bool:
    """Whether one of this process's zygotes has loaded it."""
    children = psutil.Process().children()  # helpers of other tests' libraries may be among them
    zygotes = [each for each in children if "rota.train.zygote" in each.cmdline()]
    return any("libtorch" in Path(f"/proc/{each.pid}/maps").read_text() for each in zygotes)


async def run(link, folder, **program):
    """Fork a worker; what it wrote, once it has ended."""
    assert await link.fork(rank_request(folder, **program)) > 0
    await until((folder / "rank0.exit").is_file)
    return (folder / "log").read_text()


def test_a_program_that_is_executed_waits_for_no_torch_and_is_forked_without(tmp_path):
    async def scenario():
        async with a_link(tmp_path) as link:
            assert await run(link, tmp_path, run="echo here") == "here\n"
            assert not has_torch()
            (tmp_path / "rank0.exit").unlink()
            (tmp_path / "rank0.pid").unlink()
            await link._warm.start()
            search = "grep -c libtorch /proc/$PPID/maps"
            assert await run(link, tmp_path, run=search) == "here\n0\n"

    asyncio.run(scenario())


def test_a_script_finds_torch_loaded_whether_or_not_the_zygote_was_warm(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text("import sys; print('torch' in sys.modules)\n")

    async def scenario():
        async with a_link(tmp_path) as link:
            assert await run(link, tmp_path, argv=["python", "script.py"], fork=True) == "True\n"
            assert has_torch()

    asyncio.run(scenario())


def test_torch_is_loaded_again_after_a_package_was_installed(tmp_path, monkeypatch):
    packages = tmp_path / "packages"
    packages.mkdir()
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(packages), str(tmp_path / "none")])
    (tmp_path / "script.py").write_text("import os; print(os.getppid())\n")
    program = {"argv": ["python", "script.py"], "fork": True}

    async def scenario():
        async with a_link(tmp_path) as link:
            zygotes = []
            for _ in range(3):
                await run(link, tmp_path, **program)
                zygotes.append(link._warm._process.pid)
                for name in ("rank0.exit", "rank0.pid"):
                    (tmp_path / name).unlink()
                if len(zygotes) == 2:
                    (packages / "new.dist-info").mkdir()
            return zygotes

    first, second, third = asyncio.run(scenario())
    assert first == second != third


@pytest.mark.parametrize(
    ("broken", "is_told"),
    [
        ("raise OSError('libcudart.so.13')", True),
        ("import torch.missing", True),
        ("import os; os.abort()", True),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", False),  # too little memory
    ],
)
def test_a_torch_that_cannot_be_loaded_is_tried_again_once_packages_change(
    tmp_path, monkeypatch, broken, is_told
):
    packages = tmp_path / "packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch" / "__init__.py").write_text(f"{broken}\n")
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(packages)])
    monkeypatch.setenv("PYTHONPATH", str(packages))
    (tmp_path / "script.py").write_text("import sys; print('torch' in sys.modules)\n")
    program = {"argv": ["python", "script.py"], "fork": True}

    async def scenario():
        async with a_link(tmp_path) as link:
            assert link.no_warm() is None
            with pytest.raises(AgentError, match="the zygote did not start"):
                await run(link, tmp_path, **program)
            why = f"torch can't be loaded: see {tmp_path / 'zygote.log'}"
            assert link.no_warm() == (why if is_told else None)
            shutil.rmtree(packages / "torch")
            monkeypatch.delenv("PYTHONPATH")
            assert link.no_warm() is None
            assert (await run(link, tmp_path, **program)).endswith("e\n")
            assert link.no_warm() is None

    asyncio.run(scenario())


def test_a_shim_is_shown_by_its_title_and_a_program_by_its_own_words(tmp_path):
    title = "rota job 51.1 rank 0: cat " + "x" * 100  # longer than the zygote's own words

    async def scenario():
        async with a_link(tmp_path) as link:
            words = "cat /proc/$PPID/cmdline /proc/$$/cmdline; true"
            return words, await run(link, tmp_path, title=title, run=words)

    words, shown = asyncio.run(scenario())
    shim, _, program = shown.partition("\0")
    assert shim == title
    assert program.strip("\0").split("\0") == ["bash", "-c", words]


def ended(folder):
    """What the shim wrote down."""
    return json.loads((folder / "rank0.exit").read_text())


def test_what_the_job_put_where_its_exit_is_written_does_not_keep_it_from_ending(tmp_path):
    async def scenario():
        async with a_link(tmp_path) as link:
            await run(link, tmp_path, run="mkdir rank0.exit; mkfifo rank0.exit.new; exit 5")

    asyncio.run(scenario())
    assert ended(tmp_path)["code"] == 5
    assert [path.is_dir() for path in tmp_path.glob("rank0.exit.*")] == [True]


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ({"run": "true", "env": {"PATH": "/nowhere"}}, 127, "no bash in PATH=/nowhere"),
        ({"run": "#" * 200_000}, 126, "bash can't be executed: Argument list too long"),
    ],
    ids=["without bash", "too long"],
)
def test_a_command_that_no_bash_can_run_has_ended_and_says_why(tmp_path, program, code, said):
    async def scenario():
        async with a_link(tmp_path) as link:
            return await run(link, tmp_path, **program)

    log = asyncio.run(scenario())
    assert ended(tmp_path)["code"] == code
    assert said in log
    assert len(log.splitlines()) == 1


PROGRAM = """
import os, signal, sys, time
def end(*_):
    while os.getppid() == shell:  # the shell dies first
        time.sleep(0.005)
    sys.exit(int(sys.argv[1]))
shell = os.getppid()
signal.signal(signal.SIGTERM, end)
open("ready", "w").close()
time.sleep(1000)
"""


@pytest.mark.parametrize("code", [0, 3])
def test_a_program_behind_a_shell_that_the_signal_ends_tells_its_exit_code(tmp_path, code):
    (tmp_path / "program.py").write_text(PROGRAM)

    async def scenario():
        async with a_link(tmp_path) as link:
            command = f"cd . && {sys.executable} program.py {code}; exit $?"
            rank = Rank(0, tmp_path)
            await rank.start(link.fork, rank_request(tmp_path, run=command))
            await until((tmp_path / "ready").exists)
            rank.ask_to_end(60.0)
            await until((tmp_path / "rank0.exit").exists)

    asyncio.run(scenario())
    assert ended(tmp_path)["code"] == code


ANOTHER_USER = """
import os, time
os.setuid(65534)
open("other", "w").write(f"{os.getpid()}")
time.sleep(1000)
"""


@powerless
@pytest.mark.parametrize("grace", [False, True])
def test_a_process_that_may_not_be_killed_is_left_behind_and_named(tmp_path, monkeypatch, grace):
    """As of ``sudo sleep 1000 &``: the shim is without the right to signal other users."""
    python = without_rights(tmp_path, monkeypatch)
    (tmp_path / "other.py").write_text(ANOTHER_USER)
    if grace:
        (tmp_path / "rank0.grace").touch()
    command = f"{python} other.py & sleep 1000 & until [ -s other ]; do sleep 0.01; done; exit 3"
    if grace:
        command = command.replace("sleep 1000 &", "")

    async def scenario():
        async with a_link(tmp_path) as link:
            return await run(link, tmp_path, run=command)

    log = asyncio.run(scenario())
    other = int((tmp_path / "other").read_text())
    try:
        assert ended(tmp_path)["code"] == 3
        assert f"process {other} (" in ended(tmp_path)["left"]
        assert ended(tmp_path)["left"] in log
        assert psutil.pid_exists(other)
    finally:
        os.kill(other, signal.SIGKILL)


def test_a_zygote_whose_agent_is_gone_ends_without_a_word():
    """It is about to say that it is ready."""
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        words = [sys.executable, "-m", "rota.train.zygote", str(theirs.fileno())]
        ended = subprocess.run(words, pass_fds=(theirs.fileno(),), capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_an_agent_whose_zygote_dies_at_its_start_tries_again_with_the_first_job(tmp_path, caplog):
    os.makedirs(Folder(tmp_path).node("node0"))

    async def start():
        folder = Folder(tmp_path)
        agent = Agent(folder, "node0", Devices("cpu", 1, (0,)), FolderEndpoint(folder, os.getpid()))
        agent._zygote.start = fail
        await agent._spawn(agent._start_zygote())

    async def fail():
        raise AgentError("the zygote did not start; see zygote.log")

    asyncio.run(start())
    assert [(each.levelname, each.message) for each in caplog.records] == [
        ("WARNING", "the zygote did not start; see zygote.log")
    ]


def test_a_process_is_waited_for_as_long_as_it_uses_the_cpu(monkeypatch):
    used = iter([0.0, 0.1, 0.2, 0.2, 0.3])
    monkeypatch.setattr(processes, "own_cpu_seconds", lambda _: next(used))

    async def waits():
        never = asyncio.get_running_loop().create_future()
        try:
            await processes.while_it_works(never, os.getpid(), 0.01)
        finally:
            assert never.cancelled()

    with pytest.raises(TimeoutError):
        asyncio.run(waits())
    assert next(used) == 0.3, "it was given up at the first wait without use of the CPU"
    monkeypatch.setattr(processes, "own_cpu_seconds", lambda _: 0.0)
    assert (
        asyncio.run(processes.while_it_works(asyncio.sleep(0, "told"), os.getpid(), 60)) == "told"
    )


FULL = """
import os, sys
from rota.train import zygote

def fork(own=os.fork, tries=[]):
    tries.append(1)
    if len(tries) == 1:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return own()

os.fork = fork
zygote.main()
"""


def test_where_no_more_process_can_be_started_the_launch_says_so_and_the_next_one_works(
    tmp_path, monkeypatch
):
    (tmp_path / "full.py").write_text(FULL)
    own = asyncio.create_subprocess_exec

    async def start(python, _, module, *words, **options):
        assert module == "rota.train.zygote"
        return await own(python, str(tmp_path / "full.py"), *words, **options)

    monkeypatch.setattr("asyncio.create_subprocess_exec", start)

    async def scenario():
        async with a_link(tmp_path) as link:
            with pytest.raises(AgentError, match="started here; end some"):
                await run(link, tmp_path, run="echo here")
            assert await run(link, tmp_path, run="echo here") == "here\n"

    asyncio.run(scenario())


def test_a_shim_that_can_not_do_its_work_tells_why(tmp_path):
    async def main():
        async with a_link(tmp_path) as link:
            rank = Rank(0, tmp_path)
            request = {"name": "rank0", "folder": str(tmp_path), "tag": None, "fork": False}
            with pytest.raises(AgentError, match=r"died at its start: .*gone/log"):
                await rank.start(link.fork, request | {"log": str(tmp_path / "gone" / "log")})

    asyncio.run(main())


def test_a_zygote_that_can_not_be_started_names_the_limit(tmp_path):
    async def main():
        async with a_link(tmp_path) as link:
            with (
                no_descriptors(),
                pytest.raises(AgentError, match=r"can't be started: .*ulimit -n"),
            ):
                await link.start()
            await link.start()

    asyncio.run(main())


def test_a_rank_that_is_killed_while_it_is_being_started_never_begins(tmp_path):
    async def scenario():
        async with a_link(tmp_path) as link:
            rank, may_fork = Rank(0, tmp_path), asyncio.Event()

            async def fork(request):
                await may_fork.wait()
                return await link.fork(request)

            request = rank_request(tmp_path, run="touch began")
            start = asyncio.create_task(rank.start(fork, request))
            await asyncio.sleep(0)
            rank.signal(signal.SIGKILL)
            may_fork.set()
            with pytest.raises(AgentError, match="told to end before it had begun"):
                await start
            await until(lambda: not psutil.pid_exists(rank.shim))

    asyncio.run(scenario())
    assert not (tmp_path / "began").exists()
