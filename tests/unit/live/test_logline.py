"""Lines of logs for programs."""

import json
import logging

from rota.live.logline import JSON, TEXT, formatter


def line(kind, message, *arguments, error=None, **extra):
    info = (type(error), error, None) if error else None
    record = logging.LogRecord("rota.test", logging.WARNING, "", 0, message, arguments, info)
    record.created = 1e9 + 0.25
    vars(record).update(extra)
    return formatter(kind, "%(levelname)s %(message)s", process="agent").format(record)


def test_a_line_is_one_object_whatever_is_in_it():
    told = line(
        JSON, "job %s\nis \x1b[31mred\ud800", "7", job="7", path=json, error=ValueError("x\ny")
    )
    assert "\n" not in told
    told.encode("ascii")
    object_ = json.loads(told)
    assert object_["time"] == "2001-09-09T01:46:40.250Z"
    assert (object_["level"], object_["logger"]) == ("WARNING", "rota.test")
    assert object_["message"] == "job 7\nis \x1b[31mred\ud800"
    assert object_["fields"] == {"process": "agent", "job": "7", "path": str(json)}
    assert object_["error"].endswith("ValueError: x\ny")


def test_lines_of_text_have_the_format_of_their_process():
    assert line(TEXT, "job %s", 7) == "WARNING job 7"
