"""The endpoints of a Confluent schema registry that a consumer asks for.

usage: registry.py PORT SUBJECT=FILE ...     ids are given in that order, from 1
"""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

subjects, texts = [], []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        part = self.path.split("?")[0].strip("/").split("/")
        if part == ["subjects"]:
            return self.reply(subjects)
        if part[:2] == ["schemas", "ids"] and part[2].isdigit() and 1 <= int(part[2]) <= len(texts):
            ident = int(part[2])
            if part[3:] == ["subjects"]:
                return self.reply([subjects[ident - 1]])
            if part[3:] == ["versions"]:
                return self.reply([{"subject": subjects[ident - 1], "version": 1}])
            return self.reply({"schemaType": "PROTOBUF", "schema": texts[ident - 1]})
        if part[0] == "subjects" and part[1] in subjects and part[2:3] == ["versions"]:
            ident = subjects.index(part[1]) + 1
            return self.reply({"subject": part[1], "version": 1, "id": ident, "schemaType": "PROTOBUF", "schema": texts[ident - 1]})
        return self.reply({"error_code": 40403, "message": "not found"}, 404)


for arg in sys.argv[2:]:
    name, _, path = arg.partition("=")
    with open(path) as f:
        texts.append(f.read())
    subjects.append(name)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
