"""Jobs of all kinds, and random kills of everything: what the ledger says is what Rota says."""

from collections import Counter

import pytest

from .chaos.draw import draw
from .chaos.drive import Run
from .chaos.judge import judge

pytestmark = pytest.mark.timeout(3600)


def test_whatever_is_killed_every_job_runs_and_ends_as_its_ledger_says(tmp_path, request):
    option = request.config.getoption
    mix = option("--chaos-mix")
    plan = draw(
        option("--chaos-seed"),
        option("--chaos-seconds"),
        option("--chaos-policy"),
        tuple(mix.split(",")) if mix else None,
    )
    found = Run(plan, tmp_path).run()
    roles = Counter(kill.role for kill in found.kills)
    print(
        f"\n{len(found.kills)} kills, {dict(roles)}, of {len(found.shows)} jobs under {plan.policy}"
    )
    broken = judge(found)
    if broken:
        pytest.fail(
            "\n".join([*broken, *map(str, found.kills), f"the plan was {plan}"]), pytrace=False
        )
