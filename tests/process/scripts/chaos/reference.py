"""Run each training to its end with nobody around: ``reference.py STEPS``, into the ledger."""

import os
import runpy
import sys
from pathlib import Path

import torch  # once for all: it is not used before the forks

TRAIN = Path(__file__).with_name("train.py")

torch.set_num_threads(1)
for draw in ("stream", "step", "loader"):
    if os.fork() == 0:
        os.environ["NAME"] = draw
        sys.argv = [str(TRAIN), "--draw", draw, "--steps", sys.argv[1], "--pace", "0"]
        runpy.run_path(str(TRAIN), run_name="__main__")
        os._exit(0)
for _ in range(3):
    if os.wait()[1]:
        sys.exit("a training failed")
