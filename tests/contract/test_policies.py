"""The shipped policies against the shipped contract."""

from typing import Any

import pytest

from rota.policy.registry import BUILT_IN, create
from rota.sim.machine import FREE
from rota.testing import policy_contract
from rota.testing.builders import simulation
from rota.testing.policy_contract import PolicyContract


class TestFifo(PolicyContract):
    work_conserving = False
    preemptive = False

    def policy(self) -> Any:
        return create("fifo")


class TestFifoBackfill(PolicyContract):
    preemptive = False

    def policy(self) -> Any:
        return create("fifo-backfill")


class TestEasyBackfill(PolicyContract):
    work_conserving = False  # GPUs are set aside
    preemptive = False

    def policy(self) -> Any:
        return create("easy-backfill", {"default_limit_s": "200"})


class TestEasyBackfillWithoutAnyTimeLimit(PolicyContract):
    work_conserving = False
    preemptive = False

    def policy(self) -> Any:
        return create("easy-backfill", {"priority": "ignore"})


class TestEasyBackfillWithQuotasOnStrictPlacement(PolicyContract):
    work_conserving = False
    preemptive = False

    def policy(self) -> Any:
        limits = {"default_limit_s": "800", "quotas": "x=4;*=2", "fair_share": "vc"}
        return create("easy-backfill", limits | {"placement": "consolidate-strict"})


class TestShortestRemaining(PolicyContract):
    def policy(self) -> Any:
        return create("srtf")


class TestTiresias(PolicyContract):
    def policy(self) -> Any:
        return create("tiresias", {"thresholds": "100,400", "promote_knob": "2"})


class TestTiresiasWithCpuCores(PolicyContract):
    def policy(self) -> Any:
        return create("tiresias", {"thresholds": "100,400", "promote_knob": "2", "cpus": "equal"})


class TestTiresiasWithCoresByTheirWorth(PolicyContract):
    def policy(self) -> Any:
        given = {"thresholds": "100,400", "promote_knob": "2", "cpus": "sad", "cpu_period_s": "30"}
        return create("tiresias", given)


class TestTiresiasByFirstStart(PolicyContract):
    def policy(self) -> Any:
        return create("tiresias", {"thresholds": "100,400", "within": "first-start"})


class TestGandiva(PolicyContract):
    work_conserving = False  # a gang waits for its turn at home rather than move to and fro

    def policy(self) -> Any:
        return create("gandiva", {"quantum_s": "20"})


class TestGandivaWithSharesOfQueues(PolicyContract):
    work_conserving = False

    def policy(self) -> Any:
        return create("gandiva", {"quantum_s": "20", "fair_share": "vc", "shares": "x=3"})


class TestGandivaWithoutShares(PolicyContract):
    work_conserving = False

    def policy(self) -> Any:
        return create("gandiva", {"quantum_s": "20", "fair_share": "no"})


class TestGandivaWithCpuCores(PolicyContract):
    work_conserving = False

    def policy(self) -> Any:
        return create("gandiva", {"quantum_s": "20", "cpus": "equal"})


class TestGandivaWithCoresByTheirWorth(PolicyContract):
    work_conserving = False

    def policy(self) -> Any:
        given = {"quantum_s": "20", "cpus": "sad", "cpu_floor": "none", "cpu_period_s": "45"}
        return create("gandiva", given)


class TestGandivaAsPublished(PolicyContract):
    work_conserving = False

    def policy(self) -> Any:
        return create("gandiva", {"quantum_s": "20", "affinity": "strict", "limit": "2"})


class TestGandivaWithoutIntrospection(PolicyContract):
    work_conserving = False

    def policy(self) -> Any:
        return create("gandiva", {"quantum_s": "20", "migrate": "off", "pack": "off"})


class TestTiresiasGittinsLearned(PolicyContract):
    def policy(self) -> Any:
        settings = {"thresholds": "100,400", "promote_knob": "2", "min_samples": "3"}
        return create("tiresias-gittins", settings)


class TestTiresiasGittinsGiven(PolicyContract):
    def policy(self) -> Any:
        settings = {"thresholds": "100,400", "distribution": "30,90,90,200,400,1600,6000"}
        return create("tiresias-gittins", settings)


# With equal priorities, or none that count, the ranked policies keep an index.


class TestSmallestFirst(PolicyContract):
    def policy(self) -> Any:
        return create("smallest-first", {"priority": "ignore"})


class TestShortestRemainingWithoutPriorities(PolicyContract):
    def policy(self) -> Any:
        return create("srtf", {"priority": "ignore"})


class TestShortestRemainingService(PolicyContract):
    def policy(self) -> Any:
        return create("srsf", {"priority": "ignore"})


class TestLeastAttainedService(PolicyContract):
    def policy(self) -> Any:
        return create("las", {"quantum_s": "20", "priority": "ignore"})


class TestLeastAttainedServiceByPriority(PolicyContract):
    def policy(self) -> Any:
        return create("las", {"quantum_s": "20"})


class TestRoundRobin(PolicyContract):
    def policy(self) -> Any:
        return create("round-robin", {"quantum_s": "20", "priority": "ignore"})


class TestRoundRobinByPriority(PolicyContract):
    def policy(self) -> Any:
        return create("round-robin", {"quantum_s": "20"})


class TestYarnCapacity(PolicyContract):
    work_conserving = False
    preemptive = False

    def policy(self) -> Any:
        return create("yarn-cs", {"priority": "ignore"})


class TestYarnCapacityWithBackfill(PolicyContract):
    work_conserving = False
    preemptive = False

    def policy(self) -> Any:
        return create("yarn-cs", {"backfill": "yes"})


# Orderings under the settings that are common to all of them.


class TestFifoWithQuotas(PolicyContract):
    work_conserving = False
    preemptive = False

    def policy(self) -> Any:
        return create("fifo", {"quotas": "equal"})


class TestFifoBackfillWithFairShare(PolicyContract):
    preemptive = False

    def policy(self) -> Any:
        return create("fifo-backfill", {"fair_share": "user", "half_life_s": "300"})


class TestYarnCapacityWithQuotas(PolicyContract):
    work_conserving = False
    preemptive = False

    def policy(self) -> Any:
        return create("yarn-cs", {"quotas": "x=4;*=2"})


class TestShortestRemainingOnSpreadNodes(PolicyContract):
    def policy(self) -> Any:
        return create("srtf", {"placement": "spread"})


class TestSmallestFirstConsolidatedStrictly(PolicyContract):
    work_conserving = False

    def policy(self) -> Any:
        return create("smallest-first", {"placement": "consolidate-strict"})


class TestTiresiasWithFairShareAndMinimumRunTime(PolicyContract):
    def policy(self) -> Any:
        shares = {"fair_share": "user", "shares": "a=2", "half_life_s": "300"}
        times = {"fair_period_s": "60", "min_run_time_s": "25"}
        return create("tiresias", {"thresholds": "100,400"} | shares | times)


class TestTiresiasWithQuotasThatAreNotLent(PolicyContract):
    work_conserving = False

    def policy(self) -> Any:
        return create("tiresias", {"thresholds": "100", "quotas": "*=8", "borrow": "no"})


class TestGandivaWithQuotasAndMinimumRunTime(PolicyContract):
    def policy(self) -> Any:
        return create("gandiva", {"quantum_s": "20", "quotas": "equal", "min_run_time_s": "30"})


class TestRoundRobinWithFairShareOfQueues(PolicyContract):
    def policy(self) -> Any:
        return create("round-robin", {"quantum_s": "20", "fair_share": "vc", "half_life_s": "200"})


class TestLeastAttainedServiceWithEverything(PolicyContract):
    work_conserving = False

    def policy(self) -> Any:
        quotas = {"quotas": "x=2;y=4;*=2", "placement": "skew-strict", "pack_limit": "0.5"}
        share = {"fair_share": "user", "half_life_s": "300", "min_run_time_s": "15"}
        return create("las", {"quantum_s": "20"} | quotas | share)


class TestMaxMinFairness(PolicyContract):
    def policy(self) -> Any:
        return create("max-min-fairness", {"round_s": "60", "solve_every_s": "150"})


class TestMaxMinFairnessAgnosticInWholeRounds(PolicyContract):
    work_conserving = False

    def policy(self) -> Any:
        settings = {"heterogeneity": "agnostic", "round_s": "40", "fill_idle": "no"}
        return create("max-min-fairness", settings)


class TestFinishTimeFairness(PolicyContract):
    def policy(self) -> Any:
        return create("finish-time-fairness", {"round_s": "60", "solve_every_s": "150"})


class TestElastic(PolicyContract):
    preemptive = False

    def policy(self) -> Any:
        return create("elastic", {"look_s": "20"})


class TestTiresiasInFirstInFirstOutQueues(PolicyContract):
    def policy(self) -> Any:
        return create("tiresias", {"thresholds": "100,400", "within": "fifo"})


class TestOptimus(PolicyContract):
    def policy(self) -> Any:
        return create("optimus", {"every_s": "20"})


class TestOptimusOracle(PolicyContract):
    def policy(self) -> Any:
        return create("optimus-oracle", {"every_s": "20"})


class TestPollux(PolicyContract):
    work_conserving = False  # a change of GPUs has to be worth its pause

    def policy(self) -> Any:
        return create("pollux", {"interval_s": "20"})


class TestPolluxByLength(PolicyContract):
    work_conserving = False

    def policy(self) -> Any:
        return create("pollux", {"objective": "length", "fits": "job"})


class TestPolluxAutoscaled(PolicyContract):
    work_conserving = False  # and nodes that it does not ask for stay empty

    def policy(self) -> Any:
        return create("pollux", {"nodes": "1,3", "shrink_after_s": "30"})


class TestPolluxOnSeveralTypes(PolicyContract):
    """Every other node is of another type; a node that comes back is of one that nobody named."""

    work_conserving = False

    @pytest.fixture(autouse=True)
    def types(self, monkeypatch):
        def on_types(jobs, policy, cluster="2x4", costs=FREE, **more):
            number, _, gpus = cluster.partition("x")
            nodes = [f"1x{gpus}:{('slow', 'fast')[i % 2]}" for i in range(int(number))]
            return simulation(jobs, policy, ",".join(nodes), costs, **more)

        monkeypatch.setattr(policy_contract, "simulation", on_types)

    def policy(self) -> Any:
        return create("pollux", {"interval_s": "20"})


class TestPolluxAsPublished(PolicyContract):
    work_conserving = False

    def policy(self) -> Any:
        return create("pollux", {"objective": "pollux", "fits": "job"})


def test_every_policy_that_can_be_named_is_held_against_the_contract() -> None:
    suites = [each for each in globals().values() if isinstance(each, type)]
    held = {
        suite().policy().name
        for suite in suites
        if issubclass(suite, PolicyContract) and suite is not PolicyContract
    }
    assert held >= set(BUILT_IN)
