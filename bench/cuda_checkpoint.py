"""What a CUDA checkpoint costs, by the memory that a process has on the GPU.

    python bench/cuda_checkpoint.py [--gigabytes 1 8 32] [--times 3]

A process that computes without pause is checkpointed and restored by the driver, as the agent does
it with jobs that know nothing of Rota. Printed are milliseconds, as median with minimum and
maximum: until its GPU memory is in host memory and free for others, and until it computes again.
The first time is listed by itself: the driver makes the host memory then.
"""

import argparse
import os
import subprocess
import sys
import time
from statistics import median

from rota.live.agent.cuda_checkpoint import Checkpoints, NvidiaDriver

COMPUTES = """
import sys, torch
held = torch.ones(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda")
some = torch.ones(1024, 1024, device="cuda")
while True:
    some = (some @ some) / 1024
    torch.cuda.synchronize()
    print(flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1, 8, 32])
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    driver = NvidiaDriver()
    checkpoints = Checkpoints(driver, [str(i) for i in range(len(driver.uuids()))])
    if checkpoints.refusal is not None:
        sys.exit(f"there are no CUDA checkpoints here: {checkpoints.refusal}")
    print(f"{'GiB':>6}{'first, ms':>20}{'take, ms':>28}{'put back, ms':>28}")
    for gigabytes in options.gigabytes:
        with subprocess.Popen(
            [sys.executable, "-c", COMPUTES, str(gigabytes)], stdout=subprocess.PIPE
        ) as process:
            (first, *others) = [measured(checkpoints, process) for _ in range(options.times + 1)]
            process.kill()
        told = " + ".join(f"{1e3 * each:.0f}" for each in first)
        columns = "".join(f"{spread(each):>28}" for each in zip(*others, strict=True))
        print(f"{gigabytes:>6g}{told:>20}{columns}", flush=True)


def measured(checkpoints: Checkpoints, process: subprocess.Popen[bytes]) -> tuple[float, float]:
    """Seconds until a computing process has left the GPU, and until it has computed again."""
    assert process.stdout is not None
    heard(process, 3)
    began_s = time.perf_counter()
    assert checkpoints.take(lambda: [process.pid])
    taken_s = time.perf_counter()
    os.set_blocking(process.stdout.fileno(), False)
    process.stdout.read()  # what it has said before
    os.set_blocking(process.stdout.fileno(), True)
    back_s = time.perf_counter()
    checkpoints.put_back([process.pid], [0], [0])
    heard(process, 1)
    return taken_s - began_s, time.perf_counter() - back_s


def heard(process: subprocess.Popen[bytes], lines: int) -> None:
    """Wait until it has said that it has computed, so many times."""
    assert process.stdout is not None
    for _ in range(lines):
        process.stdout.readline()


def spread(seconds: tuple[float, ...]) -> str:
    """Median, minimum and maximum in milliseconds."""
    values = [1e3 * value for value in seconds]
    return f"{median(values):.0f} ({min(values):.0f}, {max(values):.0f})"


if __name__ == "__main__":
    main()
