import json
from itertools import pairwise

import pytest

from rota.model.reason import Reason
from rota.model.view import View
from rota.policy.registry import create
from rota.policy.stages.fair_share import FairShare, Usage, parse_shares
from rota.testing.builders import job, run, simulation
from support.driven import DrivenCluster

HOUR = 3600.0


def gpu_hours_of_users(policy, shares, jobs, hours):
    """GPU-hours that each user has had under saturation."""
    settings = {"fair_share": "user", "half_life_s": "3600", "fair_period_s": "120"}
    sim = simulation(jobs, create(policy, settings | shares), "1x4")
    while sim.engine.now_s < hours * HOUR:
        sim.step()
    used = {}
    for row, spec in enumerate(sim.state.spec):
        service_s = sim.state.service(row, sim.engine.now_s)
        used[spec.user] = used.get(spec.user, 0.0) + service_s * spec.num_gpus / HOUR
    return used


def saturating(lasts):
    """``a`` asks for much more than ``b``; each alone would fill the cluster."""
    return [
        *(job(f"a{i:03}", 1 + i % 2, lasts=lasts, user="a") for i in range(200)),
        *(job(f"b{i:03}", 1, lasts=lasts, user="b") for i in range(200)),
    ]


@pytest.mark.parametrize("policy", ["fifo", "fifo-backfill", "srtf", "tiresias", "las"])
def test_under_saturation_users_have_what_their_shares_say(policy):
    used = gpu_hours_of_users(policy, {"shares": "a=1;b=3"}, saturating(lasts=400.0), hours=5)
    assert used["b"] / used["a"] == pytest.approx(3.0, rel=0.15)
    assert sum(used.values()) > 0.95 * 4 * 5


def test_a_user_who_asks_for_more_jobs_has_no_more():
    used = gpu_hours_of_users("smallest-first", {}, saturating(lasts=HOUR), hours=8)
    assert used["a"] == pytest.approx(used["b"], rel=0.1)


def test_without_fair_share_the_first_in_line_has_it_all():
    state, _ = run(saturating(lasts=100.0), create("fifo"), "1x4")
    ends = {user: [] for user in "ab"}
    for row, spec in enumerate(state.spec):
        ends[spec.user].append(state.first_start_s[row])
    assert max(ends["a"]) <= min(ends["b"])


def test_those_who_wait_for_an_owner_with_less_use_are_told_so():
    settings = {"fair_share": "user", "fair_period_s": "10"}
    jobs = [job("a", user="x", lasts=100), job("b", user="x"), job("c", user="y")]
    cluster = DrivenCluster(*jobs, cluster="1x1", policy=create("fifo", settings))
    cluster.settle()
    assert cluster.state.reason[1] == Reason.WAIT_RESOURCES
    cluster.policy = create("srtf", settings)
    cluster.passes(20.0)
    cluster.settle()
    assert cluster.state.target[2] is not None
    assert cluster.state.reason[1] == Reason.WAIT_FAIRSHARE


def test_a_higher_priority_goes_before_a_fair_share():
    settings = {"fair_share": "user", "fair_period_s": "10"}
    jobs = [
        job("a", user="x", lasts=100),
        job("b", at=20, user="y"),
        job("c", at=20, user="x", priority=90),
    ]
    state, _ = run(jobs, create("fifo", settings), "1x1")
    assert list(state.first_start_s) == [0.0, 160.0, 100.0]


def used_by(fair_share, at_s, mark=None):
    """The stock after one job of four GPUs has run from 0 to 100 s."""
    sim = simulation([job(0, 4, lasts=100, user="a"), job(1, at=9e9)], create("fifo"), "1x4")
    while sim.engine.now_s < 100.0:
        sim.step()
    return fair_share.usage(View(sim.state, at_s, None), mark)


def test_use_counts_half_after_the_half_life():
    fair = FairShare("user", half_life_s=50.0, period_s=10.0)
    first = used_by(fair, 100.0)
    assert first.counted == {"a": 400.0}
    assert used_by(fair, 150.0, list(first)).counted["a"] == pytest.approx(200.0)
    assert used_by(fair, 200.0, list(first)).counted["a"] == pytest.approx(100.0)


def test_use_between_two_stocks_counts_as_if_it_was_spread_evenly():
    fair = FairShare("user", half_life_s=100.0, period_s=10.0)
    stock = used_by(fair, 100.0, [0.0, {}, {}])
    # The integral of 2^(-t/100) over 100 s is 72.13 s: what is left of 100 s of use.
    assert stock.counted["a"] == pytest.approx(4 * 72.13475, rel=1e-6)


def test_within_a_period_the_stock_stays_as_it_is():
    fair = FairShare("user", period_s=60.0)
    mark = [70.0, {"a": 1.0}, {"a": 1000}]
    assert used_by(fair, 100.0, mark) == Usage(*mark)
    assert used_by(fair, 130.0, mark).at_s == 130.0


def test_the_mark_changes_only_when_stock_is_taken():
    settings = {"fair_share": "vc", "fair_period_s": "100"}
    jobs = [job(i, at=10 * i, lasts=35, vc="xy"[i % 2]) for i in range(40)]
    sim = simulation(jobs, create("fifo-backfill", settings), "1x2")
    stocks = []
    while sim.step():
        if sim.state.policy_mark is not None:
            stocks.append(json.dumps(sim.state.policy_mark))
    times = [json.loads(text)["fair_share"][0] for text in dict.fromkeys(stocks)]
    assert len(set(stocks)) == len(times) < 10
    assert all(late - early >= 100 for early, late in pairwise(times))


def test_shares_are_read_from_text():
    assert parse_shares("equal") == ()
    assert parse_shares("ann=2; bob=0.5") == (("ann", 2.0), ("bob", 0.5))


@pytest.mark.parametrize("text", ["ann", "ann=0", "ann=x", "ann=-1", "ann=1;ann=2", "ann=inf"])
def test_what_is_no_share_is_refused(text):
    with pytest.raises(ValueError, match=r"is not OWNER=SHARE|could not convert"):
        parse_shares(text)
