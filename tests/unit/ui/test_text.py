"""Text of jobs and users is one harmless line of a bounded length."""

import pytest

from rota.ui.text import MOST_CHARS, MOST_LINE_CHARS, log_line, plain


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("resnet", "resnet"),
        ("<b>x</b>", "<b>x</b>"),
        ("a\nb\x1b[2J", "a\\x0ab\\x1b[2J"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("שלום", "שלום"),
        (None, "None"),
    ],
)
def test_what_moves_or_hides_is_written_out(given, shown):
    assert plain(given) == shown


def test_long_text_is_cut():
    assert plain("x" * 10**6) == "x" * MOST_CHARS + "…"
    assert len(plain("\u202e" * 10**6)) <= 2 * MOST_CHARS + 1
    assert len(log_line("\t" * 10**6)) <= 2 * MOST_LINE_CHARS
    assert len(log_line("y" * 10**6)) <= 2 * MOST_LINE_CHARS


def test_a_line_of_output_loses_its_colours_and_shows_the_last_state_of_a_bar():
    assert log_line("\x1b[1;31mred\x1b[0m \x1b]0;title\x07end") == "red end"
    assert log_line("10%\r50%\r100%") == "100%"
    assert log_line("a\tb\r") == "a\tb"
