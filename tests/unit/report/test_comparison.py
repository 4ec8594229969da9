"""Tables of runs: what is in them, and how it is written."""

import pytest

from rota.report.comparison import (
    BY_KEY,
    METRICS,
    NARROW,
    Entry,
    flat_table,
    known_metrics,
    narrow_table,
    spread_table,
)


def test_every_number_of_a_summary_is_a_figure(entry):
    (summary,) = entry("fifo").summaries
    numbers = {key for key, value in summary.items() if isinstance(value, int | float)}
    not_shown = {"needs_duration", "jobs", "events"}
    assert numbers - not_shown <= {figure.key for figure in METRICS}
    assert {figure.key for figure in NARROW} <= set(BY_KEY)


def test_one_run_is_written_without_an_interval(made):
    figure = BY_KEY["avg_jct_s"]
    assert figure.cell(made("a", 1234.56)) == "1,234.6"
    assert figure.cell(made("a", None)) == "-"
    assert figure.cell(Entry("a", {}, [{}], [])) == "-"


def test_several_runs_are_written_with_half_of_their_interval(made):
    figure = BY_KEY["avg_jct_s"]
    assert figure.cell(made("a", 10.0, 10.0)) == "10.0"
    # t(0.975, 1) = 12.706, s = sqrt(2): 12.706 * sqrt(2) / sqrt(2).
    assert figure.cell(made("a", 9.0, 11.0)) == "10.0 ±12.7"
    assert figure.cell(made("a", 1999.0, 2001.0)) == "2,000 ±13"


def test_a_figure_in_a_bin_is_found(made):
    entry = made("a", 1.0, bins={"SS": {"avg_slowdown": 2.5}})
    assert BY_KEY["bins.SS.avg_slowdown"].cell(entry) == "2.50"
    assert [metric.key for metric in known_metrics([entry])] == [
        "avg_jct_s",
        "bins.SS.avg_slowdown",
    ]


def test_a_line_for_each_entry_names_its_point(made):
    header, rows, left_out = narrow_table([made("a", 1.0, 3.0, point={"load": "0.5"})])
    assert left_out == []
    assert header[:4] == ["policy", "load", "seeds", "avg JCT s"]
    assert rows[0][:4] == ["a", "0.5", "2", "2.0 ±12.7"]


def test_a_column_for_each_entry_names_its_point(made):
    header, rows = spread_table(
        [made("a", 1.0, point={"load": "0.5"}), made("b", 2.0, point={"load": "1"})]
    )
    assert header == ["", "a", "b"]
    assert rows[:2] == [["load", "0.5", "1"], ["avg JCT s", "1.0", "2.0"]]


def test_other_programs_get_the_ends_of_the_interval(made):
    header, rows = flat_table([made("a", 9.0, 11.0, information="label"), made("b", 5.0)])
    assert header[:4] == ["policy", "oracle", "information", "seeds"]
    assert header[4:] == ["avg_jct_s", "avg_jct_s_low", "avg_jct_s_high"]
    assert rows[0][:5] == ["a", False, "label", 2, 10.0]
    assert rows[0][5:] == [0.0, pytest.approx(22.706, abs=1e-3)]  # 10 - 12.7 can't be
    assert rows[1] == ["b", False, "", 1, 5.0, None, None]


def test_no_end_of_an_interval_is_a_value_that_cannot_be(made):
    entry = made("a", 1.0, 2.0, 3.0)
    spread = [
        {**summary, "gpu_utilisation": use, "avg_slowdown": slow, "jain_index": use}
        for summary, use, slow in zip(
            entry.summaries, (0.2, 0.9, 1.0), (1.0, 1.0, 9.0), strict=True
        )
    ]
    header, (row,) = flat_table([entry._replace(summaries=spread)])
    cells = dict(zip(header, row, strict=True))
    assert (cells["avg_jct_s_low"], cells["gpu_utilisation_high"]) == (0.0, 1.0)
    assert (cells["avg_slowdown_low"], cells["jain_index_high"]) == (1.0, 1.0)


def test_a_table_keeps_to_its_width_and_tells_what_it_leaves_out(made):
    figures = {"median_jct_s": 5.0, "p95_jct_s": 9.0, "avg_queue_s": 1.0, "cpu_s": 0.1}
    entries = [made("tiresias", 1.0, **figures), made("fifo", 2.0, **figures)]
    all_of_it, _, _ = narrow_table(entries)
    for width in (20, 40, 60, 80):
        header, rows, left_out = narrow_table(entries, width)
        columns = zip(header, *rows, strict=True)
        assert sum(max(map(len, column)) + 2 for column in columns) - 2 <= width
        assert header[:2] == ["policy", "avg JCT s"]
        assert set(header) | set(left_out) == set(all_of_it)


def test_every_table_tells_what_each_policy_is_told_of_lengths(made):
    entries = [made("a", 1.0, information="none"), made("b", 2.0, information="oracle")]
    header, rows, _ = narrow_table(entries, width=20)
    assert [row[header.index("information")] for row in rows] == ["none", "oracle"]
    assert spread_table(entries)[1][0] == ["information", "none", "oracle"]


def test_restarts_have_a_column_where_jobs_play_profiles(made):
    plain, played = made("a", 1.0, restarts_per_job=0.5), made("b", 1.0, restarts_per_job=2.345)
    assert "restarts/job" not in narrow_table([plain])[0]
    (summary,) = played.summaries
    told = played._replace(summaries=[summary | {"profiles": "folder"}])
    header, rows, _ = narrow_table([told])
    assert rows[0][header.index("restarts/job")] == "2.35"


def test_lost_attempts_have_a_column_where_there_are_faults(made):
    calm, rough = made("a", 1.0, lost_attempts=0), made("a", 1.0, lost_attempts=3, faults={"m": 1})
    assert "lost attempts" not in narrow_table([calm])[0]
    header, rows, _ = narrow_table([rough])
    assert rows[0][header.index("lost attempts")] == "3"
