"""Zygotes load torch before what runs in their interpreter, and for nothing else."""

import asyncio
import contextlib
import os
import time
from pathlib import Path

import psutil
import pytest

from rota.live.agent.zygote_link import ZygoteLink


@contextlib.asynccontextmanager
async def a_link(folder):
    link = ZygoteLink(str(folder / "zygote.log"))
    try:
        yield link
    finally:
        await link.close()


def has_torch() -> bool:
    """Whether this process's zygote has loaded it."""
    children = psutil.Process().children()  # helpers of other tests' libraries may be among them
    (zygote,) = (each for each in children if "rota.train.zygote" in each.cmdline())
    return "libtorch" in Path(f"/proc/{zygote.pid}/maps").read_text()


async def run(link, folder, **program):
    """Fork a worker; what it wrote, once it has ended."""
    request = {"name": "rank0", "log": str(folder / "log"), "workdir": str(folder), "cpus": []}
    request |= {"folder": str(folder), "env": dict(os.environ), "python": None, "run": None}
    assert await link.fork(request | program) > 0
    deadline = time.monotonic() + 60
    while not (folder / "rank0.exit").exists():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    return (folder / "log").read_text()


def test_a_program_that_is_executed_waits_for_no_torch(tmp_path):
    async def scenario():
        async with a_link(tmp_path) as link:
            assert await run(link, tmp_path, run="echo here") == "here\n"
            assert not has_torch()

    asyncio.run(scenario())


def test_a_script_finds_torch_loaded_whether_or_not_the_zygote_was_warm(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text("import sys; print('torch' in sys.modules)\n")

    async def scenario():
        async with a_link(tmp_path) as link:
            assert await run(link, tmp_path, python=["script.py"]) == "True\n"
            assert has_torch()

    asyncio.run(scenario())


def test_it_is_warmed_up_before_anything_is_asked_for(tmp_path):
    pytest.importorskip("torch")

    async def scenario():
        async with a_link(tmp_path) as link:
            await link.start()
            assert not has_torch()
            await link.warm_up()
            assert has_torch()

    asyncio.run(scenario())
