"""Jobs of all kinds, and random kills of everything: what the ledger says is what Rota says."""

from collections import Counter

import pytest

from .chaos.draw import KINDS, POLICIES, draw
from .chaos.drive import Run
from .chaos.judge import judge

pytestmark = pytest.mark.timeout(3600)


def test_whatever_is_killed_every_job_runs_and_ends_as_its_ledger_says(tmp_path, request):
    option = request.config.getoption
    policy, mix = option("--chaos-policy"), (option("--chaos-mix") or "").split(",")
    for name, known in ((policy, POLICIES), *((kind, KINDS) for kind in mix)):
        if name and name not in known:
            pytest.fail(f"there is no {name!r} among {', '.join(known)}", pytrace=False)
    plan = draw(option("--chaos-seed"), option("--chaos-seconds"), policy, tuple(filter(None, mix)))
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
