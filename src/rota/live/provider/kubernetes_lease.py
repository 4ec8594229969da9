"""The Lease of a cluster: of several controllers, the one that holds it asks Kubernetes."""

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from rota.live.provider.kubernetes_api import Api, ApiError
from rota.live.provider.kubernetes_pods import instance
from rota.live.wire.clock import boottime_s

LASTS_S = 30  # without being renewed
RENEW_S = 10.0
AGAIN_S = 1.0  # after a renewal that failed
MARGIN_S = 11.0  # a request that was begun with the Lease is answered within it


class Lease:
    """The Lease of ``cluster`` for the controller that ``holder`` names.

    ``owner`` is an owner reference of Kubernetes, with which the Lease goes. ``clock`` tells
    seconds that never go back, and that pass while the machine sleeps: others don't wait for it.
    Methods block, and raise ApiError.
    """

    def __init__(
        self,
        api: Api,
        cluster: str,
        holder: str,
        owner: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = boottime_s,
    ) -> None:
        self._api, self._cluster, self._holder = api, cluster, holder
        self._owner, self._clock = owner, clock
        self._until_s = self._due_s = -math.inf
        self._others: tuple[Any, float] = None, 0.0  # another's Lease, and since when it is such

    @property
    def is_held(self) -> bool:
        """True as long as no other controller can take it within a request's time."""
        return self._clock() < self._until_s - MARGIN_S

    @property
    def is_due(self) -> bool:
        """True if it is time to renew it, or to try to get it."""
        return self._clock() >= self._due_s

    def hold(self) -> str:
        """Renew it, or take it if nobody holds it. Returns who holds it instead, "" if nobody."""
        now_s = self._clock()
        self._due_s = now_s + AGAIN_S
        found = self._api.find(self._path)
        if found is not None and (who := self._holds(found, now_s)):
            return who
        try:
            if found is None:
                self._api.call("POST", self._api.path("leases"), self._body({}, {}))
            else:
                self._api.call("PUT", self._path, self._body(found["metadata"], found["spec"]))
        except ApiError as error:
            if error.status != 409:
                raise
            return "another controller, which has just taken it"
        self._until_s, self._due_s = now_s + LASTS_S, now_s + RENEW_S
        return ""

    def let_go(self) -> None:
        """Leave it to the next controller at once."""
        if self._until_s == -math.inf:
            return
        found = self._api.find(self._path)
        if found is not None and found["spec"].get("holderIdentity") == self._holder:
            spec = found["spec"] | {"holderIdentity": ""}
            self._api.call("PUT", self._path, found | {"spec": spec})

    def delete(self) -> None:
        """Remove it, as nothing of the cluster is left."""
        self._api.delete(self._path)

    @property
    def _path(self) -> str:
        return self._api.path("leases", self._cluster)

    def _holds(self, found: Mapping[str, Any], now_s: float) -> str:
        """The other holder of a Lease; "" if there is none.

        Clocks of machines differ: another's holds until it has stayed as it is for long.
        """
        spec, version = found.get("spec", {}), found["metadata"]["resourceVersion"]
        who = spec.get("holderIdentity")
        if not who or who == self._holder:
            return ""
        if self._others[0] != version:
            self._others = version, now_s
        lasts_s = spec.get("leaseDurationSeconds") or LASTS_S
        return str(who) if now_s < self._others[1] + lasts_s else ""

    def _body(self, about: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_new = spec.get("holderIdentity") != self._holder
        owners = {"ownerReferences": [dict(self._owner)]} if self._owner else {}
        first = {"name": self._cluster, "labels": instance(self._cluster)} | owners
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": dict(about) or first,
            "spec": {
                "holderIdentity": self._holder,
                "leaseDurationSeconds": LASTS_S,
                "acquireTime": now if is_new else spec.get("acquireTime", now),
                "renewTime": now,
                "leaseTransitions": spec.get("leaseTransitions", 0) + is_new,
            },
        }
