"""The page about how jobs have fared on a live cluster: tables, and pictures of its course."""

from __future__ import annotations

from typing import Any

from rota.report.charts import completion_chart, course_chart
from rota.report.comparison import spread_table
from rota.report.lately import entries_of
from rota.report.page import Section, Table, page

ZOOM = "Drag to zoom, double-click to see everything again."


def lately_page(told: dict[str, Any], facts: str) -> str:
    """The text of one HTML file about a report; ``facts`` says in a sentence what it is about."""
    alone = entries_of(told)
    sections = [
        Section("By user", facts, Table(*spread_table(entries_of(told, "users")))),
        Section("By queue", "", Table(*spread_table(entries_of(told, "queues")))),
    ]
    if told["jct_s"]:
        text = "How many of the jobs that succeeded had ended within a time of their submission."
        sections.append(Section("Job completion times", text, completion_chart(alone)))
    if told["course"]["at_s"]:
        use = course_chart(alone, "used", "GPUs in use", True)
        waits = course_chart(alone, "waiting_jobs", "waiting jobs", False)
        sections += [
            Section("GPUs in use", f"The share of all GPUs on which jobs advance. {ZOOM}", use),
            Section("Waiting jobs", f"Jobs that hold no GPU. {ZOOM}", waits),
        ]
    return page("How jobs fared", sections)
