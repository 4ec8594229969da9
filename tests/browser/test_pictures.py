"""The pictures of the docs, made as their script makes them."""

import importlib.util
import shutil
import struct

from .conftest import ROOT

EMPTY_BYTES = 10_000  # more than a page without content


def generator():
    name = "generate_dashboard_pictures"
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def size_of(png):
    return struct.unpack(">II", png[16:24])


def test_the_pictures_of_the_docs_are_those_that_their_script_makes(cluster, dashboard, tmp_path):
    script, job = generator(), cluster.submit("pictured")
    cluster.until_state(job, "RUNNING")
    paths = dict(zip(("/", f"/job/{job}"), script.PICTURES.values(), strict=True))
    script.photograph(shutil.which("chromium"), dashboard.link(), paths, tmp_path, 0.0)
    for name in script.PICTURES.values():
        made, kept = ((folder / name).read_bytes() for folder in (tmp_path, script.DOCS))
        assert size_of(made) == size_of(kept) == (script.WIDTH, script.HEIGHT)
        assert len(made) > EMPTY_BYTES
    cluster.client.cancel(job)
