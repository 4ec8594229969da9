"""Parquet files as tables of text, so that every reader of a table reads them too."""

from collections.abc import Iterator
from typing import Any

from rota.errors import TraceError, pip_install
from rota.workload.readers.files import most_unpacked

MOST_ROWS = 50_000_000
VALUE_BYTES = 8  # assumed size of an unpacked value


def header(name: str, data: bytes) -> list[str]:
    """The names of the columns. Raises TraceError."""
    return [column.strip() for column in _open(name, data).schema_arrow.names]


def rows(name: str, data: bytes) -> Iterator[tuple[int, list[str]]]:
    """The rows as text, from line 2 as if the names of the columns were line 1. TraceError."""
    file = _open(name, data)
    line = 1
    try:
        for batch in file.iter_batches(batch_size=65_536):
            columns = [map(_text, column.to_pylist()) for column in batch.columns]
            for row in zip(*columns, strict=True):
                line += 1
                yield line, list(row)
    except TraceError:
        raise
    except Exception as error:
        raise _damaged(name, error) from None


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        # What is no UTF-8 becomes characters that no field may hold.
        return value.decode("utf-8", "surrogateescape")
    return "" if value is None else str(value)


def _open(name: str, data: bytes) -> Any:
    try:
        from pyarrow import BufferReader
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise TraceError(
            f"trace {name} is Parquet, and pyarrow is not installed; "
            f"install it with: {pip_install('parquet')}"
        ) from None
    try:
        file = ParquetFile(BufferReader(data), page_checksum_verification=True)
        num_rows, num_columns = file.metadata.num_rows, file.metadata.num_columns
    except Exception as error:
        raise _damaged(name, error) from None
    if num_rows > MOST_ROWS:
        raise TraceError(f"trace {name}: {num_rows:,} rows are more than {MOST_ROWS:,}")
    if num_rows * num_columns * VALUE_BYTES > most_unpacked(len(data)):
        raise TraceError(
            f"trace {name}: {len(data):,} bytes of Parquet are too few for "
            f"{num_rows:,} rows that differ; write it as CSV if that is right"
        )
    return file


def _damaged(name: str, error: Exception) -> TraceError:
    # Arrow raises errors of many kinds, some with the file's bytes in their text.
    said = " ".join(str(error).split())[:120]
    return TraceError(f"trace {name}: the Parquet data is cut off or damaged: {said}")
