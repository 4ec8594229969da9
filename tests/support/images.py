"""Images of containers, made of what this machine has, as ``ctr images import`` reads them."""

import hashlib
import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

import rota

HOME = Path("/opt/rota")  # of the image's virtual environment
ROOT_FOLDERS = ("dev", "etc", "proc", "sys", "var/lib")
STANDARD_UNUSED = ("test", "idlelib", "lib2to3", "turtledemo", "ensurepip", "site-packages")


def write_pause(path: Path, name: str, busybox: Path) -> None:
    """Write an image that does nothing until it is killed, as the sandbox of a pod needs."""
    config = {"Entrypoint": ["/bin/sleep", "infinity"]}
    _write(path, name, config, lambda layer: _add_shell(layer, busybox))


def write_rota(path: Path, name: str, busybox: Path) -> None:
    """Write an image of Rota with its extra ``kubernetes``, as ``pip`` has it here, and a shell."""

    def add(layer: tarfile.TarFile) -> None:
        _add_shell(layer, busybox)
        _add_programs(layer)

    paths = f"{HOME}/bin:/bin"
    _write(path, name, {"Env": [f"PATH={paths}"], "Cmd": ["rota"]}, add)


def _write(
    path: Path, name: str, config: Mapping[str, Any], add: Callable[[tarfile.TarFile], None]
) -> None:
    layer = path.with_suffix(".layer")
    with tarfile.open(layer, "w") as file:
        add(file)
    with open(layer, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    about = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    tag = f"docker.io/library/{name}"
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as image:
        image.add(layer, "layer.tar")
        for member, told in (("config.json", about), ("manifest.json", manifest)):
            _add_text(image, member, json.dumps(told))
    layer.unlink()


def _add_shell(layer: tarfile.TarFile, busybox: Path) -> None:
    for folder in ROOT_FOLDERS:
        _add_folder(layer, folder, 0o755)
    _add_folder(layer, "tmp", 0o1777)
    _add_text(layer, "etc/passwd", "root:x:0:0:root:/:/bin/sh\n")
    layer.add(busybox, "bin/busybox")
    told = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    for word in told.stdout.split():
        if word != "busybox":
            _add_link(layer, f"bin/{word}", "busybox")


def _add_programs(layer: tarfile.TarFile) -> None:
    """The interpreter, at its place, a virtual environment, and bash."""
    own = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = Path(sys.executable).resolve()
    standard = Path(sysconfig.get_path("stdlib"))
    packages = HOME / "lib" / own / "site-packages"
    bash = Path("/bin/bash")  # runs jobs' commands that have shell syntax
    files: dict[Path, Path] = {python: python, bash: bash}  # places in the image, and files
    files |= {file: file for file in _files(standard) if not _is_unused(file, standard)}
    for place, file in _distributions(["rota[kubernetes]"]):
        files[packages / place] = file
    package = Path(rota.__file__).parent
    files |= {packages / "rota" / file.relative_to(package): file for file in _files(package)}
    for library in _libraries(files.values()):
        files.setdefault(library, library.resolve())
    for place, file in files.items():
        layer.add(file.resolve(), str(place).lstrip("/"), recursive=False)
    home = str(HOME).lstrip("/")
    _add_text(layer, f"{home}/pyvenv.cfg", f"home = {python.parent}\n")
    for link in ("python", "python3"):
        _add_link(layer, f"{home}/bin/{link}", str(python))
    script = f"#!{HOME}/bin/python\nfrom rota.cli.main import main\nmain()\n"
    _add_text(layer, f"{home}/bin/rota", script, 0o755)


def _is_unused(file: Path, standard: Path) -> bool:
    first = file.relative_to(standard).parts[0]
    return first in STANDARD_UNUSED or first.startswith("config-")


def _distributions(wanted: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """The places and files of distributions and of all that they need."""
    waiting, known = [Requirement(each) for each in wanted], set()
    while waiting:
        requirement = waiting.pop()
        for extra in ("", *requirement.extras):
            called = (re.sub(r"[-_.]+", "-", requirement.name).lower(), extra)
            if called in known:
                continue
            known.add(called)
            found = importlib.metadata.distribution(requirement.name)
            needed = [Requirement(each) for each in found.requires or ()]
            waiting += [
                each
                for each in needed
                if each.marker is None or each.marker.evaluate({"extra": extra})
            ]
            for place in found.files or ():
                file = Path(str(place.locate()))
                if ".." not in place.parts and file.is_file() and file.suffix != ".pth":
                    yield Path(place), file


def _libraries(files: Iterable[Path]) -> set[Path]:
    """The machine's shared libraries that programs and modules among these files load."""
    programs = [file for file in files if ".so" in file.name or os.access(file, os.X_OK)]
    binaries = [file for file in programs if _is_binary(file)]
    told = subprocess.run(["ldd", *binaries], capture_output=True, text=True)
    paths = re.findall(r"^\t(?:\S+ => )?(/\S+) \(0x", told.stdout, re.MULTILINE)
    apart = (sys.prefix, sysconfig.get_path("stdlib"))
    return {Path(path) for path in paths if not path.startswith(apart)}


def _is_binary(file: Path) -> bool:
    with open(file, "rb") as opened:
        return opened.read(4) == b"\x7fELF"


def _files(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*")) if file.is_file()]


def _add_folder(archive: tarfile.TarFile, path: str, mode: int) -> None:
    about = tarfile.TarInfo(path)
    about.type, about.mode = tarfile.DIRTYPE, mode
    archive.addfile(about)


def _add_text(archive: tarfile.TarFile, path: str, text: str, mode: int = 0o644) -> None:
    about = tarfile.TarInfo(path)
    words = text.encode()
    about.size, about.mode = len(words), mode
    archive.addfile(about, io.BytesIO(words))


def _add_link(archive: tarfile.TarFile, path: str, target: str) -> None:
    about = tarfile.TarInfo(path)
    about.type, about.linkname = tarfile.SYMTYPE, target
    archive.addfile(about)
