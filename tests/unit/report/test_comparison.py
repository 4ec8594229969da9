"""Tables of runs: what is in them, and how it is written."""

from rota.report.comparison import (
    BY_KEY,
    FIGURES,
    NARROW,
    Entry,
    flat_table,
    known_figures,
    narrow_table,
    spread_table,
)


def made(policy, *jct, point=None, **more):
    summaries = [{"needs_duration": False, "avg_jct_s": value, **more} for value in jct]
    return Entry(policy, point or {}, summaries, [])


def test_every_number_of_a_summary_is_a_figure(entry):
    (summary,) = entry("fifo").summaries
    numbers = {key for key, value in summary.items() if isinstance(value, int | float)}
    not_shown = {"needs_duration", "jobs", "events"}
    assert numbers - not_shown <= {figure.key for figure in FIGURES}
    assert {figure.key for figure in NARROW} <= set(BY_KEY)


def test_one_run_is_written_without_an_interval():
    figure = BY_KEY["avg_jct_s"]
    assert figure.cell(made("a", 1234.56)) == "1,234.6"
    assert figure.cell(made("a", None)) == "-"
    assert figure.cell(Entry("a", {}, [{}], [])) == "-"


def test_several_runs_are_written_with_half_of_their_interval():
    figure = BY_KEY["avg_jct_s"]
    assert figure.cell(made("a", 10.0, 10.0)) == "10.0 ±0.0"
    # t(0.975, 1) = 12.706, s = sqrt(2): 12.706 * sqrt(2) / sqrt(2).
    assert figure.cell(made("a", 9.0, 11.0)) == "10.0 ±12.7"
    assert figure.cell(made("a", 1999.0, 2001.0)) == "2,000 ±13"


def test_a_figure_in_a_bin_is_found():
    entry = made("a", 1.0, bins={"SS": {"avg_slowdown": 2.5}})
    assert BY_KEY["bins.SS.avg_slowdown"].cell(entry) == "2.50"
    assert [figure.key for figure in known_figures([entry])] == [
        "avg_jct_s",
        "bins.SS.avg_slowdown",
    ]


def test_a_line_for_each_entry_names_its_point():
    header, rows = narrow_table([made("a", 1.0, 3.0, point={"load": "0.5"})])
    assert header[:4] == ["policy", "load", "seeds", "avg JCT s"]
    assert rows[0][:4] == ["a", "0.5", "2", "2.0 ±12.7"]


def test_a_column_for_each_entry_names_its_point():
    header, rows = spread_table(
        [made("a", 1.0, point={"load": "0.5"}), made("b", 2.0, point={"load": "1"})]
    )
    assert header == ["", "a", "b"]
    assert rows[:2] == [["load", "0.5", "1"], ["avg JCT s", "1.0", "2.0"]]


def test_other_programs_get_the_ends_of_the_interval():
    header, rows = flat_table([made("a", 9.0, 11.0), made("b", 5.0)])
    assert header == ["policy", "oracle", "seeds", "avg_jct_s", "avg_jct_s_low", "avg_jct_s_high"]
    assert rows[0][:4] == ["a", False, 2, 10.0]
    assert round(rows[0][4], 1) == -2.7
    assert rows[1] == ["b", False, 1, 5.0, None, None]
