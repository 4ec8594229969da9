"""Report values of ``score``, one a step, as the words of the first argument say.

A word is a number, ``nan``, ``gate`` (go on once there is a file ``go``), ``wait`` (train on) or
``fail``. Without an argument they are the parameter ``words`` of the trial.
"""

import sys
import time
from pathlib import Path

import rota.train

with rota.train.session() as s:
    words = (sys.argv[1] if len(sys.argv) > 1 else s.params["words"]).split()
    for _ in s.steps():
        time.sleep(0.01)
        if words[0] == "fail":
            sys.exit("told to fail")
        if words[0] != "wait" and (words[0] != "gate" or Path("go").exists()):
            word = words.pop(0)
            if word != "gate":
                s.report(score=float(word))
        if not words:
            break
