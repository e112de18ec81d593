"""Benchmarks: meshard beside JAX and beside good NumPy by hand, in one process and one run.

`python -m bench` from the root of the repository measures all rows; see `bench.cli` for the
options. One module, one thing:

    __main__          sets the environment (8 devices), then calls the command
    cli               options, progress, exit
    rows              the list of all rows; one rows_<issue> module for every issue
    rows_foundation   rows of the foundation: place, reshard, eager ops
    foundation_by_hand  the same work by hand
    row               what a row of arrays is: inputs, program, expected value, by hand
    libraries         meshard and JAX behind one face: mesh, shardings, placing, waiting
    by_hand           what an expert writes without a library: kept blocks, two threads
    import_time       the row that times `import meshard` in fresh interpreters
    harness           warm-up, interleaved repetitions, figures of every peer
    verify            results against plain NumPy, whole and shard by shard
    claims            what a row promises, and whether it is reached
    figures           medians, quartiles and their units
    machine           facts about the machine and the versions
    report            the table and the JSON file

Without rows: `python -m bench.house` counts what the source is made of, and the calls that an
operation makes (`house_calls`).

A new row is a function in a rows module and an entry in its `ROWS`.
"""
