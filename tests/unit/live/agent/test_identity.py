"""An agent's id lies in its folder, and each start has a number of its own."""

import pytest

from rota.live.agent.identity import FILE, begin


def test_the_id_stays_and_starts_are_counted(tmp_path):
    first, second = begin(tmp_path), begin(tmp_path)
    assert second.agent == first.agent
    assert (first.start, second.start) == (1, 2)
    assert first.boot_id == second.boot_id


def test_another_folder_has_another_id(tmp_path):
    (tmp_path / "other").mkdir()
    assert begin(tmp_path).agent != begin(tmp_path / "other").agent


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"agent": "a", "starts": "x"}'])
def test_a_damaged_file_counts_as_none(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    assert begin(tmp_path).start == 1
    assert begin(tmp_path).start == 2


def test_a_folder_that_can_not_be_written_stops_nobody(tmp_path):
    assert begin(tmp_path / "none").start == 1
