"""Shares of one device by weight among four programs, within one operation (live).

Figures 8 and 9 of Pathways (Barham et al., MLSys 2022) on one core: four programs run chains of
equal operations on the same device, each with a weight. One program comes after the others, one has
nothing to do for a while, one goes before the others. Each operation writes its program's number
into one file as it begins, which gives their order whatever the clock says; and each program writes
a letter there when it has given a call out, which tells at each operation what each program has
outstanding.

Judged is the order: in each window of 100 operations throughout which the same programs have work,
each program's number of operations is within one of its weight's part of 100. Fairness is defined
for intervals in which flows are backlogged (Goyal et al., SIGCOMM 1996). So a program has work
while at least one whole call of it has not begun, whatever way its messages take; in a window the
others have nothing outstanding. A program whose process is late to give out its next call, as on a
machine with fewer cores than programs, has no work, and is not treated unfairly. The number of
windows that were judged is told and bounded. Beside it stands what the four get done together in a
second, over what one gets done alone.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rota.errors import SimulationError
from rota.experiment.base import Figure, Outcome

NAME = "pathways-share"
OPERATIONS_MS = (0.04, 0.33, 1.04, 2.4)
WEIGHTS = ((1, 1, 1, 1), (1, 2, 4, 8))
PROGRAM_LETTERS = "abcd"
WINDOW = 100
FOR_S = 4.0  # that a set-up lasts
CHAIN = 32  # operations of a call, of which each program keeps several outstanding,
AHEAD_S = 0.1  # for so long, if it were alone: it must never be without work by mishap,
LEAST_CALLS, MOST_CALLS = 2, 28
MOST_OFF = 1.0  # operations, fixed beforehand,
LEAST_TOGETHER = 0.97  # and of what one program gets done alone
LEAST_WINDOWS, MOST_WINDOWS = 200, 1_000_000  # to judge; in 4 s are 1,600 operations of 2.4 ms
LIMIT_S = 120.0

WORK = """
import os, time
LOG = None

def note(word):
    global LOG
    if LOG is None:
        LOG = os.open(os.environ["ORDER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(LOG, word.encode())

def spun(x, number):
    note(str(number))
    until = time.perf_counter() + float(os.environ["OPERATION_S"])
    while time.perf_counter() < until:
        pass
    return x + 1

def of0(x):
    return spun(x, 0)

def of1(x):
    return spun(x, 1)

def of2(x):
    return spun(x, 2)

def of3(x):
    return spun(x, 3)
"""

ISLAND = """
import sys
from rota import flow
with flow.LocalIsland(1) as island:
    print(island.folder, flush=True)
    sys.stdin.read()
"""

# Begins its work a while after the line that tells it to, and ends it after another.
PROGRAM = """
import os, sys, time
import torch, work
from rota import flow
folder, number, weight, chain = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
with flow.connect(folder, devices=[0], weight=weight, memory_bytes=1 << 24) as c:
    s = c.slice(1)
    f = s.function(getattr(work, f"of{number}"))
    chained = c.program(lambda x: flow.repeat(chain, f, x))
    start = s.put(torch.zeros(()))
    chained(start).result()
    print("ready", flush=True)
    for line in sys.stdin:
        waits, *spells = map(float, line.split())
        time.sleep(waits)
        begun, done = time.monotonic(), 0
        for at, spell in enumerate(spells):
            if at % 2:
                time.sleep(spell)
                continue
            outstanding, until = [], time.monotonic() + spell
            while time.monotonic() < until:
                outstanding.append(chained(start))
                work.note(sys.argv[5])
                if len(outstanding) > int(os.environ["OUTSTANDING"]):
                    outstanding.pop(0).result()
                    done += chain
            done += chain * len(outstanding)
            outstanding[-1].result()
        print(done, begun, time.monotonic(), flush=True)
"""


def run() -> Outcome:
    """Run all set-ups. Raises SimulationError if a program fails."""
    figures: list[Figure] = []
    for operation_ms in OPERATIONS_MS:
        for weights in WEIGHTS:
            with tempfile.TemporaryDirectory(prefix="rota-pathways-") as name:
                order, together = measured(Path(name), operation_ms / 1e3, weights)
            shares = judged(order, weights)
            what = f"{operation_ms:g} ms, {':'.join(map(str, weights))}"
            figures += [
                Figure(f"{what}: furthest off", "operations", None, None, shares.off, 0, MOST_OFF),
                Figure(
                    f"{what}: judged",
                    "windows",
                    None,
                    None,
                    shares.windows,
                    LEAST_WINDOWS,
                    MOST_WINDOWS,
                ),
                Figure(
                    f"{what}: all together over one alone",
                    "times",
                    1.0,
                    None,
                    together,
                    LEAST_TOGETHER,
                    2.0,
                ),
            ]
    settings = {
        "operations_ms": list(OPERATIONS_MS),
        "window": WINDOW,
        "for_s": FOR_S,
        "operations of a call": CHAIN,
        "cores": os.cpu_count(),
    }
    return Outcome(NAME, [], settings, figures)


def measured(folder: Path, operation_s: float, weights: Sequence[int]) -> tuple[str, float]:
    """The order of operations, and what all together got done over what one did alone.

    In the order a digit is an operation of that program that begins; a letter is a call of CHAIN
    operations that a program has given out, a of the first.
    """
    (folder / "work.py").write_text(WORK)
    order = folder / "order"
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "ORDER": str(order),
        "OPERATION_S": str(operation_s),
        "OUTSTANDING": str(max(LEAST_CALLS, min(MOST_CALLS, int(AHEAD_S / CHAIN / operation_s)))),
        "OMP_NUM_THREADS": "1",
    }

    def started(script: str, *words: object) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", script, *map(str, words)],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    island = started(ISLAND)
    programs = []
    try:
        place = _line(island)
        for number, weight in enumerate(weights):
            programs.append(started(PROGRAM, place, number, weight, CHAIN, PROGRAM_LETTERS[number]))
        for program in programs:
            _line(program)
        rates = []  # of each alone, by which the island also learns how long operations take
        for program in programs:
            print(0, FOR_S / 8, file=program.stdin, flush=True)
            rates.append(_rate([program]))
        alone = statistics.fmean(rates)
        order.write_text("")
        # From the first: it goes early; it has nothing to do for a while; it is there all the time;
        # it comes late.
        spells = ((0, 0.7), (0, 0.4, 0.2, 0.4), (0, 1.0), (0.2, 0.8))
        for program, each in zip(programs, spells, strict=True):
            assert program.stdin is not None
            print(*(FOR_S * part for part in each), file=program.stdin, flush=True)
        together = _rate(programs)
        return order.read_text(), together / alone
    finally:
        for process in (*programs, island):
            assert process.stdin is not None
            process.stdin.close()
        for process in (*programs, island):
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Shares(NamedTuple):
    """By how many operations a program is furthest from its part of a window, of how many."""

    off: float
    windows: int


def judged(order: str, weights: Sequence[int]) -> Shares:
    """The shares in all windows throughout which the same programs have work; see the module.

    A window begins once each of them has had its first operation since they have.
    """
    not_begun = [0] * len(weights)
    has_work: set[int] = set()
    stretches: list[tuple[set[int], list[int]]] = []
    for letter in order:
        program = int(letter) if letter.isdigit() else PROGRAM_LETTERS.index(letter)
        not_begun[program] += -1 if letter.isdigit() else CHAIN
        now = {each for each, count in enumerate(not_begun) if count >= CHAIN}
        if any(count for each, count in enumerate(not_begun) if each not in now):
            now = set()  # it is not sure of all whether they have work
        if now != has_work:
            has_work = now
            stretches.append((has_work, []))
        if letter.isdigit() and program in has_work:
            stretches[-1][1].append(program)
    found = [_shares(each, of, weights) for of, each in stretches if len(of) > 1]
    return Shares(
        max((each.off for each in found), default=0.0), sum(each.windows for each in found)
    )


def _shares(stretch: Sequence[int], has_work: set[int], weights: Sequence[int]) -> Shares:
    if has_work != set(stretch):
        return Shares(0.0, 0)
    stretch = stretch[max(map(stretch.index, has_work)) :]
    total = sum(weights[each] for each in has_work)
    off, windows = 0.0, max(0, len(stretch) - WINDOW + 1)
    for begin in range(windows):
        window = stretch[begin : begin + WINDOW]
        for each in has_work:
            off = max(off, abs(window.count(each) - WINDOW * weights[each] / total))
    return Shares(off, windows)


def _rate(programs: "Sequence[subprocess.Popen[str]]") -> float:
    """Operations a second of all together, until the last is over."""
    told = [tuple(map(float, _line(program).split())) for program in programs]
    done, begun, ended = zip(*told, strict=True)
    return sum(done) / (max(ended) - min(begun))


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise SimulationError(f"{NAME}: a program failed; see what it printed above")
    return line
