"""The text of a program in LLVM's language: a function for each part, with its loops.

In: a schedule. Out: the text, and what the functions read from their table of addresses. Shapes and
strides are constants in it, addresses are not, so that the same text serves all blocks and
processes. Where views read elements from several places, a nest of loops is cut into boxes in each
of which every read has one origin and one stride.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from meshard.algebra.dimmap import DimMap
from meshard.interop.llvm.nodes import (
    Call,
    Fold,
    Leaf,
    Map,
    Node,
    Number,
    Place,
    Regrouped,
    Shape,
    View,
)
from meshard.interop.llvm.schedule import Nest, Part, Schedule, row_bytes, rows_of
from meshard.interop.llvm.templates import (
    constant,
    converted,
    emitted,
    memory_type,
    register_type,
)

TILE = 128 * 1024
"""Bytes of stored values that a part works on at a time: they stay in a core's own cache."""
UNROLLED = 32
"""Elements of a row whose extreme is looked for without a loop."""

Index = tuple[int, int, int]
"""A position along a dim: a loop's number, -1 for none, how often it counts, and what is added."""
Box = tuple[tuple[int, int], ...]
Slot = tuple[str, Any]
"""What an entry of the table of addresses is, and of what."""


class _Split(Exception):
    """A box must be cut: positions on both sides of a place are read in different ways."""

    def __init__(self, dim: int, at: int) -> None:
        super().__init__()
        self.dim = dim
        self.at = at


@final
@dataclass(frozen=True, slots=True)
class PartCode:
    """How a part is run.

    Attributes:
        name: its function: from the table, the first row, the last but one, and scratch memory.
        rows: the number of rows.
        tile: how many rows it works on at a time.
        divisible: whether the rows may be shared out.
        scratch: the bytes that it needs besides.
    """

    name: str
    rows: int
    tile: int
    divisible: bool
    scratch: int


@final
@dataclass(frozen=True, slots=True)
class Code:
    """A program's text.

    Attributes:
        text: the text.
        phases: parts; those of one phase may run side by side.
        slots: the entries of the table of addresses.
    """

    text: str
    phases: tuple[tuple[PartCode, ...], ...]
    slots: tuple[Slot, ...]


def code_of(schedule: Schedule) -> Code:
    """Return a program's text."""
    table = _Table(schedule)
    functions: list[str] = []
    phases = []
    for parts in schedule.phases:
        codes = []
        for part in parts:
            text, code = _Function(table, part, f"part{len(functions)}").written()
            functions.append(text)
            codes.append(code)
        phases.append(tuple(codes))
    return Code("\n".join([*functions, *_tail(functions)]), tuple(phases), tuple(table.slots))


def _tail(functions: Sequence[str]) -> list[str]:
    """Return the metadata that loops refer to: their iterations do not depend on each other."""
    loops = sum(text.count("!llvm.loop !") for text in functions)
    text = ["!0 = distinct !{}", '!1 = !{!"llvm.loop.parallel_accesses", !0}']
    return text + [f"!{k + 2} = distinct !{{!{k + 2}, !1}}" for k in range(loops)]


@final
class _Table:
    """The addresses that functions read, numbered as they are met."""

    def __init__(self, schedule: Schedule) -> None:
        self.slots: list[Slot] = []
        self.loops = 0
        self.tiled = schedule.tiled
        self._known: dict[Any, int] = {}
        self._where: dict[int, Slot] = {}
        for k, x in enumerate(schedule.outputs):
            self._where.setdefault(id(x), ("out", k))
        for k, x in enumerate(schedule.temporaries):
            self._where[id(x)] = ("temporary", k)

    def place(self, node: Node) -> Slot:
        """Return where a value is stored whole."""
        if isinstance(node, Leaf):
            return ("in", node.number)
        return self._where[id(node)]

    def holds(self, node: Node) -> bool:
        """Whether a value is stored."""
        return id(node) in self._where or id(node) in self.tiled or isinstance(node, Leaf)

    def number(self, slot: Slot, key: Any = None) -> int:
        """Return the number of an entry."""
        key = (slot[0], slot[1] if key is None else key)
        if key not in self._known:
            self._known[key] = len(self.slots)
            self.slots.append(slot)
        return self._known[key]


@final
class _Function:
    """The function of one part."""

    def __init__(self, table: _Table, part: Part, name: str) -> None:
        self._table = table
        self._part = part
        self._name = name
        self._count = 0
        self._entry: list[str] = []
        self._known: dict[Any, str] = {}
        self._lines: list[str] = []
        self._values: dict[Any, str] = {}
        self._label = "entry"
        self._group = ""
        self._box: Box = ()
        self._scratch: dict[int, int] = {}
        self._bytes = 0
        nodes = [x for s in part.steps for x in (s.nodes if isinstance(s, Nest) else [s])]
        self._tile = self._tile_of(nodes)
        for x in nodes:
            if id(x) in table.tiled:
                self._scratch[id(x)] = self._bytes
                self._bytes += -(-self._tile * row_bytes(x) // 64) * 64

    def _tile_of(self, nodes: Sequence[Node]) -> int:
        rows = self._part.rows
        if not self._part.divisible or len(self._part.steps) == 1:
            return rows
        return max(1, min(rows, TILE // sum(map(row_bytes, nodes))))

    # text

    def _new(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def _emit(self, code: str) -> str:
        name = self._new()
        self._lines.append(f"  {name} = {code}")
        return name

    def _do(self, code: str) -> None:
        self._lines.append(f"  {code}")

    def _begin(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._label = label

    def _fresh(self, name: str) -> str:
        self._count += 1
        return f"{name}{self._count}"

    def _at_entry(self, key: Any, make: Callable[[Callable[[str], str]], str]) -> str:
        """Return a register that is set once, where the function begins."""
        if key not in self._known:

            def emit(code: str) -> str:
                name = self._new()
                self._entry.append(f"  {name} = {code}")
                return name

            self._known[key] = make(emit)
        return self._known[key]

    def _address(self, slot: Slot, key: Any = None) -> str:
        number = self._table.number(slot, key)

        def make(emit: Callable[[str], str]) -> str:
            at = emit(f"getelementptr ptr, ptr %table, i64 {number}")
            return emit(f"load ptr, ptr {at}")

        return self._at_entry(("slot", number), make)

    def _room(self, kind: str, count: int) -> str:
        return self._at_entry(("room", kind), lambda emit: emit(f"alloca {kind}, i64 {count}"))

    def written(self) -> tuple[str, PartCode]:
        """Return the function's text, and how it is run."""
        part = self._part
        self._begin("tile")
        self._lines.append("  %t = phi i64 [%lo, %entry], [%u, %next]")
        ahead = self._emit(f"add nsw i64 %t, {self._tile}")
        self._lines.append(f"  %u = call i64 @llvm.smin.i64(i64 {ahead}, i64 %hi)")
        for step in part.steps:
            if isinstance(step, Nest):
                self._nest(step.nodes, step.nodes[0].shape)
            elif isinstance(step, Call):
                self._call(step)
            elif step.rows:
                self._columns(step)
            else:
                self._fold(step)
        self._do("br label %next")
        self._begin("next")
        self._do("%more = icmp slt i64 %u, %hi")
        self._do("br i1 %more, label %tile, label %end")
        head = f"define void @{self._name}(ptr %table, i64 %lo, i64 %hi, ptr %scratch) nounwind {{"
        text = [head, "entry:", *self._entry, "  br label %tile", *self._lines]
        text += ["end:", "  ret void", "}"]
        code = PartCode(self._name, part.rows, self._tile, part.divisible, self._bytes)
        return "\n".join(text), code

    # loops

    def _loop(self, first: str, stop: str, body: Callable[[str], None], inner: bool) -> None:
        """Write a loop over numbers, of which there may be none.

        Args:
            first: the first number.
            stop: the number after the last.
            body: writes the body.
            inner: whether it holds no other loop, so that its turns may run side by side.
        """
        head, after, before = self._fresh("head"), self._fresh("after"), self._label
        enter = self._emit(f"icmp slt i64 {first}, {stop}")
        self._do(f"br i1 {enter}, label %{head}, label %{after}")
        name, following = self._new(), self._new()
        tail = self._fresh("tail")
        self._begin(head)
        self._lines.append(f"  {name} = phi i64 [{first}, %{before}], [{following}, %{tail}]")
        kept = self._values
        self._values = {}
        if inner:
            self._group = ", !llvm.access.group !0"
        body(name)
        self._group = ""
        self._values = kept
        self._do(f"br label %{tail}")
        self._begin(tail)
        self._lines.append(f"  {following} = add nsw i64 {name}, 1")
        more = self._emit(f"icmp slt i64 {following}, {stop}")
        mark = ""
        if inner:
            mark = f", !llvm.loop !{self._table.loops + 2}"
            self._table.loops += 1
        self._do(f"br i1 {more}, label %{head}, label %{after}{mark}")
        self._begin(after)

    def _nest(self, nodes: Sequence[Node], shape: Shape) -> None:
        """Write the loops that compute and store some values of one shape.

        All that a turn reads is read before it stores anything: what it stores may be written over
        an input that another value of the nest reads.
        """
        index = _position(shape)

        def body(loops: Sequence[str]) -> None:
            found = [self._computed(node, index, loops) for node in nodes]
            for node, x in zip(nodes, found, strict=True):
                self._store(node, index, x, loops)

        for box in _boxes(nodes, shape, index, self._table.holds):
            self._over(box, body, not any(isinstance(x, Place) for x in nodes))

    def _over(self, box: Box, body: Callable[[Sequence[str]], None], plain: bool) -> None:
        """Write loops over a box; of its rows those of the tile."""
        loops: list[str] = []
        wide = [d for d, (a, b) in enumerate(box) if d == 0 or b - a > 1]

        def level(d: int) -> None:
            if d == len(box):
                body(loops)
                return
            a, b = box[d]
            if d and b - a == 1:
                loops.append(str(a))
                level(d + 1)
                loops.pop()
                return

            def inside(name: str) -> None:
                loops.append(name)
                level(d + 1)
                loops.pop()

            first, stop = str(a), str(b)
            if not d:
                first = self._emit(f"call i64 @llvm.smax.i64(i64 %t, i64 {a})")
                stop = self._emit(f"call i64 @llvm.smin.i64(i64 %u, i64 {b})")
            self._loop(first, stop, inside, plain and d == wide[-1])

        self._values = {}
        self._box = box
        level(0)

    # memory

    def _linear(self, terms: Sequence[tuple[str, int]], offset: int) -> str:
        """Return a register with the sum of loops' numbers, each as often as it counts."""
        key = ("linear", tuple(terms), offset)
        if key in self._values:
            return self._values[key]
        total = ""
        for name, count in terms:
            if not count:
                continue
            own = name if count == 1 else self._emit(f"mul nsw i64 {name}, {count}")
            total = own if not total else self._emit(f"add nsw i64 {total}, {own}")
        if not total:
            return str(offset)
        if offset:
            total = self._emit(f"add nsw i64 {total}, {offset}")
        self._values[key] = total
        return total

    def _pointer(
        self, node: Node, index: Sequence[Index], loops: Sequence[str], shape: Shape | None = None
    ) -> str:
        """Return the address of an element of a stored value.

        Args:
            node: the value.
            index: the element.
            loops: the loops' numbers.
            shape: the shape that the index is for, if it is another than the value's.
        """
        strides = _strides(node.shape if shape is None else shape)
        if isinstance(node, Leaf) and node.strides is not None:
            strides = node.strides
        terms, offset = [], 0
        for (loop, count, more), stride in zip(index, strides, strict=True):
            offset += more * stride
            if loop >= 0 and loops[loop].startswith("%"):
                terms.append((loops[loop], count * stride))
            elif loop >= 0:
                offset += int(loops[loop]) * count * stride
        if id(node) in self._scratch:
            if node.shape and rows_of(node) > 1:
                terms.append(("%t", -math.prod(node.shape[1:])))
            base = self._scratch_of(node)
        else:
            base = self._address(self._table.place(node))
        at = self._linear(terms, offset)
        return self._emit(f"getelementptr {memory_type(node.dtype)}, ptr {base}, i64 {at}")

    def _scratch_of(self, node: Node) -> str:
        at = self._scratch[id(node)]
        return self._at_entry(
            ("scratch", at), lambda emit: emit(f"getelementptr i8, ptr %scratch, i64 {at}")
        )

    def _load(self, node: Node, at: str) -> str:
        kind = memory_type(node.dtype)
        found = self._emit(f"load {kind}, ptr {at}{self._group}")
        return self._emit(f"icmp ne i8 {found}, 0") if node.dtype.kind == "b" else found

    def _store(self, node: Node, index: Sequence[Index], x: str, loops: Sequence[str]) -> None:
        if node.dtype.kind == "b":
            x = self._emit(f"zext i1 {x} to i8")
        at = self._pointer(node, index, loops)
        self._do(f"store {memory_type(node.dtype)} {x}, ptr {at}{self._group}")

    # values

    def _value(self, node: Node, index: tuple[Index, ...], loops: Sequence[str]) -> str:
        """Return a register with an element of a value, computed or loaded."""
        key = (id(node), index)
        if key not in self._values:
            if isinstance(node, Number):
                self._values[key] = self._number(node)
            elif self._table.holds(node):
                self._values[key] = self._load(node, self._pointer(node, index, loops))
            else:
                return self._computed(node, index, loops)
        return self._values[key]

    def _computed(self, node: Node, index: tuple[Index, ...], loops: Sequence[str]) -> str:
        key = (id(node), index)
        if key in self._values:
            return self._values[key]
        if isinstance(node, Map):
            found = self._mapped(node, index, loops)
        elif isinstance(node, View):
            part = _part_read(node, index, self._box)
            found = constant(0, node.dtype) if part is None else self._value(*part, loops)
        elif isinstance(node, Regrouped):
            found = self._load(node.arg, self._pointer(node.arg, index, loops, node.shape))
        else:
            assert isinstance(node, Place), node
            found = self._place(node, index, loops)
        self._values[key] = found
        return found

    def _mapped(self, node: Map, index: tuple[Index, ...], loops: Sequence[str]) -> str:
        args = [self._value(x, _aligned(x, index), loops) for x in node.args]
        source = node.args[-1].dtype
        if node.name == "cast":
            return converted(self._emit, source, node.dtype, args[0])
        if node.name == "where":
            kind = register_type(source)
            return self._emit(f"select i1 {args[0]}, {kind} {args[1]}, {kind} {args[2]}")
        return emitted(node.name, self._emit, source, args)

    def _number(self, node: Number) -> str:
        if node.number is None:
            return constant(node.value, node.dtype)
        at = self._address(("number", node), (node.number, node.dtype))
        kind = memory_type(node.dtype)
        found = self._at_entry(("value", at), lambda emit: emit(f"load {kind}, ptr {at}"))
        if node.dtype.kind != "b":
            return found
        return self._at_entry(("truth", at), lambda emit: emit(f"icmp ne i8 {found}, 0"))

    def _place(self, node: Place, index: tuple[Index, ...], loops: Sequence[str]) -> str:
        """Return the position of an extreme of a row: of the first, or of the first NaN."""
        dtype, length = node.arg.dtype, node.arg.shape[-1]
        kind = register_type(dtype)
        code = ("fcmp olt" if node.least else "fcmp ogt") if dtype.kind == "f" else "icmp "
        if dtype.kind != "f":
            code += ("s" if dtype.kind == "i" else "u") + ("lt" if node.least else "gt")

        def better(x: str, best: str) -> str:
            found = self._emit(f"{code} {kind} {x}, {best}")
            if dtype.kind != "f":
                return found
            missing = self._emit(f"fcmp uno {kind} {x}, {x}")
            known = self._emit(f"fcmp ord {kind} {best}, {best}")
            return self._emit(f"or i1 {found}, {self._emit(f'and i1 {missing}, {known}')}")

        best, at = self._value(node.arg, (*index, (-1, 0, 0)), loops), "0"
        if length <= UNROLLED:
            for k in range(1, length):
                x = self._value(node.arg, (*index, (-1, 0, k)), loops)
                mark = better(x, best)
                best = self._emit(f"select i1 {mark}, {kind} {x}, {kind} {best}")
                at = self._emit(f"select i1 {mark}, i64 {k}, i64 {at}")
            return at
        rooms = [self._at_entry(("best", kind), lambda emit: emit(f"alloca {kind}"))]
        rooms.append(self._at_entry(("best at",), lambda emit: emit("alloca i64")))
        self._do(f"store {kind} {best}, ptr {rooms[0]}")
        self._do(f"store i64 0, ptr {rooms[1]}")

        def body(name: str) -> None:
            x = self._value(node.arg, (*index, (len(loops), 1, 0)), [*loops, name])
            old = self._emit(f"load {kind}, ptr {rooms[0]}")
            mark = better(x, old)
            value = self._emit(f"select i1 {mark}, {kind} {x}, {kind} {old}")
            place = self._emit(f"load i64, ptr {rooms[1]}")
            place = self._emit(f"select i1 {mark}, i64 {name}, i64 {place}")
            self._do(f"store {kind} {value}, ptr {rooms[0]}")
            self._do(f"store i64 {place}, ptr {rooms[1]}")

        self._loop("1", str(length), body, False)
        return self._emit(f"load i64, ptr {rooms[1]}")

    # NumPy's loops

    def _rows_at(self, node: Node) -> str:
        """Return the address of a stored value's first row in the tile."""
        if id(node) in self._scratch:
            return self._scratch_of(node)
        base = self._address(self._table.place(node))
        if not node.shape or rows_of(node) == 1:
            return base
        at = self._emit(f"mul nsw i64 %t, {row_bytes(node)}")
        return self._emit(f"getelementptr i8, ptr {base}, i64 {at}")

    def _call_loop(
        self, node: Call | Fold, pointers: Sequence[str], count: str, strides: Sequence[int]
    ) -> None:
        """Write a call of one of NumPy's loops."""
        addresses = self._room("ptr", 8)
        for k, x in enumerate(pointers):
            at = self._emit(f"getelementptr ptr, ptr {addresses}, i64 {k}")
            self._do(f"store ptr {x}, ptr {at}")
        rooms = self._room("i64", 9)
        self._do(f"store i64 {count}, ptr {rooms}")
        steps = self._emit(f"getelementptr i64, ptr {rooms}, i64 1")
        for k, stride in enumerate(strides):
            at = self._emit(f"getelementptr i64, ptr {steps}, i64 {k}")
            self._do(f"store i64 {stride}, ptr {at}")
        function = self._address(("loop", node.loop), node.loop.name)
        data = self._address(("data", node.loop), node.loop.name)
        self._do(f"call void {function}(ptr {addresses}, ptr {rooms}, ptr {steps}, ptr {data})")

    def _call(self, node: Call) -> None:
        pointers, strides = [], []
        for x in node.args:
            if isinstance(x, Number):
                key = (x.number, x.dtype, None if x.number is not None else x.value.tobytes())
                pointers.append(self._address(("number", x), key))
                strides.append(0)
            else:
                pointers.append(self._rows_at(x))
                strides.append(x.dtype.itemsize)
        rows = self._emit("sub nsw i64 %u, %t")
        count = self._emit(f"mul nsw i64 {rows}, {math.prod(node.shape[1:])}")
        if not node.shape:
            count = "1"
        self._call_loop(
            node, [*pointers, self._rows_at(node)], count, [*strides, node.dtype.itemsize]
        )

    def _fold(self, node: Fold) -> None:
        """Write a reduction of rows: each from its first element, or from the neutral one."""
        size = node.dtype.itemsize
        length = math.prod(node.arg.shape) // max(1, math.prod(node.shape))
        kind = memory_type(node.dtype)
        source, target = self._rows_at(node.arg), self._rows_at(node)
        neutral = _neutral(node)

        def body(name: str) -> None:
            at = self._emit(f"mul nsw i64 {name}, {length}")
            row = self._emit(f"getelementptr {kind}, ptr {source}, i64 {at}")
            out = self._emit(f"getelementptr {kind}, ptr {target}, i64 {name}")
            if neutral is None:
                self._do(f"store {kind} {self._emit(f'load {kind}, ptr {row}')}, ptr {out}")
                row = self._emit(f"getelementptr {kind}, ptr {row}, i64 1")
            else:
                self._do(f"store {kind} {_in_memory(neutral)}, ptr {out}")
            count = length - (neutral is None)
            if count:
                self._call_loop(node, [out, row, out], str(count), [0, size, 0])

        count = "1"
        if node.shape:
            rows = self._emit("sub nsw i64 %u, %t")
            count = self._emit(f"mul nsw i64 {rows}, {math.prod(node.shape[1:])}")
        self._loop("0", count, body, False)

    def _columns(self, node: Fold) -> None:
        """Write a reduction of the first dim: row after row is added to the result."""
        shape = node.arg.shape
        index = _position(shape)
        neutral = _neutral(node)

        def first(loops: Sequence[str]) -> None:
            x = self._value(node.arg, index, loops)
            if neutral is not None:
                x = emitted(node.name, self._emit, node.dtype, [neutral, x])
            self._store(node, index[1:], x, loops)

        def more(loops: Sequence[str]) -> None:
            at = self._pointer(node, index[1:], loops)
            args = [self._load(node, at), self._value(node.arg, index, loops)]
            self._store(node, index[1:], emitted(node.name, self._emit, node.dtype, args), loops)

        for box in _boxes([node.arg], shape, index, self._table.holds):
            (low, high), *rest = box
            if low == 0:
                self._over(((0, 1), *rest), first, True)
            self._over(((max(low, 1), high), *rest), more, True)


def _neutral(node: Fold) -> str | None:
    """Return what NumPy begins a reduction with; None for the first element."""
    if node.name in ("maximum", "minimum"):
        return None
    if node.dtype.kind == "b":
        return "true" if node.name == "logical_and" else "false"
    if node.dtype.kind == "f":
        return constant(0.0 if node.name == "add" else 1.0, node.dtype)
    return "1" if node.name in ("multiply", "logical_and") else "0"


def _in_memory(value: str) -> str:
    """Return a constant as it is stored."""
    return {"true": "1", "false": "0"}.get(value, value)


def _strides(shape: Shape) -> Shape:
    """Return the elements between neighbours of each dim, in C order."""
    return tuple([math.prod(shape[d + 1 :]) for d in range(len(shape))])


def _position(shape: Shape) -> tuple[Index, ...]:
    """Return the element that loops over a shape are at, as operands of that shape are read."""
    return tuple([(-1, 0, 0) if n == 1 else (d, 1, 0) for d, n in enumerate(shape)])


def _aligned(x: Node, index: Sequence[Index]) -> tuple[Index, ...]:
    """Return the element of an operand that broadcasts."""
    own = index[len(index) - len(x.shape) :]
    return tuple([(-1, 0, 0) if n == 1 else i for n, i in zip(x.shape, own, strict=True)])


def _boxes(
    nodes: Sequence[Node], shape: Shape, index: tuple[Index, ...], holds: Callable[[Node], bool]
) -> list[Box]:
    """Return boxes that cover a shape, in each of which every view reads one operand."""
    waiting: list[Box] = [tuple([(0, n) for n in shape])]
    found = []
    while waiting:
        box = waiting.pop()
        try:
            seen: set[Any] = set()
            for node in nodes:
                _check(node, index, box, holds, seen, True)
        except _Split as split:
            d, at = split.dim, split.at
            low, high = box[d]
            assert low < at < high, (box, d, at)
            waiting.append((*box[:d], (at, high), *box[d + 1 :]))
            waiting.append((*box[:d], (low, at), *box[d + 1 :]))
        else:
            found.append(box)
    return found


def _check(
    node: Node,
    index: tuple[Index, ...],
    box: Box,
    holds: Callable[[Node], bool],
    seen: set[Any],
    top: bool = False,
) -> None:
    """Raise `_Split` unless each view that a value is computed from reads one operand in a box."""
    if (id(node), index) in seen or isinstance(node, Number) or (not top and holds(node)):
        return
    seen.add((id(node), index))
    if isinstance(node, Map):
        for x in node.args:
            _check(x, _aligned(x, index), box, holds, seen)
    elif isinstance(node, View):
        part = _part_read(node, index, box)
        if part is not None:
            _check(*part, box, holds, seen)


def _part_read(
    node: View, index: Sequence[Index], box: Box
) -> tuple[Node, tuple[Index, ...]] | None:
    """Return the operand that a view reads in a box, and where; None where it is zero.

    Raises:
        _Split: if it depends on the position in the box.
    """
    for x, dims in node.parts:
        found: list[Index] = []
        for d, how in dims:
            own = (
                (-1, 0, how) if d is None or isinstance(how, int) else _followed(how, index[d], box)
            )
            if own is None:
                break
            found.append(own)  # type: ignore[arg-type]
        else:
            return x, tuple(found)
    return None


def _followed(how: DimMap, index: Index, box: Box) -> Index | None:
    """Return where a map reads, given where its result is read; None where it reads nothing.

    Raises:
        _Split: if it depends on the position in the box.
    """
    loop, count, offset = index
    low, high = box[loop] if 0 <= loop < len(box) else (0, 1)
    at = count * low + offset
    inside = None
    edges = []
    for first, length, source, step in how.segments:
        if first <= at < first + length:
            inside = (first, source, step)
        edges += [first, first + length]
    if loop >= 0 and count:
        for edge in edges:
            # The first number of the loop for which the position is on the edge's other side.
            cut = -(-(edge - offset) // count) if count > 0 else (offset - edge) // -count + 1
            if low < cut < high:
                raise _Split(loop, cut)
    if inside is None:
        return None
    first, source, step = inside
    if not count * step:
        return (-1, 0, source + step * (at - first))
    return (loop, count * step, source + step * (offset - first))
