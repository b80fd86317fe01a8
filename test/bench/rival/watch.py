"""Samples some processes and one table until the table holds the rows asked for.

usage: watch.py NAME CATALOG_URI NAMESPACE.TABLE ROWS TIMEOUT_S PROCESS=PID[,0]...
Prints one JSON line: seconds, CPU seconds and peak resident memory, both summed over the processes. "Rows" are the
total-records of the current snapshot. A process given with ",0" is counted from its own start, else from now on.
"""
import json
import os
import sys
import time
import urllib.request

name, uri, table, want, limit = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
processes = [p.split("=") for p in sys.argv[6:]]
pids = [p.split(",") for _, p in processes]
tick = os.sysconf("SC_CLK_TCK")
space, short = table.split(".")


def cpu(pid):
    with open("/proc/%s/stat" % pid) as f:
        part = f.read().rsplit(")", 1)[1].split()
    return (int(part[11]) + int(part[12])) / tick


def peak(pid):
    with open("/proc/%s/status" % pid) as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmHWM"))


def head():
    """Rows, bytes and files of the current snapshot; zeros while there is none."""
    try:
        with urllib.request.urlopen("%s/v1/namespaces/%s/tables/%s" % (uri, space, short), timeout=20) as answer:
            meta = json.load(answer)["metadata"]
    except OSError:
        return 0, 0, 0
    for snap in meta.get("snapshots", []):
        if snap["snapshot-id"] == meta.get("current-snapshot-id"):
            s = snap["summary"]
            return tuple(int(s.get(k, 0)) for k in ("total-records", "total-files-size", "total-data-files"))
    return 0, 0, 0


before = {p[0]: 0.0 if len(p) > 1 else cpu(p[0]) for p in pids}
begin, load, rows, size, files = time.time(), os.getloadavg()[0], 0, 0, 0
while rows < want and time.time() - begin < limit:
    time.sleep(0.25)
    rows, size, files = head()
took = time.time() - begin
used = {p[0]: cpu(p[0]) - before[p[0]] for p in pids}
peaks = {p: round(peak(pid.split(",")[0])) for p, pid in processes}
out = {"name": name, "table": table, "rows": rows, "want": want, "seconds": round(took, 1), "cpu_s": round(sum(used.values()), 2),
       "cpu_s_per_million": round(sum(used.values()) / max(rows, 1) * 1e6, 2), "peak_rss_mib": sum(peaks.values()), "peaks": peaks, "cpus": {p: round(used[pid.split(",")[0]], 2) for p, pid in processes},
       "bytes_per_row": round(size / max(rows, 1), 1), "files": files, "load": round(load, 1)}
print(json.dumps(out))
sys.exit(0 if rows == want else "%s: %s holds %d rows after %d s, wanted are %d" % (name, table, rows, took, want))
