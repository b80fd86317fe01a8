"""Makes a topic with four partitions and fills it.   usage: produce.py BROKER SHAPE COUNT"""
import random
import sys
import time

from confluent_kafka.admin import AdminClient, NewTopic

import clients
import shapes

PARTITIONS = 4

broker, shape, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
admin = AdminClient(clients.kafka(broker))
for future in admin.create_topics([NewTopic(shape, PARTITIONS, 1)]).values():
    clients.answer(future, "the creation of topic " + shape)
producer = clients.producer(clients.kafka(broker) | {
    "linger.ms": 20, "batch.size": 262144, "queue.buffering.max.messages": 400000, "acks": "all"})
failed = []


def delivered(err, _):
    if err:
        failed.append(err)


make, rng, begin, size = shapes.maker(shape), random.Random(12345), time.time(), 0
for i in range(count):
    key, value = make(i, rng)
    size += len(value)
    while True:
        try:
            producer.produce(shape, value, key, partition=i % PARTITIONS, on_delivery=delivered)
            break
        except BufferError:
            producer.poll(0.2)
    if i % 2000 == 0:
        producer.poll(0)
clients.flush(producer)
took = time.time() - begin
print("%s: %d rows of %.0f B, %.0f s" % (shape, count, size / max(count, 1), took), file=sys.stderr)
sys.exit("%s: %d rows were not delivered: %s" % (shape, len(failed), failed[0]) if failed else 0)
