"""Ranks meet in one process group after another, whatever became of those before."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.process

# Rank 0 tells where it can be found, rank 1 is told. FAILED groups of rank 0 come to nothing first:
# the other is there when they meet, and gone before they have found each other.
RANK = """
import sys
import torch
from torch.distributed import PrefixStore
from rota.train.world import World

rank, failed, cpu = int(sys.argv[1]), int(sys.argv[2]), torch.device("cpu")
world = World()
for generation in range(1, 1 + failed):
    world.host()
    PrefixStore(f"generation{generation}", world._store).set("here1", "")
    world.form_timeout_s = 0.5
    try:
        world.form(generation, 0, 2, ("", 0), cpu, lambda: False)
    except RuntimeError:
        continue
    sys.exit("there was a group of one that is gone")
world.form_timeout_s = 30.0
port = world.host() if rank == 0 else int(input())
print(port, flush=True)
world.form(9, rank, 2, ("127.0.0.1", port), cpu, lambda: False)
print(world.agree(True, at_once=True), flush=True)
"""


@pytest.mark.parametrize("failed", [0, 1, 2])
def test_a_rank_whose_groups_have_failed_more_often_than_the_others_meets_them(failed):
    def start(*words):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([sys.executable, "-c", RANK, *map(str, words)], text=True, **pipes)

    with start(0, failed) as first, start(1, 0) as second:
        port = first.stdout.readline()
        told = [rank.communicate(words)[0] for rank, words in ((second, port), (first, ""))]
    assert told == [f"{port}True\n", "True\n"]
