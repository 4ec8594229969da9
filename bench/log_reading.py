"""Printing and reading a GiB of a job's log: in lines, and without any newline.

    python bench/log_reading.py [--mebibytes 1024] [--rounds 3]

Jobs on `rota up` print so many MiB and fail: one in lines of 100 bytes, the other the same with a
carriage return in place of each newline, as bars of progress do; two more print an eighth of that.
Each log is read by commands, in turn, whose output is thrown away. Printed as median of the rounds
with minimum and maximum are seconds, then the ratio to the log in lines, the ratio to eight times
the seconds of the short log, and the most memory that the command had. Last come the seconds in
which a program prints so much in writes of 64 KiB and of 100 bytes (a sixteenth) as a job, and the
ratio to the seconds of the same program that appends to a file itself.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from rota.client.client import Client
from rota.experiment.runs.live import cluster

PRINT = """
import os, sys, time
part = (b"x" * 99 + sys.argv[1].encode().decode("unicode_escape").encode()) * int(sys.argv[3])
began_s = time.perf_counter()
for _ in range(int(sys.argv[2]) * (1 << 20) // len(part)):
    os.write(1, part)
open("seconds", "w").write(str(time.perf_counter() - began_s))
"""
ENDS = {"lines": r"\n", "none": r"\r"}
ROTA = [sys.executable, "-m", "rota.cli.main"]
SHARE = 8  # the short log has this part of the long one
WRITES = {655: 1, 1: 16}  # lines in a write, and the part of all MiB that is printed in such
WAYS = {
    "show": ["show"],
    "logs --tail 10": ["logs", "--tail", "10"],
    "logs": ["logs"],
    "logs --timestamps": ["logs", "--timestamps"],
}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sizes = (options.mebibytes, max(1, options.mebibytes // SHARE))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "print.py").write_text(PRINT)
        home = folder / "home"
        with cluster(home, gpus=1, policy="fifo", options=["--log-limit", "8GiB"]):
            os.environ["ROTA_HOME"] = str(home)
            with Client() as client:
                jobs = {
                    (end, size): printed(client, folder, ENDS[end], size)
                    for end in ENDS
                    for size in sizes
                }
                compare(jobs, sizes, options.rounds)
                for lines, part in WRITES.items():
                    print_both(client, folder, options.mebibytes // part, lines, options.rounds)


def printed(client: Client, folder: Path, end: str, mebibytes: int, lines: int = 655) -> str:
    """A job that has printed so much, in writes of so many lines, and failed."""
    run = f"python print.py '{end}' {mebibytes} {lines}; exit 1"
    job = client.submit({"run": run, "workdir": str(folder), "resources": {"gpus": 1}})
    return str(client.wait(job["id"])["id"])


def print_both(client: Client, folder: Path, mebibytes: int, lines: int, rounds: int) -> None:
    """Print as a job, and to a file, in turn."""
    as_job, to_file = [], []
    command = [sys.executable, "print.py", ENDS["lines"], str(mebibytes), str(lines)]
    for _ in range(rounds):
        job = printed(client, folder, ENDS["lines"], mebibytes, lines)
        as_job.append(float((folder / "seconds").read_text()))
        client.clean(job)
        with open(folder / "file", "ab") as file:
            subprocess.run(command, cwd=folder, stdout=file, check=True)
        to_file.append(float((folder / "seconds").read_text()))
        (folder / "file").unlink()
    ratio = median(as_job) / median(to_file)
    print(
        f"printing {mebibytes} MiB, {100 * lines} bytes a write: {in_words(as_job)} s  "
        f"to a file {in_words(to_file)} s  ratio {ratio:.2f}"
    )


def compare(jobs: dict[tuple[str, int], str], sizes: tuple[int, int], rounds: int) -> None:
    """Read each log in each way, in turn."""
    long, short = sizes
    for way, words in WAYS.items():
        seconds: dict[tuple[str, int], list[float]] = {case: [] for case in jobs}
        memory = dict.fromkeys(jobs, 0)
        for _ in range(rounds):
            for case, job in jobs.items():
                took_s, most = read([*ROTA, words[0], job, *words[1:]])
                seconds[case].append(took_s)
                memory[case] = max(memory[case], most)
        for end in ENDS:
            ratio = median(seconds[end, long]) / median(seconds["lines", long])
            growth = median(seconds[end, long]) / median(seconds[end, short]) / SHARE
            print(
                f"{way:18} {end:6} {in_words(seconds[end, long])} s  to lines {ratio:5.2f}"
                f"  to {SHARE} times the shorter {growth:5.2f}  {memory[end, long] / 1e6:5.0f} MB"
            )


def read(command: list[str]) -> tuple[float, int]:
    """Seconds and the most memory of a command, whose output is thrown away."""
    began_s = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return time.perf_counter() - began_s, used.ru_maxrss << 10


def in_words(times: list[float]) -> str:
    """Median, minimum and maximum."""
    return f"{median(times):7.2f} ({min(times):.2f}, {max(times):.2f})"


if __name__ == "__main__":
    main()
