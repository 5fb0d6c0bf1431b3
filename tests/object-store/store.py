#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""An S3-compatible object store for tests: OpenStack Swift with its s3api, as Debian packages it, on this machine alone.

    store.py DIRECTORY

Makes a store in DIRECTORY, which is on a file system with extended attributes, says "ready http://127.0.0.1:PORT" and keeps it until
its standard input ends. One account: key test:tester, secret testing. Without the daemons that repair and replicate. What the
servers say is in DIRECTORY/KIND.log. Debian: python3-swift.
"""
import pathlib
import signal
import socket
import subprocess
import sys

KINDS = ("account", "container", "object")

SERVER = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
swift_dir = {home}
devices = {home}/devices
mount_check = false
disable_fallocate = true
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""

# S3 requests bear their signatures and need no token, of which memcached would know. But s3api fails without a cache to ask, so it
# has one that nobody serves.
PROXY = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
swift_dir = {home}
[pipeline:main]
pipeline = catch_errors gatekeeper cache s3api tempauth slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
s3_acl = false
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
"""


def listen():
    """A port where requests wait until their server is ready."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    return listening


def make_ring(home, kind, port):
    """One device has everything."""
    from swift.common.ring import RingBuilder
    builder = RingBuilder(10, 1, 0)
    builder.add_dev({"region": 1, "zone": 1, "ip": "127.0.0.1", "port": port, "device": "disk", "weight": 1})
    builder.rebalance()
    builder.get_ring().save(str(home / f"{kind}.ring.gz"))


def start(home, name, text, listening):
    configuration = home / f"{name}-server.conf"
    configuration.write_text(text, encoding="utf-8")
    with listening, open(home / f"{name}.log", "wb") as log:
        number = listening.fileno()
        return subprocess.Popen([sys.executable, "-B", __file__, "--server", name, str(configuration), str(number)],
                                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, pass_fds=[number])


def serve(name, configuration, number):
    """What swift-NAME-server does, on a socket that listens already, with swift.conf in the folder of its configuration and not in
    /etc/swift."""
    listening = socket.socket(fileno=int(number))
    from eventlet.greenio import GreenSocket
    from swift.common import utils
    get_logger = utils.get_logger
    utils.get_logger = lambda *arguments, **named: get_logger(*arguments, **{**named, "log_to_console": True})
    from swift.common import wsgi
    wsgi.get_socket = lambda conf: GreenSocket(listening)
    utils.set_swift_dir(str(pathlib.Path(configuration).parent))
    more = {}
    if name == "object":
        from swift.obj import server
        more["global_conf_callback"] = server.global_conf_callback
    return wsgi.run_wsgi(configuration, f"{name}-server", verbose=True, **more)


def main(home):
    home.mkdir(parents=True, exist_ok=True)
    (home / "devices/disk").mkdir(parents=True)
    (home / "swift.conf").write_text("[swift-hash]\nswift_hash_path_prefix = test\nswift_hash_path_suffix = test\n", encoding="utf-8")
    servers, proxy = [], listen()
    port = proxy.getsockname()[1]
    try:
        for kind in KINDS:
            listening = listen()
            kind_port = listening.getsockname()[1]
            make_ring(home, kind, kind_port)
            servers.append(start(home, kind, SERVER.format(home=home, kind=kind, port=kind_port), listening))
        servers.append(start(home, "proxy", PROXY.format(home=home, port=port), proxy))
        print(f"ready http://127.0.0.1:{port}", flush=True)
        sys.stdin.read()
        return 0
    finally:
        for server in servers:
            server.kill()
            server.wait()


if __name__ == "__main__":
    if sys.argv[1] == "--server":
        sys.exit(serve(*sys.argv[2:]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
