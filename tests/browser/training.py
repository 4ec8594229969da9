"""A training that takes a step for each byte of the file that it is given; it never ends."""

import itertools
import os
import sys
import time

import rota.train

LINES = (
    "<img src=x onerror=\"document.title='run'\"> \x1b[31mred\x1b[0m",
    "\u202egnp.exe " + "x" * 100_000,
)


def main() -> None:
    with rota.train.session() as s:
        for line in LINES:
            print(line, flush=True)
        for step in s.steps(1000):
            while os.path.getsize(sys.argv[1]) <= step:
                time.sleep(0.02)
            s.report(loss=1 / (1 + step), samples=1, **{"<b>acc</b>": step / 1000})
            print(f"step {step} is done", flush=True)
        for _ in itertools.count():
            time.sleep(0.1)


if __name__ == "__main__":
    main()
