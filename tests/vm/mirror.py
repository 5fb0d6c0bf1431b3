# SPDX-License-Identifier: MIT
"""Where this machine gets Debian from: its own apt sources, in either of apt's formats.

`installed()` parses; `debian()` picks the entry that is Debian's archive itself (component main, a plain suite name, so
neither security nor updates nor somebody else's) and answers the source line for any other suite.
"""
import pathlib
import re
import subprocess

KEYRINGS = "/usr/share/keyrings"
SUITE_NAMES = {"stable", "testing", "unstable", "oldstable", "sid", "bullseye", "bookworm", "trixie", "forky", "duke"}
KEY_BLOCK = "-----BEGIN PGP PUBLIC KEY BLOCK-----"


class NoMirror(Exception):
    """This machine does not say where Debian is."""


class Entry:
    """One repository: URI, suites, components, and Signed-By (file names, or the key itself) or None."""

    def __init__(self, uri, suites, components, signed_by, trusted):
        self.uri, self.suites, self.components = uri, suites, components
        self.signed_by, self.trusted = signed_by, trusted


def deb822(text):
    """Entries of a .sources file: stanzas of `Field: value`, values going on in indented lines."""
    entries = []
    for stanza in re.split(r"\n[ \t]*\n", text):
        fields, name = {}, None
        for line in stanza.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            if line[0] in " \t" and name:
                fields[name] += "\n" + ("" if line.strip() == "." else line.strip())
            elif ":" in line:
                name, value = line.split(":", 1)
                name = name.strip().lower()
                fields[name] = value.strip()
        if fields.get("enabled", "yes").lower() in ("no", "false") or "deb" not in fields.get("types", "").split():
            continue
        for uri in fields.get("uris", "").split():
            entries.append(Entry(uri, fields.get("suites", "").split(), fields.get("components", "").split(),
                                 fields.get("signed-by"), fields.get("trusted", "").lower() in ("yes", "true")))
    return entries


def one_line(text):
    """Entries of a .list file: `deb [option=value …] URI SUITE COMPONENT…`."""
    entries = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", line)
        if match:
            options = dict(option.split("=", 1) for option in (match[1] or "").split() if "=" in option)
            entries.append(Entry(match[2], [match[3]], match[4].split(), options.get("signed-by"),
                                 options.get("trusted") == "yes"))
    return entries


def installed(apt=pathlib.Path("/etc/apt")):
    entries = []
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if path.suffix == ".sources":
            entries += deb822(path.read_text(encoding="utf-8"))
        elif path.suffix == ".list" and path.exists():
            entries += one_line(path.read_text(encoding="utf-8"))
    return entries


def proxies():
    """apt's proxy settings of this machine, as options for another apt."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    return [line.rstrip(";") for line in dump.splitlines() if re.match(r"Acquire::https?::Proxy", line, re.I)
            and not line.endswith('"";')]


def debian(directory, entries=None):
    """The function from a suite's name to mmdebstrap's source line. A key among the sources goes to `directory`."""
    for entry in installed() if entries is None else entries:
        if "main" not in entry.components or not SUITE_NAMES.intersection(entry.suites):
            continue
        options = ["trusted=yes"] if entry.trusted else []
        signed_by = entry.signed_by
        if signed_by and KEY_BLOCK in signed_by:
            key = pathlib.Path(directory) / "debian.asc"
            key.write_text(signed_by.strip() + "\n", encoding="utf-8")
            options.append(f"signed-by={key}")
        elif signed_by:
            # Other suites are signed with other keys of the same owner: the keyring's folder has them all.
            options += [f"signed-by={','.join(signed_by.split())}"] if not signed_by.startswith(KEYRINGS) else []
        text = f"[{' '.join(options)}] " if options else ""
        return lambda suite: f"deb {text}{entry.uri} {suite} main"
    raise NoMirror("none of this machine's apt sources is Debian's archive (component main), so no guest can be made")
