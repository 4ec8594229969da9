"""A trial of a search: it trains nothing, and reports what its parameters are worth.

In the folder --out each start of a trial adds a line to ``starts``: its number and attempt. A trial
waits for a file ``NUMBER.hold`` to go, if there is one, before its first report; with --linger it
waits after its last one until it is stopped.
"""

import argparse
import os
import time
from pathlib import Path

import rota.train

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--x", type=float, required=True)
parser.add_argument("--reports", type=int, default=5)
parser.add_argument("--pace", type=float, default=0.02, help="seconds to idle in each step")
parser.add_argument("--linger", action="store_true")
parser.add_argument("--as", dest="kind", default="good", help="good, nan, crash, silent or other")
options = parser.parse_args()
number = os.environ["ROTA_TRIAL"]

with open(options.out / "starts", "a") as file:
    file.write(f"{number} {os.environ.get('ROTA_ATTEMPT', '0')}\n")
with rota.train.session() as s:
    assert s.params["x"] == options.x
    while (options.out / f"{number}.hold").exists():
        time.sleep(0.01)
    for step in s.steps(options.reports):
        time.sleep(options.pace)
        if options.kind == "crash" and step == options.reports // 2:
            raise SystemExit(f"trial {number} crashes")
        value = -abs(options.x - 0.7) - 1 / (step + 1)
        if options.kind == "other":
            s.report(val_accuracy=value)
        elif options.kind != "silent":
            s.report(val_acc=float("nan") if options.kind == "nan" else value)
    while options.linger:
        time.sleep(0.01)
