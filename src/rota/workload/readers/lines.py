"""The lines of a table and their fields, and what quotation marks tear apart."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from rota.errors import TraceError

NO_UTF_8 = re.compile("[\udc80-\udcff]")  # what such bytes are decoded to
MAX_LINE = 1 << 20  # characters of a row
MAX_TORN = 100  # lines over which the end of a quoted field is looked for


def records(
    lines: Sequence[str], first: int, width: int, delimiter: str = ",", quoted: bool = True
) -> Iterator[tuple[int, str, list[str] | TraceError]]:
    """Line number, text and fields of all lines that are not blank, from index ``first``.

    In place of the fields, the TraceError of a line that has none or not ``width`` of them. A row
    that ends within quotation marks spoils the lines on which its last field goes on.
    """
    torn, rest = 0, 0  # the line of such a row, and how many more lines it has
    for index in range(first, len(lines)):
        line, text = index + 1, lines[index]
        if rest:
            rest -= 1
            why = f"it goes on with line {torn}, which ends within quotation marks"
            yield line, text, TraceError(why)
            continue
        if not text.strip():
            continue
        try:
            row = split(text, delimiter, quoted)
            if len(row) != width:
                raise TraceError(f"{len(row)} fields where there should be {width}")
        except TraceError as error:
            if quoted and _quoting(delimiter).open.fullmatch(text):
                torn, rest = line, _rest(lines, index, width, delimiter)
            yield line, text, error
            continue
        yield line, text, row


def _rest(lines: Sequence[str], index: int, width: int, delimiter: str) -> int:
    """Number of further lines of the row whose quotation marks are open on line ``index``.

    The row continues to where the marks are closed, if that makes it a row of ``width`` fields.
    Otherwise one of the marks is a mistake: a row that has all its fields then is complete, and for
    one that lacks some, the next line may be the rest.
    """
    for number, text in enumerate(lines[index + 1 : index + 1 + MAX_TORN], start=1):
        if text.count('"') % 2:
            try:
                whole = split("\n".join(lines[index : index + 1 + number]), delimiter)
            except TraceError:
                break
            if len(whole) == width:
                return number
            break
    return int(lines[index].count(delimiter) + 1 < width)


class Quoting(NamedTuple):
    """Patterns of lines whose quotation marks are closed, or still open at the end."""

    closed: re.Pattern[str]
    open: re.Pattern[str]


@cache
def _quoting(delimiter: str) -> Quoting:
    mark = re.escape(delimiter)
    field = f'(?:"(?:[^"]|"")*+"|[^"{mark}]*+)'
    return Quoting(
        re.compile(f"{field}(?:{mark}{field})*+"),
        re.compile(f'(?:{field}{mark})*+"(?:[^"]|"")*+'),
    )


def split(text: str, delimiter: str, quoted: bool = True) -> list[str]:
    """The fields of one row.

    Raises TraceError for a misplaced quotation mark, a NUL, or a byte that is no UTF-8.
    """
    if len(text) > MAX_LINE:
        raise TraceError(f"a line of {len(text):,} characters is no row; is this a table?")
    if "\0" in text:
        raise TraceError("it holds a NUL character; is the file whole?")
    if not text.isascii() and (bad := NO_UTF_8.search(text)):
        byte = ord(bad[0]) - 0xDC00
        raise TraceError(f"it holds the byte 0x{byte:02x}, which is no UTF-8; save it as UTF-8")
    if not quoted or '"' not in text:
        return text.split(delimiter)
    if not _quoting(delimiter).closed.fullmatch(text):
        raise TraceError(
            "not CSV: a quotation mark stands within a field, or is not closed on this line"
        )
    import csv

    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise TraceError(f"not CSV: {error}") from None
