import random
from io import BytesIO

import pyarrow
import pytest
from pyarrow.parquet import write_table

from rota.errors import TraceError
from rota.testing.builders import random_trace
from rota.workload.readers import read_trace
from rota.workload.trace import Trace
from rota.workload.writer import write_trace


def columns(ids, **more):
    number = len(ids)
    needed = {"submit_s": [0.0] * number, "duration_s": [9.0] * number, "num_gpus": [1] * number}
    return {"job_id": ids} | needed | more


@pytest.fixture
def read(tmp_path):
    def read(table, **options):
        path = tmp_path / "jobs.parquet"
        write_table(pyarrow.table(table), path, **options)
        return read_trace(path)

    return read


def test_texts_that_are_stored_as_bytes_are_read_as_text(read):
    trace = read(columns([b"a", "b é".encode()], user=[b"ann", None]))
    assert [(spec.job_id, spec.user) for spec in trace] == [("a", "ann"), ("b é", "")]


@pytest.mark.parametrize("wrong", [b"\xff", b"a\nb", b"a\0b"], ids=["no UTF-8", "lines", "NUL"])
@pytest.mark.parametrize("column", ["job_id", "user", "model"])
def test_a_text_that_no_csv_can_hold_rejects_the_row(read, column, wrong):
    table = columns([b"a", b"b"], user=[b"", b""], model=[b"", b""])
    table[column] = [wrong, b"b"]
    trace = read(table)
    assert [spec.job_id for spec in trace] == ["b"]
    assert "no field may" in trace.rejected[0][1]
    trace.rejected[0][1].encode()


def test_flipped_bits_in_what_we_wrote_are_noticed(tmp_path):
    """But for the footer, which has no checksum, no flip gives other jobs."""
    jobs = Trace(random_trace(5, max_gpus=4))
    file = BytesIO()
    write_trace(jobs, file, "parquet")
    whole = file.getvalue()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    chance, noticed = random.Random(1), 0
    path = tmp_path / "jobs.parquet"
    for _ in range(150):
        data = bytearray(whole)
        data[chance.randrange(4, footer)] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            assert list(read_trace(path)) == list(jobs)
        except TraceError:
            noticed += 1
    assert noticed > 100


def test_rows_out_of_all_proportion_to_the_file_are_refused_at_once(read):
    with pytest.raises(TraceError, match="bytes of Parquet are too few for 4,000,000 rows"):
        read(
            columns(pyarrow.repeat("a", 4_000_000))
            | {
                "submit_s": pyarrow.repeat(0.0, 4_000_000),
            }
        )
