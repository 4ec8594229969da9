"""The decisions that a controller has taken, as its metrics tell them."""

import http.client
import re
from collections.abc import Mapping


def decision_cycles(port: int, headers: Mapping[str, str]) -> tuple[float, float]:
    """Seconds of all decisions so far, and their number."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics", headers=dict(headers))
    text = connection.getresponse().read().decode()
    connection.close()
    told = dict.fromkeys(("sum", "count"), 0.0)
    for name, value in re.findall(r"^rota_decision_cycle_seconds_(\w+){.*} (\S+)$", text, re.M):
        if name in told:
            told[name] += float(value)
    return told["sum"], told["count"]
