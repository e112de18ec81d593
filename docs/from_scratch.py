# # Sharded arrays, from scratch
#
# This is a text that runs. It builds a small library in which one array is in pieces on many
# devices, and you compute with it as if it were whole. Each part is some prose, some code, and a
# few `assert`s. At the end there is a miniature of meshard: its names and its ideas, and nothing
# else. Run it: `python docs/from_scratch.py`. It needs only NumPy.
#
# One thought is behind all of it:
#
# > To know how an array is cut, and which device holds which piece, is to know everything.
# > Overlaps, messages, bytes, lower bounds, even which operation runs where are arithmetic on that.
# > So plan first, with no data at hand; run afterwards.
from bisect import bisect_right
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, lru_cache
from importlib.util import find_spec
from itertools import count, pairwise, product
from math import prod
from queue import Queue
from typing import NamedTuple

import numpy as np


# ## 1. A mesh: devices in a grid with named axes
#
# A device is a place that holds data and computes. Here it is a number. People do not want to talk
# to eight devices by number; they want to say "rows in one direction, columns in the other". So we
# arrange the devices in a grid and give its directions names. These are *axes*. (The directions of
# an array we call *dims*, so that the two are never confused.)
#
# Often one counts along several axes at once: the position along `("x", "y")` runs through all of
# `y` for the first `x`, then for the second, and so on, like the digits of a number.
class Mesh:
    """An N-d grid of devices whose directions, the axes, have names."""

    def __init__(self, devices, axes):
        self.devices, self.axes = np.asarray(devices), tuple(axes)
        self.size = dict(zip(self.axes, self.devices.shape, strict=True))

    @cached_property
    def coordinates(self):
        """For each device its position along every axis."""
        grid = np.ndenumerate(self.devices)
        return {int(device): dict(zip(self.axes, at, strict=True)) for at, device in grid}

    def parts(self, axes):
        """Return into how many parts these axes cut together."""
        return prod(self.size[a] for a in axes)

    def position(self, at, axes):
        """Return where the coordinates `at` stand along several axes, the first the slowest."""
        where = 0
        for a in axes:
            where = where * self.size[a] + at[a]
        return where


mesh = Mesh(np.arange(8).reshape(4, 2), ("x", "y"))
assert mesh.coordinates[5] == {"x": 2, "y": 1}
assert mesh.position(mesh.coordinates[5], ("x", "y")) == 5


# ## 2. A spec: for each dim, the axes that cut it
#
# A *spec* is all that a user has to write. `P("x", None)` says: dim 0 is cut over the axis `x`, dim
# 1 is not cut. `P(("x", "y"))` cuts dim 0 over both axes. An axis that no dim mentions cuts
# nothing: along it the devices hold the same, they are *replicas*.
def P(*entries):
    """Return a spec: a tuple of axes for each dim."""
    return tuple([() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries])


assert P("x", None, ("x", "y")) == (("x",), (), ("x", "y"))


# ## 3. A layout: cut points, and a tensor of devices
#
# A shape, a mesh and a spec are all that is known of an array without its data: its *kind*. They
# say where everything is. A spec may be shorter than the shape; dims that it leaves out are
# whole. What makes no sense is refused here, once, so that the code below need not think of it.
class Kind(NamedTuple):
    shape: tuple
    mesh: Mesh
    spec: tuple

    @classmethod
    def of(cls, shape, mesh, spec):
        used = [a for axes in spec for a in axes]
        if len(spec) > len(shape):
            raise ValueError(f"The spec {spec} has more entries than the shape {shape} has dims.")
        for a in used:
            if a not in mesh.axes:
                raise ValueError(f"The spec {spec} names {a!r}; the mesh has {mesh.axes}.")
            if used.count(a) > 1:
                raise ValueError(f"The spec {spec} uses {a!r} twice: it can cut one dim only.")
        return cls(tuple(shape), mesh, tuple(spec) + ((),) * (len(shape) - len(spec)))

    @property
    def layout(self):
        return layout_of(self)


# The *layout* is the heart, and it is small. Per dim there is a list of *cut points*. And there is
# one tensor of devices: its first dims count the pieces along each dim of the array, its last dim
# counts the replicas of a piece. How to get that tensor? Order the mesh's axes as the spec does:
# first those of dim 0, then those of dim 1, and so on, and the unused ones last. Transpose the grid
# of devices so; reshape. Done.
class Layout:
    """Where the pieces of an array lie: cut points per dim, and the devices of each piece."""

    def __init__(self, cuts, devices):
        self.cuts = cuts  # per dim 0, ..., size
        self.devices = devices  # [piece along dim 0, ..., piece along the last dim, replica]

    def box(self, piece):
        """Return the region of the array that a piece is, as slices."""
        return tuple([slice(c[i], c[i + 1]) for c, i in zip(self.cuts, piece, strict=True)])

    @cached_property
    def places(self):
        """For each device the piece that it holds, and which replica of it."""
        return {int(d): (tuple(piece), r) for (*piece, r), d in np.ndenumerate(self.devices)}

    def within(self, box, piece):
        """Return a box as slices of the block of a piece."""
        home = zip(box, self.box(piece), strict=True)
        return tuple([slice(b.start - h.start, b.stop - h.start) for b, h in home])

    def pieces_of(self, devices):
        """Return the pieces that any of these devices holds, each once."""
        return list(dict.fromkeys([self.places[d][0] for d in devices if d in self.places]))


@lru_cache
def layout_of(kind):
    shape, mesh, spec = kind
    used = [a for axes in spec for a in axes]
    order = used + [a for a in mesh.axes if a not in used]
    parts = [mesh.parts(axes) for axes in spec]
    devices = mesh.devices.transpose([mesh.axes.index(a) for a in order]).reshape(*parts, -1)
    cuts = [[size * i // n for i in range(n + 1)] for size, n in zip(shape, parts, strict=True)]
    return Layout(cuts, devices)


# A matrix whose rows are cut over `x` and whose columns are cut over `y` has the shape of the mesh:
# one piece for each device. Cut only the columns, and there are two pieces with four replicas each.
tiles = Kind.of((8, 6), mesh, P("x", "y")).layout
assert tiles.cuts == [[0, 2, 4, 6, 8], [0, 3, 6]]
assert np.array_equal(tiles.devices[..., 0], [[0, 1], [2, 3], [4, 5], [6, 7]])
assert tiles.box((1, 0)) == (slice(2, 4), slice(0, 3))
columns = Kind.of((8, 6), mesh, P(None, "y")).layout
assert np.array_equal(columns.devices, [[[0, 2, 4, 6], [1, 3, 5, 7]]])
assert columns.places[5] == ((0, 1), 2)  # device 5 holds the right half; it is replica number 2

# Nothing asks for equal parts. Seven rows over `x` are cut into 1, 2, 2 and 2: the unevenness is in
# the cut points and nowhere else.
assert Kind.of((7,), mesh, P("x")).layout.cuts == [[0, 1, 3, 5, 7]]

# ## 4. An array: one block for each piece
#
# Who computes? A *world*: all that one process knows. For now there is one process, and it has all
# eight devices. Part 9 makes it four without changing a line in between, because from here on the
# code asks the world which devices are its own.
world = ContextVar("world")


class World:
    """One process: its number, its devices, its mail, and who interprets its operations."""

    def __init__(self, index=0, devices_each=8, mail=None):
        self.index, self.devices_each, self.mail = index, devices_each, mail
        self.devices = range(index * devices_each, (index + 1) * devices_each)
        self.interpreters = [eager]
        self.received = 0  # bytes that went from device to device so far
        self.calls = 0  # kernels that ran so far

    def process_of(self, device):
        return int(device) // self.devices_each


# Arrays never change once they are made. That one decision pays for much: two devices of a process
# that hold the same piece can hold the very same buffer. So an array has a block for each *piece*
# that its process needs, not for each device. (Our numbers are all float64, eight bytes each. That
# `a + b` is an operation of ours is said apart: part 7 has another kind of value, part 8 a third.)
class Operators:
    def __add__(self, other):
        return bind("add", self, other)

    def __matmul__(self, other):
        return bind("matmul", self, other)


class Array(Operators):
    def __init__(self, kind, blocks):
        self.kind = kind
        self.blocks = {piece: np.asarray(block) for piece, block in blocks.items()}
        for block in self.blocks.values():
            block.flags.writeable = False


def put(value, mesh, spec=()):
    """Lay a NumPy array out; each process takes the pieces of its own devices."""
    value = np.asarray(value, float)
    kind = Kind.of(value.shape, mesh, spec)
    pieces = kind.layout.pieces_of(world.get().devices)
    return Array(kind, {piece: value[kind.layout.box(piece)].copy() for piece in pieces})


def get(array):
    """Return the whole array: bring it to a layout of one piece, and take that piece."""
    (block,) = reshard(array, ()).blocks.values()
    return block


# `get` is honest work: it moves an array from whatever layout it has to one that is not cut at all.
# So the next question is how to move an array from any layout to any other.
#
# ## 5. Resharding: a plan, then the run
#
# Along one dim both layouts have cut points. Merge the two lists: between two neighbours of the
# merged list there is a run that belongs to one piece of each. That is all the geometry there is.
# In more dims it is the product of what happens in each. Nobody ever compares all pieces with all
# pieces, let alone all devices with all devices, and that is why it is quick for large meshes.
def runs(a, b):
    """Yield, along one dim, (slice, piece of a, piece of b)."""
    for start, stop in pairwise(sorted({*a, *b})):
        yield slice(start, stop), bisect_right(a, start) - 1, bisect_right(b, start) - 1


def overlaps(source, target):
    """Yield each box on which the two layouts agree, with its piece in both."""
    for dims in product(*map(runs, source.cuts, target.cuts)):
        yield tuple(zip(*dims, strict=True)) or ((), (), ())


merged = [(run.start, run.stop, i, j) for run, i, j in runs((0, 4, 8), (0, 3, 8))]
assert merged == [(0, 3, 0, 0), (3, 4, 0, 1), (4, 8, 1, 1)]


# ### Who sends what to whom
#
# For each overlap we know who has it (the devices of the source's piece) and who wants it (those of
# the target's piece). Whoever wants it and has it needs no message. Each of the others gets it from
# one of the holders, and the holders take turns, so that no device has to send it all.
#
# The function is told what counts as one place. With devices as places it says what the model
# costs. With processes as places it says which messages to send, for the devices of one process
# share its memory.
def messages(source, target, place=int):
    """Yield (box, source's piece, target's piece, sender, receiver), in an order all agree on."""
    turn = count()
    for box, mine, yours in overlaps(source, target):
        holders = list(dict.fromkeys([place(device) for device in source.devices[mine]]))
        for receiver in dict.fromkeys([place(device) for device in target.devices[yours]]):
            if receiver not in holders:
                yield box, mine, yours, holders[next(turn) % len(holders)], receiver


# ### The plan is a value
#
# No data so far, only layouts. So we can say what a move will cost before we pay, and compare it
# with what *any* move must cost: each device must receive what its new piece has and its old one
# has not. Our plan sends exactly that, so in bytes it cannot be beaten. And being a value it can be
# kept: the same plan is made only once.
@lru_cache
class Plan:
    """What moving an array from one layout to another will send, in bytes."""

    def __init__(self, source, target):
        self.source, self.target, self.sent = source, target, Counter()
        for box, _, _, sender, _ in messages(source, target):
            self.sent[sender] += 8 * elements(box)
        self.bytes = sum(self.sent.values())

    @property
    def lower_bound(self):
        """The bytes that devices must receive, whoever plans."""
        total = 0
        for device, (piece, _) in self.target.places.items():
            new = self.target.box(piece)
            total += 8 * elements(new)
            if device in self.source.places:
                old = self.source.box(self.source.places[device][0])
                total -= 8 * elements(
                    slice(max(a.start, b.start), min(a.stop, b.stop))
                    for a, b in zip(old, new, strict=True)
                )
        return total


def elements(box):
    return prod(max(0, s.stop - s.start) for s in box)


rows = Kind.of((8, 6), mesh, P("x")).layout
plan = Plan(tiles, rows)  # the two tiles of a row come together on both of its devices
assert plan.bytes == plan.lower_bound == 8 * (8 * 6)
assert set(plan.sent.values()) == {8 * (2 * 3)}  # each device sends one tile

# The plan does not care whether the cuts fit, or whether the two layouts share devices. Here one
# goes from eight devices to three others; and weights that eight devices train go to the same eight
# as two copies for serving, each cut by columns.
away = Kind.of((8, 6), Mesh([20, 30, 40], "z"), P("z")).layout
assert Plan(tiles, away).bytes == Plan(tiles, away).lower_bound == 8 * (8 * 6)
assert len(Plan(columns, away).sent) == 4  # replicas take turns
training = Kind.of((64, 64), Mesh(np.arange(8), "d"), P("d")).layout
copies = Mesh(np.arange(8).reshape(2, 4), ("copy", "model"))
plan = Plan(training, Kind.of((64, 64), copies, P(None, "model")).layout)
assert plan.bytes == plan.lower_bound
assert len(set(plan.sent.values())) == 1  # balanced: nobody waits for one busy sender


# ### Running it
#
# The run does what the plan says and decides nothing. Each overlap is a part of one source block,
# here or in another process; in that case it comes by mail. A target piece that is a part of one
# block is not even copied: it becomes a *view*.
def run(plan, blocks):
    """Return the blocks of the target that this process needs, given those of the source."""
    me, source, target, expected = world.get(), plan.source, plan.target, {}
    for box, mine, yours, sender, receiver in messages(source, target, me.process_of):
        if sender == me.index:
            part = blocks[mine][source.within(box, mine)]
            me.mail[sender, receiver].put(part.copy())  # processes share no memory
        if receiver == me.index:
            expected[mine, yours] = me.mail[sender, receiver]
    found = {piece: [] for piece in target.pieces_of(me.devices)}
    for box, mine, yours in overlaps(source, target):
        if (mine, yours) in expected:
            found[yours].append((box, expected[mine, yours].get(timeout=10)))
        elif yours in found:
            found[yours].append((box, blocks[mine][source.within(box, mine)]))
    return {piece: joined(target, piece, parts) for piece, parts in found.items()}


def joined(layout, piece, parts):
    """Return the block of a piece, given its parts."""
    if len(parts) == 1:
        return parts[0][1]
    block = np.empty([s.stop - s.start for s in layout.box(piece)])
    for box, part in parts:
        block[layout.within(box, piece)] = part
    return block


def reshard(array, spec, mesh=None):
    """Return the same array, laid out otherwise."""
    target = Kind.of(array.kind.shape, mesh or array.kind.mesh, spec)
    if target == array.kind:
        return array
    plan = Plan(array.kind.layout, target.layout)
    world.get().received += plan.bytes
    return Array(target, run(plan, array.blocks))


# ## 6. Operations are rows of a table
#
# Now we compute. An operation needs a *kernel*, which works on blocks (NumPy has hundreds), and a
# *rule*, which says how the dims of the operands and of the result belong together. Letters do
# that: in `"i k, k j -> i j"` a matrix product's `k` is in both operands and not in the result, so
# it is summed over. We call the letters *factors*. The fourth entry says how partial results over
# such a factor are folded: a sum of sums, a maximum of maxima.
class Op(NamedTuple):
    name: str
    rule: str
    kernel: object
    fold: object = np.add


TABLE = [
    Op("add", "elementwise", np.add),
    Op("tanh", "elementwise", np.tanh),
    Op("matmul", "i k, k j -> i j", np.matmul),
    Op("sum", "i j -> ", np.sum),
    Op("row_max", "i j -> i", lambda block: block.max(1, initial=-np.inf), np.maximum),
]


def factors_of(op, kinds):
    """Return the factors of each operand's dims, and those of the result's."""
    rule = op.rule
    if rule == "elementwise":  # as NumPy broadcasts: the last dims belong together
        letters = "abcdefgh"[: max(len(k.shape) for k in kinds)]
        terms = [" ".join(letters[len(letters) - len(k.shape) :]) for k in kinds]
        rule = ", ".join(terms) + " -> " + " ".join(letters)
    inputs, output = rule.split("->")
    return [term.split() for term in inputs.split(",")], output.split()


# ### One engine for all of them
#
# From the rule and the operands' layouts everything follows:
#
# - Each factor takes the axes of the first operand that brings some, the largest operand first. An
#   axis can serve one factor only.
# - Each operand is resharded to what its factors say. Usually it is laid out that way already.
# - A *cell* is a choice of one piece per factor. Each device has a cell, and the kernel runs once
#   for each *distinct* one. So replicas cost nothing.
# - If a factor that is summed over is cut, each cell along it has only a part of the result.
#
# That again is a decision made from kinds alone; it is made once and remembered.
class Decision(NamedTuple):
    operands: tuple  # how the kernel needs the operands to lie
    result: Kind
    folded: tuple  # the axes over which partial results are spread
    cells: dict  # for each device: the pieces given to its kernel, the piece that it makes


@lru_cache
def decide(op, *kinds):
    inputs, output = factors_of(op, kinds)
    mesh, sizes, axes = kinds[0].mesh, {}, {}
    for kind, factors in sorted(zip(kinds, inputs, strict=True), key=lambda k: -prod(k[0].shape)):
        for size, wish, f in zip(kind.shape, kind.spec, factors, strict=True):
            if sizes.setdefault(f, size) != size:
                raise ValueError(f"{op.name}: {f!r} is {sizes[f]} here and {size} there.")
            taken = {a for others in axes.values() for a in others}
            axes[f] = axes.get(f) or (() if taken & set(wish) else wish)
    folded = tuple([a for f in axes if f not in output for a in axes[f]])
    cells = {}
    for device, at in mesh.coordinates.items():
        piece = {f: mesh.position(at, axes[f]) for f in axes}
        part = [mesh.position(at, folded)] if folded else []
        given = tuple([tuple([piece[f] for f in factors]) for factors in inputs])
        cells[device] = given, (*part, *[piece[f] for f in output])
    needed = zip([k.shape for k in kinds], inputs, strict=True)
    operands = tuple([Kind.of(shape, mesh, [axes[f] for f in fs]) for shape, fs in needed])
    result = Kind.of([sizes[f] for f in output], mesh, [axes[f] for f in output])
    return Decision(operands, result, folded, cells)


# Running a decision is short. If a sum is cut, the partial results are put side by side under one
# new dim, which the axes of the sum cut. That is an array like any other! To fold it, let those
# axes cut the result's first dim instead: each device then has *all* parts of *its share* (people
# call this a reduce-scatter). It adds them up in the order of the mesh, and the shares go where the
# result belongs (an all-gather). So collectives are reshards. And since each share is added up in
# one place and in one order, all devices get the same bits, however many processes there are.
def execute(op, decision, arrays):
    """Return an operation's result; whatever moves, moves by `reshard`."""
    me, blocks = world.get(), {}
    operands = [reshard(x, k.spec, k.mesh) for x, k in zip(arrays, decision.operands, strict=True)]
    mine = [decision.cells[device] for device in me.devices if device in decision.cells]
    for pieces, made in dict.fromkeys(mine):
        # Contiguous, since bits must not depend on which blocks happen to be views.
        given = [np.asarray(x.blocks[p], order="C") for x, p in zip(operands, pieces, strict=True)]
        block = np.asarray(op.kernel(*given))
        blocks[made] = block[None] if decision.folded else block
        me.calls += 1
    if not decision.folded:
        return Array(decision.result, blocks)
    (shape, mesh, spec), axes = decision.result, decision.folded
    parts = Array(Kind.of((mesh.parts(axes), *shape), mesh, (axes, *spec)), blocks)
    share = (spec[0] + axes, *spec[1:]) if shape else ()
    shares = reshard(parts, ((), *share)).blocks
    added = {piece[1:]: op.fold.reduce(block, axis=0) for piece, block in shares.items()}
    return reshard(Array(Kind.of(shape, mesh, share), added), spec)


# ### One door
#
# Every operation on every kind of value goes through one function, `bind`. It asks the innermost
# *interpreter* what to do. The usual one is eager: decide, execute. Parts 7 and 8 add two more, and
# nothing that was written so far has to know about them.
def bind(name, *values):
    (op,) = [row for row in TABLE if row.name == name]
    return world.get().interpreters[-1](op, *values)


@contextmanager
def interpreting(interpreter):
    world.get().interpreters.append(interpreter)
    try:
        yield
    finally:
        world.get().interpreters.pop()


def eager(op, *values):
    mesh = next(v.kind.mesh for v in values if isinstance(v, Array))
    arrays = [v if isinstance(v, Array) else put(v, mesh) for v in values]
    return execute(op, decide(op, *[a.kind for a in arrays]), arrays)


# ### Computation follows sharding
#
# Let us use it. Rows of the data over `x`, columns of the weights over `y`: each device has just
# what its tile of the product needs, and nothing moves.
world.set(World())
random = np.random.default_rng(0)
X, W = random.normal(size=(8, 6)), random.normal(size=(6, 4))
x, w = put(X, mesh, P("x")), put(W, mesh, P(None, "y"))
out = bind("tanh", x @ w + 1.0)
assert (out.kind.spec, world.get().received) == (P("x", "y"), 0)
assert np.allclose(get(out), np.tanh(X @ W + 1.0))

# `get` brought the tiles together on all eight devices: in the model each received 7/8 of the
# array. In memory it is one buffer that eight devices see. Likewise four pieces on eight devices
# are four blocks, what is the same everywhere is computed once, and finer pieces are views.
assert world.get().received == 8 * (8 * out.kind.shape[0] * out.kind.shape[1]) * 7 // 8
assert len(x.blocks) == 4
before, _ = world.get().calls, put(X, mesh) + put(X, mesh)
assert world.get().calls == before + 1
assert np.shares_memory(reshard(x, P(("x", "y"))).blocks[1, 0], x.blocks[0, 0])

# A product whose inner dim is cut is a sum of parts, and is folded. Other folds, uneven pieces and
# scalars are the same code.
product_of_parts = put(X, mesh, P(None, "x")) @ put(W, mesh, P("x"))
assert product_of_parts.kind.spec == P(None, None)
assert np.allclose(get(product_of_parts), X @ W)
assert np.array_equal(get(bind("row_max", put(X, mesh, P("y", "x")))), X.max(1))
assert np.allclose(get(bind("sum", put(X[:7, :5], mesh, P("y", "x"))) + 1.0), X[:7, :5].sum() + 1)


# ## 7. A program for each device, run once
#
# Sometimes you want to say yourself what each device does and what it sends: exchange the edges of
# tiles with the neighbours, pass blocks round a ring. `shard_map` lets you write the program of
# *one* device. Must it then run eight times? No. It runs **once**, on values that stand for all
# devices together: a *grid* of cells, one for each position along the axes.
#
# A grid knows two sets of axes, and the difference matters. `varies`: along which axes *may*
# devices differ? That is its type; it never depends on numbers, so it can be checked. `extent`:
# along which axes are cells really *stored*? A subset. Along all others one block serves everybody.
class Grid(Operators):
    """The value that one variable of a device's program has, on all devices."""

    def __init__(self, mesh, varies, extent, make):
        self.mesh, self.varies = mesh, frozenset(varies)
        self.extent = [a for a in mesh.axes if a in extent]
        self.cells = {
            at: np.asarray(make(dict(zip(self.extent, at, strict=True))))
            for at in product(*[range(mesh.size[a]) for a in self.extent])
        }

    def cell(self, at):
        """Return the block that the device at these coordinates sees."""
        return self.cells[tuple([at[a] for a in self.extent])]

    def along(self, axis, at):
        """Return the blocks that the devices on a line through `at` see, in order."""
        return [self.cell({**at, axis: i}) for i in range(self.mesh.size[axis])]

    def __getitem__(self, index):
        return each(lambda block: block[index], self)


def each(kernel, *values):
    """Call a kernel for each cell that is really different."""
    grids = [v for v in values if isinstance(v, Grid)]
    varies = {a for g in grids for a in g.varies}
    extent = {a for g in grids for a in g.extent}

    def make(at):
        return kernel(*[v.cell(at) if isinstance(v, Grid) else v for v in values])

    return Grid(grids[0].mesh, varies, extent, make)


# This is already the second interpreter: an operation on grids runs its kernel cell by cell. The
# rows of the table are the same ones.
#
# Now the *collectives*, by which devices speak to each other. On a grid they are what their names
# say. A `psum` folds along an axis; afterwards devices cannot differ along it, so it leaves both
# sets. An `all_gather` joins the cells along an axis, and the result too is stored once. But its
# type still says that it may vary, because nothing has *shown* that the devices agree: meshard,
# like JAX, has a second form for programs that want to promise it. A `ppermute` only hands
# references on.
def axis_index(mesh, axis):
    return Grid(mesh, {axis}, {axis}, lambda at: at[axis])


def psum(x, axis):
    rest = [a for a in x.extent if a != axis]
    return Grid(x.mesh, x.varies - {axis}, rest, lambda at: np.sum(x.along(axis, at), axis=0))


def all_gather(x, axis):
    rest = [a for a in x.extent if a != axis]
    return Grid(x.mesh, x.varies | {axis}, rest, lambda at: np.concatenate(x.along(axis, at)))


def ppermute(x, axis, pairs):
    source, extent = {target: source for source, target in pairs}, {*x.extent, axis}

    def make(at):  # zeros, where nobody sends
        return x.cell({**at, axis: source[at[axis]]}) if at[axis] in source else 0 * x.cell(at)

    return Grid(x.mesh, x.varies | {axis}, extent, make)


# At the border arrays become grids and grids become arrays. Both hold the same blocks; only the
# numbering differs: by pieces of dims outside, by coordinates inside. On the way out the type is
# checked: a result that may differ along an axis must say so in its `out_spec`.
def shard_map(body, mesh, in_specs, out_spec):
    """Return a function of arrays that runs `body` as the program of each device."""

    def piece(at, spec):
        return tuple([mesh.position(at, axes) for axes in spec])

    def enter(array, spec):
        array = reshard(array, spec, mesh)
        for size, axes in zip(array.kind.shape, array.kind.spec, strict=True):
            if size % mesh.parts(axes):
                raise ValueError(f"All devices see one shape, but {axes} cut {size} unevenly.")
        used = {a for axes in spec for a in axes}
        return Grid(mesh, used, used, lambda at: array.blocks[piece(at, array.kind.spec)])

    def call(*arrays):
        grids = [enter(x, spec) for x, spec in zip(arrays, in_specs, strict=True)]
        with interpreting(lambda op, *values: each(op.kernel, *values)):
            grid = body(*grids)
        unsaid = sorted(grid.varies - {a for axes in out_spec for a in axes})
        if unsaid:
            raise ValueError(f"It may differ along {unsaid}: say so in out_spec, or use psum.")
        blocks = {piece(at, out_spec): grid.cell(at) for at in mesh.coordinates.values()}
        local = next(iter(blocks.values())).shape
        shape = [n * mesh.parts(axes) for n, axes in zip(local, out_spec, strict=True)]
        return Array(Kind.of(shape, mesh, out_spec), blocks)

    return call


# We smooth eight rows, two per device: each device needs a row of both neighbours. Count how often
# the body runs! Then the inner dim of a product is cut over `x` and summed by hand; and once the
# sum is forgotten.
entered = []


def smooth(tile):
    entered.append(tile.cell({"x": 0}).shape)
    above = ppermute(tile[-1:], "x", [(i, i + 1) for i in range(3)])
    below = ppermute(tile[:1], "x", [(i + 1, i) for i in range(3)])
    tall = each(lambda *rows: np.concatenate(rows), above, tile, below)
    return tall[:-2] + tall[1:-1] + tall[2:]


padded = np.pad(X, ((1, 1), (0, 0)))
smoothed = shard_map(smooth, mesh, [P("x", None)], P("x", None))(x)
assert np.allclose(get(smoothed), padded[:-2] + padded[1:-1] + padded[2:])
assert entered == [(2, 6)]  # once, with the local shape
specs, pair = [P(None, "x"), P("x", None)], (put(X[:, :4], mesh), put(W[:4], mesh))
by_hand = shard_map(lambda a, b: psum(a @ b, "x"), mesh, specs, P(None, None))(*pair)
assert np.allclose(get(by_hand), X[:, :4] @ W[:4])
try:
    shard_map(lambda a, b: a @ b, mesh, specs, P(None, None))(*pair)
except ValueError as refusal:
    message = str(refusal)
assert message.startswith("It may differ along ['x']")

numbers = put(np.arange(4), mesh, P("x"))
ranks = shard_map(lambda a: a + axis_index(mesh, "x"), mesh, [P("x")], P("x"))(numbers)
assert get(ranks).tolist() == [0, 2, 4, 6]
gathered = shard_map(lambda a: all_gather(a, "x"), mesh, [P("x")], P("x"))(numbers)
assert get(gathered).tolist() == [0, 1, 2, 3] * 4


# ## 8. A small jit: write down, then run
#
# The third interpreter runs nothing. It only writes down which operation is bound on what kinds,
# and hands out stand-ins for the results. Since `decide` never looked at data, that is enough to
# decide everything: a *program* knows each move and its bytes before it has seen a number.
class Tracer(Operators):
    def __init__(self, kind):
        self.kind = kind


class Step(NamedTuple):
    op: Op
    decision: Decision
    inputs: list
    output: Tracer
    moves: int  # bytes that its operands must move before the kernels can run


class Program:
    def __init__(self, function, kinds):
        self.inputs, self.constants, steps = [Tracer(k) for k in kinds], {}, []

        def known(value):
            if not isinstance(value, Tracer):
                array = value if isinstance(value, Array) else put(value, kinds[0].mesh)
                value = Tracer(array.kind)
                self.constants[value] = array
            return value

        def record(op, *values):
            inputs = [known(v) for v in values]
            decision = decide(op, *[v.kind for v in inputs])
            ways = zip(inputs, decision.operands, strict=True)
            moves = sum(Plan(v.kind.layout, kind.layout).bytes for v, kind in ways)
            steps.append(Step(op, decision, inputs, Tracer(decision.result), moves))
            return steps[-1].output

        with interpreting(record):
            self.output = function(*self.inputs)
        needed, self.steps = {self.output}, []
        for step in reversed(steps):  # what nobody needs is dropped
            if step.output in needed:
                needed.update(step.inputs)
                self.steps.insert(0, step)

    def run(self, *arrays):
        values = dict(zip(self.inputs, arrays, strict=True)) | self.constants
        for op, decision, inputs, output, _ in self.steps:
            values[output] = execute(op, decision, [values[v] for v in inputs])
        return values[self.output]


def jit(function):
    """Return the function, traced once for each combination of kinds."""
    traced = lru_cache(lambda *kinds: Program(function, kinds))

    def call(*arrays):
        return traced(*[a.kind for a in arrays]).run(*arrays)

    call.traced = traced
    return call


@jit
def layer(x, w):
    x + x  # nobody needs this, and it will not be computed
    return bind("tanh", x @ w + 1.0)


assert np.array_equal(get(layer(x, w)), get(out))
assert np.array_equal(get(layer(x + 0.0, w)), get(out))
assert layer.traced.cache_info().misses == 1  # the second call only ran
steps = layer.traced(x.kind, w.kind).steps
assert [(s.op.name, s.moves) for s in steps] == [("matmul", 0), ("add", 0), ("tanh", 0)]

# Lay the weights out badly, and the program says what it will cost, before anybody pays: `x` serves
# the rows already, so all devices need the whole of `w`, and each lacks 3/4 of its 24 numbers.
badly = Kind.of((6, 4), mesh, P(None, "x"))
assert layer.traced(x.kind, badly).steps[0].moves == 8 * (8 * 24) * 3 // 4


# ## 9. Several processes
#
# So far one process had all devices. Let four of them have two each. They run the *same* program,
# and each does its part: `put` takes the pieces of its own devices, `execute` runs their cells, and
# `run` sends what others need. Both ends derive the same list of messages from the same layouts, so
# nobody has to ask for anything, and each message is awaited where it is sent.
#
# Our processes are threads with a world of their own, and their mail is a queue for each pair. That
# is how meshard's own tests do it too; put a network in the place of the queues, and nothing above
# changes. (Only our grids stay in one process. In meshard, collectives inside a `shard_map` are
# reshards as well, and so go wherever reshards go.)
def simulate(processes, devices_each, program):
    """Run a program in several processes at once; return what each returns."""
    mail = {pair: Queue() for pair in product(range(processes), repeat=2)}

    def start(index):
        world.set(World(index, devices_each, mail))
        return program()

    with ThreadPoolExecutor(processes) as pool:
        results = list(pool.map(start, range(processes)))
    assert all(queue.empty() for queue in mail.values()), "a message that nobody received"
    return results


def job():
    """Use everything above; know nothing of processes."""
    x, w = put(X, mesh, P("x")), put(W, mesh, P(None, "y"))
    folded = put(X, mesh, P(None, "x")) @ put(W, mesh, P("x"))
    return [get(layer(x, w)), get(folded), get(reshard(x, P("y", "x")))], len(x.blocks)


alone, _ = job()
for results, blocks in simulate(4, 2, job):
    assert blocks == 1  # of four pieces each process has the one of its two devices
    assert all(np.array_equal(a, b) for a, b in zip(results, alone, strict=True))  # bit for bit

# ## Where to go from here
#
# That is all of it: cut points and a tensor of devices; interval arithmetic; plans as values; rules
# in factors; grids; one door with three interpreters; and mail. What meshard adds is depth, in the
# same places: sends that are cut so that all senders carry the same, detours that save time,
# windows that bound memory, hundreds of rows, slices and reshapes that are moves too, control flow
# that differs by device, a real jit, real processes. If meshard is installed, it has to agree.
if find_spec("meshard"):
    import meshard

    meshard.config.update("num_devices", 8)
    grid = meshard.make_mesh((4, 2), ("x", "y"))
    in_tiles = meshard.NamedSharding(grid, meshard.P("x", "y"))
    in_rows = meshard.NamedSharding(grid, meshard.P("x"))
    for device, index in in_tiles.devices_indices_map((8, 6)).items():
        assert index == tiles.box(tiles.places[device.id][0])
    theirs = meshard.device_put(X, in_tiles)
    assert meshard.plan_reshard(theirs, in_rows).bytes_moved == Plan(tiles, rows).bytes
    weights = meshard.device_put(W, meshard.NamedSharding(grid, meshard.P(None, "y")))
    theirs = meshard.numpy.tanh(meshard.reshard(theirs, in_rows) @ weights + 1.0)
    assert theirs.sharding.spec == meshard.P("x", "y")
    assert np.allclose(theirs, get(out))
