"""Files at paths that users give: whole or not at all, and else as if they were opened."""

import errno
import os
import re
import resource
import stat
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import ArgumentError
from meshard.plan.file.files import write_text
from tests.plans import PLANS

SOURCE = Path(meshard.__file__).parent


def writers(folder):
    """Every public function that writes to a path, as functions of the path alone."""
    with meshard.debug.profile() as seen:
        mnp.arange(4.0) + 1
    trace = folder / "traces" / "one.json"
    trace.parent.mkdir()
    trace.write_text(seen.to_json(), encoding="utf-8")

    def profiled(path):
        with meshard.debug.profile(path):
            mnp.arange(4.0) + 1

    return {
        "Plan.save_html": PLANS["uneven"]().save_html,
        "Explanation.to_html": meshard.explain(mnp.negative, 1.0).to_html,
        "Profile.save": seen.save,
        "profile": profiled,
        "join_profiles": lambda path: meshard.debug.join_profiles([trace], path),
    }


@contextmanager
def small_disk(limit=64):
    """No file may grow beyond a few bytes: the kernel refuses the rest."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def entries(folder):
    return sorted(p.name for p in folder.iterdir())


def test_whatever_fails_leaves_the_old_file(tmp_path, monkeypatch):
    def failing(kind):
        def fail(*_):
            raise kind

        return fail

    target = tmp_path / "out"
    for name, write in writers(tmp_path).items():
        target.write_text("old", encoding="utf-8")
        before = entries(tmp_path)
        with small_disk(), pytest.raises(OSError, match="out") as error:
            write(target)
        assert error.value.errno == errno.EFBIG, name
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for place, kind in (("fsync", full), ("fsync", KeyboardInterrupt()), ("replace", full)):
            with monkeypatch.context() as patch:
                patch.setattr(os, place, failing(kind))
                with pytest.raises(type(kind)) as error:
                    write(target)
            if isinstance(error.value, OSError):
                assert error.value.filename == str(target)
        assert target.read_text(encoding="utf-8") == "old", name
        assert entries(tmp_path) == before, name
        write(target)
        assert len(target.read_text(encoding="utf-8")) > 100, name
        assert entries(tmp_path) == before, name
        target.unlink()
        with small_disk(), pytest.raises(OSError, match="too large"):
            write(target)
        assert not target.exists()


def test_odd_paths_are_refused_before_anything_runs(tmp_path):
    for name, write in writers(tmp_path).items():
        for odd in (3, 2.5, b"x", [], {}, "a\0b", object()):
            with pytest.raises(ArgumentError, match=rf"^{name}: path must be the path of a file"):
                write(odd)
        with pytest.raises(OSError, match="nowhere"):
            write(tmp_path / "nowhere" / "out")
        with pytest.raises(IsADirectoryError):
            write(tmp_path)
    for odd in (3, None, [3]):
        with pytest.raises(ArgumentError, match=r"join_profiles: (each of )?path"):
            meshard.debug.join_profiles(odd, tmp_path / "out")


WRITES = re.compile(
    r"""(?<!formatter)\.(write_text|write_bytes|tofile|savez|savetxt)\(|open\([^()\n]*["'][rbt]*[wax+][bt+]*["']"""
)


def test_nobody_else_opens_a_file_for_writing():
    """Whoever writes to a user's path does it by `write_text`.

    Files of arrays, which are too large to be in memory, are made by `os.open` in
    weights/catalogue/raw_writer.py and weights/native/files.py, beside their places as well.
    """
    found = [
        f"{file.relative_to(SOURCE).as_posix()}: {line.strip()}"
        for file in SOURCE.rglob("*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if WRITES.search(line) and not line.lstrip().startswith((">>>", "..."))  # an example
    ]
    assert sorted(found) == [
        'plan/file/files.py: with open(file, "wb") as out:',
        # Names by which jobs find each other, in a folder of meshard's own.
        'runtime/lines/rendezvous.py: with os.fdopen(file, "w", encoding="utf-8") as written:',
    ]


def test_links_and_permissions_are_as_with_open(tmp_path):
    real, link, loose = tmp_path / "real", tmp_path / "link", tmp_path / "loose"
    real.write_text("old", encoding="utf-8")
    real.chmod(0o640)
    link.symlink_to("real")
    loose.symlink_to(tmp_path / "made")
    write_text(link, "new", "test")
    write_text(str(loose), "made", "test")
    assert link.is_symlink()
    assert loose.is_symlink()
    assert real.read_text(encoding="utf-8") == "new"
    assert (tmp_path / "made").read_text(encoding="utf-8") == "made"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "fresh", "é\udc80", "test")
        with (tmp_path / "opened").open("w", encoding="utf-8"):
            pass
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("fresh", "opened")]
    assert modes[0] == modes[1] == 0o640
    assert (tmp_path / "fresh").read_text(encoding="utf-8") == "é\\udc80"
    assert entries(tmp_path) == ["fresh", "link", "loose", "made", "opened", "real"]


def test_pipes_and_devices_are_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text(encoding="utf-8")))
    reader.start()
    write_text(pipe, "through", "test")
    reader.join(10)
    assert heard == ["through"]
    write_text("/dev/null", "gone", "test")
    if Path("/dev/full").exists():
        with pytest.raises(OSError, match="No space left"):
            write_text("/dev/full", "x" * 100, "test")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else for a while")
def test_what_may_not_be_written_is_refused_and_what_may_be_is_written():
    """Read-only files, and folders in which no file can be made, for a user without rights."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        mine, locked = folder / "mine", folder / "locked"
        for file, mode in ((mine, 0o666), (locked, 0o444)):
            file.write_text("old", encoding="utf-8")
            file.chmod(mode)
        os.seteuid(65534)
        try:
            write_text(mine, "new", "test")
            with pytest.raises(PermissionError, match="locked"):
                write_text(locked, "new", "test")
            with pytest.raises(PermissionError, match="other"):
                write_text(folder / "other", "new", "test")
        finally:
            os.seteuid(0)
        assert mine.read_text(encoding="utf-8") == "new"
        assert locked.read_text(encoding="utf-8") == "old"
        assert entries(folder) == ["locked", "mine"]
