"""Runs chosen tests many times beside processes that only burn CPU: ``make test-stress``.

The tests are split into pieces, one per file, and each piece is a pytest of its own; several run at
once with ``--workers``. Ctrl-C ends the pieces as it ends pytest, and the result tells what has run
until then; a second Ctrl-C kills the pieces. The exit status is 0 if every test ran as often as
asked and none failed, 1 if not, 2 if there is no such test.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
# A burner ends when its parent does, even by SIGKILL.
BURNER = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(100_000))"
POLL_S = 0.2


class Piece:
    """One run of the chosen tests of one file. Its output and its clusters are in ``folder``."""

    def __init__(self, tests: list[str], folder: Path) -> None:
        self.tests, self.folder = tests, folder
        self.output, self.results = folder / "output.txt", folder / "results.xml"
        folder.mkdir()
        words = ["-o", "junit_family=xunit1", "-o", "tmp_path_retention_policy=failed"]
        words += [f"--junitxml={self.results}", f"--basetemp={folder / 'tmp'}"]
        with open(self.output, "w") as output:
            self.process = subprocess.Popen(
                [*PYTEST, *words, *tests],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C comes through this process, once
            )

    def outcomes(self) -> dict[str, str]:
        """Maps each test to "passed", "skipped", "failed" or, if it did not end, "missing"."""
        found = dict.fromkeys(self.tests, "missing")
        with suppress(FileNotFoundError, ElementTree.ParseError):
            for case in ElementTree.parse(self.results).iter("testcase"):
                file, name = case.get("file", ""), case.get("name", "")
                module = file.removesuffix(".py").replace("/", ".")
                classes = case.get("classname", "").removeprefix(module).split(".")[1:]
                test = "::".join([file, *classes, name])
                # A test that fails as it is torn down may be told twice, the success first.
                if test in found and found[test] != "failed":
                    found[test] = outcome_of(case)
        return found


class Tally:
    """How one test ended in its runs, and where the output is of those in which it did not pass."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.outputs: list[Path] = []

    def add(self, outcome: str, output: Path) -> None:
        self.counts[outcome] += 1
        if outcome in ("failed", "missing"):
            self.outputs.append(output)

    @property
    def ended(self) -> int:
        """How many runs it came to the end of."""
        return self.counts.total() - self.counts["missing"]


def outcome_of(case: ElementTree.Element) -> str:
    """Returns what became of a test, from pytest's XML."""
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in kinds else "passed"


class Interruptions:
    """How often somebody wants this process to end."""

    def __init__(self) -> None:
        self.count = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._add)

    def _add(self, *_: object) -> None:
        self.count += 1


@contextmanager
def burners(count: int) -> Iterator[None]:
    """Keep so many processes busy meanwhile."""
    words = [sys.executable, "-S", "-c", BURNER, str(os.getpid())]
    burning = [subprocess.Popen(words, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


def collect(tests: list[str]) -> list[list[str]]:
    """Returns the node ids that ``tests`` stand for, file by file; exits if pytest finds none."""
    words = [*PYTEST, "--collect-only", "-q", *tests]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    by_file: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if "::" not in line:
            break
        by_file.setdefault(line.split("::")[0], []).append(line)
    if done.returncode or not by_file:
        print(done.stdout, end="")
        print(f"test-stress: pytest finds no tests by: {' '.join(tests)}", file=sys.stderr)
        sys.exit(2)
    return list(by_file.values())


def run(pieces: list[tuple[list[str], Path]], workers: int) -> Iterator[Piece]:
    """Run pieces in order, ``workers`` at once; yields each when it has ended.

    After an interruption no more begin, and those that run are interrupted, after another killed.
    """
    wishes, heeded = Interruptions(), 0
    waiting, running = list(reversed(pieces)), list[Piece]()
    while running or (waiting and not wishes.count):
        while waiting and len(running) < workers and not wishes.count:
            running.append(Piece(*waiting.pop()))
        time.sleep(POLL_S)
        if wishes.count > heeded:
            heeded = wishes.count
            print("interrupted: what runs is taken down; another Ctrl-C kills it", flush=True)
            for piece in running:
                piece.process.send_signal(signal.SIGINT if heeded == 1 else signal.SIGKILL)
        for piece in [piece for piece in running if piece.process.poll() is not None]:
            running.remove(piece)
            yield piece


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-stress", description=__doc__)
    parser.add_argument("tests", nargs="+", help="files, folders or node ids, as pytest takes them")
    parser.add_argument("--times", type=int, default=5, help="how often each test runs")
    parser.add_argument("--workers", type=int, default=1, help="how many pieces run at once")
    parser.add_argument("--burners", type=int, default=4, help="how many processes burn CPU")
    options = parser.parse_args()
    files = collect(options.tests)
    kept = Path(tempfile.mkdtemp(prefix="rota-stress-"))
    pieces = [
        (tests, kept / f"{turn}-{number}-{Path(tests[0].split('::')[0]).stem}")
        for turn in range(1, options.times + 1)
        for number, tests in enumerate(files)
    ]
    print(f"{sum(map(len, files))} tests, {options.times} times, {options.burners} burners")
    tallies = {test: Tally() for tests in files for test in tests}
    with burners(options.burners):
        for ended, piece in enumerate(run(pieces, options.workers), 1):
            outcomes = piece.outcomes()
            for test, outcome in outcomes.items():
                tallies[test].add(outcome, piece.output)
            counts = Counter(outcomes.values())
            words = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
            print(f"[{ended}/{len(pieces)}] {piece.folder.name}: {words}", flush=True)
            if not counts["failed"] and not counts["missing"]:
                shutil.rmtree(piece.folder)
    return conclude(tallies, options.times, kept)


def conclude(tallies: dict[str, Tally], times: int, kept: Path) -> int:
    """Print how often each test ran and failed, those that failed last; returns the status."""
    print("\n   ran skipped failed")
    for test, tally in sorted(tallies.items(), key=lambda item: item[1].counts["failed"]):
        counts = tally.counts
        ran = counts["passed"] + counts["failed"]
        print(f"{ran:6} {counts['skipped']:7} {counts['failed']:6} {test}")
        for output in tally.outputs:
            print(f"{'':22}{output}")
    failed = sum(tally.counts["failed"] > 0 for tally in tallies.values())
    short = sum(tally.ended < times for tally in tallies.values())
    print(f"{len(tallies)} tests: {failed} failed, {short} did not run {times} times")
    if not failed and not short:
        shutil.rmtree(kept)
    return 1 if failed or short else 0


if __name__ == "__main__":
    sys.exit(main())
