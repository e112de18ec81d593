"""Rendezvous: how processes that know only a name find each other.

In: a name. Out: where the process that has announced it listens, and the secret for connecting.
They are kept in a folder that only this user can enter, on this machine or on a shared file
system; each name has a file, written completely or not at all. An entry whose process has ended
is replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final
from urllib.parse import quote

from meshard.algebra.arguments import refusal
from meshard.errors import ArgumentError, StorageError
from meshard.runtime.lines.connecting import Address
from meshard.runtime.settings import RENDEZVOUS

_MOST_NAME = 200
_ENDING = ".json"
_SECRET = "secret"
_MOST_SECRET = 4096


@final
@dataclass(frozen=True)
class Identity:
    """A process, and when it began, so that a number that is used again is not mistaken for it.

    Attributes:
        host: the machine and its start, and the space of process numbers.
        pid: the process's number there.
        begun: when it began.
    """

    host: str
    pid: int
    begun: str

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, on this machine, so that its end can be seen."""
        return self.host == _host()

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended; of other machines nothing is known."""
        return self.is_here and _begun(self.pid) != self.begun


def own_identity() -> Identity:
    """Return what identifies this process."""
    return Identity(_host(), os.getpid(), _begun(os.getpid()))


def _host() -> str:
    """Return a name for this run of this machine, and the space of process numbers in it."""
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    space = ""
    with contextlib.suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return f"{boot or os.uname().nodename} {space}".strip()


def _begun(pid: int) -> str:
    """Return when a process began, as the kernel counts; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            told = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if told[0] in "ZX" else told[19]


@final
@dataclass(frozen=True)
class Entry:
    """What is known of the process that has announced a name.

    Attributes:
        name: the name.
        addresses: where it listens.
        token: the secret for connecting.
        process: which process it is.
        machine: its machine's name, for messages.
        since: when it was announced, in seconds since the epoch.
        about: what it says of itself.
    """

    name: str
    addresses: tuple[Address, ...]
    token: bytes = field(repr=False)
    process: Identity
    machine: str
    since: float
    about: Mapping[str, Any]

    @property
    def told(self) -> str:
        """The process in words, for messages."""
        return f"process {self.process.pid} on {self.machine}"

    def as_json(self) -> str:
        """Return the text of the file."""
        return json.dumps({**asdict(self), "token": self.token.hex()})

    @classmethod
    def of_json(cls, text: str) -> Entry:
        """Return the entry that a text holds.

        Raises:
            ValueError: if it holds none.
        """
        try:
            found = json.loads(text)
            return cls(
                name=str(found["name"]),
                addresses=tuple([(str(host), int(port)) for host, port in found["addresses"]]),
                token=bytes.fromhex(found["token"]),
                process=Identity(**found["process"]),
                machine=str(found["machine"]),
                since=float(found["since"]),
                about=dict(found["about"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an entry: {error}") from error


def checked_name(given: object, what: str) -> str:
    """Return a name for other jobs; refuse what cannot be the name of a file.

    Args:
        given: the name.
        what: the function that was called, for messages.

    Raises:
        ArgumentError: if it cannot be a name.
    """
    if isinstance(given, str) and 0 < len(_quoted(given)) <= _MOST_NAME:
        return given
    allowed = f"a string of 1 to {_MOST_NAME} characters, such as 'policy'"
    raise ArgumentError(refusal(what, "name", allowed, given))


def _quoted(name: str) -> str:
    return quote(name, safe="", errors="surrogatepass")


@final
class Rendezvous:
    """A folder of names.

    Args:
        folder: the folder; by default the setting ``rendezvous`` (``MESHARD_RENDEZVOUS``), else
            ``meshard`` in ``XDG_RUNTIME_DIR``, else ``/tmp/meshard-UID``.

    Raises:
        StorageError: if it cannot be made, or belongs to somebody else.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(folder) if folder is not None else _usual_folder()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            told = os.lstat(self.folder)
        except OSError as error:
            raise StorageError(
                f"The folder {self.folder}, in which jobs find each other, cannot be made: "
                f"{error.strerror}. Name another one in MESHARD_RENDEZVOUS."
            ) from error
        if not stat.S_ISDIR(told.st_mode) or told.st_uid != os.getuid():
            raise StorageError(
                f"{self.folder}, in which jobs find each other, is not a folder of user "
                f"{os.getuid()}: it belongs to user {told.st_uid}. Name another one in "
                f"MESHARD_RENDEZVOUS."
            )
        if told.st_mode & 0o077:
            if folder is not None or RENDEZVOUS.value is not None:
                raise StorageError(
                    f"{self.folder}, in which jobs find each other, can be entered by other users "
                    f"(mode {stat.S_IMODE(told.st_mode):o}), who could read the secrets in it. Run "
                    f"chmod 700 on it, or name another one in MESHARD_RENDEZVOUS."
                )
            os.chmod(self.folder, 0o700)

    def announce(
        self,
        name: str,
        addresses: tuple[Address, ...],
        token: bytes,
        about: Mapping[str, Any] | None = None,
    ) -> Announcement:
        """Have a name stand for this process, until the announcement is withdrawn.

        A name that another process has announced with the same token passes to this one.

        Args:
            name: the name.
            addresses: where this process listens.
            token: the secret for connecting.
            about: what the process says of itself; values that JSON can hold.

        Raises:
            ArgumentError: if a living process has announced the name, or it cannot be one.
            StorageError: if the file cannot be written.
        """
        path = self._path(name)
        entry = Entry(
            name, addresses, token, own_identity(), os.uname().nodename, time.time(), about or {}
        )
        with self._alone():
            found = self.find(name)
            if found is not None and found.token != token:
                raise ArgumentError(
                    f"The name {name!r} is taken: {found.told} announced it "
                    f"{_ago(found.since)} and {_life(found)}. End that process or choose another "
                    f"name ({path})."
                )
            _write(path, entry.as_json())
        return Announcement(self, entry)

    def find(self, name: str) -> Entry | None:
        """Return what is known of the process that has announced a name; None if there is none.

        A process of this machine that has ended is not found. Whether one on another machine lives
        is only seen by connecting.
        """
        entry = self.last(name)
        return None if entry is None or entry.process.has_ended else entry

    def last(self, name: str) -> Entry | None:
        """Return the entry of a name, of a process that may have ended; None if there is none."""
        path = self._path(name)
        try:
            return Entry.of_json(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}.") from error

    def names(self) -> list[str]:
        """Return the names that processes have announced which are not known to have ended."""
        found = []
        for path in sorted(self.folder.glob(f"*{_ENDING}")):
            with contextlib.suppress(OSError, ValueError):
                entry = Entry.of_json(path.read_text(encoding="utf-8"))
                if not entry.process.has_ended:
                    found.append(entry.name)
        return found

    def own_secret(self) -> str:
        """Return a secret that all processes of this user find here, and nobody else.

        The kernel lets nobody else read it: so one who knows it is the same user.

        Raises:
            StorageError: if it cannot be kept, or others can read it.
        """
        path = self.folder / _SECRET
        with self._alone():
            if not path.exists():
                _write(path, secrets.token_hex(32))
        return read_secret(path)

    def withdraw(self, entry: Entry) -> None:
        """Remove an entry, if it is still there."""
        with self._alone():
            if self.last(entry.name) == entry:
                with contextlib.suppress(OSError):
                    self._path(entry.name).unlink()

    def _path(self, name: str) -> Path:
        return self.folder / f"={_quoted(checked_name(name, 'Rendezvous'))}{_ENDING}"

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from announcing or withdrawing in the meantime."""
        try:
            lock = os.open(self.folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(
                f"The folder {self.folder}, in which jobs find each other, cannot be written to: "
                f"{error.strerror}."
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


@final
class Announcement:
    """A name that stands for this process.

    Attributes:
        entry: what others find.
    """

    def __init__(self, rendezvous: Rendezvous, entry: Entry) -> None:
        self._rendezvous = rendezvous
        self.entry = entry

    def withdraw(self) -> None:
        """Give the name up."""
        if self.entry.process == own_identity():  # not in a forked child
            self._rendezvous.withdraw(self.entry)


def _usual_folder() -> Path:
    if RENDEZVOUS.value is not None:
        return Path(RENDEZVOUS.value)
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base.startswith("/") and os.access(base, os.W_OK):
        return Path(base) / "meshard"
    return Path(f"/tmp/meshard-{os.getuid()}")


def read_secret(path: Path) -> str:
    """Return the secret in a file.

    Raises:
        StorageError: if it cannot be read, is not a file of this user, or others can read it.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(file, "rb") as opened:
            told = os.fstat(file)
            found = opened.read(_MOST_SECRET) if stat.S_ISREG(told.st_mode) else b""
    except OSError as error:
        raise StorageError(
            f"The secret in {path} cannot be read: {error.strerror or error}."
        ) from error
    if told.st_uid != os.getuid() or told.st_mode & 0o077 or not stat.S_ISREG(told.st_mode):
        raise StorageError(
            f"The secret in {path} is not used: it must be a file of user {os.getuid()} that "
            f"nobody else can read or write (mode 0600); it belongs to user {told.st_uid} and "
            f"has mode {stat.S_IMODE(told.st_mode):04o}. Run chmod 600 on it if it is yours, and "
            "choose another secret if others may have read it."
        )
    return found.decode("utf-8", "replace").strip()


def _write(path: Path, text: str) -> None:
    """Write a file that only this user can read, completely or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        file = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as written:
            written.write(text)
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise StorageError(f"{path} cannot be written: {error.strerror}.") from error


def _ago(since: float) -> str:
    return f"{max(0.0, time.time() - since):.0f} seconds ago"


def _life(entry: Entry) -> str:
    return "is alive" if entry.process.is_here else "is on another machine, so its end is not seen"
