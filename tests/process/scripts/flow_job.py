"""A flow job: batches of operations that record what they do, each behind a gate of its own.

    python flow_job.py WORKERS BATCHES [CHARACTER]

A batch is a collective on all workers, which is held at gate 1, and 20 operations behind it: each
writes the character once for each worker. The script waits for the file ``goN`` before batch N.
"""

import os
import sys
import time
from pathlib import Path

import torch

from rota import flow

OPERATIONS = 20
here = Path(os.environ["ROTA_TEST_FLOW_FOLDER"])
workers, batches = int(sys.argv[1]), int(sys.argv[2])
character = sys.argv[3] if len(sys.argv) > 3 else "a"
client = flow.connect()
everywhere = client.slice(workers)
held = everywhere.put(torch.tensor([1.0, 2.0] * workers), flow.Split(0))
marked = everywhere.put(torch.tensor([float(ord(character))] * workers), flow.Split(0))
late = everywhere.function("support.flow_functions:late_total", flow.Split(0))
record = everywhere.function("support.flow_functions:recorded", flow.Split(0))
record(marked).result()
for batch in range(batches):
    (here / f"at{batch}").touch()
    while not (here / f"go{batch}").exists():
        time.sleep(0.005)
    made = [late(held), *(record(marked) for _ in range(OPERATIONS))]
    values = [each.result().tolist() for each in made]
    print("batch", batch, values[0], client.devices, flush=True)
client.close()
