"""A fork of the zygote that becomes the interpreter of a job's program.

It runs the program as ``python SCRIPT`` or ``python -m MODULE`` would, and makes anew what the
zygote has drawn, opened or noted. What differs all the same is told in docs/reference/live.md.
"""

import builtins
import contextlib
import gc
import importlib
import importlib.util
import io
import os
import pkgutil
import random
import runpy
import signal
import subprocess
import sys
import types
from importlib.machinery import SourceFileLoader
from types import TracebackType
from typing import Any

AT_START: set[str] = set()  # modules that every interpreter has loaded before a program


def preload() -> None:
    """Load what every training imports, if it is installed; raises what that raises.

    After a failed import a fork would be no fresh interpreter: parts of the package stay. None of
    what is loaded ever becomes garbage. To look for some while it is loaded takes a quarter of the
    time, and a worker that looked there later would copy every page of it.
    """
    words = [sys.executable, "-c", "import sys; print(*sys.modules)"]
    AT_START.update(subprocess.run(words, stdout=subprocess.PIPE, text=True).stdout.split())
    gc.disable()
    if importlib.util.find_spec("torch") is not None:
        import torch
        import torch._dynamo  # the first optimiser would load it otherwise, for over a second
        import torch.optim

        torch.set_num_threads(1)
    gc.freeze()
    gc.enable()


def run_python(words: list[str]) -> int:
    """Run ``python script.py ...`` or ``python -m module ...`` to its end: its exit code.

    Raises KeyboardInterrupt if that ended the program.
    """
    renew()
    sys.orig_argv, arguments = words, words[1:]
    importlib.invalidate_caches()
    main = types.ModuleType("__main__")
    main.__dict__.update({"__builtins__": builtins, "__annotations__": {}})
    sys.modules["__main__"] = main  # for good: what runs at the end pickles its classes, too
    try:
        if arguments[0] == "-m":
            _run_module(arguments[1:])
        else:
            _run_script(main, arguments)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except (Exception, KeyboardInterrupt) as error:
        error.__traceback__ = of_program(error)
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):  # the interpreter ends by its signal
            sys.excepthook = lambda *_: None
            raise
        return 1
    return 0


def renew() -> None:
    """Make anew what an interpreter draws, opens and notes when it starts."""
    random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
        threads = os.environ.get("OMP_NUM_THREADS", "")
        if threads.isdigit() and int(threads) > 0:
            torch.set_num_threads(int(threads))
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.getcwd()
        process.current_process().authkey = os.urandom(32)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = _stream(0, "r", sys.stdin, unbuffered)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1, "w", sys.stdout, unbuffered)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, "w", sys.stderr, unbuffered)  # type: ignore[misc]


def _stream(descriptor: int, mode: str, former: Any, unbuffered: bool) -> io.TextIOWrapper:
    """A standard stream as the interpreter makes it at its start."""
    raw = open(descriptor, mode + "b", buffering=0, closefd=False)  # noqa: SIM115
    plain: Any = raw
    if mode == "r":
        plain = io.BufferedReader(raw)
    elif not unbuffered:
        plain = io.BufferedWriter(raw)
    stream = io.TextIOWrapper(
        plain,
        former.encoding,
        former.errors,
        newline=None if mode == "r" else "\n",
        line_buffering=descriptor == 2 and not unbuffered,
        write_through=unbuffered,
    )
    raw.name = f"<{('stdin', 'stdout', 'stderr')[descriptor]}>"  # type: ignore[misc]
    stream.mode = mode  # type: ignore[misc]
    return stream


def _run_module(arguments: list[str]) -> None:
    sys.argv = ["-m", *arguments[1:]]
    begin_path(os.getcwd())
    runpy._run_module_as_main(arguments[0])  # type: ignore[attr-defined]


def _run_script(main: types.ModuleType, arguments: list[str]) -> None:
    sys.argv = arguments
    script = os.path.join(os.getcwd(), arguments[0].removeprefix("./"))
    try:
        with open(script, "rb") as file:
            source = file.read()
    except OSError as error:
        print(
            f"{sys.executable}: can't open file {script!r}: [Errno {error.errno}] {error.strerror}",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    begin_path(os.path.dirname(os.path.realpath(script)))
    names = main.__dict__
    names.update({"__file__": script, "__cached__": None})
    names["__loader__"] = SourceFileLoader("__main__", script)
    exec(compile(source, script, "exec", dont_inherit=True), names)  # noqa: S102
    with contextlib.suppress(KeyError):
        del names["__file__"], names["__cached__"]


def begin_path(own: str) -> None:
    """Have modules of the program's own folder found first, also in place of loaded ones."""
    if sys.flags.safe_path:
        return
    sys.path.insert(0, own)
    folder = os.path.join(own, "")
    for module in {each.name for each in pkgutil.iter_modules([folder])} - AT_START:
        spec = getattr(sys.modules.get(module), "__spec__", None)
        if spec is None or str(spec.origin).startswith(folder):
            continue
        for name in [name for name in sys.modules if name.partition(".")[0] == module]:
            del sys.modules[name]


def of_program(error: BaseException) -> TracebackType | None:
    """The traceback of an error without this module's frames, as Python would tell it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace
