"""Which of several policies is best, as far as their runs tell."""

import pytest

from rota.report.comparison import Entry
from rota.report.verdict import difference, differences, doubt, verdict


def entry(policy, *averages, parts=(), oracle=False, **point):
    summaries = [
        {"seed": seed, "avg_jct_s": value, "needs_duration": oracle, "avg_jct_s_by_part": parts}
        for seed, value in enumerate(averages)
    ]
    return Entry(policy, point, summaries, [])


def test_runs_are_paired_by_their_seeds():
    # Apart they say nothing, so far do the seeds differ; in pairs they are 10 s apart.
    one, two = entry("one", 100.0, 900.0, 500.0), entry("two", 110.0, 911.0, 509.0)
    found = difference(two, one)
    assert found.found.mean == pytest.approx(10.0)
    assert (found.by, found.is_told, str(found)) == ("seeds", True, "+10 ±2")


def test_a_seed_that_one_of_them_lacks_is_left_out():
    one, two = entry("one", 100.0, 900.0), entry("two", 110.0)
    assert str(difference(two, one)) == "+10"
    assert difference(entry("none", None), one) is None


def test_single_runs_are_compared_by_parts():
    one = entry("one", 50.0, parts=[10.0, 50.0, None, 90.0])
    two = entry("two", 60.0, parts=[20.0, 61.0, 7.0, 99.0])
    found = difference(two, one)
    assert (found.by, found.found.runs, found.found.mean) == ("parts", 3, 10.0)


def test_a_difference_is_told_from_the_first_at_the_same_point():
    entries = [entry("a", 1.0, load="1"), entry("a", 5.0, load="2")]
    entries += [entry("b", 2.0, load="1"), entry("b", 9.0, load="2")]
    told = [found and str(found) for found in differences(entries, entries[0])]
    assert told == [None, None, "+1", "+4"]


def test_the_best_is_named_with_how_far_it_is_ahead():
    entries = [entry("a", 100.0, 900.0, 500.0), entry("b", 110.0, 911.0, 509.0)]
    assert verdict(entries) == (
        "a has the least average JCT, 2% less than the next, b (+10 ±2 s over 3 seeds)"
    )
    oracle = entry("o", 1.0, 2.0, 3.0, oracle=True)
    log = entry("as it was", 1.0)._replace(is_log=True)
    assert verdict([oracle, log, *entries]) == verdict(entries)


def test_no_difference_is_said_to_be_none():
    entries = [entry("a", 100.0, 900.0, 500.0), entry("b", 110.0, 880.0, 530.0)]
    assert verdict(entries).startswith("a comes first, but these data show no difference from b")


def test_one_run_of_few_jobs_gives_no_verdict():
    assert verdict([entry("a", 100.0), entry("b", 110.0)]).startswith("none: a is 10 s ahead of b")
    assert verdict([entry("a", 100.0)]) == ""
    assert verdict([entry("a", 100.0), entry("b", None)]) == ""


def test_policies_that_do_the_same_are_not_ranked():
    a, b, c = (entry(name, value) for name, value in (("a", 5.0), ("b", 5.0), ("c", 9.0)))
    assert verdict([a, b]) == "none: these data show no difference between a, b"
    assert verdict([a, b, c]).startswith("a, b come first, with the same average JCT, in one run")
    a, b, c = (entry(name, value, 7.0) for name, value in (("a", 5.0), ("b", 5.0), ("c", 9.0)))
    assert verdict([a, b, c]) == "a, b come first, with the same average JCT"


def waits(policy, queue_s, cluster="2x8", **more):
    summary = {"seed": 0, "avg_jct_s": queue_s + 1000.0, "avg_queue_s": queue_s, "rejected": 0}
    told = {"needs_duration": False, "cluster": cluster, "most_gpus": 12}
    return Entry(policy, {}, [summary | told | more], [])


def log(queue_s):
    return waits("as it was", queue_s)._replace(is_log=True)


def test_a_cluster_on_which_jobs_wait_otherwise_than_in_the_log_is_not_the_logs():
    told = doubt(log(3000.0), [waits("fifo-backfill", 20.0, rejected=3)])
    assert told.startswith("don't trust this: the cluster is not the log's. Jobs waited 3,000 s")
    assert "and 20 s in its replay under fifo-backfill on 2x8" in told
    assert "held at most 12 GPUs at once; 2x8 has 16" in told
    assert "limits per user" in told and "the 3 rows that could not be read" in told
    told = doubt(log(20.0), [waits("fifo-backfill", 3000.0, cluster="1x8")])
    assert "1x8 has 8" in told and "--cluster is too small" in told


def test_waits_that_are_alike_or_short_are_trusted():
    assert not doubt(log(3000.0), [waits("fifo", 1600.0)])
    assert not doubt(log(5.0), [waits("fifo", 0.0)])  # no ratio, but nothing beside run times
    assert not doubt(log(3000.0), [])


def test_of_several_replays_the_nearest_is_taken_for_the_logs_own():
    assert not doubt(log(3000.0), [waits("fifo", 90_000.0), waits("easy-backfill", 2500.0)])
