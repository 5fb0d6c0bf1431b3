#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""contrib/gpu-nodes, as CRIU starts it: below a runtime that works in a container's bundle, for a process in a mount namespace.

Needs the rights to make a mount namespace and device nodes; elsewhere nothing is tested. The tests run in a mount namespace of
their own, which is the machine's for the script.
"""
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(sys.argv.pop(1)) / "contrib" / "gpu-nodes"
KFD = {"path": "/dev/kfd", "type": "c", "major": 240, "minor": 0, "fileMode": 0o666, "uid": 0, "gid": 0}
RENDER = {"path": "/dev/dri/renderD129", "type": "c", "major": 226, "minor": 129, "fileMode": 0o660, "uid": 0, "gid": 44}
OLD = "mkdir dri; mknod -m 620 kfd c 235 0; mknod dri/renderD128 c 226 128; mknod dri/card0 c 226 0; mknod null c 1 3"


def may_make_nodes():
    words = ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt && mknod /mnt/null c 1 3 && : >/mnt/null"]
    return os.geteuid() == 0 and subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0


@unittest.skipUnless(may_make_nodes(), "no mount namespace, or no device nodes, to be had here")
class GpuNodes(unittest.TestCase):
    def setUp(self):
        # A folder of the machine, on a tmpfs as its /run or its /dev may be.
        self.machine = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(dir="/var/tmp")))
        subprocess.run(["mount", "-t", "tmpfs", "none", self.machine], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", self.machine], check=True)
        subprocess.run(["sh", "-ec", OLD], cwd=self.machine, check=True)
        # Where CRIU puts a container's mounts together.
        self.mounts = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix=".criu.mntns.", dir="/tmp")))
        self.bundle = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.mounts / "1").mkdir()
        (self.bundle / "work").mkdir()

    def container(self, dev=OLD, mount="mount -t tmpfs none ."):
        """The process that is being restored; its /dev has what `dev` makes."""
        words = f"cd {self.mounts}/1 && {mount} && cd {self.mounts}/1 && {dev} && echo ready && read -r line"
        process = self.enterContext(subprocess.Popen(["unshare", "-m", "sh", "-c", words], stdin=subprocess.PIPE,
                                                     stdout=subprocess.PIPE, text=True))
        self.addCleanup(process.stdin.close)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def dev(self, process):
        return pathlib.Path(f"/proc/{process.pid}/root{self.mounts}/1")

    def nodes(self, process):
        """{path: (major, minor, mode, group)} of the container's /dev."""
        return self.nodes_in(self.dev(process))

    @staticmethod
    def nodes_in(dev):
        found = {}
        for path in dev.rglob("*"):
            status = path.lstat()
            if stat.S_ISCHR(status.st_mode):
                found[str(path.relative_to(dev))] = (os.major(status.st_rdev), os.minor(status.st_rdev),
                                                     stat.S_IMODE(status.st_mode), status.st_gid)
        return found

    def specify(self, *devices, indent=None):
        specification = {"ociVersion": "1.0.2", "annotations": {"odd": 'linux": {"devices": [{ \\" /dev/kfd'},
                         "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}, "devices": list(devices)}}
        (self.bundle / "config.json").write_text(json.dumps(specification, indent=indent), encoding="utf-8")

    def run_for(self, process, action="post-setup-namespaces"):
        """As CRIU does, whose working directory is another than the runtime's."""
        environment = {"PATH": os.environ["PATH"], "CRTOOLS_SCRIPT_ACTION": action, "CRTOOLS_INIT_PID": str(process.pid)}
        words = f"(cd work && sh -c {SCRIPT} && true); exit $?"
        return subprocess.run(["sh", "-c", words], cwd=self.bundle, env=environment, capture_output=True, text=True, check=False)

    def assert_given_up(self, process, why):
        before = self.nodes(process)
        ended = self.run_for(process)
        self.assertEqual(ended.returncode, 1)
        self.assertIn(why, ended.stderr)
        self.assertEqual(self.nodes(process), before)

    def test_the_container_has_what_its_specification_names(self):
        for indent in (None, 2):
            with self.subTest(indent=indent):
                self.specify({"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229}, KFD, RENDER, indent=indent)
                process = self.container()
                ended = self.run_for(process)
                self.assertEqual((ended.returncode, ended.stderr), (0, ""))
                self.assertEqual(self.nodes(process), {"kfd": (240, 0, 0o620, 0), "dri/renderD129": (226, 129, 0o660, 44),
                                                       "null": (1, 3, 0o644, 0)})
                ended = self.run_for(process)    # CRIU may call it twice
                self.assertEqual((ended.returncode, ended.stderr), (0, ""))
                self.assertEqual(len(self.nodes(process)), 3)

    def test_a_mode_that_is_not_said_is_the_runtimes(self):
        self.specify({"path": "/dev/dri/renderD129", "type": "c", "major": 226, "minor": 129})
        process = self.container()
        self.assertEqual(self.run_for(process).returncode, 0)
        self.assertEqual(self.nodes(process)["dri/renderD129"], (226, 129, 0o666, 0))

    def test_a_link_in_place_of_a_node_does_not_keep_the_others(self):
        self.specify(KFD)
        process = self.container("mkdir dri; mknod dri/renderD128 c 226 128; ln -s /dev/null kfd")
        self.assertEqual(self.run_for(process).returncode, 0)
        self.assertEqual(self.nodes(process), {"kfd": (240, 0, 0o666, 0)})
        self.assertTrue(os.path.exists("/dev/null"))

    def test_a_container_without_kfd_has_its_render_nodes(self):
        self.specify(RENDER)
        process = self.container("mkdir dri; mknod dri/renderD128 c 226 128")
        self.assertEqual(self.run_for(process).returncode, 0)
        self.assertEqual(set(self.nodes(process)), {"dri/renderD129"})

    def test_a_link_in_place_of_the_folder_is_not_followed(self):
        self.specify(KFD, RENDER)
        for dev in ("mknod kfd c 235 0; ln -s / dri", "mknod kfd c 235 0; : >dri", "mknod kfd c 235 0"):
            with self.subTest(dev=dev):
                self.assert_given_up(self.container(dev), "/dev/dri is a link, or no folder")

    def test_names_that_are_no_gpus_are_not_made(self):
        self.specify(KFD, {**RENDER, "path": "/dev/dri/renderD1/../../x"}, {**RENDER, "type": "b"},
                     {**RENDER, "path": "/dev/dri/renderD7", "major": "1; reboot"})
        process = self.container()
        self.assertEqual(self.run_for(process).returncode, 0)
        self.assertEqual(set(self.nodes(process)), {"kfd", "null"})

    def test_a_specification_without_gpus_leaves_none(self):
        self.specify()
        process = self.container()
        self.assertEqual(self.run_for(process).returncode, 0)
        self.assertEqual(set(self.nodes(process)), {"null"})

    def test_without_a_specification_the_restore_is_given_up(self):
        self.assert_given_up(self.container(), "no process above CRIU has the container's config.json")

    def test_a_specification_that_is_cut_is_none(self):
        self.specify(KFD, RENDER)
        whole = (self.bundle / "config.json").read_text(encoding="utf-8")
        process = self.container()
        for text in (whole[:-1], whole[: len(whole) // 2], ""):
            (self.bundle / "config.json").write_text(text, encoding="utf-8")
            self.assert_given_up(process, "cannot be read, or is no JSON")

    def test_other_moments_and_containers_are_left_alone(self):
        process = self.container()
        self.assertEqual(self.run_for(process, "post-resume").returncode, 0)
        self.assertIn("dri/renderD128", self.nodes(process))
        for dev in ("mknod null c 1 3", "mkdir dri; : >kfd"):
            with self.subTest(dev=dev):
                process = self.container(dev)
                before = self.nodes(process)
                self.assertEqual(self.run_for(process).returncode, 0)
                self.assertEqual(self.nodes(process), before)

    def assert_keeps_its_nodes(self, process):
        self.specify(RENDER)
        before, machine = self.nodes(process), self.nodes_in(self.machine)
        self.assertIn("dri/renderD128", before)
        self.assertEqual(self.run_for(process).returncode, 0)
        self.assertEqual(self.nodes(process), before)
        self.assertEqual(self.nodes_in(self.machine), machine)

    def test_what_is_bound_from_the_machine_keeps_its_nodes(self):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            self.assert_keeps_its_nodes(self.container(mount=f"mount --bind {folder} ."))

    def test_a_tmpfs_of_the_machine_keeps_its_nodes(self):
        self.assert_keeps_its_nodes(self.container("true", mount=f"mount --bind {self.machine} ."))

    def test_what_is_bound_over_the_containers_own_keeps_its_nodes(self):
        for over in (f"mount --bind {self.machine}", "mount -t ramfs none"):
            with self.subTest(over=over):
                mount = f"mount -t tmpfs none . && cd {self.mounts}/1 && {over} {self.mounts}/1"
                self.assert_keeps_its_nodes(self.container("true" if "bind" in over else OLD, mount=mount))

    def test_a_folder_that_is_a_mount_keeps_its_nodes(self):
        """Whatever file system it is of: the container's own /dev may be mounted there, too."""
        self.specify(KFD, RENDER)
        machine = self.nodes_in(self.machine)
        for folder in (self.machine / "dri", "other"):
            with self.subTest(folder=folder):
                process = self.container("mkdir dri other; mknod -m 620 kfd c 235 0; mknod other/renderD128 c 226 128; "
                                         f"mknod other/card0 c 226 0; mount --bind {folder} dri")
                before = self.nodes(process)
                ended = self.run_for(process)
                self.assertEqual((ended.returncode, ended.stderr), (0, ""))
                self.assertEqual(self.nodes(process), {**before, "kfd": (240, 0, 0o620, 0)})
                self.assertEqual(self.nodes_in(self.machine), machine)

    def test_a_node_that_is_a_mount_stays_mounted(self):
        self.specify(KFD, RENDER)
        machine = self.nodes_in(self.machine)
        for node in ("kfd", "dri/renderD128", "dri/card0"):
            with self.subTest(node=node):
                process = self.container(f"{OLD}; mknod x c 5 5; rm {node}; : >{node}; mount --bind x {node}; rm x")
                self.assertEqual(self.run_for(process).returncode, 0)
                after = self.nodes(process)
                self.assertEqual(after.pop(node)[:2], (5, 5))
                self.assertEqual(set(after), {"kfd", "dri/renderD129", "null"} - {node})
        self.assertEqual(self.nodes_in(self.machine), machine)

    def test_a_place_where_something_will_be_mounted_stays(self):
        """Since mounts are first made elsewhere, such a place is an empty file meanwhile."""
        self.specify(KFD, RENDER)
        process = self.container("mkdir dri; mknod -m 620 kfd c 235 0; : >dri/renderD128; : >dri/renderD129; : >dri/card0")
        self.assertEqual(self.run_for(process).returncode, 0)
        self.assertEqual(self.nodes(process), {"kfd": (240, 0, 0o620, 0)})
        self.assertEqual({path.name for path in (self.dev(process) / "dri").iterdir()}, {"renderD128", "renderD129", "card0"})


if __name__ == "__main__":
    if may_make_nodes() and os.environ.get("GPU_NODES_TEST") != "inside":
        os.environ["GPU_NODES_TEST"] = "inside"
        os.execvp("unshare", ["unshare", "-m", sys.executable, "-B", __file__, str(SCRIPT.parents[1]), *sys.argv[1:]])
    unittest.main()
