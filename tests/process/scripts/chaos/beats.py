"""A process that a job has started: ``beats.py LEDGER WHO`` writes into the ledger for ever."""

import json
import sys
import time

from ledger import Ledger


def beat(path, who):
    """What a child or a daemon of a job does."""
    ledger = Ledger(path, who)
    ledger.write("beats", 0)
    while True:
        time.sleep(0.05)
        ledger.write("beat")


if __name__ == "__main__":
    beat(sys.argv[1], json.loads(sys.argv[2]))
