"""A trial of a search that trains nothing: its reports follow from its parameters."""

import argparse
import time

from ledger import Ledger

import rota.train

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--pace", type=float, default=0.05, help="seconds to idle in each step")
options = parser.parse_args()
ledger = Ledger()
with rota.train.session() as s:
    x = s.params["x"]
    ledger.write("begin", x=x)
    for step in s.steps(options.steps):
        ledger.write("step", step, value=x * (step + 1))
        time.sleep(options.pace)
        s.report(gain=x * (step + 1))
ledger.write("end", 0)
