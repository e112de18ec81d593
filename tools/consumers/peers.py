"""What xarray, pandas, matplotlib, dask and sparse do with sharded arrays.

``python -m tools.consumers.peers`` prints, for each call, the class of the result, and what left
the devices.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

os.environ.setdefault("MESHARD_NUM_DEVICES", "8")

import dask.array
import matplotlib as mpl
import numpy as np
import pandas
import sparse
import xarray

mpl.use("Agg")
import matplotlib.pyplot as plt

import meshard
from meshard.debug import ledger
from tools.consumers.data import problem
from tools.consumers.table import split

CALLS = """
xarray    xarray.DataArray(X, dims=("row", "column"))
xarray    xarray.DataArray(X, dims=("row", "column")).mean("row").data
xarray    (xarray.DataArray(X, dims=("row", "column")) * 2 + 1).data
xarray    xarray.DataArray(X, dims=("row", "column")).isel(row=slice(2, 9)).data
xarray    D.groupby(xarray.DataArray(np.asarray(y), dims="row")).mean().data
xarray    np.sin(xarray.DataArray(X, dims=("row", "column"))).data
xarray    D.where(D > 0).data
xarray    xarray.concat([xarray.DataArray(X, dims=("row", "column"))] * 2, "row").data
xarray    xarray.DataArray(X, dims=("row", "column")).to_pandas()
pandas    pandas.DataFrame(X)
pandas    pandas.Series(t)
pandas    pandas.DataFrame(X)[0] + t
pandas    pandas.DataFrame({"t": t, "u": u})
pandas    pandas.cut(t, 3)
pandas    pandas.qcut(np.asarray(t), 3)
matplotlib plt.plot(t)
matplotlib plt.plot(X)
matplotlib plt.scatter(t, u)
matplotlib plt.hist(t)
matplotlib len(plt.boxplot(X)["boxes"]) == X.shape[1]
matplotlib plt.imshow(X)
matplotlib plt.bar(y, t)
matplotlib plt.fill_between(np.arange(len(t)), t, u)
dask      dask.array.from_array(X, chunks=(25, 3)).sum().compute()
dask      dask.array.from_array(np.asarray(X), chunks=(25, 3)).mean(axis=0).compute()
dask      meshard.numpy.asarray(dask.array.ones((4, 4)))
sparse    sparse.COO.from_numpy(X)
sparse    sparse.COO(np.asarray(X)) @ X.T
numba     __import__("numba").njit(lambda a: a.sum())(X)
torch     __import__("torch").from_dlpack(X)
"""


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    names = {k: split(v) for k, v in problem().items()}
    names["D"] = xarray.DataArray(names["X"], dims=("row", "column"))
    names |= {"np": np, "xarray": xarray, "pandas": pandas, "plt": plt, "dask": dask}
    names |= {"sparse": sparse, "meshard": meshard}
    for line in CALLS.strip().splitlines():
        who, call = line.split(maxsplit=1)
        with ledger() as log:
            try:
                found: Any = eval(call, names)
                told = f"{type(found).__name__}"
                if isinstance(found, meshard.Array):
                    told = f"Array {getattr(found.sharding, 'spec', 'on one device')}"
                if isinstance(found, bool):
                    told = str(found)
            except Exception as error:
                told = f"{type(error).__name__}: {error}".splitlines()[0][:90]
        host = sum(r.nbytes for r in log.to_host)
        print(f"{who:11s}{call[:75]:77s}{told:40s}{host:>7,} to the host", flush=True)


if __name__ == "__main__":
    main()
