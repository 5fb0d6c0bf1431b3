# SPDX-License-Identifier: MIT
"""What a guest boots from: an initrd that finds the disk, and the disk with its whole userland.

The userland is a busybox, criu and what its suite's root has of libraries, and this project's programs. It is on a disk
and not in the initrd, because criu restores mount namespaces with pivot_root, which an initrd's file system refuses.
"""
import lzma
import pathlib
import re
import shutil
import subprocess

import driver
import roots

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
DISK_MODULES = ("virtio_pci", "virtio_blk", "ext4")
# Without nf_tables every criu command fails; the *_diag ones are criu's sockets; nf_conntrack_netlink, tun
# and veth its network namespaces.
GUEST_MODULES = ("drm", "unix_diag", "tcp_diag", "udp_diag", "raw_diag", "netlink_diag", "af_packet_diag", "nf_tables",
                 "nf_conntrack_netlink", "tun", "veth", "loop", "quota_v2", "9p", "9pnet_virtio")
# Of a root's own files; what it does not have is left out. libgcc_s is what pthread_exit and pthread_cancel load.
DEBIAN = ("usr/sbin/criu", "usr/sbin/ip", "usr/bin/ip", "usr/bin/kmod", "usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
          "usr/share/libdrm/amdgpu.ids", "etc/os-release")
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib", "usr/lib/x86_64-linux-gnu/systemd")
HERE = pathlib.Path(__file__).resolve().parent


def needed(file):
    """(names of the shared libraries, path of the interpreter or nothing) that an ELF file asks for."""
    text = subprocess.run(["readelf", "-dl", "-W", str(file)], text=True, capture_output=True, check=False).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", text), re.findall(r"program interpreter: /([^\]]+)\]", text)


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)


def add_libraries(root, tree, files):
    """Copies into `tree` what `files` (outside paths) need, from `root`. Answers names that `root` lacks."""
    waiting, seen, missing = list(files), set(), []
    while waiting:
        libraries, interpreters = needed(waiting.pop())
        for name in {*libraries, *interpreters} - seen:
            seen.add(name)
            places = [name] if "/" in name else [f"{folder}/{name}" for folder in LIBRARIES]
            place, source = next(((place, source) for place in places if (source := roots.resolve(root, f"/{place}"))),
                                 (None, None))
            if not source:
                missing.append(name)
                continue
            copy(source, tree / place)
            waiting.append(source)
    return missing


def add_modules(paths, folder):
    """Unpacks kernel modules into `folder` and writes their order of loading into `folder`/order."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for path in paths:
        name = path.name
        if path.suffix == ".xz":
            name = path.stem
            (folder / name).write_bytes(lzma.decompress(path.read_bytes()))
        else:
            shutil.copyfile(path, folder / name)
        names.append(name)
    (folder / "order").write_text("".join(f"{name}\n" for name in names), encoding="ascii")


def skeleton(tree):
    for name in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "proc", "sys", "dev", "run", "tmp", "root",
                 "var/tmp", "out", "in", "mnt"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / name).symlink_to(f"usr/{name}")
    (tree / "var/run").symlink_to("/run")
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nmessagebus:x:100:100::/:/bin/false\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    (tree / "etc/group").write_text("root:x:0:\nvideo:x:44:\nmessagebus:x:100:\nrender:x:106:\nnogroup:x:65534:\n")
    (tree / "etc/hosts").write_text("127.0.0.1 localhost\n")


def archive(tree, file):
    """Writes `tree` as an uncompressed newc cpio archive, everything owned by root."""
    with open(file, "wb") as out:
        def entry(inode, name, mode, data):
            encoded = name.encode() + b"\0"
            fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
            out.write(b"070701" + b"".join(b"%08X" % field for field in fields) + encoded)
            out.write(b"\0" * (-out.tell() % 4) + data)
            out.write(b"\0" * (-out.tell() % 4))
        for inode, path in enumerate(sorted(tree.rglob("*")), 1):
            data = b""
            if path.is_symlink():
                data = str(path.readlink()).encode()
            elif path.is_file():
                data = path.read_bytes()
            entry(inode, str(path.relative_to(tree)), path.lstat().st_mode, data)
        entry(0, "TRAILER!!!", 0, b"")


def named(root, patterns):
    """Paths inside `root` of which each is one, or matches one with a "*". Raises roots.Unavailable for one of nothing."""
    found, lacking = [], []
    for pattern in patterns:
        paths = [str(path.relative_to(root)) for path in sorted(root.glob(pattern))] if "*" in pattern else [pattern]
        if not paths or not all(roots.resolve(root, f"/{path}") for path in paths):
            lacking.append(pattern)
        found += paths
    if lacking:
        raise roots.Unavailable(f"{root} does not have {', '.join(lacking)}")
    return found


def make_initrd(root, work):
    tree = work / "initrd"
    roots.remove(tree)
    for name in ("bin", "proc", "sys", "dev", "newroot"):
        (tree / name).mkdir(parents=True)
    copy(roots.resolve(root, "/usr/bin/busybox"), tree / "bin/busybox")
    (tree / "bin/sh").symlink_to("busybox")
    add_modules(roots.load_order(root, DISK_MODULES), tree / "modules")
    copy(HERE / "initrd-init", tree / "init")
    archive(tree, work / "initrd.cpio")
    roots.remove(tree)


def add_driver(root, given, folder):
    """The modules of the GPUs' driver: Debian's, or those of the folder `given`, of which the file `given` then says so. Raises
    driver.Unfit."""
    if not given:
        add_modules(roots.load_order(root, (driver.DRIVER,)), folder)
        return
    release, _ = roots.kernel(root)
    add_modules(driver.load_order(given, release, lambda names: roots.load_order(root, names)), folder)
    (folder / "given").touch()


def make_disk(root, suite, programs, given, work):
    """The guest's userland as an ext4 image. `programs` is {place in the guest: file}; `given`: the folder of a driver in
    place of Debian's, or nothing. Answers the libraries that nobody has. Raises driver.Unfit."""
    tree = work / "tree"
    roots.remove(tree)
    skeleton(tree)
    copy(roots.resolve(root, "/usr/bin/busybox"), tree / "usr/bin/busybox")
    (tree / "usr/bin/sh").symlink_to("busybox")
    debian = {path: roots.resolve(root, f"/{path}") for path in (*DEBIAN, *named(root, suite.programs))}
    files = {place: source for place, source in {**debian, **programs}.items() if source}
    for place, source in files.items():
        copy(source, tree / place)
    for folder in named(root, suite.folders):
        shutil.copytree(roots.resolve(root, f"/{folder}"), tree / folder, symlinks=True, dirs_exist_ok=True)
    if suite.systemd:
        copy(HERE / "guest.service", tree / "usr/lib/systemd/system/guest.service")
    missing = add_libraries(root, tree, files.values())
    loaded = roots.load_order(root, DISK_MODULES)
    wanted = roots.load_order(root, (*GUEST_MODULES, *suite.modules))
    add_modules([path for path in wanted if path not in loaded], tree / "usr/lib/guest-modules")
    (tree / "usr/lib/criu").mkdir()
    (tree / "usr/lib/criu/amdgpu_plugin.so").symlink_to("../sluice/amdgpu_plugin.so")
    # They make /dev/infiniband without hardware, when a scenario loads them.
    add_modules(roots.load_order(root, ("rdma_ucm",)), tree / "usr/lib/rdma-modules")
    add_modules(roots.load_order(root, ("xfs",)), tree / "usr/lib/xfs-modules")
    add_driver(root, given, tree / "usr/lib/stock-modules")
    copy(HERE / "guest-init", tree / "usr/sbin/guest-init")
    copy(HERE / "stock-gpus", tree / "usr/lib/sluice/stock-gpus")
    for client in (HERE / "client").glob("*.py"):
        copy(client, tree / "usr/lib/sluice" / client.name)
    disk = work / "root.img"
    disk.unlink(missing_ok=True)
    make_filesystem(disk, suite.disk_mib, tree)
    roots.remove(tree)
    return missing


def make_filesystem(disk, mib, tree=None, options=()):
    with open(disk, "wb") as out:
        out.truncate(mib << 20)
    words = ["mkfs.ext4", "-q", "-F", *options, *(["-d", str(tree)] if tree else []), str(disk)]
    if tree and not roots.IS_ROOT:      # so that what belongs to the caller belongs to root there
        words = ["unshare", "--map-root-user", *words]
    subprocess.run(words, check=True, env={"PATH": PATH})


def make_sharing_filesystem(disk, mib):
    """One whose files can share extents. False where this machine cannot make it."""
    if not shutil.which("mkfs.xfs", path=PATH):
        return False
    with open(disk, "wb") as out:
        out.truncate(mib << 20)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", str(disk)], check=True, env={"PATH": PATH})
    return True
