import contextlib
import multiprocessing
import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from meshard.errors import ArgumentError, StorageError, TransportError
from meshard.runtime.lines import connecting
from meshard.runtime.lines.connecting import Listener, connect, new_token, own_addresses
from meshard.runtime.lines.line import Line, wait
from meshard.runtime.lines.rendezvous import Rendezvous, own_identity

# Where JAX has been imported, it warns of forks.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork")

PATIENCE = 20.0
OPEN: list[Line] = []


@pytest.fixture(autouse=True)
def _closed():
    yield
    while OPEN:
        OPEN.pop().close()


def called(addresses, token: bytes) -> threading.Thread:
    """Connect in a thread; the line is in OPEN afterwards."""
    caller = threading.Thread(target=lambda: OPEN.append(connect(addresses, token, PATIENCE)))
    caller.start()
    return caller


def joined(token: bytes = b"secret") -> tuple[Line, Line]:
    """Return both ends of a line."""
    with Listener(token) as listener:
        caller = called(listener.addresses, token)
        accepted = accept(listener)
        caller.join()
    return next(line for line in OPEN if line is not accepted), accepted


def accept(listener: Listener, seconds: float = PATIENCE) -> Line:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        line = listener.accept()
        if line is not None:
            OPEN.append(line)
            return line
        wait([], 0.05, listener.files)
    raise TimeoutError


def answered(listener: Listener, done: threading.Event) -> None:
    """Hear who comes, and let nobody in."""
    while not done.is_set():
        assert listener.accept() is None
        wait([], 0.02, listener.files)


def until(done, *lines: Line):
    """Return what a call gives once it is not None."""
    deadline = time.monotonic() + PATIENCE
    while (found := done()) is None:
        assert time.monotonic() < deadline
        for line in lines:
            line.push()
        wait(lines, 0.02)
    return found


def taken(line: Line, buffer, *lines: Line):
    until(lambda: line.take(buffer) or None, *lines)


class TestAddresses:
    def test_loopback_is_last_and_all_are_addresses(self):
        found = own_addresses()
        assert found[-1] == "127.0.0.1"
        assert [socket.inet_aton(a) for a in found]
        assert len(set(found)) == len(found)

    def test_an_interface_of_a_namespace_is_found_without_names(self, tmp_path: Path):
        space = f"meshard-{os.getpid()}"
        if subprocess.run(["ip", "netns", "add", space], capture_output=True).returncode:
            pytest.skip("network namespaces are not allowed here")
        inside = ["ip", "netns", "exec", space]
        try:
            for command in (
                "ip link set lo up",
                "ip link add v0 type veth peer name v1",
                "ip addr add 10.77.0.9/24 dev v0",
            ):
                if subprocess.run([*inside, *command.split()], capture_output=True).returncode:
                    pytest.skip("virtual links are not allowed here")
            say = "from meshard.runtime.lines.connecting import own_addresses as a; print(a())"
            command = [*inside, sys.executable, "-c", say]
            assert "10.77.0.9" not in subprocess.check_output(command, text=True)  # it is down
            subprocess.run([*inside, "ip", "link", "set", "v0", "up"], check=True)
            told = subprocess.check_output(command, text=True)
            assert told.strip() == "('10.77.0.9', '127.0.0.1')"
        finally:
            subprocess.run(["ip", "netns", "del", space], check=True)


class TestLine:
    def test_messages_arrive_whole_and_in_order(self):
        here, there = joined()
        random = np.random.default_rng(3)
        sizes = [0, 1, 7, 100_000, 3_000_001]
        blocks = [random.integers(0, 256, n, np.uint8) for n in sizes]
        for number, block in enumerate(blocks):
            here.send(bytes([number]) * number, [block, block[: len(block) // 2]])
        for number, block in enumerate(blocks):
            header = until(there.poll, here, there)
            assert header == bytes([number]) * number
            assert there.payload == len(block) + len(block) // 2
            arrived, half = np.empty_like(block), np.empty(len(block) // 2, np.uint8)
            taken(there, arrived, here, there)
            taken(there, half, here, there)
            np.testing.assert_array_equal(arrived, block)
            np.testing.assert_array_equal(half, block[: len(half)])
        assert there.poll() is None
        assert here.sent == there.received
        assert not here.is_sending
        assert here.unsent == 0

    def test_both_ends_may_send_more_than_the_kernel_keeps(self):
        here, there = joined()
        block = np.arange(1 << 23, dtype=np.uint8)
        for line in (here, there):
            line.send(b"", [block])
        for line in (here, there):
            until(line.poll, here, there)
        arrived = [np.empty_like(block) for _ in range(2)]
        full = [False, False]
        deadline = time.monotonic() + PATIENCE
        while not all(full):
            assert time.monotonic() < deadline
            for k, line in enumerate((here, there)):
                line.push()
                full[k] = full[k] or line.take(arrived[k])
        np.testing.assert_array_equal(arrived[0], block)
        np.testing.assert_array_equal(arrived[1], block)

    def test_an_end_that_closes_is_seen_and_what_had_arrived_is_read(self):
        here, there = joined()
        here.send(b"last")
        here.close()
        assert until(there.poll, there) == b"last"
        until(lambda: there.poll() or there.closed or None, there)
        assert "other end has closed" in there.reason
        with pytest.raises(TransportError, match="The connection is closed: the other end"):
            there.send(b"x")
        with pytest.raises(TransportError, match="closed here"):
            here.send(b"x")

    def test_a_process_that_is_killed_is_seen(self):
        with Listener(b"secret") as listener:
            child = multiprocessing.get_context("fork").Process(
                target=_call_and_sleep, args=(listener.addresses,)
            )
            child.start()
            line = accept(listener)
            assert line.look()
            child.kill()
            until(lambda: None if line.look() else True)
            assert line.closed
            child.join()

    def test_the_kernel_probes_the_other_end(self):
        here, there = joined()
        probed = socket.socket(fileno=os.dup(here.fileno()))
        with probed:
            assert probed.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert probed.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1
            assert probed.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
            assert probed.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        there.close()

    def test_what_is_not_a_message_closes_the_line(self):
        near, far = socket.socketpair()
        line = Line(near)
        OPEN.append(line)
        far.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert line.poll() is None
        assert line.reason == "what arrived is not a message"
        far.close()


class TestConnecting:
    def test_another_token_is_turned_away(self):
        with Listener(b"right") as listener:
            serving = threading.Event()
            server = threading.Thread(target=answered, args=(listener, serving))
            server.start()
            with pytest.raises(TransportError, match="another token"):
                connect(listener.addresses[-1:], b"wrong", PATIENCE)
            serving.set()
            server.join()

    def test_a_silent_visitor_keeps_nobody_out(self):
        token = new_token()
        with Listener(token) as listener:
            silent = [socket.create_connection(listener.addresses[-1]) for _ in range(5)]
            silent[0].sendall(b"x" * 1000)
            caller = called(listener.addresses, token)
            line = accept(listener)
            caller.join()
            line.send(b"welcome")
            assert until(next(other for other in OPEN if other is not line).poll) == b"welcome"
            for visitor in silent:
                visitor.close()

    def test_strangers_without_number_keep_nobody_out(self):
        token, words = (
            new_token(),
            [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", b"meshard2" * 4, b"x" * 999],
        )
        with Listener(token, host="127.0.0.1") as listener, contextlib.ExitStack() as strangers:
            for number in range(300):
                visitor = strangers.enter_context(socket.socket())
                visitor.setblocking(False)
                visitor.connect_ex(listener.addresses[0])
                with contextlib.suppress(OSError):
                    visitor.send(words[number % len(words)])
            caller = called(listener.addresses, token)
            assert not accept(listener).closed
            caller.join()
            assert len(listener.files) < 200
            # Once all have been seen, the port is not ready any more: whoever waits for it sleeps.
            while select.select([listener], [], [], 0)[0]:
                assert listener.accept() is None

    def test_whoever_sends_a_byte_now_and_then_is_turned_away(self, monkeypatch):
        monkeypatch.setattr(connecting, "_PATIENCE", 0.2)
        with Listener(b"secret") as listener, socket.socket() as slow:
            slow.connect(listener.addresses[-1])
            slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            deadline = time.monotonic() + PATIENCE
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                while time.monotonic() < deadline:
                    slow.send(b"x")
                    assert listener.accept() is None
                    time.sleep(0.02)
            assert time.monotonic() < deadline

    def test_a_process_that_can_open_no_more_files_waits(self, monkeypatch):
        with Listener(b"secret") as listener, socket.socket() as caller:
            caller.connect(listener.addresses[-1])
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            lowest = os.open("/dev/null", os.O_RDONLY)
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
            asleep = []
            monkeypatch.setattr(connecting.time, "sleep", asleep.append)
            try:
                assert listener.accept() is None
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert asleep

    def test_proofs_cannot_be_passed_on(self):
        """A relay between the two passes on every byte, and gets nowhere."""
        token = new_token()
        with Listener(token) as listener, socket.create_server(("127.0.0.1", 0)) as relay:

            def passed() -> None:
                caller, _ = relay.accept()
                with caller, socket.create_connection(listener.addresses[-1]) as far:
                    caller.sendall(far.recv(1 << 10))
                    far.sendall(caller.recv(1 << 10))
                    caller.sendall(far.recv(1 << 10))
                done.set()

            done = threading.Event()
            threads = [threading.Thread(target=passed)]
            threads.append(threading.Thread(target=answered, args=(listener, done)))
            for thread in threads:
                thread.start()
            with pytest.raises(TransportError, match="another token"):
                connect([relay.getsockname()], token, PATIENCE)
            for thread in threads:
                thread.join()
            assert listener.turned_away == 1

    def test_proofs_serve_once(self):
        token = new_token()
        with Listener(token) as listener:
            told: list[bytes] = []
            real = socket.socket.sendall
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(socket.socket, "sendall", lambda s, x: told.append(x) or real(s, x))
                caller = called(listener.addresses[-1:], token)
                accept(listener)
                caller.join()
            with socket.create_connection(listener.addresses[-1]) as again:
                again.sendall(told[0])
                deadline = time.monotonic() + PATIENCE
                while not listener.turned_away and time.monotonic() < deadline:
                    assert listener.accept() is None
            assert token not in b"".join(told)

    def test_addresses_that_do_not_answer_do_no_harm(self):
        token = new_token()
        with Listener(token) as listener, socket.socket() as mute:
            mute.bind(("127.0.0.1", 0))
            mute.listen(1)
            caller = called([("127.0.0.1", 1), mute.getsockname(), *listener.addresses], token)
            assert not accept(listener).closed
            caller.join()
            assert len(OPEN) == 2

    def test_nobody_listens(self):
        with pytest.raises(TransportError, match=r"127.0.0.1:1: Connection refused"):
            connect([("127.0.0.1", 1)], b"", 1.0)
        with pytest.raises(TransportError, match="There are no addresses"):
            connect([], b"", 1.0)


class TestRendezvous:
    def test_a_name_is_found_until_it_is_withdrawn(self, tmp_path: Path):
        folder = Rendezvous(tmp_path / "r")
        assert folder.find("policy/α") is None
        token = new_token()
        made = folder.announce("policy/α", (("10.0.0.1", 7),), token, {"version": 3})
        found = Rendezvous(tmp_path / "r").find("policy/α")
        assert found == made.entry
        assert found.token == token
        assert found.process == own_identity()
        assert folder.names() == ["policy/α"]
        assert token.hex() not in repr(found)
        made.withdraw()
        assert folder.find("policy/α") is None

    def test_a_name_of_a_living_process_is_taken(self, tmp_path: Path):
        folder = Rendezvous(tmp_path / "r")
        folder.announce("a", (), b"x")
        with pytest.raises(ArgumentError, match=rf"The name 'a' is taken: process {os.getpid()} "):
            folder.announce("a", (), b"y")
        handed_on = folder.announce("a", (("10.0.0.1", 7),), b"x")
        assert folder.find("a") == handed_on.entry

    def test_a_name_of_a_process_that_has_ended_is_free(self, tmp_path: Path):
        folder = Rendezvous(tmp_path / "r")
        child = multiprocessing.get_context("fork").Process(
            target=folder.announce, args=("a", (), b"")
        )
        child.start()
        child.join()
        assert folder.last("a").process.pid == child.pid
        assert folder.find("a") is None
        assert folder.names() == []
        made = folder.announce("a", (), b"")
        assert folder.find("a") == made.entry

    def test_a_withdrawal_leaves_a_successor_alone(self, tmp_path: Path):
        folder = Rendezvous(tmp_path / "r")
        first = folder.announce("a", (), b"1")
        first.withdraw()
        second = folder.announce("a", (), b"2")
        first.withdraw()
        assert folder.find("a") == second.entry

    def test_the_folder_and_its_files_are_the_users_own(self, tmp_path: Path):
        folder = Rendezvous(tmp_path / "r")
        folder.announce("a", (), b"")
        assert (tmp_path / "r").stat().st_mode & 0o777 == 0o700
        for path in (tmp_path / "r").iterdir():
            assert path.stat().st_mode & 0o777 == 0o600
        (tmp_path / "open").mkdir(mode=0o755)
        with pytest.raises(StorageError, match="can be entered by other users"):
            Rendezvous(tmp_path / "open")
        (tmp_path / "file").write_text("")
        with pytest.raises(StorageError, match="cannot be made"):
            Rendezvous(tmp_path / "file")

    @pytest.mark.parametrize("name", ["", "x" * 300, 3])
    def test_names_that_cannot_be_files(self, tmp_path: Path, name):
        with pytest.raises(ArgumentError, match="must be a string of 1 to 200 characters"):
            Rendezvous(tmp_path / "r").announce(name, (), b"")

    def test_one_of_many_gets_the_name(self, tmp_path: Path):
        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        children = [
            context.Process(target=_announce, args=(tmp_path / "r", results)) for _ in range(8)
        ]
        for child in children:
            child.start()
        got = [results.get() for _ in children]
        for child in children:
            child.kill()
            child.join()
        assert sum(got) == 1


def _call_and_sleep(addresses) -> None:
    line = connect(addresses, b"secret", PATIENCE)
    time.sleep(60)
    line.close()


def _announce(path: Path, results) -> None:
    try:
        Rendezvous(path).announce("a", (), os.urandom(8))
    except ArgumentError:
        results.put(0)
    else:
        results.put(1)
    time.sleep(60)
