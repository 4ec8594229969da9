"""How fast trace files are read, and whether all of their jobs are.

    python bench/readers.py --data DIR

Reads every trace under DIR (folders philly, muri, pollux, gavel, tiresias of the public data) five
times and prints jobs, rejected rows, notes and the least CPU milliseconds, in all and for each 1000
jobs. The number of jobs is held against what each file is known to have; exit code 1 if one
differs. Files that are not there are skipped.
"""

import argparse
import sys
import time
from pathlib import Path

from _data import add_data, is_there

from rota.workload.readers import read_trace

JOBS = {
    "philly/philly_day_2017-10-11.csv.gz": 2204,
    "philly/philly_week_2017-10-09.csv.gz": 12751,
    "muri/muri_trace1.csv.gz": 1494,
    "muri/muri_trace2.csv.gz": 5755,
    "pollux/workloads/workload-1.csv": 160,
    "pollux/workloads/workload-2.csv": 160,
    "pollux/workloads/workload-3.csv": 160,
    "pollux/workloads/workload-4.csv": 160,
    "gavel/max_min_fairness.trace": 96,
    "tiresias/480_job_synth.csv": 480,
    "tiresias/60_job.csv": 60,
}
TIMES = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data(parser)
    data = parser.parse_args().data
    if data is None:
        is_there(data, *sorted({name.partition("/")[0] for name in JOBS}))
        return 0
    here = [name for name in JOBS if is_there(data, name)]
    if not here:
        return 0
    print(f"{'file':<40}{'jobs':>8}{'known':>8}{'rejected':>10}{'CPU ms':>9}{'/ 1000':>8}")
    wrong = 0
    for name in here:
        trace, cpu_ms = measure(data / name)
        line = f"{name:<40}{len(trace):>8,}{JOBS[name]:>8,}{trace.num_rejected:>10,}"
        print(f"{line}{cpu_ms:>9.2f}{cpu_ms * 1000 / len(trace):>8.2f}")
        for note in trace.notes:
            print(f"    {note}")
        wrong += len(trace) != JOBS[name] or trace.num_rejected > 0
    return 1 if wrong else 0


def measure(path: Path):
    """The trace, and the least CPU milliseconds of five readings."""
    times = []
    for _ in range(TIMES):
        began_s = time.process_time()
        trace = read_trace(path)
        times.append(time.process_time() - began_s)
    return trace, min(times) * 1e3


if __name__ == "__main__":
    sys.exit(main())
