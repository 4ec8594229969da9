"""The shipped policies against the shipped contract."""

from typing import Any

from rota.policy.registry import create
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


class TestShortestRemaining(PolicyContract):
    def policy(self) -> Any:
        return create("srtf")


class TestTiresias(PolicyContract):
    def policy(self) -> Any:
        return create("tiresias", {"thresholds": "100,400", "promote_knob": "2"})


class TestTiresiasByFirstStart(PolicyContract):
    def policy(self) -> Any:
        return create("tiresias", {"thresholds": "100,400", "within": "first-start"})


class TestGandiva(PolicyContract):
    def policy(self) -> Any:
        return create("gandiva", {"quantum_s": "20"})
