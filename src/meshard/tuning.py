"""Thresholds: the sizes at which one way of doing something becomes better than another.

Each says its unit, what it is compared with, and why; where a row of the benchmarks shows the
difference (``python -m bench --only ROW``), it names the row. None changes a result.
"""

# Copies and memory

LARGE = 1 << 20
"""Bytes from which work is handed to the workers instead of done where it is asked for.

Handing tasks to the workers takes 5 microseconds or more; copying that much takes about 25. Rows
``small-op``, ``add`` and ``reshard-swap``.
"""
TINY_CELL = 1 << 14
"""Bytes that a cell reads and writes below which it is never handed to the workers by itself.

A kernel takes 2 microseconds for that many, a task 4; there may be thousands of such cells.
"""
COPY_CHUNK = 4 << 20
"""Bytes of a large copy that are one task: a few for each worker, each far longer than its start.

Row ``callback``.
"""
MIN_PINNED_BYTES = 1 << 16
"""Bytes of a buffer from which a view may not keep it alive for less than a third of itself.

A smaller buffer is kept: a copy would cost more than the memory is worth.
"""
POOLED_BYTES = 256 * 1024
"""Bytes of a block from which its memory is pooled; the C library keeps smaller ones itself."""
CARVED_BYTES = 16 << 20
"""Bytes of a region that chunks below a huge page are carved out of: eight huge pages."""
KEPT_IDLE = 8 << 20
"""Bytes that a pool may keep while donated arrays are freed, for the next ones to use."""
SLAB = 8 << 20
"""Bytes that a process copies between two times that pages are given back.

With less there are more calls of the system, with more the array is alive twice.
"""
GRADUAL = 2 * SLAB
"""Bytes from which a donated array moves gradually; smaller ones are moved together up to it."""
BATCH = 8 << 20
"""Bytes of each device, before or after, that are moved together where sources stay.

Small arrays share messages, and large ones do not wait for others. Row ``reshard-tree``.
"""
MOST_SWEPT_BOXES = 200_000
"""Boxes that are cut out of copies over all steps of a gradual move.

With more there are fewer and larger steps: a box takes some microseconds of Python.
"""

# Kernels

KERNEL_PIECE = 1 << 20
"""Bytes of its result that a kernel of several steps makes at a time.

Its temporaries are then small; with less, the workers wait for Python's lock between two of NumPy's
calls: rounding 16 MB takes 5.2 ms with 64 KB, 2.0 with 256 KB and 1.5 with this.
"""
BLAS_THREADED = 1 << 13
"""Products of two elements that one cell may need before BLAS thinks of a second thread.

Up to there it need not be told how many to take: that costs 7 microseconds, such a product 1.
Rows ``contract`` and ``gram``.
"""
SMALL_PRODUCT = 1 << 19
"""Products of two elements up to which BLAS multiplies matrices without copying them first.

A small result of long matrices is summed up from products of that size: copying them would take as
long as the rest. OpenBLAS's limit is a million. Rows ``kmeans`` and ``jit-kmeans``.
"""
WINDOWS_BYTES = 1 << 20
"""Bytes of the windows of a convolution that are copied side by side before they are multiplied.

So many stay in the cache.
"""
SMALL_RESULTS = 1 << 6, 1 << 9
"""Elements of a result, at least and at most, for which that pays."""
CACHE_PIECE = 1 << 18
"""Bytes of one operand that a kernel works on at a time: a few such pieces fit a core's own cache.

Chains of operations under `jit` go by it, and reductions of partial results. Rows ``jit-heat`` and
``contract``.
"""
GATHERED_PARTIALS = 1 << 16
"""Bytes of all partial results up to which each device gets them whole and reduces them itself.

Beyond, each reduces a part and passes it on: twice the messages for less traffic. Row ``sum``.
"""
STACKED_CELLS = 16
"""Small blocks from which it is quicker to stack them, and to reduce the stack in one call.

A call of NumPy on two small blocks takes 0.3 microseconds, a block in a stack 0.15.
"""
SHIFTED_TOTALS = 1 << 16
"""Bytes of the totals of all cells up to which a scan brings them to every cell.

Beyond, the array moves to where the dim is whole, unless the dim is long beside its cells.
"""
TURNED_AT_ONCE = 1 << 16
"""Bytes of a field up to which a collective within one process is one transposed copy.

A larger one goes cell by cell, on the workers. Rows ``*-small``.
"""
ARGMAX_COLUMNS = 24
"""Elements of a row up to which positions of extremes are found column by column.

NumPy looks at one row at a time, which costs more than the row where rows are short. Rows
``kmeans`` and ``jit-kmeans``, which look for the nearest of 8 centres.
"""
ARGMAX_ELEMENTS = 1 << 14
"""Elements of a block below which NumPy's own way costs least, however short its rows are."""
ARGMAX_ROWS = 1 << 13
"""Rows that are looked at together, so that all their columns stay in a core's own cache."""
GATHERED_SORT = 1 << 14
"""Bytes of an array up to which each device gets all of it and sorts it, instead of a share.

A sort across devices takes a millisecond of Python and three exchanges; sorting that much takes a
tenth of that.
"""
QR_CHUNK = 1 << 19
"""Bytes of a tall matrix up to which it is factored at once, so that it stays in the cache.

A longer one is factored in chunks, and then their factors: 200,000 x 64 in a quarter of the time.
Row ``qr``.
"""
WHOLE_CHOLESKY = 1 << 20
"""Bytes of a split matrix up to which each device gets all of it, and its Cholesky factor.

Beyond, it is factored in panels: half the bytes and a part of the work, in some steps for each cut.
Triangular systems are solved likewise.
Row ``cholesky``.
"""
SORT_SAMPLES = 1 << 16
"""Samples that a sort across devices looks at, at most, to divide the elements evenly."""
SELECTED_FROM = 1 << 15
"""Elements of a row from which counting finds one of a given rank sooner than sorting.

Of fewer, many are between the samples. Rows ``median`` and ``percentile``.
"""
COUNTED_PIECE = 1 << 16
"""Elements that are counted at once: they and what they are compared to fit a core's own cache."""
SEGMENT_OPERATIONS = 96
"""Operations in one segment at most: what it has made is alive until it ends.

Row ``jit-heat``.
"""
PACKED_CELLS = 16
"""Small cells up to which an operation that is alone in a segment runs on one after the other.

Packing a block takes half as long as a call of a kernel. Row ``jit-tiny-chain``.
"""
DEFERRED_OPERATIONS = 48
"""Operations of a body that wait for each other at most before they run; row ``heat``."""
CONSTANT_BYTES = 1 << 16
"""Bytes up to which an array that a traced function makes is a constant of its program."""

# Routes and their figures

LINK_LATENCY = 5e-6
"""Seconds of a message, where no topology says otherwise: MPI's within one host and next to it."""
LINK_BANDWIDTH = 10e9
"""Bytes per second of a device's link, where no topology says otherwise."""
DETOUR_GAIN = 0.95
"""The part of the direct way's time that a detour must take less than: models err by as much."""
MOST_DETOURS, VAST_DEVICES, VAST_DETOURS = 16, 1 << 14, 2
"""Detours that are costed, the devices from which fewer are, and how many then.

Row ``plan-tree``.
"""
MOST_GRIDS = 20_000
"""Grids of an intermediate layout that are compared at most; row ``plan-tree``."""
PLACED_GRIDS = 24
"""The best of them for which places of digits are tried."""
ROUTES_OF_A_KIND = 4
"""Routes of a kind that are kept at most."""
ORDERED_DEVICES = 1024
"""Devices up to which a grid that does not nest gets the best order of its devices."""
DENSE_EDGES = 1 << 19
"""Pairs of a device and a slot beyond which the graph of an assignment is thinned.

A thinned graph may miss the best order, and never gives a worse one than the order given.
"""
THINNED_SHARE = 4
"""Slots that a device keeps, at least, of each of its two shares of a thinned graph."""
WEIGHED_EDGES = 1 << 10
"""Edges that are matched together by weight, unless one component is larger.

The time for a weighed matching grows with the square of its rows.
"""
MANY_PIECES = 256
"""Pieces from which arithmetic on whole arrays of them is quicker than going through them."""
PAIRS_AT_ONCE = 1 << 21
"""Pairs of cells that are held at once while they are summed: some hundred megabytes."""
GROUP_COST = 4096
"""Pairs of cells that take about as long as one group's grids do, besides their cells."""
MOST_HOSTS = 64
"""Hosts up to which elements come from the receiver's own host where they are there too."""
LEVELLING_ROUNDS = 32
"""How often the shares of all holders are levelled: a chain of as many sets comes to rest."""
DEVICES_AT_ONCE = 8192
"""Devices whose boxes are compared at once: 64 KB an array, which the allocator keeps and reuses.

Row ``plan-131072``.
"""
CHOICE_JOBS = 1024
"""Jobs that are listed in order to count messages while a route is chosen; row ``plan-tree``."""
TABLE_JOBS = 2_000_000
"""Jobs that are listed for a table, a drawing or a proof: about two seconds."""
LISTED_JOBS = 20_000
"""Jobs up to which a hop's load is summed one by one; beyond, by cells where that is exact.

Listing that many takes about 16 milliseconds.
"""
ESTIMATED_JOBS = 5_000_000
"""Jobs beyond which a hop's load is summed by cells even where that is an estimate."""
FOLLOWED_ELEMENTS = 1 << 16
"""Elements times units up to which a proof follows every element."""
SAMPLED_UNITS = 32
"""Units that a proof goes through where there are too many jobs for all."""

# Messages

EAGER_SECONDS = 2e-3
"""Seconds that a process gives its core away between two looks before it sleeps between them.

Waking takes about 10 microseconds longer than getting the core back. Rows ``ranks-*``.
"""
LOST_CORE = 1e-3
"""Seconds that a core given away may be gone before the next waits sleep instead.

Neighbours with small work give it back sooner; a program of the same session that computes keeps
it for 3 milliseconds: beside two, a small sum took 5 times as long by giving cores away.
"""
REGRETS = 30
"""How many times as long as the core was gone a process then sleeps rather than give it away."""
MOST_DATATYPES = 256
"""MPI datatypes of strided boxes that a process keeps, for moves that are repeated."""

# What is remembered

MOST_TYPES = 1 << 15
"""Types of arrays that a world keeps before it begins again; memos have bounds of their own."""
MOST_SHARDINGS = 4096
"""Shardings whose devices are known to exist."""
MOST_PROGRAMS = 2048
"""Signatures that one jitted function has programs for; a program takes some tens of kilobytes."""
MOST_MASKS = 64
"""Sets of active cells for which an operation of a body keeps what to run."""

# Files

READ_BUFFER = 1 << 20
"""Bytes that pass through a buffer at once where a file's elements go to strided memory.

It fits a core's own cache; a call of the system costs a thousandth of the copy.
"""
MOST_OPEN_FILES = 128
"""Files of one catalogue that are kept open; opening one takes ten times as long as a read."""
PIECE_BYTES = 4 << 20
"""Bytes of a tensor that are one piece of a file that is written: one process writes it.

Each piece has a checksum, which a reader that reads all of it looks at while it is in the cache:
small enough to be read at once, large enough to cost nothing beside its bytes.
"""
MOST_CHUNK_BOXES = 1 << 16
"""Boxes of chunks that are listed for one tensor; where there are more, several are one box."""
ZARR_CHUNK = 1 << 16, 1 << 18
"""Bytes of a chunk within a shard of a Zarr store, at least and at most: what is read at least.

A load reads slabs of up to 4 MiB, whose ends fall anywhere in a chunk, and the library takes some
tenths of a millisecond for one.
"""
