#!/usr/bin/env python3
"""What readers that are not ours make of a table of format version 3.

  v3_tables.py METADATA [COLUMN ...]     METADATA is the table's metadata file; without columns all are read

Prints one JSON object: for pyiceberg and DuckDB the rows (id to the columns as text, in order of id), or the error in one line.
"""
import argparse
import json
import sys

import verify


def pyiceberg(metadata, columns):
    from pyiceberg.table import StaticTable
    table = StaticTable.from_metadata(metadata)
    rows = table.scan(selected_fields=tuple(columns) or ("*",)).to_arrow()
    return {str(i): [render(v) for v in values] for i, *values in zip(rows["id"].to_pylist(), *(column(rows[c]) for c in rows.column_names if c != "id"))}


def column(chunked):
    """Python has no type for nanoseconds: they are read as integers."""
    import pyarrow as pa
    if pa.types.is_timestamp(chunked.type):
        return chunked.cast(pa.int64()).to_pylist()
    return chunked.to_pylist()


def render(value):
    return value if value is None or isinstance(value, int) else str(value)


def duckdb(metadata, columns):
    con = verify.connect(argparse.Namespace(s3=None))
    source = f"iceberg_scan({verify.quote(metadata)})"
    names = {r[0]: r[1] for r in con.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()}
    wanted = [c for c in (columns or names) if c != "id"]
    def text(c):
        t = names[c]
        if t.startswith("TIMESTAMP"):
            return f'epoch_ns("{c}")'
        return f'CAST("{c}" AS JSON)::VARCHAR' if t == "VARIANT" else f'CAST("{c}" AS VARCHAR)'
    got = con.execute(f"SELECT id, {', '.join(map(text, wanted))} FROM {source} ORDER BY id").fetchall()
    return {"types": [names[c] for c in wanted]} | {str(i): list(values) for i, *values in got}


def main():
    metadata, *columns = sys.argv[1:]
    out = {}
    for name, read in (("pyiceberg", pyiceberg), ("duckdb", duckdb)):
        try:
            out[name] = read(metadata, columns)
        except Exception as e:  # what a reader says is the result
            out[name] = f"{type(e).__name__}: {e}".splitlines()[0]
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main()
