"""Clients of the schema registry, of Kafka and of the Iceberg catalog that give up.

Each waits a bounded time for an answer, asks a bounded number of times, and then fails; run ends a script with the name
of what gave no answer. DuckDB and the S3 clients have such bounds of their own.
"""
import sys

ANSWER = 30  # seconds that one answer may take
TRIES = 4
DELIVERY = 300  # seconds that the delivery of a record may take: longer than what the fault table takes away


def registry(url):
    """The configuration of a SchemaRegistryClient, which without it waits for ever."""
    return {"url": url, "timeout": ANSWER, "max.retries": TRIES - 1, "retries.wait.ms": 500, "retries.max.wait.ms": 5000}


def kafka(bootstrap):
    """The configuration of any client of Kafka."""
    return {"bootstrap.servers": bootstrap, "socket.timeout.ms": 60_000, "socket.connection.setup.timeout.ms": 30_000, "log_level": 4}


def answer(future, what):
    """The result of a call to Kafka that was begun."""
    try:
        return future.result(ANSWER)
    except TimeoutError:
        sys.exit(f"no answer from Kafka to {what} within {ANSWER} s")


def producer(conf):
    """A producer that gives a record up in time; in a transaction that is the time of the transaction."""
    from confluent_kafka import Producer
    bound = {} if "transactional.id" in conf else {"message.timeout.ms": DELIVERY * 1000}
    return Producer({"enable.idempotence": True} | bound | conf)


def flush(producer):
    """Waits until every record is delivered or given up."""
    if left := producer.flush(DELIVERY + ANSWER):
        sys.exit(f"{left} records were neither delivered nor refused within {DELIVERY + ANSWER} s")


def catalog(name, properties):
    """A RestCatalog, which without this waits for ever. What is not idempotent is asked once."""
    from pyiceberg.catalog.rest import RestCatalog
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    class Bounded(HTTPAdapter):
        def send(self, request, stream=False, timeout=None, **kwargs):
            return super().send(request, stream=stream, timeout=timeout or ANSWER, **kwargs)

    class Catalog(RestCatalog):
        def _create_session(self):
            session = super()._create_session()
            for scheme in ("http://", "https://"):
                session.mount(scheme, Bounded(max_retries=Retry(total=TRIES - 1, backoff_factor=0.5)))
            return session

    return Catalog(name, **properties)


def run(main):
    """Runs a script and ends it with its exit code, or with what gave no answer."""
    try:
        sys.exit(main())
    except Exception as e:  # the registry's and the catalog's libraries have different ones, which know the request
        request = getattr(e, "request", None)
        if request is None or getattr(e, "response", None) is not None:
            raise
        sys.exit(f"no answer to {request.method} {request.url}, asked up to {TRIES} times for up to {ANSWER} s each: {type(e).__name__}: {e}")
