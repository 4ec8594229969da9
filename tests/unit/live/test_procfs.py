"""What /proc tells of processes, whatever their names."""

import os
import subprocess
import sys

import pytest

from rota.live.wire import procfs

NAMED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(15, os.fsencode(sys.argv[1]), 0, 0, 0)
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["plain", "with space", ") T 1 (x", "(((", "a\nb) Z"])
def test_a_name_changes_no_field(name):
    words = [sys.executable, "-I", "-S", "-c", NAMED, name]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        for fields in (procfs.stat_of(process.pid), procfs.stat_of(process.pid, process.pid)):
            assert fields[procfs.STATE] in ("R", "S")
            assert int(fields[procfs.PARENT]) == os.getpid()
            assert int(fields[procfs.ARG_END]) > int(fields[procfs.ARG_START]) > 0
        assert process.pid in procfs.children_of(os.getpid())
        process.stdin.close()
    assert procfs.stat_of(process.pid) == []
    assert procfs.children_of(process.pid) == procfs.below(process.pid) == []
