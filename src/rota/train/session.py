"""The session of one worker process: where it can be suspended, and what it reports."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rota.errors import InputError
from rota.live.wire import Message
from rota.train.link import Link

if TYPE_CHECKING:
    import torch

    from rota.train.device import DeviceState

MILESTONE = 100  # time to the first 100 mini-batches is a figure of its own (Gandiva, OSDI 2018)
FASTEST_REPORTS_S, SLOWEST_REPORTS_S = 0.1, 5.0


class Session:
    """One training run of one process. Use it through :func:`session`.

    ``rank`` and ``world_size`` say which part of a data-parallel gang this process is; ``device``
    is the torch device to use.
    """

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        path = os.environ.get("ROTA_AGENT_SOCKET")
        self._link = Link(path) if path else None
        self._state: DeviceState | None = None
        self._prepared = self._counting = False
        self._model: Message | None = None  # its size, and that of its largest tensor
        self._step = 0
        self._total: int | None = None
        self._samples = 0
        self._loss: float | None = None
        self._metrics: dict[str, float | None] = {}
        self._first_100_s: float | None = None
        self._busy_s = 0.0  # time in steps since the last report, without suspensions
        self._timed_steps = 0
        self._boundary = self._reported = self._opened = time.monotonic()
        self._gang = False
        self._hold_at: int | None = None  # the step to hold at, while a suspension is asked for

    def __enter__(self) -> Session:
        if self._link is not None:
            self._link.introduce(self._hello(suspended=False))
            self._link.connect()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._link is not None:
            self._report_now(must_arrive=True)
            self._link.close()
        if exc[0] is None and self._prepared:
            from rota.train.device import leave_process_group

            leave_process_group()

    @property
    def device(self) -> torch.device:
        """The device to train on: the GPU that this process was given, else the CPU."""
        return self._device_state().device

    def prepare(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """Put the model on the device, and wrap it for data parallelism if there are more ranks.

        Returns the model to call and the optimiser. Call it before the first step, once for each
        model that is trained. The scheduler is told the size of the model and of its largest
        tensor, for placement.
        """
        state = self._device_state()
        model = model.to(state.device)
        state.add(model, optimizer)
        if self._link is not None:
            self._tell_model(self._link, *state.model_sizes())
        if self.world_size > 1:
            from rota.train.device import data_parallel

            model = data_parallel(model, state.device)
        self._prepared = True
        return model, optimizer

    def steps(self, total: int | None = None) -> Iterator[int]:
        """Count optimiser steps from 0 to ``total`` (None: without end).

        Between one step and the next the process can be suspended: it blocks there until the
        scheduler gives it a device again. A step that is left by ``break`` counts as done.
        """
        if self._counting:
            raise InputError(
                "s.steps() was called a second time; count all steps of all epochs in one loop"
            )
        self._counting = True
        self._total = total
        self._boundary = time.monotonic()
        while total is None or self._step < total:
            try:
                yield self._step
            except GeneratorExit:  # the loop was left by a break, at the end of this step
                self._step += 1
                raise
            self._step += 1
            self._end_step()

    def report(
        self, *, loss: float | None = None, samples: int | None = None, **metrics: float
    ) -> None:
        """Say how training goes: loss, samples in this step, and metrics of your own.

        Costs microseconds; reports are sent a few times a second at most.
        """
        if loss is not None:
            self._loss = _finite(loss)
        if samples is not None:
            self._samples += int(samples)
        for name, value in metrics.items():
            self._metrics[name] = _finite(value)

    # -- the step boundary ---------------------------------------------------------------------

    def _end_step(self) -> None:
        now = time.monotonic()
        self._busy_s += now - self._boundary
        self._timed_steps += 1
        if self._step == MILESTONE:
            self._first_100_s = time.time()
        if self._link is not None:
            every_s = min(max((now - self._opened) / 100, FASTEST_REPORTS_S), SLOWEST_REPORTS_S)
            if now - self._reported >= every_s or self._step == MILESTONE:
                self._report_now()
            for message in self._link.poll():
                self._obey(message)
            if self._hold_at is not None and self._step >= self._hold_at:
                self._pause(self._link)
        self._boundary = time.monotonic()

    def _obey(self, message: Message) -> None:
        """Take note of where the agent wants this rank to hold, or that it need not after all."""
        if message["type"] == "pause":
            self._gang, self._hold_at = message["gang"], self._step
        elif message["type"] == "run_to" and self._hold_at is not None:
            self._hold_at = max(self._hold_at, message["step"])
        elif message["type"] == "resume":
            self._hold_at = None

    def _pause(self, link: Link) -> None:
        """Suspend here, once the whole gang holds at this step."""
        stopped_s = time.time()
        if self._gang and not self._agree(link):
            return
        self._hold_at = None
        self._report_now(must_arrive=True)
        if self._state is not None:
            self._state.offload()
        link.introduce(self._hello(suspended=True) | {"stopped_s": stopped_s})
        suspended = {"type": "suspended", "step": self._step, "stopped_s": stopped_s}
        link.send(suspended | {"at_s": time.time()})
        device = self._await_resume(link)
        if self._state is not None:
            self._state.restore(device)
        link.introduce(self._hello(suspended=False))
        link.send({"type": "resumed", "at_s": time.time()})

    def _agree(self, link: Link) -> bool:
        """Hold at this boundary until all ranks do. False if this rank is to go on for now.

        The agent answers with ``offload`` once every rank holds at the same step, or with
        ``run_to`` a step that another rank has begun already. An agent that is lost meanwhile
        calls the whole thing off.
        """
        link.send({"type": "at", "step": self._step})
        while link.connected:
            message = link.wait()
            if message is None:
                continue
            if message["type"] == "offload":
                return True
            self._obey(message)
            if self._hold_at is None or self._hold_at > self._step:
                return False
        self._hold_at = None
        return False

    def _await_resume(self, link: Link) -> int | None:
        while True:
            message = link.wait()
            if message is not None and message["type"] == "resume":
                return message["device"]

    # -- reports -------------------------------------------------------------------------------

    def _tell_model(self, link: Link, model_bytes: int, largest_tensor_bytes: int) -> None:
        """Report all models so far as one; an agent that is away learns it by the next hello."""
        if not model_bytes:
            return
        self._model = {"model_bytes": model_bytes, "largest_tensor_bytes": largest_tensor_bytes}
        link.introduce(self._hello(suspended=False))
        link.send({"type": "model", **self._model})

    def _report_now(self, *, must_arrive: bool = False) -> None:
        assert self._link is not None
        message: Message = {"type": "report", "at_s": time.time(), **self._progress()}
        self._reported = time.monotonic()
        if must_arrive:
            self._link.send(message)
        elif not self._link.offer(message):
            return
        self._busy_s, self._timed_steps = 0.0, 0

    def _progress(self) -> Message:
        return {
            "step": self._step,
            "total": self._total,
            "samples": self._samples,
            "loss": self._loss,
            "step_time_s": self._busy_s / self._timed_steps if self._timed_steps else None,
            "metrics": self._metrics,
            "first_100_s": self._first_100_s,
        }

    def _hello(self, *, suspended: bool) -> Message:
        return {
            "type": "hello",
            "job_id": os.environ.get("ROTA_JOB_ID"),
            "attempt": int(os.environ.get("ROTA_ATTEMPT", "0")),
            "rank": self.rank,
            "suspended": suspended,
            "step": self._step,
            "total": self._total,
            "model": self._model,
        }

    def _device_state(self) -> DeviceState:
        if self._state is None:
            from rota.train.device import DeviceState, choose_device

            index = os.environ.get("ROTA_DEVICE")
            self._state = DeviceState(choose_device(int(index) if index else None))
        return self._state


def _finite(value: float) -> float | None:
    """The number, or None for one that JSON can't carry (NaN, infinities)."""
    number = float(value)
    return number if math.isfinite(number) else None


def session() -> Session:
    """Open a session: ``with rota.train.session() as s``."""
    return Session()
