#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asks containerd or CRI-O for one thing, as the kubelet does: a call of the container runtime interface, by gRPC.

    cri.py SOCKET CALL JSON SECONDS      prints the first text of the answer, an id where there is one

CALL is one of RuntimeService's, or PullImage; JSON is its request with the names of the interface's own description (runtime.v1, api.proto). What is
known of it is FIELDS. SECONDS is the deadline. Exit status 1: it was refused, or is late; the words are on the standard error.
"""
import json
import sys

import grpc

# Message → name of a field → (number, what it is): text, number, or another message.
FIELDS = {
    "PullImage": {"image": (1, "ImageSpec")},
    "RunPodSandbox": {"config": (1, "PodSandboxConfig")},
    "CreateContainer": {"pod_sandbox_id": (1, str), "config": (2, "ContainerConfig"), "sandbox_config": (3, "PodSandboxConfig")},
    "StartContainer": {"container_id": (1, str)},
    "StopContainer": {"container_id": (1, str), "timeout": (2, int)},
    "RemoveContainer": {"container_id": (1, str)},
    "CheckpointContainer": {"container_id": (1, str), "location": (2, str), "timeout": (3, int)},
    "StopPodSandbox": {"pod_sandbox_id": (1, str)},
    "RemovePodSandbox": {"pod_sandbox_id": (1, str)},
    "PodSandboxConfig": {"metadata": (1, "PodSandboxMetadata"), "hostname": (2, str), "log_directory": (3, str),
                         "linux": (8, "LinuxPodSandboxConfig")},
    "PodSandboxMetadata": {"name": (1, str), "uid": (2, str), "namespace": (3, str)},
    "LinuxPodSandboxConfig": {"cgroup_parent": (1, str), "security_context": (2, "LinuxSandboxSecurityContext")},
    "LinuxSandboxSecurityContext": {"namespace_options": (1, "NamespaceOption")},
    "NamespaceOption": {"network": (1, int), "pid": (2, int), "ipc": (3, int)},      # 0: the pod's; 1: the container's; 2: the node's
    "ContainerConfig": {"metadata": (1, "ContainerMetadata"), "image": (2, "ImageSpec"), "command": (3, str), "args": (4, str),
                        "mounts": (7, "Mount"), "devices": (8, "Device"), "log_path": (11, str),
                        "linux": (15, "LinuxContainerConfig")},
    "ContainerMetadata": {"name": (1, str), "attempt": (2, int)},
    "ImageSpec": {"image": (1, str)},
    "Mount": {"container_path": (1, str), "host_path": (2, str), "readonly": (3, int)},
    "Device": {"container_path": (1, str), "host_path": (2, str), "permissions": (3, str)},
    "LinuxContainerConfig": {"security_context": (2, "LinuxContainerSecurityContext")},
    "LinuxContainerSecurityContext": {"namespace_options": (3, "NamespaceOption")},
}


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def encode(message, values):
    out = b""
    for name, value in values.items():
        number, kind = FIELDS[message][name]
        for each in value if isinstance(value, list) else [value]:
            if kind is int:
                out += varint(number << 3) + varint(each)
            else:
                data = each.encode() if kind is str else encode(kind, each)
                out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def first_text(answer):
    """Field 1, where the answer begins with it and it is a text."""
    if not answer or answer[0] != 1 << 3 | 2:
        return ""
    length, shift, at = 0, 0, 1
    while True:
        length |= (answer[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not answer[at - 1] & 0x80:
            return answer[at:at + length].decode()


def main():
    socket, call, text, seconds = sys.argv[1:]
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        service = "ImageService" if call == "PullImage" else "RuntimeService"
        ask = channel.unary_unary(f"/runtime.v1.{service}/{call}")
        try:
            print(first_text(ask(encode(call, json.loads(text)), timeout=int(seconds))))
        except grpc.RpcError as refused:
            print(f"{refused.code().name}: {refused.details()}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
