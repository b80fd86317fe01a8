"""Prints the comparison.   usage: table.py RESULTS.jsonl [gate]"""
import json
import sys

CPU_AIM, MEMORY_AIM = 1 / 3, 1 / 2

with open(sys.argv[1]) as f:
    runs = [json.loads(line) for line in f]
missed = []


def verdict(what, ratio, aim):
    if ratio > aim:
        missed.append("%s: %.2f of the sink's, aim at most %.2f" % (what, ratio, aim))
    return "%.2f  (aim at most %.2f) %s" % (ratio, aim, "MISSED" if ratio > aim else "ok")


print("\nConnect sink (1 task) and Icestream (four processes, hot.bytes 64MiB) on the same rows, broker and catalog, commits every 10 s")
print("%-8s %-10s %8s %9s %12s %12s %9s %6s %6s" %
      ("shape", "who", "rows", "CPU s/M", "all rounds", "peak RSS MiB", "rows/s", "files", "B/row"))
for shape in ("events", "orders"):
    best = {}
    for who in ("connect", "icestream"):
        mine = [r for r in runs if r["name"] == "%s/%s" % (who, shape)]
        if not mine:
            continue
        cpu = [r["cpu_s_per_million"] for r in mine]
        rss = max(r["peak_rss_mib"] for r in mine)
        best[who] = (min(cpu), rss)
        quick = min(mine, key=lambda r: r["seconds"])
        print("%-8s %-10s %8d %9.2f %12s %12.0f %9.0f %6d %6.1f" %
              (shape, who, quick["rows"], min(cpu), " ".join("%.1f" % c for c in cpu), rss, quick["rows"] / quick["seconds"],
               quick["files"], quick["bytes_per_row"]))
    if len(best) == 2:
        print("%-8s CPU ratio    %s" % (shape, verdict(shape + " CPU", best["icestream"][0] / best["connect"][0], CPU_AIM)))
        print("%-8s memory ratio %s" % (shape, verdict(shape + " memory", best["icestream"][1] / best["connect"][1], MEMORY_AIM)))
print("""
CPU s/M: user and system CPU seconds per million rows, least of the rounds (the sink's first round pays for its JIT).
The sink's worker is up already and its start is not counted. Nor is that of our buffer, committer and replica; the start
of ingest, which is to us what a connector is to a worker, is.
Ours also writes the metadata columns _lsn and _kafka. rows/s is rounded by the commit interval: compare CPU.
load average: %s""" % " ".join("%.1f" % r["load"] for r in runs))
if missed and sys.argv[2:] == ["gate"]:
    sys.exit("\n".join(missed))
