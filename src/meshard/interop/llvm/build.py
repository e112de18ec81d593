"""Compiling: from a text in LLVM's language to addresses of functions, kept on disk.

In: the text of a program. Out: the addresses of its functions. Object code is kept in the user's
cache folder, by the text, the processor and the versions, so that later processes load it in less
than a millisecond. Files are written by renaming, and what cannot be read, or is not what was
written, is compiled anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, final

import llvmlite
import llvmlite.binding as llvm

from meshard.ops.fused.compilers import cache_folder
from meshard.plan.file.files import write_bytes

_FORMAT = b"meshard 2\n"
_PATIENCE, _PAUSE = 2.0, 2e-3
"""Seconds to wait for another process that compiles the same, and between two looks."""
_DIGEST = hashlib.sha256().digest_size


@final
class Builder:
    """LLVM for this processor."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        name, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        target = llvm.Target.from_default_triple()
        # Code may be mapped anywhere: with addresses of 32 bits LLVM ends the process if code and
        # its constants come to lie further apart, as they do between large reservations.
        self._machine = target.create_target_machine(
            cpu=name, features=features, opt=3, reloc="static", codemodel="large"
        )
        self._jit = llvm.create_lljit_compiler(self._machine)
        self._loaded: list[Any] = []  # code lives as long as the process

    def functions(self, text: str, names: Sequence[str]) -> dict[str, int]:
        """Return the addresses of a program's functions, compiled unless a file has them."""
        key = _key(text)
        code = _read(key)
        if code is not None:
            with suppress(RuntimeError, OSError):  # of another version, say: compiled anew
                return self._linked(code, key, names)
        with _turn(key):
            other = _read(key)
            if other is None or other == code:
                other = self.compiled(text)
                _write(key, other)
        return self._linked(other, key, names)

    def compiled(self, text: str) -> bytes:
        """Return a program's object code."""
        module = llvm.parse_assembly(text)
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = True
        passes = llvm.create_pass_builder(self._machine, options)
        passes.getModulePassManager().run(module, passes)
        found: bytes = self._machine.emit_object(module)
        return found

    def _linked(self, code: bytes, key: str, names: Sequence[str]) -> dict[str, int]:
        library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for name in names:
            library.export_symbol(name)
        tracker = library.link(self._jit, f"{key}.{len(self._loaded)}")
        self._loaded.append(tracker)
        return {name: tracker[name] for name in names}


_MACHINE = "\n".join(
    [llvmlite.__version__, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), ""]
)
"""What object code depends on besides its text; asked before LLVM is busy on another thread."""


def _key(text: str) -> str:
    return hashlib.sha256(_FORMAT + _MACHINE.encode() + text.encode()).hexdigest()


_LOCK = threading.Lock()
_ORPHANED: list[int] = []
"""This process, if it was forked while another thread compiled: LLVM is locked in it for good."""


def _after_fork() -> None:
    if _LOCK.locked():
        _ORPHANED.append(os.getpid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@cache
def _builder() -> Builder:
    return Builder()


def functions(text: str, names: Sequence[str]) -> dict[str, int]:
    """Return the addresses of a program's functions; LLVM works for one thread at a time.

    Raises:
        RuntimeError: if LLVM cannot compile or link it.
    """
    if _ORPHANED:
        raise RuntimeError("this process was forked while its parent compiled")
    with _LOCK:
        return _builder().functions(text, names)


def known(text: str) -> bool:
    """Whether a program's code is on disk."""
    return not _ORPHANED and _read(_key(text)) is not None


def _read(key: str) -> bytes | None:
    folder = cache_folder()
    if folder is None:
        return None
    try:
        found = (folder / key[:2] / key).read_bytes()
    except OSError:
        return None
    head, digest, code = (
        found[: len(_FORMAT)],
        found[len(_FORMAT) : len(_FORMAT) + _DIGEST],
        found[len(_FORMAT) + _DIGEST :],
    )
    whole = head == _FORMAT and hashlib.sha256(code).digest() == digest
    return code if whole else None


def _write(key: str, code: bytes) -> None:
    folder = cache_folder()
    if folder is None:
        return
    place = folder / key[:2] / key
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(place, _FORMAT + hashlib.sha256(code).digest() + code)


@contextmanager
def _turn(key: str) -> Iterator[None]:
    """Let one process of a host compile a program, and the others wait for it, but not for long."""
    folder = cache_folder()
    lock = None
    if folder is not None:
        with suppress(OSError):
            (folder / key[:2]).mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / key[:2] / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
            _taken(lock)
    try:
        yield
    finally:
        if lock is not None:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)  # for a child too that was forked meanwhile
            os.close(lock)


def _taken(lock: int) -> bool:
    """Take a lock; whether it was free in time. Who holds it may be stopped: then go on without."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_PAUSE)
    return False
