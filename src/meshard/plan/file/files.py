"""Files that users name: written beside the target and renamed, so that none is half written.

If the disk is full, or anything else fails, an existing file stays as it was. Otherwise the result
is the same as opening the path for writing: links are followed, and permissions and owners stay.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from meshard.algebra.arguments import path_of


def write_text(path: str | Path, text: str, what: str) -> None:
    """Write a text file in UTF-8, all of it or nothing.

    A pipe or a device is written to directly, and so is a file in a folder that accepts no new
    file.

    Args:
        path: the file's path.
        text: its content.
        what: the function that was called, for messages.

    Raises:
        ArgumentError: if ``path`` is not a path.
        OSError: if the file cannot be written; it is then as it was.
    """
    write_bytes(path_of(path, what), text.encode("utf-8", "backslashreplace"))


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file, all of it or nothing, as `write_text` does.

    Raises:
        OSError: if the file cannot be written; it is then as it was.
    """
    target = os.path.realpath(path)
    try:
        before = _opened_as_it_is(target)
        if before is not None and not stat.S_ISREG(before.st_mode):
            _write(os.open(target, os.O_WRONLY), data)
            return
        try:
            beside = _beside(target, before)
        except PermissionError:
            _write(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), data)
            return
        with _removed_unless_renamed(beside[1]):
            _write(beside[0], data)
            os.replace(beside[1], target)
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _opened_as_it_is(target: str) -> os.stat_result | None:
    """Return the status of a file that may be written, without changing it; None if it is new.

    Raises:
        OSError: as `open` would, if it may not be written.
    """
    try:
        # A pipe may not have a reader yet; opening it would wait for one.
        if stat.S_ISFIFO(os.stat(target).st_mode):
            return os.stat(target)
        file = os.open(target, os.O_WRONLY)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(file)
    finally:
        os.close(file)


def _beside(target: str, before: os.stat_result | None) -> tuple[int, str]:
    """Make an empty file in the target's folder, with the permissions that the target has.

    Raises:
        PermissionError: if the folder, or the target's owner, does not allow it.
    """
    name = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}.tmp")
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        if before is not None:
            own = os.fstat(file)
            if (own.st_uid, own.st_gid) != (before.st_uid, before.st_gid):
                os.fchown(file, before.st_uid, before.st_gid)
            os.fchmod(file, stat.S_IMODE(before.st_mode))
    except BaseException:
        os.close(file)
        os.unlink(name)
        raise
    return file, name


def _write(file: int, data: bytes) -> None:
    """Write all of a file, and close it."""
    with open(file, "wb") as out:
        out.write(data)
        out.flush()
        if stat.S_ISREG(os.fstat(file).st_mode):
            os.fsync(file)  # some disks report only now that they are full


@contextmanager
def _removed_unless_renamed(name: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
