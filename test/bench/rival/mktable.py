"""Creates the sink's table: unpartitioned, the columns of the record.   usage: mktable.py CATALOG_URI NAMESPACE.TABLE SHAPE"""
import sys

from pyiceberg.exceptions import NamespaceAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.types import (BooleanType, DoubleType, IntegerType, ListType, LongType, MapType, NestedField, StringType,
                             StructType, TimestamptzType)

import clients

uri, name, shape = sys.argv[1:4]
last = 0


def field(title, kind):
    global last
    last += 1
    return NestedField(last, title, kind, required=False)


def nested(build):
    global last
    last += 2
    return build(last - 1, last)


def struct(**fields):
    return StructType(*[field(k, v) for k, v in fields.items()])


S, D, L, I = StringType(), DoubleType(), LongType(), IntegerType()
if shape == "events":
    schema = Schema(field("id", L), field("event_id", S), field("user_id", S), field("kind", S), field("code", I), field("session", L),
                    field("amount", D), field("score", D), field("ok", BooleanType()), field("status", S),
                    field("ts", TimestamptzType()), field("url", S))
else:
    schema = Schema(
        field("id", L), field("order_id", S), field("customer_id", L), field("created", TimestamptzType()),
        field("items", nested(lambda a, _: ListType(a, struct(sku=S, qty=I, price=D, discount=D, title=S), False))),
        field("attrs", nested(lambda a, b: MapType(a, S, b, S, False))),
        field("note", S), field("priority", I), field("ship", struct(street=S, city=S, zip=S, country=S, lat=D)),
        field("labels", nested(lambda a, _: ListType(a, S, False))), field("pay", struct(method=S, ref=S, total=D)))
catalog = clients.catalog("rest", {"uri": uri})
try:
    catalog.create_namespace(name.split(".")[0])
except NamespaceAlreadyExistsError:
    pass
catalog.create_table(name, schema)
