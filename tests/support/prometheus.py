"""Debian's Prometheus, where it is installed: ``.ci/packages`` installs it."""

import os
import shutil

import pytest

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
MISSING = "Prometheus is not installed (on Debian and Ubuntu: apt install prometheus)"

if "ROTA_TEST_PACKAGES" in os.environ and not (PROMETHEUS and PROMTOOL):
    raise RuntimeError(MISSING)  # .ci/run has installed it, and nothing is to be passed over

needs_prometheus = pytest.mark.skipif(not (PROMETHEUS and PROMTOOL), reason=MISSING)
