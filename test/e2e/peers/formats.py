#!/usr/bin/env python3
"""Golden frames of the formats beside Protobuf: what confluent-kafka's serializers for Avro and JSON Schema write
against its own mock registry, and the rows that the producer means (as JSON, columns that are null left out).

  formats.py golden OUT        needs confluent-kafka[avro,json,schemaregistry], which requirements.txt has
"""
import datetime
import decimal
import json
import sys
import uuid
from pathlib import Path

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

CITY = {"type": "enum", "name": "City", "namespace": "shop", "symbols": ["ROME", "OSLO"]}
AVRO = {"type": "record", "name": "Order", "namespace": "shop", "fields": [
    {"name": "id", "type": "long"}, {"name": "small", "type": "int"}, {"name": "ratio", "type": "double"}, {"name": "half", "type": "float"},
    {"name": "ok", "type": "boolean"}, {"name": "text", "type": "string"}, {"name": "raw", "type": "bytes"},
    {"name": "note", "type": ["null", "string"], "default": None},
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}},
    {"name": "long_amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 45, "scale": 2}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
    {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
    {"name": "city", "type": "shop.City"},
    {"name": "tags", "type": {"type": "map", "values": ["null", "long"]}},
    {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
        {"name": "sku", "type": "string"}, {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 3}}]}}},
    {"name": "either", "type": ["null", "long", "string", "Line"]},
    {"name": "tree", "type": ["null", {"type": "record", "name": "Tree", "fields": [
        {"name": "v", "type": "int"}, {"name": "kids", "type": {"type": "array", "items": "Tree"}}]}]},
]}
UTC = datetime.timezone.utc
FULL = {
    "id": -(2**63), "small": 2**31 - 1, "ratio": 5e-324, "half": 0.5, "ok": True, "text": "äöü \U0001f600", "raw": b"\x00\xff", "note": "n",
    "amount": decimal.Decimal("-123456789.012"), "long_amount": decimal.Decimal("1234567890123456789012345678901234567890.12"),
    "day": datetime.date(1, 1, 1), "clock": datetime.time(23, 59, 59, 999999), "at": datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    "local": datetime.datetime(1969, 12, 31, 23, 59, 59, 999000), "ref": uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"), "city": "OSLO",
    "tags": {"a": 1, "b": None}, "lines": [{"sku": "x", "code": b"abc"}, {"sku": "", "code": b"\x00\x01\x02"}],
    "either": ("shop.Line", {"sku": "u", "code": b"xyz"}), "tree": {"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]},
}
FULL_ROW = {
    "id": -(2**63), "small": 2**31 - 1, "ratio": 5e-324, "half": 0.5, "ok": True, "text": "äöü \U0001f600", "raw": "AP8=", "note": "n",
    "amount": "-123456789.012", "long_amount": "1234567890123456789012345678901234567890.12", "day": "0001-01-01", "clock": 86399999999,
    "at": "9999-12-31T23:59:59.999999Z", "local": "1969-12-31T23:59:59.999", "ref": "00112233-4455-6677-8899-aabbccddeeff", "city": "OSLO",
    "tags": [{"key": "a", "value": 1}, {"key": "b", "value": None}], "lines": [{"sku": "x", "code": "YWJj"}, {"sku": "", "code": "AAEC"}],
    "either": {"long": None, "string": None, "Line": {"sku": "u", "code": "eHl6"}},
    "tree": {"v": 1, "kids": ['{"v":2,"kids":[]}', '{"v":3,"kids":[{"v":4,"kids":[]}]}']},
}
EMPTY = FULL | {"id": 0, "small": 0, "ratio": 0.0, "half": 0.0, "ok": False, "text": "", "raw": b"", "note": None, "amount": decimal.Decimal("0.001"),
                "long_amount": decimal.Decimal("-0.01"), "day": datetime.date(1970, 1, 1), "clock": datetime.time(0), "at": datetime.datetime(1970, 1, 1, tzinfo=UTC),
                "tags": {}, "lines": [], "either": None, "tree": None}
EMPTY_ROW = FULL_ROW | {"id": 0, "small": 0, "ratio": 0, "half": 0, "ok": False, "text": "", "raw": "", "note": None, "amount": "0.001",
                        "long_amount": "-0.01", "day": "1970-01-01", "clock": 0, "at": "1970-01-01T00:00:00Z", "tags": [], "lines": [],
                        "either": None, "tree": None}

LINE = {"$id": "line.json", "type": "object", "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}}}
JSON_SCHEMA = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object", "properties": {
    "id": {"type": "integer"}, "ratio": {"type": "number"}, "ok": {"type": "boolean"}, "text": {"type": "string"},
    "at": {"type": "string", "format": "date-time"}, "day": {"type": "string", "format": "date"}, "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
    "city": {"enum": ["ROME", "OSLO"]}, "lines": {"type": "array", "items": {"$ref": "line.json"}},
    "tags": {"type": "object", "additionalProperties": {"type": "integer"}}, "free": {}}}
JSONS = [({"id": 2**63 - 1, "ratio": 0.1, "ok": True, "text": "äöü \U0001f600 \"\\\n", "at": "2024-02-29T12:34:56.123456+05:30", "day": "2024-02-29",
           "note": "n", "city": "OSLO", "lines": [{"sku": "x", "n": -1}], "tags": {"a": 1}, "free": {"b": [1, None]}},
          {"id": 2**63 - 1, "ratio": 0.1, "ok": True, "text": "äöü \U0001f600 \"\\\n", "at": "2024-02-29T07:04:56.123456Z", "day": "2024-02-29",
           "note": "n", "city": "OSLO", "lines": [{"sku": "x", "n": -1}], "tags": [{"key": "a", "value": 1}], "free": '{"b":[1,null]}'}),
         ({"note": None}, {"lines": [], "tags": []})]


def frames(make, topic, pairs):
    """Each record in the prefix form and in the header form."""
    out = []
    prefix, header = make({}), make({"schema.id.serializer": header_schema_id_serializer})
    for value, row in pairs:
        headers = []
        out.append({"prefixed": prefix(value, SerializationContext(topic, MessageField.VALUE)).hex(),
                    "bare": header(value, SerializationContext(topic, MessageField.VALUE, headers)).hex(),
                    "headers": [[k, v.hex()] for k, v in headers], "row": {k: v for k, v in row.items() if v is not None}})
    return out


def golden(out):
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    client.register_schema("city", Schema(json.dumps(CITY), "AVRO"))
    client.register_schema("line", Schema(json.dumps(LINE), "JSON"))
    avro = Schema(json.dumps(AVRO), "AVRO", [SchemaReference("shop.City", "city", 1)])
    typed = Schema(json.dumps(JSON_SCHEMA), "JSON", [SchemaReference("line.json", "line", 1)])
    made = {
        "avro": {"schema": avro.schema_str, "reference": json.dumps(CITY), "reference_name": "shop.City", "records": frames(
            lambda conf: AvroSerializer(client, avro, conf=conf), "avro", [(FULL, FULL_ROW), (EMPTY, EMPTY_ROW)])},
        "json_schema": {"schema": typed.schema_str, "reference": json.dumps(LINE), "reference_name": "line.json", "records": frames(
            lambda conf: JSONSerializer(typed, client, conf=conf), "typed", JSONS)},
    }
    for name, topic in (("avro", "avro"), ("json_schema", "typed")):
        version = client.get_latest_version(topic + "-value")
        made[name] |= {"id": version.schema_id, "guid": version.guid}
    Path(out).write_text(json.dumps({"made_by": "test/e2e/peers/formats.py golden, with the serializers of confluent-kafka"} | made, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "golden":
        sys.exit(__doc__)
    golden(sys.argv[2])
