# SPDX-License-Identifier: MIT
"""The emulated GPUs of a guest: one process each (tests/card), there before QEMU and gone after it.

Every guest has the same ones, plugged in for good. Scenarios hide from their processes the cards that they do not want.
"""
import contextlib
import json
import pathlib
import shutil
import subprocess
import tempfile
import time

# Four equal ones, so that two machines with two of them have none in common, and two with less memory. Pages that
# nobody touches cost nothing. The place decides the PCI address, and so the gpu_id. A number: behind a port of its own, as on
# a mainboard; so they are buses 1 to 4. "ADDRESS": on the root bus.
CARDS = (("512M", 1), ("512M", 2), ("512M", 3), ("512M", 4), ("128M", "0x10"), ("128M", "0x11"))
# What a card can be (`amdgpu-card --model`); the first is what it is when nothing else is asked for.
MODELS = ("mi210", "mi300x")
# Their instruction sets, as compilers name them.
ISA = {"mi210": "gfx90a", "mi300x": "gfx942"}
# QEMU takes a card for dead that does not answer for so many milliseconds: on a busy machine nobody is dead.
PATIENCE = 120_000


class Failed(Exception):
    """A card did not come up: what it said."""


@contextlib.contextmanager
def plugged_in(program, model, work, trace):
    """Starts `program`, a card of that model, as often as CARDS says; gives QEMU's options, and ends all that are left. What they said is
    in `work`/card-N.log, and with `trace` what they did in `work`/card-N.trace. Raises Failed."""
    # Names of sockets are short, folders of checkouts may be long.
    with tempfile.TemporaryDirectory(prefix="sluice-cards-") as sockets, contextlib.ExitStack() as at_end:
        options, started = [], []
        at_end.callback(end, started)
        for number, (vram, place) in enumerate(CARDS):
            socket, log = pathlib.Path(sockets) / str(number), work / f"card-{number}.log"
            words = [str(program), "--socket", str(socket), "--vram", vram, "--model", model, "--name", f"card {number}"]
            record = work / f"card-{number}.trace"
            record.unlink(missing_ok=True)
            if trace:
                words += ["--trace", str(record)]
            with open(log, "wb") as said:
                card = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said)
            started.append(card)
            wait_for(card, log)
            device = {"driver": "vfio-user-pci", "x-msg-timeout": PATIENCE, "socket": {"type": "unix", "path": str(socket)}}
            if isinstance(place, int):
                options += ["-device", f"pcie-root-port,id=port{place},chassis={place},slot={place}"]
                device["bus"] = f"port{place}"
            else:
                device |= {"bus": "pcie.0", "addr": place}
            options += ["-device", json.dumps(device)]
        yield options


def wait_for(card, log):
    """Until the card says that it listens. Its output ends when it dies."""
    with card.stdout:
        if card.stdout.readline() != b"listening\n":
            said = log.read_text(encoding="utf-8", errors="replace").strip()
            raise Failed(f"an emulated GPU did not start: {said or 'it said nothing'} ({log})")


def end(started):
    """Cards go when their QEMU goes; those that had none are killed."""
    deadline = time.monotonic() + 1
    for card in started:
        try:
            card.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            card.kill()
            card.wait()


def firmware(program, folder):
    """{place in the guest: file} of what the driver asks for, written by `program` into `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([str(program), str(folder)], check=True)
    return {f"usr/lib/firmware/{path.relative_to(folder / 'firmware')}": path
            for path in sorted((folder / "firmware").rglob("*")) if path.is_file()}


def remarks(work):
    """What the cards found wrong: lines of their logs, each with its card's name."""
    lines = []
    for log in sorted(work.glob("card-*.log")):
        lines += log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines
