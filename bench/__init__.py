"""Benchmarks: meshard beside its peers and the machine's limits, in one run.

`python -m bench` from the root of the repository measures all rows; see `bench.cli` for the
options. One module, one thing:

    __main__          sets the environment (8 devices), then calls the command
    cli               options, progress, exit
    rows              all rows by group, and those of a quick look
    rows_*            the rows: a module for each group
    *_by_hand         the same work by hand
    row               what a row of arrays is: inputs, program, expected value, by hand
    libraries         meshard and JAX behind one face: mesh, shardings, placing, waiting
    by_hand           what an expert writes without a library: kept blocks, two threads
    import_time       the row that times `import meshard` in fresh interpreters
    harness           what a row is; warm-up, interleaved repetitions, figures of every peer
    verify            results against plain NumPy, whole and shard by shard
    claims            what a row promises, and whether it is reached; which peer is the best
    figures           medians, quartiles and their units
    limits            what the machine can do at most, and a row therefore
    machine           facts about the machine and the versions
    peak              memory beyond operands and result, by kernel_memory
    asked             a process that is asked and answers, within a time
    ranks_*           jobs of 4 processes, and the work in them
    peers/            other libraries, each imported only where it is installed
    record            what a run has found, as a value: to JSON and back
    report            the table
    html              the page with plots
    history           dated ratios, in history.md
    compare           two runs side by side

Without rows: `python -m bench.scan` calls every public function beside NumPy (`scan_calls` says
how, on `scan_operands`); `python -m bench.gradient_peaks` counts the memory that gradients take,
beside JAX's; `python -m bench.house` counts what the source is made of, and the calls
that an operation makes (`house_calls`).

docs/contributing/benchmarks.md says how to add a row.
"""
