"""The file that a sweep can be taken up from: a line of JSON for each finished job, appended as soon as it is done.

A run that is killed leaves a torn last line at worst, which the next run cuts off. Lines of other settings stay where
they are and do no harm. A second run on the same file is refused: both would do the same jobs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from minispec import __version__
from minispec.sweep import Job, Result
from minispec.sweep_counts import Counts, Seconds

BEGINNING = '{"key": "'  # of every line: a torn one that begins otherwise is not ours to cut
LIMIT = 2**63  # of a count or of seconds; Infinity is more
CANNOT_WRITE = "--output-file {}: {}: give a file that can be written"
Group = TypeVar("Group", Counts, Seconds)


@contextmanager
def open_results(path: Path) -> Iterator[ResultsFile]:
    """The results in a file, made if there is none, and the file to append more.

    Raises ValueError for a file that cannot be written, that another run uses, or that holds anything else.
    """
    if not path.parent.is_dir():  # which the lock would make
        raise ValueError(CANNOT_WRITE.format(path, f"there is no folder {path.parent}"))
    if path.exists() and not path.is_file():
        kind = "folder" if path.is_dir() else "device"
        raise ValueError(CANNOT_WRITE.format(path, f"it is a {kind}"))
    lock = FileLock(path.with_name(path.name + ".lock"), timeout=0)
    try:
        held = lock.acquire()
    except Timeout:
        raise ValueError(f"{path} is in use by another run: wait for it, or give another --output-file") from None
    except OSError as error:
        raise ValueError(CANNOT_WRITE.format(path, error.strerror or error)) from None
    with held:
        try:
            with closing(ResultsFile(path)) as file:
                yield file
        finally:
            with suppress(OSError):  # Windows takes it away by itself
                Path(lock.lock_file).unlink()


class ResultsFile:
    """Results by their keys, and a place for more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = path.open("a+b", buffering=0)
        except OSError as error:
            raise ValueError(CANNOT_WRITE.format(path, error.strerror or error)) from None
        try:
            self.results = self._read()
        except BaseException:
            self.file.close()
            raise

    def _read(self) -> dict[str, Result]:
        """All whole lines; a torn one at the end is cut off."""
        self.file.seek(0)
        *lines, torn = (self.file.readall() or b"").split(b"\n")
        results: dict[str, Result] = {}
        for number, line in enumerate(lines, 1):
            result = read_line(line, f"{self.path}, line {number}")
            results.setdefault(result.key, result)
        beginning = BEGINNING.encode()
        if not (torn.startswith(beginning) or beginning.startswith(torn)):
            raise ValueError(f"{self.path}, line {len(lines) + 1}: no result of a sweep: give another --output-file")
        if torn:
            self.file.truncate(self.file.tell() - len(torn))
        return results

    def append(self, job: Job, result: Result) -> None:
        """Keep a result: one write, so that it is there whole as soon as this returns.

        Raises ValueError where there is no room for it; what was there is cut back to whole lines.
        """
        line = write_line(job, result).encode()
        size = self.file.seek(0, os.SEEK_END)
        try:
            while line:  # a disk that gets full takes a part first
                line = line[self.file.write(line) :]
        except OSError as error:
            with suppress(OSError):
                self.file.truncate(size)
            raise ValueError(f"--output-file {self.path}: {error.strerror}: make room, and start it again") from None
        self.results[result.key] = result

    def close(self) -> None:
        """Write no more."""
        self.file.close()


def write_line(job: Job, result: Result) -> str:
    """A result as a line, with what it is of: for people, as the key says it all."""
    settings = asdict(job.settings)
    del settings["offline"]
    about = {"minispec": __version__, "prompt": job.prompt.text, "kind": job.prompt.kind, "id": job.prompt.id}
    figures = {"counts": asdict(result.counts), "seconds": asdict(result.seconds)}
    return json.dumps({"key": result.key} | about | settings | figures) + "\n"


def read_line(line: bytes, where: str) -> Result:
    """The result in a line. Raises ValueError, with its place, where there is none."""
    try:
        content = json.loads(line)
        key = content["key"]
        if not isinstance(key, str):
            raise TypeError(f"its key is {key!r:.80}")
        counts = read_group(Counts, (int,), content["counts"])
        if len(counts.kept) != len(counts.judged):
            raise ValueError(f"{len(counts.kept)} places where guesses were kept, {len(counts.judged)} where judged")
        return Result(key, counts, read_group(Seconds, (int, float), content["seconds"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        problem = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise ValueError(
            f"{where}: no result of a sweep ({problem}): take the line out, or give another --output-file"
        ) from None


def read_group(kind: type[Group], numbers: tuple[type, ...], values: dict[str, Any]) -> Group:
    """Counts or seconds from a dict: every field a number of these types from 0 up, or a list of such."""

    def checked(value: Any) -> Any:
        if type(value) not in numbers or not 0 <= value < LIMIT:
            raise TypeError(f"{value!r:.80} is none of its numbers")
        return value

    lists = {field.name for field in fields(kind) if isinstance(field.default, tuple)}
    read: dict[str, Any] = {
        name: tuple(map(checked, values[name])) if name in lists else checked(values[name])
        for name in (field.name for field in fields(kind))
    }
    return kind(**read)
