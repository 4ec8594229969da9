"""A flow job's workers: where they are, how they leave their GPUs, what they do there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from rota.errors import AgentError
from rota.live.agent.attempt_report import Account
from rota.live.agent.devices import Devices
from rota.live.agent.island_link import IslandLink
from rota.live.agent.launching import Place, seat_key
from rota.live.agent.states import State
from rota.live.wire import Message
from rota.live.wire.island import NO_DEVICE, Seen
from rota.live.wire.messages import MAX_NAME

AGAIN_S = 1.0  # between tries to put workers where there was no room for their buffers


class FlowSeat:
    """The seat of one attempt on its node's island.

    Its workers are processes of the island's host: they are numbered from 0, as many as the job may
    have GPUs, and each has a GPU or none.
    """

    def __init__(self, attempt: Account, link: IslandLink, devices: Devices) -> None:
        self._attempt, self._link, self._devices = attempt, link, devices
        self.key = seat_key(attempt.record)
        self._turn = asyncio.Lock()  # the host is asked one thing at a time
        self.is_moving = False
        self.dismissed = False
        self._dismissing = False
        self._said = ""  # to the controller: that nothing is called, or then that something is
        self._idle_s = 0.0  # for which it has had its GPUs since it called something
        self._before: tuple[float, Seen] | None = None
        self._ran = False  # when it was seen last
        self._seen_s: float | None = None

    # -- starting, and being found -------------------------------------------------------------

    async def take(self, requests: list[dict[str, Any]], place: Place | None) -> None:
        """Take the seat before the program starts, for whom this is the request.

        Raises AgentError.
        """
        [request], told = requests, self._told
        await self._link.seat(
            self.key,
            devices=told["devices"],
            cores=self._cores(told["devices"], place),
            weight=told["weight"],
            memory_bytes=told["memory_bytes"],
            log=request["log"],
            workdir=request["workdir"],
            env=request["env"] | self._visible(),
            groups=place.groups if place is not None else [],
            tag=request["tag"],
        )

    def adopt(self) -> None:
        """After an agent's end: the workers go where the record says, if they live."""
        if self._attempt.state == State.RUNNING:
            self._attempt.spawn(self._put_back())

    async def abandon(self) -> None:
        """Give the seat back: the program did not start."""
        await self._link.dismiss(self.key)

    # -- suspensions, moves and resizes ----------------------------------------------------------

    def pause(self, then: Callable[[], object]) -> None:
        """Take the workers off their GPUs; then call this."""

        async def pause() -> None:
            await self._take_off()
            then()

        self._attempt.spawn(pause())

    def go_on(self, then: Callable[[str | None], object]) -> None:
        """Put the workers on the record's GPUs; then call this, with an error if there is one."""
        self.is_moving = True

        async def go_on() -> None:
            error = await self._move()
            if self._said:
                self._said, self._idle_s = "", 0.0
            self.is_moving = False
            then(error)

        self._attempt.spawn(go_on())

    def resize(self, command_id: int, gpus: list[int]) -> None:
        """Have other GPUs while it runs; ``done`` follows. Raises AgentError."""
        attempt = self._attempt
        if attempt.state != State.RUNNING or self.is_moving:
            doing = "being moved" if self.is_moving else attempt.state
            raise AgentError(f"job {attempt.job_id} is {doing}, and can't be resized now")
        if not 0 < len(gpus) <= len(self._told["devices"]):
            raise AgentError(
                f"job {attempt.job_id} has 1 to {len(self._told['devices'])} GPUs, not {len(gpus)}"
            )
        self.is_moving = True
        before = attempt.record.gpus

        async def resize() -> None:
            await self._take_off()
            attempt.record.gpus = gpus
            error = await self._move()
            if error is not None:
                attempt.record.gpus = before
                attempt.spawn(self._put_back())
            self.is_moving = False
            attempt.save_if_there_is_room()
            if error is None:
                attempt.done(command_id, gpus=gpus)
            else:
                attempt.failed(command_id, error)

        attempt.spawn(resize())

    async def _take_off(self) -> None:
        """Take the workers off their GPUs; without a host there are none."""
        async with self._turn:
            with contextlib.suppress(AgentError):
                await self._link.pause(self.key)

    async def _move(self) -> str | None:
        """Put the workers on the record's GPUs; what is wrong if they can't be there.

        Those of a host that was killed are nowhere, as their program finds out by itself.
        """
        self._told["devices"] = spread(self._told["devices"], self._attempt.record.gpus)
        async with self._turn:
            try:
                if self._link.has(self.key):
                    await self._link.place(self.key, *self._placed())
            except AgentError as error:
                return str(error) if self._link.has(self.key) else None
        return None

    async def _put_back(self) -> None:
        """Put the workers on the record's GPUs as soon as there is room for their buffers."""
        attempt = self._attempt
        while not self._dismissing and attempt.state == State.RUNNING:
            if await self._move() is None:
                return
            await self._take_off()  # a resize that was cut short may have put them on other GPUs
            await asyncio.sleep(AGAIN_S)

    def _visible(self) -> dict[str, str]:
        """The GPUs that workers see: all of the node, so that they can be on any of them."""
        if self._devices.kind != "cuda":
            return {}
        ids = ",".join(self._devices.ids)
        return {"CUDA_VISIBLE_DEVICES": ids, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def _placed(self) -> tuple[list[int], list[list[int]]]:
        devices = self._told["devices"]
        return devices, self._cores(devices, None)

    def _cores(self, devices: list[int], place: Place | None) -> list[list[int]]:
        """The cores of each worker; none where the whole job is held to some."""
        if place is not None or self._attempt.record.millicores is not None:
            return [place.cores if place is not None else []] * len(devices)
        return [self._devices.cores_of([each]) if each >= 0 else [] for each in devices]

    @property
    def _told(self) -> dict[str, Any]:
        told = self._attempt.record.flow
        assert told is not None
        return told

    # -- the end ---------------------------------------------------------------------------------

    def dismiss(self, then: Callable[[], object]) -> None:
        """End the workers; then call this."""
        if self._dismissing:
            return
        self._dismissing = True

        async def dismiss() -> None:
            for seen in await self._link.look():
                if seen.key == self.key:
                    self._report(seen, {})
            await self._link.dismiss(self.key)
            self.dismissed = True
            then()

        self._attempt.spawn(dismiss())

    # -- what the workers do ---------------------------------------------------------------------

    def seen(self, seen: Seen, jobs: dict[str, str]) -> None:
        """The host has told what the workers do; ``jobs`` are the ids of jobs by their keys."""
        attempt, world = self._attempt, self._attempt.world
        now_s = world.monotonic_s()
        attempt.worker_pids = seen.pids
        self._count_idle(seen, now_s)
        most_s = self._told["idle_s"]
        runs = attempt.state == State.RUNNING and self._said != "idle"
        if most_s is not None and runs and self._idle_s >= most_s:
            self._say("idle")
        if self._said == "idle" and seen.outstanding:
            self._say("called")
        self._report(seen, jobs)

    def _report(self, seen: Seen, jobs: dict[str, str]) -> None:
        """Report what the workers do, if that has changed."""
        attempt, world = self._attempt, self._attempt.world
        now_s = world.monotonic_s()
        use = self._use(seen, now_s, jobs)
        told: dict[str, Any] = {"step": seen.operations, "at_s": world.now_s(), "metrics": {}}
        told |= {"flow": use} | self._utilisation(use, world.now_s())
        if attempt.state in (State.RUNNING, State.SUSPENDING) and _differs(attempt.progress, told):
            attempt.note_progress(told)

    def unseen(self) -> None:
        """The host does not know the seat, or is gone: there are no workers."""
        self._attempt.worker_pids = []

    def _count_idle(self, seen: Seen, now_s: float) -> None:
        """Count the time with GPUs, whether its program has connected or not.

        Others may take turns with it, and it may be away for long.
        """
        runs, before = self._attempt.state == State.RUNNING, self._before
        if before is None or seen.outstanding or seen.operations != before[1].operations:
            self._idle_s = 0.0
        elif runs and self._ran:
            self._idle_s += now_s - before[0]
        self._ran = runs

    def called(self) -> None:
        """The program, whose workers have no GPUs, has called something."""
        if self._said != "called":
            self._say("called")

    def report(self) -> Message | None:
        """For a controller that may have missed it: that the job is idle, or has called."""
        return self._attempt.about(self._said) if self._said else None

    def _say(self, kind: str) -> None:
        self._said = kind
        self._attempt.notify(self._attempt.about(kind))

    def _utilisation(self, use: dict[str, Any], at_s: float) -> dict[str, Any]:
        shares = [s for s, d in zip(use["share"], use["devices"], strict=True) if d >= 0]
        if not shares or self._seen_s is None:
            self._seen_s = at_s
            return {}
        since_s, self._seen_s = self._seen_s, at_s
        return {"device_util": sum(shares) / len(shares), "util_since_s": since_s}

    def _use(self, seen: Seen, now_s: float, jobs: dict[str, str]) -> dict[str, Any]:
        workers = len(seen.devices)
        share, per_s = [0.0] * workers, 0.0
        if self._before is not None and seen.present and len(seen.spent_s) == workers:
            before_s, before = self._before
            lasted_s = max(now_s - before_s, 1e-3)
            per_s = max(0.0, (seen.operations - before.operations) / lasted_s)
            if len(before.spent_s) == workers:
                pairs = zip(seen.spent_s, before.spent_s, strict=True)
                share = [min(1.0, max(0.0, (now - then) / lasted_s)) for now, then in pairs]
        self._before = now_s, seen
        return {
            "devices": seen.devices,
            "share": [round(each, 3) for each in share],
            "held_bytes": seen.held_bytes or [0] * workers,
            "memory_bytes": seen.memory_bytes,
            "tickets_per_s": round(per_s, 1),
            "weight": self._told["weight"],
            "outstanding": seen.outstanding,
            "slices": seen.slices,
            "waits": {
                "what": seen.waits,
                "device": seen.device,
                "behind": jobs.get(seen.behind, ""),
            },
            "awaited": self._awaited(seen),
        }

    def _awaited(self, seen: Seen) -> dict[str, Any] | None:
        """The oldest operation for whose end workers stay on their GPUs, if they are to leave."""
        leaves = self.is_moving or self._attempt.state == State.SUSPENDING
        if not leaves or not seen.runs:
            return None
        oldest = min(seen.runs, key=lambda each: each.since_s)
        name = "".join(filter(str.isprintable, oldest.operation))[:MAX_NAME]
        return {"operation": name, "device": oldest.device, "since_s": oldest.since_s}


def spread(devices: list[int], gpus: list[int]) -> list[int]:
    """The GPU of each worker, as many as before: who has one of ``gpus`` keeps it."""
    kept = [device if device in gpus else NO_DEVICE for device in devices]
    others = iter([gpu for gpu in gpus if gpu not in kept])
    return [device if device >= 0 else next(others, NO_DEVICE) for device in kept]


def _differs(before: dict[str, Any], told: dict[str, Any]) -> bool:
    return any(before.get(key) != told[key] for key in ("step", "flow"))
