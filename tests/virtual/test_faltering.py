"""A policy that fails at any decision: a fallback decides, also on gangs over several machines.

Nothing else fails, and no attempt may be lost.
"""

import os
import tempfile
from pathlib import Path

from rota.folder import HOST_MEMORY
from rota.model.events import DecisionTaken

from .cluster import Cluster

FIRST = int(os.environ.get("FIRST", 0))
SEEDS = max(5, int(os.environ.get("SEEDS", 100)) // 20)


def test_nothing_is_lost_while_a_policy_fails_and_a_fallback_decides():
    spread = 0
    for seed in range(FIRST, FIRST + SEEDS):
        with tempfile.TemporaryDirectory(dir=HOST_MEMORY) as home:
            cluster = Cluster(seed, Path(home, "home"), "faltering", 1, 3, only="")
            try:
                cluster.run()
            except AssertionError as error:
                story = "\n".join(cluster.story)
                raise AssertionError(f"seed {seed}: {error}\n{story}") from None
        for event in cluster.store.events:
            if isinstance(event, DecisionTaken) and event.fallback:
                places = (place for place in event.allocations.values() if place is not None)
                spread += sum(len(place.parts) > 1 for place in places)
    assert spread, "no fallback has placed a gang on several machines"
