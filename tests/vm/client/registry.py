#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A registry of one image, for a containerd that takes an image from nowhere else: on localhost, by HTTP, read only.

    registry.py FOLDER PORT      says "listening" when it does

FOLDER has the image's manifest in the file `manifest`, and its blobs in files named as their SHA-256.
"""
import hashlib
import http.server
import pathlib
import sys

FOLDER = pathlib.Path(sys.argv[1])
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Registry(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        parts = self.path.split("?")[0].strip("/").split("/")
        manifest = (FOLDER / "manifest").read_bytes()
        digest = hashlib.sha256(manifest).hexdigest()
        name = parts[-1].removeprefix("sha256:")
        blob = FOLDER / name
        if parts == ["v2"]:
            self.answer(200, b"{}", "application/json")
        elif len(parts) >= 4 and parts[-2] == "manifests" and (name == digest or ":" not in parts[-1]):
            self.answer(200, manifest, MANIFEST, digest)
        elif len(parts) >= 4 and parts[-2] == "blobs" and len(name) == 64 and blob.is_file():
            self.answer(200, blob.read_bytes(), "application/octet-stream", name)
        else:
            self.answer(404, b"{}", "application/json")

    do_HEAD = do_GET

    def answer(self, status, body, kind, digest=None):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if digest:
            self.send_header("Docker-Content-Digest", f"sha256:{digest}")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


with http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Registry) as server:
    print("listening", flush=True)
    server.serve_forever()
