"""Metrics in the formats that Prometheus reads, by ``prometheus_client``."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from rota.live.controller.counts import Histogram, Labels
from rota.server.metrics import COUNTER, GAUGE, HISTOGRAM, METRICS, Described, Snapshot, values

MOST_CHARS = 100  # of a label's value

_FAMILIES = {
    COUNTER: CounterMetricFamily,
    GAUGE: GaugeMetricFamily,
    HISTOGRAM: HistogramMetricFamily,
}


def render(snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    """A scrape's answer and its content type, in the format that ``accept`` asks for."""
    registry = CollectorRegistry()
    registry.register(_Families(snapshot))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Families(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        told = values(self._snapshot)
        for name, described in METRICS.items():
            if name in told:
                yield _family(name, described, told[name])


def _family(name: str, described: Described, told: Mapping[Labels, Any]) -> Metric:
    family: Any = _FAMILIES[described.kind](name, described.meaning, labels=described.labels)
    for labels, value in told.items():
        shown = [_shown(label) for label in labels]
        if isinstance(value, Histogram):
            family.add_metric(shown, _buckets(value), value.total)
        else:
            family.add_metric(shown, value)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    buckets, seen = [], 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        seen += count
        buckets.append((floatToGoString(bound), float(seen)))
    return buckets


def _shown(text: str) -> str:
    """A label's value: text that can be written in UTF-8, cut."""
    return text[:MOST_CHARS].encode("utf-8", "replace").decode()
