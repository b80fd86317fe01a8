"""Makes a topic with four partitions and fills it.   usage: produce.py BROKER SHAPE COUNT"""
import random
import sys
import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import shapes

PARTITIONS = 4

broker, shape, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
admin = AdminClient({"bootstrap.servers": broker})
for future in admin.create_topics([NewTopic(shape, PARTITIONS, 1)]).values():
    future.result()
producer = Producer({"bootstrap.servers": broker, "linger.ms": 20, "batch.size": 262144,
                     "queue.buffering.max.messages": 400000, "acks": "all"})
make, rng, begin, size = shapes.maker(shape), random.Random(12345), time.time(), 0
for i in range(count):
    key, value = make(i, rng)
    size += len(value)
    while True:
        try:
            producer.produce(shape, value, key, partition=i % PARTITIONS)
            break
        except BufferError:
            producer.poll(0.2)
    if i % 2000 == 0:
        producer.poll(0)
left = producer.flush(120)
took = time.time() - begin
print("%s: %d rows of %.0f B, %.0f s" % (shape, count, size / max(count, 1), took), file=sys.stderr)
sys.exit("%s: %d rows were not delivered" % (shape, left) if left else 0)
