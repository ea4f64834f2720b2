"""Lines of a stored file: plain or gzip by its first bytes, hashed as stored, bounded in every direction."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from workloads.reading.errors import RowError, TraceError, label, shown
from workloads.reading.limits import ReadLimits

_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_BUFFER_BYTES = 1 << 16


class _Hashed(io.RawIOBase):
    """Passes a file's bytes on and hashes what passes (one reading, so a pipe works too)."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        chunk = self._file.read(len(buffer))
        self.sha256.update(chunk)
        buffer[: len(chunk)] = chunk
        return len(chunk)


class Lines:
    """The lines of one open file with their numbers, from 1, blank ones left out. Read once."""

    def __init__(self, name: str, file: BinaryIO, limits: ReadLimits) -> None:
        self.name = label(name)
        self._hashed = _Hashed(file)
        self._stored = io.BufferedReader(self._hashed, _BUFFER_BYTES)
        self._limits = limits

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        try:
            yield from self._bounded()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceError(self.name, f"the gzip data is damaged ({error})") from None

    def sha256(self) -> str:
        """Of the stored bytes, once all lines are read."""
        return self._hashed.sha256.hexdigest()

    def _bounded(self) -> Iterator[tuple[int, bytes]]:
        limit, left_bytes, number = self._limits.line_bytes, self._limits.decompressed_bytes, 0
        read = self._decompressed().readline
        while line := read(limit + 1):
            number += 1
            left_bytes -= len(line)
            if len(line) > limit:
                raise TraceError(f"{self.name}:{number}", f"the line must have at most {limit} bytes (line_bytes)")
            if left_bytes < 0:
                allowed = self._limits.decompressed_bytes
                raise TraceError(
                    f"{self.name}:{number}", f"the file must have at most {allowed} bytes (decompressed_bytes)"
                )
            if number == 1:
                line = line.removeprefix(_BOM)
            if not line.isspace() and line:
                yield number, line

    def _decompressed(self) -> BinaryIO:
        if not self._stored.peek(2).startswith(_GZIP_MAGIC):
            return self._stored
        unpacked = gzip.GzipFile(fileobj=self._stored, mode="rb")
        return io.BufferedReader(cast(io.RawIOBase, unpacked), _BUFFER_BYTES)  # its readline is twice as quick


@contextmanager
def open_lines(path: Path, limits: ReadLimits) -> Iterator[Lines]:
    """The lines of the file at `path`; an `OSError` where there is none."""
    with path.open("rb") as file:
        yield Lines(path.name, file, limits)


def decoded(line: bytes) -> str:
    """The text of a line without its end (LF or CRLF); `RowError` where it is not UTF-8."""
    try:
        return line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        around = line[error.start : error.start + 1]
        raise RowError(f"byte {shown(around.hex())} (hex) must be UTF-8 text") from None
