#!/usr/bin/env bash
# Runs the Iceberg sink for Kafka Connect and Icestream alternately on the same rows, broker and catalog, and prints CPU
# seconds per million rows and peak memory as ratios. Needs JDK 17 or newer, Maven, Python 3.11, curl and Go; without
# Java it says so and measures Icestream alone on embedded peers.
#
#   run.sh [gate]      gate: fail when a ratio misses its aim
#
# EVENTS and ORDERS are the numbers of rows (2000000, 500000), ROUNDS how often each runs (3), WHO which of the two
# ("connect icestream"), RIVAL_HOME the folder of jars (kept), RIVAL_RUN the folder of the run (removed at the end unless
# KEEP is set or the run fails), RIVAL_PORT the base of the ports.
# shellcheck source-path=SCRIPTDIR
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
peers=$here/../../e2e/peers
root=$here/../../..
RUN=${RIVAL_RUN:-${TMPDIR:-/tmp}/icestream-rival}
BASE=${RIVAL_PORT:-28000}
export TESTBED_RUN=$RUN/peers KAFKA_PORT=$((BASE + 92)) CATALOG_PORT=$((BASE + 81))
# shellcheck source=../../e2e/peers/lib.sh
. "$peers/lib.sh"

EVENTS=${EVENTS:-2000000}
ORDERS=${ORDERS:-500000}
ROUNDS=${ROUNDS:-3}
WHO=${WHO:-connect icestream}
LIMIT=${LIMIT:-600} # seconds that one drain may take
LIBS=${RIVAL_HOME:-$HOME/.cache/icestream-rival}
CONNECT=http://127.0.0.1:$((BASE + 83))
REGISTRY=http://127.0.0.1:$((BASE + 85))
RESULTS=$RUN/results.jsonl
STAY="bufferd committerd readstated" # up from drain to drain; ingestd runs for one
OURS=$RUN/ours # journal, sockets and logs of our services; the ports of their health are BASE+21 to BASE+24

python() { PYTHONPATH=$RUN/gen:$here:$peers "$peers/python" "$@"; }

without_java() {
  say "no JDK 17 with Maven here, so the Connect sink cannot run; Icestream alone, on embedded peers, with hot.bytes 64MiB:"
  exec make -s -C "$root" bench BENCH_FLAGS="-parts pipeline -hot 64MiB"
}

install() {
  local p
  "$peers/kafka" install >/dev/null
  "$peers/catalog" install
  for p in connect sink; do
    [ -f "$LIBS/$p/.done" ] || {
      nice mvn -B -ntp -q -Dstyle.color=never -f "$here/pom.xml" -P$p \
        org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$LIBS/$p" >"$RUN/maven.log" ||
        { cat "$RUN/maven.log" >&2 && die "maven could not fetch the jars of $p"; }
      touch "$LIBS/$p/.done"
    }
  done
}

prepare() { # converter, descriptors, Python classes, our binaries
  local i=0 f s packages=()
  mkdir -p "$RUN"/{gen,desc,cls,plugins/sink,bin}
  cp "$LIBS"/sink/*.jar "$RUN/plugins/sink/"
  rm -f "$RUN"/plugins/sink/slf4j-api*
  "${JAVA%java}javac" -nowarn -d "$RUN/cls" -cp "$LIBS/connect/*:$RUN/plugins/sink/*" "$here"/converter/bench/*.java
  "${JAVA%java}jar" cf "$RUN/plugins/sink/bench-converter.jar" -C "$RUN/cls" .
  for f in events orders; do # schema ids 1 and 2
    i=$((i + 1))
    python -m grpc_tools.protoc -I "$here/proto" --include_imports --descriptor_set_out="$RUN/desc/$i.desc" \
      --python_out="$RUN/gen" "$here/proto/$f.proto"
  done
  for s in $STAY ingestd; do packages+=("./services/${s%d}/cmd/$s"); done
  (cd "$root" && CGO_ENABLED=0 "${GO:-go}" build -o "$RUN/bin/" "${packages[@]}") || die "the build failed"
}

start_peers() {
  local out
  out=$("$peers/kafka" up) && eval "$out"
  out=$("$peers/catalog" up "file://$RUN/warehouse") && eval "$out"
  port_free $((BASE + 85))
  start "$RUN/registry.pid" "$RUN/registry.log" "$peers/python" "$here/registry.py" $((BASE + 85)) \
    "events-value=$here/proto/events.proto" "orders-value=$here/proto/orders.proto"
  wait_for 60 "$RUN/registry.pid" "$RUN/registry.log" curl -fsS -m 5 "$REGISTRY/subjects"
}

start_worker() {
  port_free $((BASE + 83))
  sed "s#@BROKER@#$KAFKA_BOOTSTRAP#; s#@PLUGINS@#$RUN/plugins#; s/@PORT@/$((BASE + 83))/" "$here/worker.properties" >"$RUN/worker.properties"
  start "$RUN/connect.pid" "$RUN/connect.log" "$JAVA" -Xms256M -Xmx2G -cp "$LIBS/connect/*" \
    org.apache.kafka.connect.cli.ConnectDistributed "$RUN/worker.properties"
  wait_for 180 "$RUN/connect.pid" "$RUN/connect.log" curl -fsS -m 5 "$CONNECT/connectors"
}

watch() { # NAME TABLE ROWS PROCESS=PID[,0]...
  python "$here/watch.py" "$1" "$CATALOG_URI" "$2" "$3" "$LIMIT" "${@:4}" | tee -a "$RESULTS" >&2 || die "$1 did not finish, logs are in $RUN"
}

drain_connect() { # SHAPE ROWS ROUND
  local name=sink_$1_$3 pid
  pid=$(pid_of "$RUN/connect.pid") || die "the Connect worker has ended, see $RUN/connect.log"
  echo 5 >"/proc/$pid/clear_refs" 2>/dev/null || true # peak memory of this drain
  python "$here/mktable.py" "$CATALOG_URI" "rival.$name" "$1"
  "$peers/kafka" tool TopicCommand --create --topic "control-$name" --partitions 1 --replication-factor 1 >/dev/null
  curl -fsS -m 60 -o /dev/null -X POST -H 'Content-Type: application/json' "$CONNECT/connectors" -d "{\"name\":\"$name\",\"config\":{
    \"connector.class\":\"org.apache.iceberg.connect.IcebergSinkConnector\",\"tasks.max\":\"1\",\"topics\":\"$1\",
    \"iceberg.tables\":\"rival.$name\",\"iceberg.catalog.type\":\"rest\",\"iceberg.catalog.uri\":\"$CATALOG_URI\",
    \"iceberg.catalog.io-impl\":\"org.apache.iceberg.hadoop.HadoopFileIO\",
    \"iceberg.control.topic\":\"control-$name\",\"iceberg.control.commit.interval-ms\":\"10000\",
    \"value.converter\":\"bench.ProtobufConverter\",\"value.converter.descriptor.dir\":\"$RUN/desc\"}}"
  watch "connect/$1" "rival.$name" "$2" "connect=$pid"
  curl -fsS -m 60 -X DELETE "$CONNECT/connectors/$name"
}

# The configuration of our services, which know the pipelines that are named (SHAPE_ROUND).
config() { # SERVICE PIPELINE...
  local at=unix://$OURS p message
  cat <<EOF
deployment: rival
node: { data_dir: "$OURS", metrics: "127.0.0.1:$(port_of "$1")" }
services: { buffer: {listen: "$at/b.sock"}, committer: {listen: "$at/c.sock"}, readstate: {listen: "$at/r.sock"}, ingest: {listen: "$at/i.sock"} }
discovery: { buffer: "$at/b.sock", committer: "$at/c.sock", readstate: "$at/r.sock", ingest: "$at/i.sock" }
limits: { hot.bytes: 64MiB }
kafka: { bootstrap.servers: "$KAFKA_BOOTSTRAP", group.id: rival }
registry: { url: "$REGISTRY" }
catalog: { type: rest, uri: "$CATALOG_URI", warehouse: "$CATALOG_WAREHOUSE" }
defaults: { commit: { interval: 10s } }
pipelines:
EOF
  for p in "${@:2}"; do
    case $p in events*) message=bench.Event ;; *) message=bench.Order ;; esac
    echo "  - { name: ours-${p//_/-}, topics: [${p%_*}], table: rival.ours_$p, message: $message }"
  done
}

port_of() { # SERVICE: of its health
  case $1 in bufferd) echo $((BASE + 21)) ;; committerd) echo $((BASE + 22)) ;; readstated) echo $((BASE + 23)) ;; ingestd) echo $((BASE + 24)) ;; esac
}

launch() { # SERVICE PIPELINE...
  mkdir -p "$OURS/$1"
  config "$@" >"$OURS/$1/icestream.yaml"
  port_free "$(port_of "$1")"
  start "$OURS/$1.pid" "$OURS/$1.log" "$RUN/bin/$1" -config "$OURS/$1/icestream.yaml"
}

# Our buffer, committer and replica stay up from drain to drain, as the worker does.
start_services() {
  local s round all=()
  for ((round = 1; round <= ROUNDS; round++)); do all+=("events_$round" "orders_$round"); done
  for s in $STAY; do
    launch "$s" "${all[@]}"
    wait_for 60 "$OURS/$s.pid" "$OURS/$s.log" curl -fsS -m 5 "http://127.0.0.1:$(port_of "$s")/readyz"
  done
}

# The counterpart of a connector, which is created on the worker for a drain and removed behind it, is ingestd.
drain_icestream() { # SHAPE ROWS ROUND
  local s pid pids=()
  for s in $STAY; do
    pid=$(pid_of "$OURS/$s.pid") || die "$s has ended, see $OURS/$s.log"
    echo 5 >"/proc/$pid/clear_refs" 2>/dev/null || true # peak memory of this drain
    pids+=("$s=$pid")
  done
  launch ingestd "$1_$3"
  pids+=("ingestd=$(pid_of "$OURS/ingestd.pid"),0")
  watch "icestream/$1" "rival.ours_$1_$3" "$2" "${pids[@]}"
  stop "$OURS/ingestd.pid" TERM 60
}

end() { # a run that failed leaves its logs
  local rc=$? s
  for s in ingestd committerd readstated bufferd; do stop "$OURS/$s.pid" TERM 20; done
  stop "$RUN/connect.pid" KILL
  stop "$RUN/registry.pid" TERM 5
  "$peers/catalog" wipe || true
  "$peers/kafka" wipe || true
  if [ -n "${KEEP:-}" ] || [ $rc != 0 ]; then say "logs and results are in $RUN"; else rm -rf "$RUN"; fi
}

if ! command -v mvn >/dev/null || ! command -v javac >/dev/null || ! JAVA=$(find_java 17 2>/dev/null); then without_java; fi
[ -x "${JAVA%java}javac" ] || without_java
trap end EXIT
mkdir -p "$RUN"
rm -rf "$OURS" # of a run that was kept: its journal is of tables that are gone
: >"$RESULTS"
install
prepare
start_peers
case $WHO in *connect*) start_worker ;; esac
case $WHO in *icestream*) start_services ;; esac
python "$here/produce.py" "$KAFKA_BOOTSTRAP" events "$EVENTS"
python "$here/produce.py" "$KAFKA_BOOTSTRAP" orders "$ORDERS"
for ((round = 1; round <= ROUNDS; round++)); do
  for who in $WHO; do "drain_$who" events "$EVENTS" $round; done
  for who in $WHO; do "drain_$who" orders "$ORDERS" $round; done
done
python "$here/table.py" "$RESULTS" "$@"
