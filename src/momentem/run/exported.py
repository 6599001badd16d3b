"""Traces in other libraries' files: NetCDF and Zarr, which hold all of a trace, and Parquet, which
holds a table of its draws."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray

__all__ = ["export", "is_exported", "open_exported"]

KINDS = (".nc", ".zarr", ".parquet")
STORAGE = "install it with pip install 'momentem[storage]'"


def is_exported(path: Path) -> bool:
    """Return whether a path is one of such a file, by its name or by what is in it."""
    is_zarr = path.is_dir() and any((path / name).is_file() for name in ("zarr.json", ".zgroup"))
    return is_zarr or path.suffix in KINDS or path.is_file()


def open_exported(path: Path) -> "xarray.DataTree":
    """Return the trace in a NetCDF file or a Zarr folder. Arrays are read when they are used."""
    import xarray

    if not path.exists():
        raise FileNotFoundError(f"there is no {path}; give a run's folder, a .nc file or a .zarr")
    if path.suffix == ".parquet":
        raise ValueError(
            f"{path} holds a table of draws, which is no trace; read it with "
            "pandas.read_parquet, and export a trace to .nc or .zarr"
        )
    engine = "zarr" if path.is_dir() else "h5netcdf"
    options: dict[str, Any] = {"consolidated": False} if path.is_dir() else {}
    try:
        return xarray.open_datatree(path, engine=engine, **options)
    except ImportError as error:
        raise ImportError(f"{path} needs {engine}: {error}; {STORAGE}") from error
    except Exception as error:  # of HDF5, of Zarr, and of what unpacks for them
        raise ValueError(f"{path} cannot be read as a trace by {engine}: {error}") from error


def export(trace: "xarray.DataTree", path: Path) -> None:
    """Write a trace to a new file: NetCDF (.nc), Zarr (.zarr) or Parquet (.parquet).

    Parquet gets one row per draw, with a column per scalar of the posterior.
    """
    if path.suffix not in KINDS:
        raise ValueError(f"the file must end in {', '.join(KINDS)}, got {path.name}")
    if path.exists():
        raise FileExistsError(f"{path} exists; choose another name, or delete it")
    try:
        if path.suffix == ".nc":
            trace.to_netcdf(path, engine="h5netcdf")
        elif path.suffix == ".zarr":
            trace.to_zarr(path, consolidated=False)
        else:
            _write_table(trace, path)
    except ImportError as error:
        raise ImportError(f"{path.suffix} cannot be written: {error}; {STORAGE}") from error


def _write_table(trace: "xarray.DataTree", path: Path) -> None:
    """Write the posterior, some draws at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    posterior = trace["posterior"].to_dataset()
    num_draws = posterior.sizes["draw"]
    size = max(1, 2**22 // max(1, posterior.nbytes // (8 * num_draws)))
    writer = None
    for begin in range(0, num_draws, size):
        block = posterior.isel(draw=slice(begin, begin + size)).load()
        columns = {
            axis: block[axis]
            .broadcast_like(block["chain"] * block["draw"])
            .transpose("chain", "draw")
            .values.ravel()
            for axis in ("chain", "draw")
        }
        for name, array in block.data_vars.items():
            flat = array.transpose("chain", "draw", ...).values
            flat = flat.reshape(flat.shape[0] * flat.shape[1], -1)
            labels = [name] if array.ndim == 2 else [f"{name}[{i}]" for i in range(flat.shape[1])]
            columns |= {str(label): flat[:, i] for i, label in enumerate(labels)}
        table = pa.table(columns)
        writer = pq.ParquetWriter(path, table.schema) if writer is None else writer
        writer.write_table(table)
    if writer is not None:
        writer.close()
