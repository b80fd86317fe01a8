"""The two row shapes as framed Protobuf. A row is a function of its id, so that runs can be compared."""
import struct

import events_pb2
import orders_pb2

KINDS = ["view", "click", "add_to_cart", "remove", "purchase", "refund", "login", "logout", "search", "share", "rate", "error"]
STATUS = ["UNKNOWN", "ACTIVE", "PAUSED", "CLOSED"]
WORDS = ["blue", "steel", "garden", "lamp", "chair", "winter", "coat", "travel", "mug", "paper", "solid", "oak", "table", "wool"]
CITIES = ["Lyon", "Porto", "Gdansk", "Leeds", "Graz", "Turku", "Ghent", "Brno", "Malmo", "Cork"]
BASE = 1_790_000_000_000_000  # microseconds

# Schema ids as registry.py gives them and as the converter names its descriptors; the message's index in its file.
IDS = {"events": 1, "orders": 2}
INDEX = {"events": b"\x00", "orders": b"\x02\x06"}


def event(i, rng):
    bits = rng.getrandbits
    a, b = bits(64), bits(64)
    h = "%016x%016x" % (a, b)
    user = "user-%06d" % (a % 50000)
    return user, events_pb2.Event(
        id=i, event_id="%s-%s-%s-%s-%s" % (h[:8], h[8:12], h[12:16], h[16:20], h[20:]), user_id=user, kind=KINDS[b % 12],
        code=(a >> 16) % 600, session=(b >> 8) % 10**9, amount=((a >> 20) % 1000000) / 100, score=(b >> 11) / 2**53,
        ok=(a & 15) != 0, status=STATUS[1 + b % 3],
        url="/shop/%s/%s/item-%05d?ref=%s" % (WORDS[a % 14], WORDS[b % 14], (a >> 30) % 20000, KINDS[(b >> 4) % 12]))


def order(i, rng):
    bits = rng.getrandbits
    a, b = bits(64), bits(64)
    customer = a % 200000
    items = []
    for _ in range(1 + b % 5):
        c = bits(64)
        items.append({"sku": "SKU-%06d" % (c % 30000), "qty": 1 + (c >> 20) % 9, "price": ((c >> 24) % 50000) / 100,
                      "discount": ((c >> 40) % 30) / 100,
                      "title": "%s %s %s" % (WORDS[c % 14], WORDS[(c >> 8) % 14], WORDS[(c >> 16) % 14])})
    return str(customer), orders_pb2.Order(
        id=i, order_id="%016x%08x" % (a, b & 0xFFFFFFFF), customer_id=customer, items=items,
        attrs={"channel": KINDS[a % 12], "campaign": "c%03d" % (b % 400)},
        note="" if b % 4 else "please leave at the door no %d" % (b % 90), priority=(a >> 8) % 5,
        ship={"street": "%d %s street" % (a % 300, WORDS[b % 14]), "city": CITIES[a % 10], "zip": "%05d" % (b % 99999),
              "country": "EU", "lat": (a >> 11) / 2**53 * 90},
        labels=[WORDS[(a >> s) % 14] for s in range(b % 3)],
        pay={"method": ("card", "iban", "cash")[a % 3], "ref": "%012x" % (b >> 16),
             "total": round(sum(x["qty"] * x["price"] for x in items), 2)})


def maker(shape):
    """Returns a function (id, rng) -> (key, framed value)."""
    head = b"\x00" + struct.pack(">I", IDS[shape]) + INDEX[shape]
    make = event if shape == "events" else order

    def framed(i, rng):
        key, message = make(i, rng)
        stamp = message.ts if shape == "events" else message.created
        micros = BASE + i * 1000
        stamp.seconds, stamp.nanos = micros // 1000000, micros % 1000000 * 1000
        return key, head + message.SerializeToString()
    return framed
