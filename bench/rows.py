"""All rows, in the order of the table; every issue adds its rows module here."""

from fnmatch import fnmatchcase

from bench import (
    rows_foundation,
    rows_interop,
    rows_jit,
    rows_planning,
    rows_programs,
    rows_random,
    rows_ranks,
)
from bench.harness import Row

ROWS: tuple[Row, ...] = (
    *rows_foundation.ROWS,
    *rows_interop.ROWS,
    *rows_planning.ROWS,
    *rows_programs.ROWS,
    *rows_jit.ROWS,
    *rows_random.ROWS,
    *rows_ranks.ROWS,
)


def select(pattern: str | None) -> list[Row]:
    """Rows whose key or title contains `pattern`, or matches it where it has a `*`."""
    if pattern is None:
        return list(ROWS)
    glob = pattern.lower() if "*" in pattern else f"*{pattern.lower()}*"
    return [row for row in ROWS if any(fnmatchcase(t.lower(), glob) for t in (row.key, row.title))]
