"""LLVM as the compiler of operations that jit fuses, if `jit_compiler` is ``"llvm"``.

In: operations by name, and blocks. Out: one program for all of them, run on each block in place, by
the workers, without Python's lock. Needs llvmlite.

Compiling: from a text in LLVM's language to addresses of functions, kept on disk.

In: the text of a program. Out: the addresses of its functions. Object code is kept in the user's
cache folder, by the text, the processor and the versions, so that later processes load it in less
than a millisecond. Files are written by renaming, and what cannot be read, or is not what was
written, is compiled anew.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, final

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from meshard.interop.llvm.emit import Code, PartCode, Slot, code_of
from meshard.interop.llvm.nodes import (
    Leaf,
    Map,
    Node,
    Number,
    Shape,
    Unsupported,
    checked_dtype,
    copied,
    flattened,
    in_order,
    is_all_elementwise,
    seen_through,
)
from meshard.interop.llvm.schedule import Schedule, replaceable, scheduled
from meshard.interop.llvm.works import Weak, work_of
from meshard.ops.fused.compilers import JIT_MATH, InputKind, Run, Work, cache_folder
from meshard.ops.row import Dtype, Params
from meshard.plan.file.files import write_bytes
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld

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


_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_SCRATCH = threading.local()
_SHARE = 1 << 14
"""Elements of a block that one worker takes at least."""


def _scratch(nbytes: int) -> int:
    """Return the address of a thread's own memory, which the next program may overwrite."""
    kept = getattr(_SCRATCH, "room", None)
    if kept is None or kept.nbytes < nbytes:
        kept = _SCRATCH.room = np.empty(max(nbytes, 1), np.uint8)
    address: int = kept.ctypes.data
    return address


Key = tuple[Any, ...]


def kind_of(x: Any) -> Any:
    """Return what a program depends on of an input."""
    if type(x) is np.ndarray:
        if x.ndim == 0:
            return x.dtype
        return x.shape, x.dtype, None if x.flags.c_contiguous else x.strides
    return x.dtype if isinstance(x, np.generic) else type(x)


def _input(kind: Any, number: int) -> Any:
    """Return an input as a value of the program."""
    if isinstance(kind, np.dtype):
        return Number(checked_dtype(kind), number)
    if isinstance(kind, tuple):
        shape, dtype, strides = kind
        checked_dtype(dtype)
        if strides is not None:
            if any(s % dtype.itemsize for s in strides):
                raise Unsupported("an operand is not aligned")
            strides = tuple([s // dtype.itemsize for s in strides])
        return Leaf(shape, dtype, number, strides)
    if kind in (int, float):
        return Weak(kind, number)
    raise Unsupported(f"numbers of type {kind.__name__} are computed by NumPy")


def _output(x: Any) -> Node:
    if isinstance(x, Number):
        return Map((), x.dtype, "positive", (x,))
    if isinstance(x, Leaf):
        return copied(x)
    if not isinstance(x, Node):
        raise Unsupported("a result is a number")
    return x


@final
@dataclass(frozen=True, slots=True)
class _Prepared:
    """A program's text, and what else is known of it before it is compiled; see `_Ready`."""

    code: Code
    outputs: tuple[tuple[int, Shape, Shape], ...]
    made: tuple[tuple[Shape, Dtype], ...]
    count: int
    over: tuple[tuple[int, int], ...]


def _prepared(f: Callable[..., list[Any]], key: Key) -> _Prepared:
    """Return a program for the setting `jit_math`, and inputs of some kinds.

    Raises:
        Unsupported: if it is left to NumPy.
    """
    found = [_output(x) for x in f(*[_input(kind, i) for i, kind in enumerate(key[1:])])]
    shapes = [x.shape for x in found]
    if is_all_elementwise(found):
        found = flattened(found)
    seen = [seen_through(x) for x in found]
    distinct = list({id(x): x for x, _ in seen}.values())
    if all(0 in x.shape for x in distinct):
        schedule, code = Schedule(distinct, (), frozenset(), ()), Code("", (), ())
    elif any(0 in x.shape for x in in_order(distinct)):
        raise Unsupported("a value has no elements")
    else:
        schedule = scheduled(distinct)
        code = code_of(schedule)
    shown = [(x, axes, n) for (x, axes), n in zip(seen, shapes, strict=True)]
    stored = [*distinct, *schedule.temporaries]
    places = {id(x): k for k, x in enumerate(distinct)}
    return _Prepared(
        code,
        tuple([(places[id(x)], axes, n) for x, axes, n in shown]),
        tuple([(_shape_of(x, shown), x.dtype) for x in stored]),
        len(distinct),
        tuple(replaceable(schedule)),
    )


def _shape_of(x: Node, shown: Sequence[tuple[Node, Shape, Shape]]) -> Shape:
    """Return the shape of a value's block: that of its one output, if no dims are permuted."""
    asked = {(axes, shape) for y, axes, shape in shown if y is x}
    if len(asked) == 1:
        ((axes, shape),) = asked
        if list(axes) == sorted(axes):
            return shape
    return x.shape


@final
@dataclass(frozen=True, slots=True)
class _Ready:
    """A program that can run.

    Attributes:
        what: what is known of it: its code; for each output the number of what is stored of it,
            how the dims of that are permuted, and the output's shape; the shapes and dtypes of
            what is stored for outputs, then those of temporaries; how many are for outputs; and
            which outputs may be written over which inputs.
        calls: the functions of its parts.
        table: the table of addresses; zero where they differ between cells.
        varying: for the entries that differ: their place, and what they are.
        numbers: constants that loops read, kept alive.
    """

    what: _Prepared
    calls: dict[str, Any]
    table: np.ndarray[Any, Any]
    varying: tuple[tuple[int, Slot], ...]
    numbers: tuple[Any, ...]


def _ready(prepared: _Prepared) -> _Ready:
    """Compile a program, or load it."""
    code = prepared.code
    names = [part.name for phase in code.phases for part in phase]
    found = functions(code.text, names) if names else {}
    table = np.zeros(max(1, len(code.slots)), np.uint64)
    varying, numbers = [], []
    for place, (what, of) in enumerate(code.slots):
        if what == "loop":
            table[place] = of.function
        elif what == "data":
            table[place] = of.data
        elif what == "number" and of.number is None:
            numbers.append(np.array(of.value, of.dtype))
            table[place] = numbers[-1].ctypes.data
        else:
            varying.append((place, (what, of)))
    calls = {name: _FUNCTION(address) for name, address in found.items()}
    return _Ready(prepared, calls, table, tuple(varying), tuple(numbers))


@final
class _SetUp:
    """A program and the memory that it is to run on: for each cell its blocks and addresses."""

    def __init__(
        self,
        ready: _Ready,
        world: RuntimeWorld,
        cells: Sequence[Sequence[Any]],
        free: Sequence[Collection[int]],
    ) -> None:
        self._ready, self._world = ready, world
        self._made = [_blocks(ready, world, *each) for each in zip(cells, free, strict=True)]
        self._kept: list[Any] = []
        self._tables = [
            _table(ready, *each, self._kept) for each in zip(cells, self._made, strict=True)
        ]

    def run(self) -> list[list[Block]]:
        """Run it, and return what each cell gives."""
        ready, workers = self._ready, self._world.workers
        outputs = ready.what.outputs
        for phase in ready.what.code.phases:
            tasks = [
                partial(_task, ready.calls[part.name], table.ctypes.data, first, last, part.scratch)
                for table in self._tables
                for part in phase
                for first, last in _shares(part, len(self._tables), workers.threads)
            ]
            workers.run(tasks)
        return [[_shown(blocks[k], *how) for k, *how in outputs] for blocks in self._made]


def _blocks(
    ready: _Ready, world: RuntimeWorld, inputs: Sequence[Any], free: Collection[int]
) -> list[Block]:
    """Return the blocks for what is stored of a cell: inputs' where they may be written over."""
    over = {k: inputs[r] for k, r in ready.what.over if r in free}
    allocate = world.memory.allocate
    return [
        over[k] if k in over else allocate(shape, dtype)
        for k, (shape, dtype) in enumerate(ready.what.made)
    ]


def _table(
    ready: _Ready, inputs: Sequence[Any], blocks: Sequence[Block], kept: list[Any]
) -> np.ndarray[Any, Any]:
    """Return the table of addresses of a cell; ``kept`` holds the numbers that it points to."""
    table = ready.table.copy()
    for place, (what, of) in ready.varying:
        if what == "in":
            block = inputs[of]
        elif what == "number":
            block = np.array(inputs[of.number], of.dtype)
            kept.append(block)
        else:
            block = blocks[of + ready.what.count * (what == "temporary")]
        table[place] = block.ctypes.data
    return table


def _shown(block: Block, axes: Shape, shape: Shape) -> Block:
    """Return what is stored as the output that it is for."""
    if block.shape == shape and list(axes) == sorted(axes):
        return block
    return block.transpose(axes).reshape(shape)


def _task(call: Any, table: int, first: int, last: int, scratch: int) -> None:
    call(table, first, last, _scratch(scratch))


def _shares(part: PartCode, cells: int, threads: int) -> list[tuple[int, int]]:
    """Return the rows that each task takes: a few tasks for each worker, of whole tiles."""
    rows = part.rows
    if not part.divisible:
        return [(0, rows)]
    step = part.tile if part.tile < rows else max(1, min(rows, _SHARE))
    pieces = -(-rows // step)
    count = min(pieces, max(1, -(-4 * threads // cells)))
    cuts = [*[pieces * k // count * step for k in range(count)], rows]
    return list(pairwise(cuts))


@final
class Program:
    """A function of values, compiled for each kind of inputs that it meets.

    NumPy runs it until it is compiled, on a thread of its own.
    """

    def __init__(self, f: Callable[..., list[Any]]) -> None:
        self._f = f
        self._known: dict[Key, _Ready | str] = {}

    def __call__(
        self,
        world: RuntimeWorld,
        cells: Sequence[Sequence[Any]],
        free: Sequence[Collection[int]] = (),
    ) -> list[list[Block]] | None:
        """Return what each cell gives; None if NumPy is to run it, now or always."""
        free = free or ((),) * len(cells)
        keys = [(JIT_MATH.value, *map(kind_of, inputs)) for inputs in cells]
        groups: dict[Key, list[int]] = {}
        for number, key in enumerate(keys):
            groups.setdefault(key, []).append(number)
        ready = {key: self._known.get(key) or self._begin(key) for key in groups}
        if not _may_be_silent():
            return None
        # Nothing runs before it is known that all can: what is written over is not there any more.
        set_up: list[tuple[list[int], _SetUp]] = []
        for key, numbers in groups.items():
            program = ready[key]
            if isinstance(program, str):
                return None
            try:
                own, over = [cells[n] for n in numbers], [free[n] for n in numbers]
                set_up.append((numbers, _SetUp(program, world, own, over)))
            except OverflowError:  # a number does not fit its dtype: NumPy says so
                return None
        found: list[list[Block]] = [[] for _ in cells]
        for numbers, one in set_up:
            for number, blocks in zip(numbers, one.run(), strict=True):
                found[number] = blocks
        return found

    def refusal(self, kinds: Sequence[InputKind]) -> str:
        """Return why NumPy runs it for a cell that reads these; nothing if it is compiled."""
        own = [k if isinstance(k, type) else k[1] if not k[0] else (*k, None) for k in kinds]
        key = (JIT_MATH.value, *own)
        found = self._known.get(key)
        if isinstance(found, str) and found is not _SOON:
            return found
        try:
            _prepared(self._f, key)
        except Unsupported as refused:
            return str(refused)
        return ""

    def _begin(self, key: Key) -> _Ready | str:
        """Load a program from disk, or have it compiled."""
        self._known[key] = _SOON
        try:
            prepared = _prepared(self._f, key)
            # Where bits change with who runs it, all processes must change hands in the same call.
            at_once = key[0] == "fast" or not prepared.code.phases
            if at_once or (BEHIND.idle and known(prepared.code.text)):
                self._finish(key, prepared)
            else:
                BEHIND.add(partial(self._finish, key, prepared))
        except Unsupported as refused:
            self._known[key] = str(refused)
        return self._known[key]

    def _finish(self, key: Key, prepared: _Prepared) -> None:
        try:
            self._known[key] = _ready(prepared)
        except (RuntimeError, OSError) as error:  # as LLVM tells of what it cannot do
            self._known[key] = f"LLVM: {type(error).__name__}: {error}"


_SOON = "it is being compiled"


def _may_be_silent() -> bool:
    """Whether nobody is to be told of overflow and the like: compiled programs cannot.

    Warnings of NumPy's are left out; SciPy's functions are silent unless they are asked.
    """
    if any(how in _TOLD for how in np.geterr().values()):
        return False
    special = sys.modules.get("scipy.special")
    asked = {} if special is None else special.geterr()
    return all(how == "ignore" for what, how in asked.items() if what != "memory")


_TOLD = frozenset({"raise", "call", "print", "log"})


@final
class Behind:
    """Compiles programs while NumPy runs them, on one thread that ends when nothing is left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    @property
    def idle(self) -> bool:
        """Whether nothing is being compiled: LLVM works for one thread at a time."""
        return self._thread is None

    def add(self, work: Callable[[], None]) -> None:
        """Have a program compiled."""
        if self._process != os.getpid():  # a forked child has none of its parent's threads
            self._lock, self._waiting = threading.Lock(), []
            self._thread, self._process = None, os.getpid()
        with self._lock:
            self._waiting.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="meshard-llvm", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """Wait until everything is compiled."""
        thread = self._thread
        if thread is not None and self._process == os.getpid():
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                work = self._waiting.pop(0)
            work()


BEHIND = Behind()


@final
class Llvm:
    """LLVM on the host's processor."""

    name = "LLVM"

    def work(self, name: str, params: Params, dtype: Dtype) -> Work | None:
        """Return an operation as a function of values; None if LLVM is not to run it."""
        return work_of(name, params, dtype)

    def program(self, f: Callable[..., list[Any]]) -> Run:
        """Return a function of values as one that runs cells."""
        return Program(f)


COMPILER = Llvm()
