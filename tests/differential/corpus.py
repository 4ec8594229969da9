"""Small programs: each shows one thing that an interpreter is or does, at its start or its end.

Run in a folder of their own, which has ``neighbour.py``, ``cProfile.py`` and ``data/``, they print
what they find. The log, the exit code and the files that they leave must be those of a plain run. Programs that
draw print one draw a line: each of these differs from that of any other run.
"""
# ruff: noqa: E501

from typing import NamedTuple

NEIGHBOUR = "class Thing:\n    word = 'neighbour'\n"


class Case(NamedTuple):
    """A program, what it is called with, and what its job sets."""

    name: str
    source: str
    arguments: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    draws: bool = False
    torch: bool = False
    unlike_forked: str = ""  # why a fork differs here, as the documentation says


CASES = [
    # -- random states -------------------------------------------------------------------------
    Case(
        "random", "import random; print(random.random()); print(random.getrandbits(64))", draws=True
    ),
    Case("random.Random", "import random; print(random.Random().random())", draws=True),
    Case("uuid", "import uuid; print(uuid.uuid4())", draws=True),
    Case("secrets", "import secrets; print(secrets.token_hex())", draws=True),
    Case("tempfile", "import tempfile; print(tempfile.mktemp())", draws=True),
    Case(
        "authkey",
        "import multiprocessing as m; print(bytes(m.current_process().authkey).hex())",
        draws=True,
    ),
    Case("hash", "print(hash('a word'))", draws=True, unlike_forked="one hash seed"),
    Case(
        "numpy",
        "import numpy as n; print(n.random.rand()); print(n.random.randint(2**40))",
        draws=True,
    ),
    Case(
        "numpy.default_rng", "import numpy as n; print(n.random.default_rng().random())", draws=True
    ),
    Case(
        "seeded",
        "import random, numpy as n\nrandom.seed(1); n.random.seed(1)\n"
        "print(random.random(), n.random.rand(), n.random.default_rng(1).random())",
    ),
    Case("hash seed given", "print(hash('a word'))", env=(("PYTHONHASHSEED", "7"),)),
    Case(
        "torch",
        "import torch\nprint(torch.rand(1).item()); print(torch.initial_seed())\n"
        "print(torch.Generator().seed()); print(torch.randperm(10**6)[:3].tolist())",
        draws=True,
        torch=True,
    ),
    Case(
        "torch seeded",
        "import torch, numpy, random\ntorch.manual_seed(3)\n"
        "print(torch.rand(2).tolist(), torch.Generator().initial_seed(), torch.get_num_threads())\n"
        "print(torch.utils.data.default_collate([1]).tolist(), torch.is_grad_enabled())\n"
        "print(torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled())",
        torch=True,
    ),
    # -- where it is, and what it can import ---------------------------------------------------
    Case("sys.path", "import sys; print(sys.path)"),
    Case("sys.argv", "import sys; print(sys.argv)", ("a b", "", "--x=1", "$HOME", "*", "'", "é")),
    Case("sys.orig_argv", "import sys; print(sys.orig_argv)", ("1",)),
    Case("sys.flags", "import sys; print(sys.flags); print(sys._xoptions, sys.warnoptions)"),
    Case("prefix", "import sys; print(sys.executable, sys.prefix, sys.base_prefix)"),
    Case("__file__", "import os; print(__file__); os.chdir('/'); print(os.path.exists(__file__))"),
    Case("names", "print(sorted(globals()))"),
    Case("spec", "print(__name__, __spec__, __package__, __doc__, __cached__, __annotations__)"),
    Case("loader", "print(type(__loader__), __loader__.path, __builtins__)"),
    Case("docstring", "'''Said first.'''\nprint(__doc__)"),
    Case("annotations", "x: int = 1\nprint(__annotations__)"),
    Case("future", "from __future__ import annotations\nx: nothing = 1\nprint(__annotations__)"),
    Case("encoding", "# -*- coding: latin-1 -*-\nprint(len('é'))"),
    Case("neighbour", "import neighbour; print(neighbour.__file__, neighbour.Thing.word)"),
    Case(
        "main",
        "import __main__, sys; print(__main__.__file__, sys.modules['__main__'] is __main__)",
    ),
    Case("neighbour of a library's name", "import cProfile; print(cProfile.Thing.word)"),
    Case("reload", "import importlib, neighbour; print(importlib.reload(neighbour).Thing.word)"),
    Case("source", "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))"),
    Case(
        "frames",
        "import traceback; print([f.name for f in traceback.extract_stack()])",
        unlike_forked="the stack",
    ),
    Case("run_path", "import runpy; print(runpy.run_path('neighbour.py')['Thing'].word)"),
    Case("no rota", "import sys; print('rota' in sys.modules)", unlike_forked="imported already"),
    Case("no torch", "import sys; print('torch' in sys.modules)", unlike_forked="imported already"),
    Case(
        "set before the import",
        "import os\nos.environ['TORCHDYNAMO_PREPARE_FREEZING'] = '1'\n"
        "import torch._dynamo.config as c\nprint(c.prepare_freezing)",
        torch=True,
        unlike_forked="imported already",
    ),
    Case("pickle", "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))))"),
    # -- environment ---------------------------------------------------------------------------
    Case("environ", "import os\nfor k in sorted(os.environ): print(k, os.environ[k])"),
    Case(
        "libc environ",
        "import ctypes, os\nc = ctypes.CDLL(None); c.getenv.restype = ctypes.c_char_p\n"
        "print(all(c.getenv(os.fsencode(k)) == os.fsencode(v) for k, v in os.environ.items()))",
    ),
    Case(
        "child's environ",
        "import subprocess; print(*sorted(subprocess.check_output(['env'], text=True).split('\\n')), sep='\\n')",
    ),
    Case(
        "time zone",
        "import time; print(time.tzname, time.localtime(0))",
        env=(("TZ", "America/New_York"),),
    ),
    Case("TMPDIR", "import tempfile; print(tempfile.gettempdir())", env=(("TMPDIR", "data"),)),
    Case("HOME", "import os; print(os.path.expanduser('~'))", env=(("HOME", "/nowhere"),)),
    Case(
        "PYTHONPATH",
        "import sys, other; print(sys.path, other.word)",
        env=(("PYTHONPATH", "data"),),
    ),
    Case("sitecustomize", "import sys; print(sys.customized)", env=(("PYTHONPATH", "data"),)),
    Case("PYTHONOPTIMIZE", "print(__debug__)", env=(("PYTHONOPTIMIZE", "1"),)),
    Case(
        "PYTHONWARNINGS",
        "import warnings; print(warnings.filters)",
        env=(("PYTHONWARNINGS", "error"),),
    ),
    Case(
        "PYTHONFAULTHANDLER",
        "import faulthandler as f; print(f.is_enabled())",
        env=(("PYTHONFAULTHANDLER", "1"),),
    ),
    Case(
        "TORCHINDUCTOR_MAX_AUTOTUNE",
        "import torch._inductor.config as c; print(c.max_autotune)",
        env=(("TORCHINDUCTOR_MAX_AUTOTUNE", "1"),),
        torch=True,
    ),
    Case(
        "locale",
        "import locale, sys\nprint(locale.getlocale(), locale.getpreferredencoding())\n"
        "print(sys.getfilesystemencoding(), sys.stdout.encoding, sys.stdout.errors)",
    ),
    Case(
        "another locale",
        "import locale, sys\nprint(locale.getlocale(), sys.stdout.encoding, sys.stdin.errors)",
        env=(("LC_ALL", "C"),),
    ),
    # -- the process ---------------------------------------------------------------------------
    Case(
        "signals",
        "import signal\nfor s in sorted(signal.valid_signals()): print(s, signal.getsignal(s))\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))",
    ),
    Case(
        "signals of a child",
        "import subprocess\nstatus = subprocess.check_output(['cat', '/proc/self/status'], text=True)\n"
        "print([l for l in status.splitlines() if l[:3] == 'Sig' and l[:4] != 'SigQ'])",
    ),
    Case(
        "limits",
        "import resource as r\nfor n in sorted(dir(r)):\n"
        "    if n.startswith('RLIMIT_') and n != 'RLIMIT_RTTIME': print(n, r.getrlimit(getattr(r, n)))",
    ),
    Case("umask", "import os; print(os.umask(0), os.getcwd(), os.getuid(), os.getgroups())"),
    Case(
        "rights",
        "wanted = ('Cap', 'NoNewPrivs', 'Seccomp:', 'Threads')\n"
        "print([l for l in open('/proc/self/status') if l.startswith(wanted)])",
    ),
    Case("descriptors", "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"),
    Case("input", "import sys; print(repr(sys.stdin.read()), sys.stdin.isatty(), sys.stdin.name)"),
    Case(
        "streams",
        "import sys\nfor s in sys.stdin, sys.stdout, sys.stderr:\n"
        "    print(s.name, s.mode, s.fileno(), s.newlines, s.line_buffering, s.write_through,\n"
        "          type(s.buffer).__name__, s.isatty(), s.errors, s.closed)\n"
        "print(sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__)",
    ),
    Case("standard error", "import sys; print('out'); print('err', file=sys.stderr); print('out')"),
    Case("one stream twice", "import os; os.write(2, b'a\\n'); print('b'); os.write(1, b'c\\n')"),
    Case(
        "command line",
        "print(open('/proc/self/cmdline').read().split('\\0'))",
        ("1", "2"),
        unlike_forked="title",
    ),
    Case("scheduling", "import os; print(os.nice(0), os.sched_getscheduler(0))"),
    Case("faulthandler", "import faulthandler as f; print(f.is_enabled())"),
    Case("warnings", "import warnings; print(warnings.filters)", unlike_forked="imported already"),
    Case("garbage", "import gc; print(gc.isenabled(), gc.get_threshold(), gc.callbacks)"),
    Case("frozen", "import gc; print(gc.get_freeze_count())", unlike_forked="garbage collection"),
    Case("limits of Python", "import sys; print(sys.getrecursionlimit(), sys.getswitchinterval())"),
    Case(
        "hooks",
        "import sys, threading; print(sys.excepthook, sys.displayhook, threading.excepthook)",
    ),
    Case("threads", "import threading; print(threading.enumerate(), threading.main_thread())"),
    # -- processes that it starts --------------------------------------------------------------
    *(
        Case(
            f"multiprocessing by {method}",
            "import multiprocessing as m, os, sys\nimport neighbour\n"
            "class A: pass\n"
            "def f(x):\n    return x * 2, type(A()).__module__, neighbour.Thing.word, sys.argv, __name__\n"
            "if __name__ == '__main__':\n"
            f"    m.set_start_method({method!r})\n"
            "    with m.Pool(2) as pool:\n        print(pool.map(f, [1, 2, 3]))\n"
            "    p = m.Process(target=sys.exit, args=(3,)); p.start(); p.join(); print(p.exitcode)\n"
            "    print(__name__)",
            ("x",),
        )
        for method in ("fork", "spawn", "forkserver")
    ),
    Case(
        "spawn after chdir",
        "import multiprocessing as m, os\n"
        "def f(): print(os.getcwd(), __file__)\n"
        "if __name__ == '__main__':\n    os.chdir('data'); m.set_start_method('spawn')\n"
        "    p = m.Process(target=f); p.start(); p.join(); print(p.exitcode)",
    ),
    Case(
        "pool of futures",
        "from concurrent.futures import ProcessPoolExecutor as P\n"
        "if __name__ == '__main__':\n    with P(2) as p: print(list(p.map(abs, [-1, 2])))",
    ),
    Case(
        "subprocess", "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1)'])"
    ),
    Case(
        "the same interpreter",
        "import subprocess, sys\n"
        "run = [sys.executable, *subprocess._args_from_interpreter_flags(), '-c', 'import sys; print(sys.flags)']\n"
        "subprocess.run(run)",
    ),
    Case(
        "fork",
        "import os\nif os.fork() == 0:\n    print('child'); raise SystemExit\nos.wait(); print('parent')",
    ),
    Case("exec", "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'print(2)'])"),
    Case(
        "loaders",
        "import torch\nfrom torch.utils.data import DataLoader\n"
        "class D(torch.utils.data.Dataset):\n    def __len__(self): return 4\n"
        "    def __getitem__(self, i): return i\n"
        "if __name__ == '__main__':\n"
        "    for method in ('fork', 'spawn', 'forkserver'):\n"
        "        loader = DataLoader(D(), batch_size=2, num_workers=1, multiprocessing_context=method)\n"
        "        print(method, [b.tolist() for b in loader])",
        torch=True,
    ),
    Case(
        "torch.multiprocessing",
        "import torch.multiprocessing as m\ndef f(rank, word): print(rank, word, __file__)\n"
        "if __name__ == '__main__':\n    m.spawn(f, ('x',), nprocs=1)",
        torch=True,
    ),
    # -- the end -------------------------------------------------------------------------------
    Case("open file", "f = open('rows.csv', 'w')\nfor i in range(200): f.write(f'{i}\\n')"),
    Case(
        "open gzip",
        "import gzip\nf = gzip.GzipFile('', 'wb', 9, open('rows.gz', 'wb'), 0)\nf.write(b'x' * 9999)",
    ),
    Case(
        "open in a list", "kept = [open('a', 'w'), open('b', 'w')]; [f.write(f.name) for f in kept]"
    ),
    Case("atexit", "import atexit\nfor n in range(3): atexit.register(print, n)"),
    Case(
        "pickle at exit",
        "import atexit, pickle, threading, time\nclass A: pass\n"
        "def save(name):\n    with open(name, 'wb') as f: pickle.dump(A(), f)\n"
        "atexit.register(save, 'a.pkl')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), save('b.pkl'))).start()",
    ),
    Case(
        "thread at the end",
        "import threading as t, time; t.Thread(target=lambda: (time.sleep(0.1), print('late'))).start(); print('main')",
    ),
    Case(
        "daemon at the end",
        "import threading as t, time; t.Thread(target=time.sleep, args=(99,), daemon=True).start(); print('main')",
    ),
    Case("finaliser", "class A:\n    def __del__(self): print('gone', __name__)\na = A()"),
    Case(
        "finaliser in a cycle", "class A:\n    def __del__(self): print('gone')\na = A(); a.a = a"
    ),
    Case(
        "finalize",
        "import weakref\nclass A: pass\na = A(); weakref.finalize(a, print, 'finalized')",
    ),
    Case("error in a finaliser", "class A:\n    def __del__(self): 1 / 0\na = A()"),
    Case(
        "logging",
        "import logging; logging.basicConfig(filename='log', level=20); logging.info('said')",
    ),
    Case("no newline", "print('no newline', end='')"),
    Case("closed output", "import sys; print('said'); sys.stdout.close()"),
    Case("exit", "raise SystemExit"),
    Case("exit 3", "import sys; sys.exit(3)"),
    Case("exit 256", "import sys; sys.exit(256)"),
    Case("exit -1", "import sys; sys.exit(-1)"),
    Case("exit with words", "import sys; sys.exit('why')"),
    Case("exit with a tuple", "import sys; sys.exit((1, 2))"),
    Case(
        "exit in a thread",
        "import threading as t, sys; t.Thread(target=sys.exit, args=(3,)).start()",
    ),
    Case("exit at once", "import os; print('said'); os._exit(7)"),
    Case("error", "def f():\n    raise ValueError('é')\nf()"),
    Case(
        "error with a cause",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError(1) from e",
    ),
    Case("errors together", "raise ExceptionGroup('all', [ValueError(1), KeyError(2)])"),
    Case("error with a note", "e = ValueError(1); e.add_note('noted'); raise e"),
    Case("no syntax", "f(\n"),
    Case("error in a neighbour", "import no_such_neighbour"),
    Case("hook for errors", "import sys; sys.excepthook = lambda *a: print('hook', a[0]); 1 / 0"),
    Case(
        "error in a thread",
        "import threading as t\ndef f(): 1 / 0\nx = t.Thread(target=f, name='x'); x.start(); x.join(); print('on')",
    ),
    Case("error at exit", "import atexit; atexit.register(lambda: 1 / 0)"),
    Case(
        "interrupt", "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
    ),
    Case(
        "interrupt that is caught",
        "import os, signal, time\ntry:\n    os.kill(os.getpid(), 2); time.sleep(9)\nexcept KeyboardInterrupt: print('caught')",
    ),
    *(
        Case(
            f"ended by {name}",
            f"import os, signal, time; os.kill(os.getpid(), signal.{name}); time.sleep(9)",
        )
        for name in ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGABRT", "SIGKILL", "SIGALRM")
    ),
    Case("broken pipe", "import os\nr, w = os.pipe(); os.close(r)\nos.write(w, b'x')"),
    Case(
        "broken pipe of a child",
        "import subprocess; print(subprocess.run(['bash', '-c', 'yes | head -1; echo ${PIPESTATUS[0]}']).returncode)",
    ),
    Case(
        "asyncio",
        "import asyncio\nasync def f():\n    await asyncio.sleep(0); return 5\nprint(asyncio.run(f()))",
    ),
    Case("recursion", "def f(): f()\ntry:\n    f()\nexcept RecursionError: print('deep')"),
]
