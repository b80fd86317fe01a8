#!/usr/bin/env python3
"""Judge a table with readers that are not ours: pyiceberg and DuckDB.

Reads shop tables through the REST catalog and compares them with the producer's manifests: row count, sums, key
hashes per partition, each (partition, offset) exactly once, every bad record in the quarantine table (tombstones
are skipped by policy). Both engines must also agree with each other on a checksum of every column.
Prints one JSON object; exit code 1 when anything differs.
"""
import argparse
import hashlib
import importlib.metadata
import json
import sys
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

import clients


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--catalog", required=True, help="URI of the REST catalog")
    p.add_argument("--warehouse")
    p.add_argument("--s3", help="ENDPOINT,KEY,SECRET,REGION; needed for tables on S3")
    p.add_argument("--table", required=True)
    p.add_argument("--filled", action="append", default=[], metavar="COLUMN=N", help="a column and how many rows have a value in it")
    p.add_argument("manifest", nargs="+")
    return p.parse_args()


def props(args):
    out = {"uri": args.catalog}
    if args.warehouse:
        out["warehouse"] = args.warehouse
    if args.s3:
        endpoint, key, secret, region = args.s3.split(",")
        out |= {"s3.endpoint": endpoint, "s3.access-key-id": key, "s3.secret-access-key": secret, "s3.region": region,
                "s3.force-virtual-addressing": "false"}
    return out


def quote(s):
    return "'" + s.replace("'", "''") + "'"


def connect(args):
    con = duckdb.connect(config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"})
    for ext in ("avro", "httpfs", "iceberg"):
        dist = importlib.metadata.distribution(f"duckdb-extension-{ext}")
        path = next(str(dist.locate_file(f)) for f in dist.files if f.name == f"{ext}.duckdb_extension")
        con.execute(f"LOAD {quote(path)}")
    con.execute("SET TimeZone = 'UTC'")
    con.execute("SET enable_progress_bar = false")
    if args.s3:
        endpoint, key, secret, region = args.s3.split(",")
        scheme, host = endpoint.split("://")
        con.execute(f"CREATE SECRET (TYPE s3, KEY_ID {quote(key)}, SECRET {quote(secret)}, REGION {quote(region)}, "
                    f"ENDPOINT {quote(host)}, URL_STYLE 'path', USE_SSL {str(scheme == 'https').lower()})")
    return con


class Expected:
    """What the manifests say must be in the table and in its quarantine."""

    def __init__(self, manifests):
        self.rows, self.units, self.seq = 0, 0, 0
        self.parts, self.bad = {}, Counter()
        for m in manifests:
            self.rows += m["rows"]
            self.units += m["sum_units"]
            self.seq += m["sum_seq"]
            for n, p in m["partitions"].items():
                q = self.parts.setdefault(int(n), {"rows": 0, "sum_seq": 0, "sum_units": 0})
                for k in q:
                    q[k] += p[k]
            for partition, offset, kind in m["bad_offsets"]:
                if kind != "tombstone":
                    self.bad[(partition, offset)] += 1
        self.ids = sorted({m["ids_sha256"] for m in manifests})


def ids_sha256(ids):
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()


def compare(what, got, want, problems):
    if got != want:
        problems.append(f"{what}: got {got!r}, want {want!r}")


def check_rows(t, want, manifests, problems):
    """t: an Arrow table with partition, offset, order_id, seq, units."""
    compare("rows", t.num_rows, want.rows, problems)
    compare("sum of seq", pc.sum(t["seq"]).as_py() or 0, want.seq, problems)
    compare("sum of units", pc.sum(t["units"]).as_py() or 0, want.units, problems)
    pairs = t.select(["partition", "offset"]).group_by(["partition", "offset"]).aggregate([([], "count_all")])
    doubled = pairs.filter(pc.greater(pairs["count_all"], 1))
    compare("doubled (partition, offset)", doubled.num_rows, 0, problems)
    sums = t.group_by("partition").aggregate([([], "count_all"), ("seq", "sum"), ("units", "sum")]).to_pylist()
    got = {r["partition"]: {"rows": r["count_all"], "sum_seq": r["seq_sum"], "sum_units": r["units_sum"]} for r in sums}
    compare("per partition", got, {k: v for k, v in want.parts.items() if v["rows"]}, problems)
    if len(manifests) == 1:
        compare("hash of all order ids", ids_sha256(t["order_id"].to_pylist()), manifests[0]["ids_sha256"], problems)


def check_quarantine(pairs, want, problems):
    got = Counter((p, o) for p, o in pairs)
    missing = sorted((want.bad - got).elements())
    surplus = sorted((got - want.bad).elements())
    compare("bad records missing from quarantine", missing[:5], [], problems)
    compare("records in quarantine that should not be", surplus[:5], [], problems)


def checksums(con, source, columns):
    """One order-independent number per column, computed by DuckDB over a relation."""
    exprs = ", ".join(f'sum(hash(CAST("{c}" AS VARCHAR)) % 1000000007) AS "{c}"' for c in columns)
    row = con.execute(f"SELECT count(*), {exprs} FROM {source}").fetchone()
    return [int(v or 0) for v in row]


def main():
    args = arguments()
    manifests = [json.loads(Path(f).read_text()) for f in args.manifest]
    want, problems = Expected(manifests), []
    catalog = clients.catalog("peers", props(args))
    table = catalog.load_table(args.table)
    rows = table.scan().to_arrow()
    flat = pa.table({"partition": pc.struct_field(rows["_kafka"], "partition"), "offset": pc.struct_field(rows["_kafka"], "offset"),
                     **{c: rows[c] for c in ("order_id", "seq", "units")}})
    check_rows(flat, want, manifests, problems)
    distinct = flat.select(["partition", "offset"]).group_by(["partition", "offset"]).aggregate([]).num_rows
    lsn = pc.count_distinct(rows["_lsn"]).as_py()
    compare("distinct _lsn", lsn, rows.num_rows, problems)

    for filled in args.filled:
        column, n = filled.split("=")
        compare(f"values in {column}", len(rows) - rows[column].null_count, int(n), problems)

    quarantined = []
    if want.bad:
        q = catalog.load_table(args.table + "__quarantine").scan(selected_fields=("partition", "offset")).to_arrow()
        quarantined = list(zip(q["partition"].to_pylist(), q["offset"].to_pylist()))
    check_quarantine(quarantined, want, problems)

    con = connect(args)
    source = f"iceberg_scan({quote(table.metadata_location)})"
    got = con.execute(f'SELECT count(*), count(DISTINCT (_kafka.partition, _kafka."offset")), sum(seq), sum(units) FROM {source}').fetchone()
    compare("duckdb: rows, distinct offsets, sum of seq, sum of units", [int(v or 0) for v in got],
            [want.rows, want.rows, want.seq, want.units], problems)
    con.register("by_pyiceberg", rows)
    columns = [c for c in rows.column_names if c not in ("_kafka",) and not pa.types.is_nested(rows.schema.field(c).type)]
    compare("checksums of all plain columns, duckdb against pyiceberg", checksums(con, source, columns),
            checksums(con, "by_pyiceberg", columns), problems)

    print(json.dumps({"table": args.table, "rows": rows.num_rows, "quarantined": len(quarantined), "columns": len(rows.column_names),
                      "snapshots": len(table.metadata.snapshots), "files": len(list(table.scan().plan_files())),
                      "lost": want.rows - distinct, "doubled": rows.num_rows - distinct,
                      "problems": problems, "ok": not problems}, indent=1))
    return 1 if problems else 0


if __name__ == "__main__":
    clients.run(main)
