"""Runs a training slowly, half a second a step, until a file is there; then as it would run alone.

    python paced.py FILE SCRIPT ...

So it can be disturbed before its end, however fast the machine is.
"""

import os
import runpy
import sys
import time
from typing import Any

from rota.train.session import Session

STEP_S = 0.5

FILE, *sys.argv = sys.argv[1:]
report = Session.report


def paced(self: Session, *arguments: Any, **more: Any) -> None:
    """Report a step, which takes its time."""
    if not os.path.exists(FILE):
        time.sleep(STEP_S)
    report(self, *arguments, **more)


Session.report = paced  # type: ignore[method-assign]
sys.path.insert(0, os.getcwd())
runpy.run_path(sys.argv[0], run_name="__main__")
