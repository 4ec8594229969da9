"""Decides if a job's program is executed, or forked from a process that has torch loaded."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from typing import NamedTuple

from rota.model.job import WARM

SHELL_SYNTAX = set("|&;<>()$`\\*?[]~!{}#\n")
OF_BASH = ("BASH_ENV", "BASH_FUNC_")
FORKED, FRESH = "forked", "fresh"
# Variables that an interpreter, the C library, or what the warm process has loaded read once: by
# name, or by what the name begins with. The warm process has read its own; a job whose value
# differs needs a process of its own.
READ_ONCE = frozenset(
    ("TZ", "TZDIR", "TMPDIR", "TEMP", "TMP", "LANG", "LANGUAGE", "HOME", "USER", "LOGNAME")
)
READ_ONCE_BY_PREFIX = (
    "PYTHON",
    "LD_",
    "GLIBC_",
    "MALLOC_",
    "LC_",
    "XDG_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "BLIS_",
    "OPENBLAS_",
    "NUMEXPR_",
    "NPY_",
    "TORCH",
    "PYTORCH_",
    "ATEN_",
    "TRITON_",
    "CUDA_",
    "NVIDIA_",
    "CUBLAS",
    "CUDNN_",
    "NCCL_",
    "GLOO_",
)
# Those that a fork can follow: the interpreter sets torch's threads and its own streams itself, and
# CUDA reads its variables at its first use, which the warm process never has.
FOLLOWED = frozenset(
    (
        "PYTHONUNBUFFERED",
        "OMP_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_LOG_DIRECTORY",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "GLOO_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    )
)


class ProgramStart(NamedTuple):
    """How the program of a process is started.

    ``argv`` is executed, or with ``fork`` run in a fork of the warm process; without it, bash runs
    the job's command. ``told`` is FORKED or FRESH, with the reason if a fork was asked for.
    """

    argv: list[str] | None
    fork: bool
    told: str


def start_of(
    program: Mapping[str, object],
    environment: Mapping[str, str],
    workdir: str,
    no_warm: str | None = None,
) -> ProgramStart:
    """The start of a job's program with this environment in this folder.

    ``no_warm`` is the reason why there is no warm process to fork from, if there is none.
    """
    wanted = program.get("start") == WARM
    if program.get("setup"):
        return ProgramStart(None, False, f"{FRESH}: it has a setup" if wanted else FRESH)
    words = python_command(str(program["run"]), environment)
    if not wanted:
        return ProgramStart(words, False, FRESH)
    obstacle = fork_obstacle(words, environment, workdir) or no_warm
    if obstacle is not None:
        return ProgramStart(words, False, f"{FRESH}: {obstacle}")
    return ProgramStart(words, True, FORKED)


def python_command(run: str, environment: Mapping[str, str]) -> list[str] | None:
    """The words of a command that is one call of Python, else None: a shell has to read it.

    So it has where bash is told to run something first, or to take a function for a command.
    """
    if SHELL_SYNTAX & set(run) or any(name.startswith(OF_BASH) for name in environment):
        return None
    try:
        words = shlex.split(run)
    except ValueError:
        return None
    if not words or not os.path.basename(words[0]).startswith("python"):
        return None
    return words if shutil.which(words[0], path=environment.get("PATH")) else None


def fork_obstacle(
    words: list[str] | None, environment: Mapping[str, str], workdir: str
) -> str | None:
    """The reason why a command can't run in a fork of the warm process; None if it can.

    The warm process is this very interpreter, with the environment of this process. ``words`` are
    those of :func:`python_command`.
    """
    if words is None:
        return "its command is no plain `python SCRIPT`"
    found = os.path.join(workdir, shutil.which(words[0], path=environment.get("PATH")) or "")
    # A link into another environment is another interpreter, although it is the same file.
    same_folder = os.path.dirname(os.path.abspath(found)) == os.path.dirname(sys.executable)
    if not same_folder or not os.path.samefile(found, sys.executable):
        return f"{found} is not the Python that Rota runs in"
    is_module = words[1:2] == ["-m"]
    if is_module and len(words) < 3:
        return "it names no module"
    if not is_module:
        if len(words) < 2 or words[1].startswith("-"):
            return "it has options of the interpreter, or no script"
        if not words[1].endswith(".py"):
            return f"{words[1]} is no .py file"
    folders = environment.get("PYTHONPATH", "")
    if folders and not all(map(os.path.isabs, folders.split(os.pathsep))):
        return "PYTHONPATH names a folder from where the program starts"
    for name in sorted({*environment, *os.environ} - FOLLOWED):
        is_read_once = name in READ_ONCE or name.startswith(READ_ONCE_BY_PREFIX)
        if is_read_once and environment.get(name) != os.environ.get(name):
            return f"{name} is set" if name in environment else f"{name} is not set"
    return None
