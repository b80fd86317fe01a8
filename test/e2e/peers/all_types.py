#!/usr/bin/env python3
"""The all-types message: what the producer means, field by field, and what readers find.

  all_types.py golden OUT            frames by confluent-kafka's serializer against its own mock registry, with the values
  all_types.py produce ...           the same records into a topic (--bootstrap, --registry, --topic)
  all_types.py judge ...             the table read by pyiceberg and DuckDB, each value compared (--catalog, --table, --s3)

A value is written down twice: as the message wants it and as the row has to have it. Nothing here reads the mapping.
Texts of values (canon) are what golden files hold: integers in decimal, floats by their bits, bytes in hexadecimal,
times in microseconds, lists and maps in brackets, structs in braces with sorted names.
"""
import argparse
import datetime
import decimal
import json
import struct
import sys
from pathlib import Path

import clients
from testbed.all.v1 import all_pb2 as pb

PROTO = Path(__file__).parent / "proto/testbed/all/v1/all.proto"
LIMITS = {"int32": (-2**31, 2**31 - 1), "int64": (-2**63, 2**63 - 1), "uint32": (0, 2**32 - 1), "uint64": (0, 2**64 - 1)}
LIMITS |= {"s" + k: LIMITS[k] for k in ("int32", "int64")} | {"sfixed" + k[3:]: LIMITS[k] for k in ("int32", "int64")}
LIMITS |= {"fixed" + k[4:]: LIMITS[k] for k in ("uint32", "uint64")}
VALUES = {"double": [-1.7976931348623157e308, 5e-324, 2.5], "float": [-3.4028234663852886e38, 1.401298464324817e-45, 0.5],
          "bool": [False, True, True], "string": ["", "äöü \U0001f600", "x" * 2000], "bytes": [b"", b"\x00\xff", bytes(range(256)) * 4]}
VALUES |= {k: [low, high, 77] for k, (low, high) in LIMITS.items()}
ZERO = {k: 0 for k in LIMITS} | {"double": 0.0, "float": 0.0, "bool": False, "string": "", "bytes": b""}
SPECIAL = {"double": [float("nan"), float("inf"), float("-inf"), -0.0], "float": [float("nan"), float("inf"), float("-inf"), -0.0]}
KEYS = [k for k in VALUES if k not in ("double", "float", "bytes")]
PRESENT = {"present": True}


# --- what is meant

def empty():
    """The row of a message without fields."""
    row = {"n": 0, "last": "", "s_color": "COLOR_UNSPECIFIED", "o_color": None}
    for k, zero in ZERO.items():
        row |= {f"s_{k}": zero, f"o_{k}": None, f"r_{k}": [], f"m_{k}": []}
    row |= {f"k_{k}": [] for k in KEYS}
    lists = "r_color m_color r_inner m_inner r_nothing r_time m_time r_took rw_int64"
    nulls = """s_inner s_nothing s_empty s_time s_took w_double w_float w_int64 w_uint64 w_int32 w_uint32 w_bool w_string w_bytes
        j_struct j_value j_list s_any s_mask again c_text c_inner c_number c_nothing c_time c_color"""
    return row | {name: [] for name in lists.split()} | {name: None for name in nulls.split()}


def leaf(a="", b=None, c=(), d=(), e="COLOR_UNSPECIFIED"):
    return {"a": a, "b": b, "c": list(c), "d": list(d), "e": e}


def inner(s="", leaves=(), by=(), x=None, y=None):
    return {"s": s, "leaves": list(leaves), "by": list(by), "x": x, "y": y}


def records():
    """Pairs of a message and the row it has to become."""
    out = []

    def record():
        m, row = pb.All(n=len(out)), empty()
        row["n"] = len(out)
        out.append((m, row))
        return m, row

    record()  # nothing is set
    for i in range(3):  # smallest, largest, ordinary
        m, row = record()
        for k, values in VALUES.items():
            v = values[i]
            setattr(m, f"s_{k}", v)
            setattr(m, f"o_{k}", v)
            getattr(m, f"r_{k}").extend([v, ZERO[k], v])
            getattr(m, f"m_{k}")["key"] = v
            getattr(m, f"m_{k}")["k" * 200] = ZERO[k]
            row |= {f"s_{k}": v, f"o_{k}": v, f"r_{k}": [v, ZERO[k], v], f"m_{k}": [("key", v), ("k" * 200, ZERO[k])]}
            if k in KEYS:
                getattr(m, f"k_{k}")[v] = "value"
                row[f"k_{k}"] = [(v, "value")]
    m, row = record()  # zeros that are there
    for k, zero in ZERO.items():
        setattr(m, f"o_{k}", zero)
        row[f"o_{k}"] = zero
    m, row = record()  # not a number, infinite, minus zero
    for k, values in SPECIAL.items():
        getattr(m, f"r_{k}").extend(values)
        setattr(m, f"s_{k}", values[0])
        setattr(m, f"o_{k}", values[3])
        row |= {f"r_{k}": values, f"s_{k}": values[0], f"o_{k}": values[3]}
    m, row = record()  # enums, known and not
    m.s_color, m.o_color = 1000, 0
    m.r_color.extend([-1, 1, 77, 2])
    m.m_color["a"], m.m_color["b"] = 2, 5
    row |= {"s_color": "FAR", "o_color": "COLOR_UNSPECIFIED", "r_color": ["BELOW", "RED", "77", "GREEN"], "m_color": [("a", "GREEN"), ("b", "5")]}
    m, row = record()  # messages in messages
    m.s_inner.s = "outer"
    m.s_inner.leaves.add(a="one", b=0, c=["x", ""], e=1).d["k"] = -1
    m.s_inner.leaves.add()
    m.s_inner.by[-5].a = "by"
    m.s_inner.y.a = "y"
    m.r_inner.add(x="")
    m.r_inner.add()
    m.m_inner["in"].s = "mapped"
    m.s_nothing.SetInParent()
    m.r_nothing.add()
    m.r_nothing.add()
    m.s_empty.SetInParent()
    row |= {"s_inner": inner("outer", [leaf("one", 0, ["x", ""], [("k", -1)], "RED"), leaf()], [(-5, leaf("by"))], y=leaf("y")),
            "r_inner": [inner(x=""), inner()], "m_inner": [("in", inner("mapped"))],
            "s_nothing": PRESENT, "r_nothing": [PRESENT, PRESENT], "s_empty": PRESENT}
    m, row = record()  # times: microseconds kept, nanoseconds cut towards the past
    for seconds, nanos, micros in ((-62135596800, 0, -62135596800000000), (253402300799, 999999999, 253402300799999999),
                                   (1731508712, 229224000, 1731508712229224), (-1, 999999999, -1), (-2, 1999, -1999999)):
        m.r_time.add(seconds=seconds, nanos=nanos)
        row["r_time"].append(micros)
    m.s_time.SetInParent()
    m.m_time["t"].seconds = 5
    m.s_took.seconds, m.s_took.nanos = -3, -5
    m.r_took.add(seconds=9000000000, nanos=1)
    row |= {"s_time": 0, "m_time": [("t", 5000000)], "s_took": -3000000005, "r_took": [9000000000000000001]}
    for i in (0, 1):  # wrappers: zero, and not
        m, row = record()
        for k in "double float int64 uint64 int32 uint32 bool string bytes".split():
            w = getattr(m, f"w_{k}")
            w.SetInParent()
            if i:
                w.value = VALUES[k][1]
            row[f"w_{k}"] = VALUES[k][1] if i else ZERO[k]
        m.rw_int64.add(value=-7)
        m.rw_int64.add()
        row["rw_int64"] = [-7, 0]
    m, row = record()  # what has no columns is JSON
    m.j_struct.update({"a": [1, None, "x"], "b": {"c": True}})
    m.j_value.string_value = "v"
    m.j_list.extend([True, 2.5])
    m.again.n, m.again.s_string = 3, "inside"
    m.again.again.s_color = 1
    m.s_any.type_url, m.s_any.value = "example.org/x", b"\x01"
    m.s_mask.paths.extend(["a", "b_c.d"])
    row |= {"j_struct": '{"a":[1,null,"x"],"b":{"c":true}}', "j_value": '"v"', "j_list": "[true,2.5]",
            "again": '{"n":"3","sString":"inside","again":{"sColor":"RED"}}',
            "s_any": {"type_url": "example.org/x", "value": b"\x01"}, "s_mask": "a,b_c.d"}
    for name, fill, value in (("c_text", lambda m: setattr(m, "c_text", ""), ""), ("c_number", lambda m: setattr(m, "c_number", 0), 0),
                              ("c_inner", lambda m: m.c_inner.SetInParent(), inner()), ("c_nothing", lambda m: m.c_nothing.SetInParent(), PRESENT),
                              ("c_time", lambda m: setattr(m.c_time, "nanos", 1000), 1), ("c_color", lambda m: setattr(m, "c_color", 2), "GREEN")):
        m, row = record()
        fill(m)
        row[name] = value
    m, row = record()  # the greatest field number, and a large text
    m.last = row["last"] = "end" * 400000
    return out


def canon(v):
    """One text for each value, however a reader spells it."""
    if v is None:
        return "null"
    if isinstance(v, bool):
        return str(v).lower()
    if isinstance(v, datetime.datetime):
        return str((v - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)) // datetime.timedelta(microseconds=1))
    if isinstance(v, (int, decimal.Decimal)):
        return str(int(v))
    if isinstance(v, float):
        return "nan" if v != v else struct.pack(">d", v).hex()
    if isinstance(v, (bytes, bytearray)):
        return "x" + bytes(v).hex()
    if isinstance(v, str):
        return json.dumps(v, ensure_ascii=False)
    if isinstance(v, dict):
        return "{" + ",".join(f"{k}:{canon(v[k])}" for k in sorted(v)) + "}"
    if v and isinstance(v[0], tuple):  # a map
        return "[" + ",".join(sorted(f"{canon(k)}={canon(x)}" for k, x in v)) + "]"
    return "[" + ",".join(canon(x) for x in v) + "]"


# --- golden frames

def golden(args):
    from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    client = SchemaRegistryClient.new_client({"url": "mock://"})
    frames = []
    by_prefix = ProtobufSerializer(pb.All, client, {"auto.register.schemas": True})
    by_header = ProtobufSerializer(pb.All, client, {"auto.register.schemas": True, "schema.id.serializer": header_schema_id_serializer})
    for m, row in records():
        headers = []
        frames.append({"prefixed": by_prefix(m, SerializationContext("all", MessageField.VALUE)).hex(),
                       "bare": by_header(m, SerializationContext("all", MessageField.VALUE, headers)).hex(),
                       "headers": [[k, v.hex()] for k, v in headers], "row": {k: canon(v) for k, v in sorted(row.items())}})
        if len(frames[-1]["bare"]) > 100000:  # the large text is for the peers, not for a file in a repository
            frames.pop()
    # other types of the file, for the path of the message in the frame: [3, 0], [2], [1]
    paths = []
    for cls in (pb.Nothing, pb.Leaf, pb.Inner):
        m = cls()
        paths.append({"message": cls.DESCRIPTOR.full_name,
                      "prefixed": ProtobufSerializer(cls, client, {"auto.register.schemas": True})(m, SerializationContext("all", MessageField.VALUE)).hex()})
    version = client.get_latest_version("all-value")
    Path(args.out).write_text(json.dumps({
        "made_by": "test/e2e/peers/all_types.py golden, with the serializer of confluent-kafka", "id": version.schema_id, "guid": version.guid,
        "schema": version.schema.schema_str, "text": PROTO.read_text(), "records": frames, "paths": paths}, indent=1) + "\n")
    print(f"{len(frames)} records, id {version.schema_id}, guid {version.guid}")


# --- real peers

def produce(args):
    from confluent_kafka.admin import AdminClient, NewTopic
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    admin = AdminClient(clients.kafka(args.bootstrap))
    topic = NewTopic(args.topic, num_partitions=1, config={"max.message.bytes": str(8 << 20)})
    clients.answer(admin.create_topics([topic])[args.topic], f"the creation of topic {args.topic}")
    serializer = ProtobufSerializer(pb.All, SchemaRegistryClient(clients.registry(args.registry)), {"auto.register.schemas": True})
    producer, failed = clients.producer(clients.kafka(args.bootstrap) | {"message.max.bytes": 8 << 20}), []
    meant = records()
    for m, _ in meant:
        producer.produce(args.topic, serializer(m, SerializationContext(args.topic, MessageField.VALUE)), partition=0,
                         on_delivery=lambda err, _: failed.append(str(err)) if err else None)
    clients.flush(producer)
    print(json.dumps({"rows": len(meant), "partitions": {"0": {"end_offset": len(meant)}}, "errors": failed}))
    return 1 if failed else 0


def judge(args):
    import verify

    table = clients.catalog("peers", verify.props(args)).load_table(args.table)
    con = verify.connect(args)
    readers = {"pyiceberg": table.scan().to_arrow().to_pylist(),
               "duckdb": con.execute(f"SELECT * FROM iceberg_scan({verify.quote(table.metadata_location)})").to_arrow_table().to_pylist()}
    problems, compared = [], 0
    for reader, got in readers.items():
        rows = {row["n"]: row for row in got}
        if len(got) != len(records()):
            problems.append(f"{reader}: {len(got)} rows, want {len(records())}")
        for _, want in records():
            row = rows.get(want["n"], {})
            surplus = set(row) - set(want) - {"_lsn", "_kafka"}
            if surplus:
                problems.append(f"{reader}: columns that nobody meant: {sorted(surplus)}")
            for name, value in want.items():
                compared += 1
                if name not in row or canon(row[name]) != canon(value):
                    problems.append(f"{reader}: record {want['n']}, {name}: got {canon(row.get(name, '(no column)'))[:80]}, want {canon(value)[:80]}")
    print(json.dumps({"table": args.table, "values": compared, "problems": problems[:20], "ok": not problems}, indent=1))
    return 1 if problems else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(required=True)
    g = sub.add_parser("golden")
    g.add_argument("out")
    g.set_defaults(run=golden)
    g = sub.add_parser("produce")
    for name in ("--bootstrap", "--registry", "--topic"):
        g.add_argument(name, required=True)
    g.set_defaults(run=produce)
    g = sub.add_parser("judge")
    g.add_argument("--catalog", required=True)
    g.add_argument("--warehouse")
    g.add_argument("--s3")
    g.add_argument("--table", required=True)
    g.set_defaults(run=judge)
    args = p.parse_args()
    return args.run(args)


if __name__ == "__main__":
    clients.run(main)
