"""Nodes of a Kubernetes cluster: each belongs to a pod of the same name, which runs an agent.

A Secret of that name lets the agent in. Pods are watched by a thread; everything else is asked for
by one request after another, and only as long as the cluster's Lease is held.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from rota.live.provider.book import Book
from rota.live.provider.kubernetes_api import Api, ApiError
from rota.live.provider.kubernetes_lease import Lease
from rota.live.provider.kubernetes_pods import Agents, Pod, read, selector
from rota.live.provider.kubernetes_watch import Watch

PACE_S = 0.5  # between two turns, in each of which one pod is asked for, or given back
AGAIN_S = 10.0  # to give back what is there still
END_S = 5  # for the processes of a pod that has no jobs
END_ALL_S = 60.0  # for all pods to be gone that are ended by force

Answer = TypeVar("Answer")


class Pods:
    """The pods of the nodes in ``book``, which are ``agents``; the ``lease`` is to be held.

    ``wall`` tells seconds since 1970.
    """

    def __init__(
        self,
        book: Book,
        api: Api,
        agents: Agents,
        lease: Lease,
        *,
        pace_s: float = PACE_S,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.book, self.pace_s = book, pace_s
        self._api, self._agents, self._lease, self._wall = api, agents, lease, wall
        self._watch = Watch(api, api.path("pods"), selector(agents.cluster))
        self._pods: dict[str, Pod] = {}
        self._last: dict[str, Pod] = {}  # the same, and those that are gone as they were last
        self._told: set[str] = set()  # the ends of these nodes
        self._cleared: set[str] = set()
        self._again_s: dict[str, float] = {}  # when to give back what is there still
        self._bare: set[str] | None = None  # pods that may have no Secret; None before a look
        self._other = ""  # who has the Lease

    def begin(self) -> None:
        """Begin to watch; what the last controller has not heard of may not be there."""
        self.book.recall()
        self._watch.start()

    def close(self) -> None:
        """End the watch."""
        self._watch.stop()

    async def leave(self) -> None:
        """Leave the Lease to the next controller, or remove it with the last pod."""
        is_last = self.book.ends and not self.book.asked.names and self._lease.is_held
        try:
            await asyncio.to_thread(self._lease.delete if is_last else self._lease.let_go)
        except ApiError as error:
            self.book.tell(f"Kubernetes keeps the Lease: {error}")

    # -- what is known -------------------------------------------------------------------------

    def about(self, name: str) -> str:
        """The pod and its node in Kubernetes, the queue, and how long it has to go."""
        pod, agents = self._pods.get(name), self._agents
        at = f" on {pod.host}" if pod is not None and pod.host else ""
        queue = f", Kueue queue {agents.queue}" if agents.queue else ""
        return f"pod {name}{at}{queue}, grace {agents.grace_s} s"

    def leaves_s(self, name: str) -> float | None:
        """A while before the end of a pod's grace, once somebody has deleted it."""
        return self._pods[name].leaves_s if name in self._pods else None

    def wants_back(self, name: str) -> bool:
        """True once somebody has deleted a pod, and waits for its end."""
        return self.leaves_s(name) is not None

    def why(self, name: str) -> str:
        """Kubernetes' words about a pod that waits."""
        if self._other:
            return f"Kubernetes: the Lease {self._agents.cluster} is held by {self._other}"
        if said := self.book.why(name):
            return said
        pod = self._pods.get(name)
        if pod is None:
            return "Kubernetes was asked for it"
        if pod.has_begun:
            return f"{self.about(name)}: its agent has yet to connect"
        queue = self._agents.queue
        at = f" (Kueue queue {queue})" if queue and not pod.host else ""
        return f"Kubernetes: {pod.words}{at}, {self.book.held(self.is_placed)}"

    def is_placed(self, name: str) -> bool:
        """True if a pod may have an agent with jobs, which has yet to call this controller."""
        return name in self._pods and self._pods[name].has_begun

    # -- what is asked -------------------------------------------------------------------------

    async def turn(self) -> None:
        """Take note of what has been seen, and make the requests for one pod: what is due first."""
        self._see()
        if self._lease.is_due:
            await self._renew()
        if self.book.has_looked and not self.book.trouble:
            self._note()
        if self.book.trouble or not self._lease.is_held or not self.book.has_looked:
            return
        now_s = self.book.clock()
        if name := next((each for each in self._over() if self._is_due(each, now_s)), None):
            await self._clear(name)
        elif name := next(iter(self._bare or ()), None):
            await self._let_in(name)
        elif names := self.book.to_ask():
            await self._ask(names[0])
        elif name := next((each for each in self.book.due() if each in self._pods), None):
            self.book.given_up[name] = now_s + AGAIN_S
            await self._give_back(name)

    async def _call(self, do: Callable[..., Answer], *words: object) -> Answer | None:
        """The answer; None if there is none. Raises ApiError if it is a refusal."""
        try:
            told = await asyncio.to_thread(do, *words)
        except ApiError as error:
            if not error.is_silence:
                raise
            self.book.heard(str(error))
            return None
        if self.book.trouble:
            self._watch.again()
        self.book.heard()
        return told

    async def _renew(self) -> None:
        try:
            who = await self._call(self._lease.hold)
        except ApiError as error:
            self.book.complain("lease", f"Kubernetes refuses the Lease: {error}")
            return
        if who:
            text = f"the Lease {self._agents.cluster} is held by {who}: this controller asks "
            self.book.complain("lease", f"{text}Kubernetes for nothing before that has ended")
            self._other = who
        elif who is not None:
            self.book.content("lease")
            self._other = ""

    async def _ask(self, name: str) -> None:
        """Ask for a pod. Kubernetes knows a name once: what it has is not asked for again."""
        self.book.asked.ask([name])
        admitted = self.book.admission.admit(name)
        self.book.unheard.add(name)
        try:
            if await self._call(self._create, name, admitted) is not None:
                self.book.unheard.discard(name)
        except ApiError as error:
            self.book.unheard.discard(name)
            self.book.refused([name])
            self.book.fail(f"Kubernetes refuses it: {error}")

    def _create(self, name: str, admitted: str) -> bool:
        """Create the pod, unless it is there, and then its Secret, which it waits for."""
        try:
            pod = self._api.call("POST", self._api.path("pods"), self._agents.pod(name))
        except ApiError as error:
            if error.status != 409:
                raise
            pod = self._api.call("GET", self._api.path("pods", name))
            if read(pod).state != self._agents.state:
                raise ApiError(f"{error}, as somebody else's; give another --name") from None
        return self._create_secret(name, admitted, pod["metadata"]["uid"])

    def _create_secret(self, name: str, admitted: str, pod: str) -> bool:
        """Create the Secret that the pod of this uid waits for."""
        secret = self._agents.secret(name, admitted, pod)
        try:
            self._api.call("POST", self._api.path("secrets"), secret)
        except ApiError as error:
            if error.status != 409:
                raise
            self._api.delete(self._api.path("secrets", name))  # it has the token of before
            self._api.call("POST", self._api.path("secrets"), secret)
        return True

    async def _let_in(self, name: str) -> None:
        """Create a Secret anew: the last controller may have been killed before it did."""
        assert self._bare is not None
        pod = self._pods.get(name)
        if pod is not None and not pod.has_begun:
            admitted = self.book.admission.admit(name)
            try:
                if await self._call(self._create_secret, name, admitted, pod.uid) is None:
                    return
            except ApiError as error:
                self.book.tell(f"Kubernetes refuses the Secret of pod {name}: {error}")
        self._bare.discard(name)

    async def _give_back(self, name: str) -> None:
        try:
            await self._call(self._delete, name)
        except ApiError as error:
            self.book.complain("delete", f"Kubernetes can't take pod {name} back: {error}")
        else:
            self.book.content("delete")

    def _delete(self, name: str) -> None:
        """Delete a pod that has no jobs; its program does not end by SIGTERM."""
        self._api.delete(self._api.path("pods", name), gracePeriodSeconds=END_S)

    # -- what is seen --------------------------------------------------------------------------

    def _see(self) -> None:
        for news in self._watch.news():
            if news.error is not None and news.error.is_silence:
                self.book.heard(str(news.error))
                continue
            if news.error is not None:
                self.book.complain("look", f"Kubernetes does not tell of pods: {news.error}")
                continue
            self.book.heard()
            self.book.content("look")
            found = {pod.name: pod for pod in map(read, news.objects)}
            found = {name: pod for name, pod in found.items() if self._is_own(pod)}
            self._last |= found
            if news.is_all:
                self.book.note_look()
                self._pods = found
                if self._bare is None:
                    self._bare = {name for name, pod in found.items() if not pod.has_begun}
                self.book.note_unheard(found)
            elif news.is_gone:
                for name in found:
                    self._pods.pop(name, None)
            else:
                self._pods |= found

    def _is_own(self, pod: Pod) -> bool:
        """False for pods of another state folder, whose cluster has the same name."""
        return self.book.asked.number(pod.name) > 0 and pod.state == self._agents.state

    def _note(self) -> None:
        """Take note of the pods that are there, and of those that are over."""
        self.book.note_living()
        asked = self.book.asked
        over = self._over()
        for name in over:
            self._tell_end(name)
        there = {*self._pods, *asked.known} - set(over)
        there |= {name for name in over if name in asked.names} - self._cleared
        self.book.settle(there, self._cleared)
        kept = {*asked.names, *self._pods}
        self._told &= kept
        self._cleared &= kept
        self._last = {name: pod for name, pod in self._last.items() if name in kept}
        self._again_s = {name: at_s for name, at_s in self._again_s.items() if name in kept}
        # Where Kubernetes knows of no pod it may have others run: an agent there is to end.
        vanished = {*asked.known} - self._pods.keys()
        out = vanished.union(over)
        self.book.admission.keep([name for name in asked.names if name not in out])

    def _over(self) -> list[str]:
        """The nodes on which nothing can run any more."""
        asked = self.book.asked
        seen = [name for name in self._last if name in self._pods or name in asked.names]
        return [name for name in dict.fromkeys([*asked.known, *seen]) if self._is_over(name)]

    def _is_over(self, name: str) -> bool:
        """True if a node's kubelet says so, if it never had one, or if its lease is over."""
        last = self._last.get(name)
        if last is not None and last.is_over:
            return True
        if name not in self._pods:
            was_placed = last is None or bool(last.host)
            return not (was_placed and self.book.may_run(name))
        assert last is not None
        is_late = last.killed_s is not None and last.killed_s <= self._wall()
        return is_late and not self.book.may_run(name)

    def _is_due(self, name: str, now_s: float) -> bool:
        return name not in self._cleared and now_s >= self._again_s.get(name, 0.0)

    async def _clear(self, name: str) -> None:
        """Delete what is left of a node: its Secret, and a pod that has ended."""
        self._again_s[name] = self.book.clock() + AGAIN_S
        pod = self._pods.get(name)
        try:
            told = await self._call(self._remove, name, pod is not None and pod.killed_s is None)
        except ApiError as error:
            self.book.complain("delete", f"Kubernetes can't take pod {name} back: {error}")
            return
        if told is not None:
            self.book.content("delete")
            self._cleared.add(name)
            self._note()

    def _remove(self, name: str, has_pod: bool) -> bool:
        if has_pod:
            self._delete(name)
        self._api.delete(self._api.path("secrets", name))
        return True

    def _tell_end(self, name: str) -> None:
        if name in self._told or name in self.book.given_up or name not in self.book.asked.names:
            return
        self._told.add(name)
        last = self._last.get(name)
        at = f" on {last.host}" if last is not None and last.host else ""
        end = last.words if last is not None and last.is_over else None
        text = f"pod {name}{at} " + ("was deleted" if end is None else f"has ended: {end}")
        if name in self.book.lived:
            self.book.tell(text)
        else:
            self.book.fail(text if end is None else f"{text}, before its agent was connected")


def end_all(api: Api, cluster: str, state: str, names: Sequence[str]) -> str:
    """Delete all of a cluster that has no controller, and wait until its pods are gone.

    The Secrets are those of nodes of these ``names``, and of pods that are there. What belongs to
    another state folder than that of the mark ``state`` stays, also if its cluster has this name.
    Returns what is left, in words; "" if nothing is.
    """
    deadline_s, secrets = time.monotonic() + END_ALL_S, set(names)
    try:
        while True:
            told = api.call("GET", api.path("pods"), labelSelector=selector(cluster))
            found = [*map(read, told["items"])]
            pods = [pod for pod in found if pod.state == state]
            others = {pod.name for pod in found if pod.state != state}
            secrets |= {pod.name for pod in pods}
            for pod in pods:
                api.delete(api.path("pods", pod.name), gracePeriodSeconds=1)
            if not pods:
                for name in sorted(secrets - others):
                    api.delete(api.path("secrets", name))
                if not others:
                    api.delete(api.path("leases", cluster))
                return ""
            if time.monotonic() > deadline_s:
                return ", ".join(f"pod {pod.name}, {pod.phase}, on {pod.host}" for pod in pods)
            time.sleep(PACE_S)
    except ApiError as error:
        return str(error)
