"""What tests ask zygotes for: a rank in a folder, with a shim of its own."""

import asyncio
import os
import shutil
import sys

import pytest

powerless = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root, to become another user, and setpriv, of util-linux",
)


def rank_request(folder, **program):
    """A request for rank 0, whose output goes to the file ``log`` of its folder."""
    own = os.path.dirname(sys.executable)
    environment = os.environ | {"PATH": f"{own}{os.pathsep}{os.environ['PATH']}"}
    request = {"name": "rank0", "tag": None, "log": str(folder / "log"), "lease": None}
    request |= {"folder": str(folder), "workdir": str(folder), "env": environment}
    request |= {"run": None, "argv": None, "fork": False, "cpus": [], "groups": []}
    return request | program


async def until(condition):
    """Wait for something that another process does."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def without_rights(folder, monkeypatch):
    """The path of a Python whose processes can't signal those of other users: that of zygotes now.

    A process of another user can write into the file ``other`` of the folder.
    """
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec setpriv --bounding-set=-kill {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    (folder / "other").touch()
    folder.chmod(0o711)
    (folder / "other").chmod(0o666)
    return python
