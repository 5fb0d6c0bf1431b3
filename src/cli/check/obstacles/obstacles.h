// SPDX-License-Identifier: MIT
// What prevents CRIU itself from dumping a tree, or needs an option, as far as it is visible from outside.
// The kinds, and a list of findings. The page docs/reference/cli.md has a row for each code.
//
// Sources: CRIU's at 3.17.1, 4.0, 4.1.1 and 4.2 (criu/files.c, proc_parse.c, files-reg.c, sk-unix.c,
// sk-inet.c, tty.c, file-lock.c, namespaces.c, pstree.c, compel/src/lib/infect.c), and dumps of such
// processes by each Debian's criu (tests/vm/scenarios/check_*.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/check/obstacles/finding.h"

namespace sluice::cli {

// One kind. `code`, `subject` and `weight` are in the JSON and never change.
struct ObstacleKind {
  const char* code;
  const char* subject;
  Weight weight;
  const char* why;     // ends the sentence that names the thing
  const char* remedy;  // for an Option: the text after the option
  const char* option = "";
};

namespace obstacle {

// ---- descriptors, and maps of the same kinds
inline constexpr ObstacleKind kIoUring{
    "io-uring", "file", Weight::Problem, "which CRIU cannot dump",
    "run it without io_uring: UV_USE_IO_URING=0 for libuv (PyTorch, uvloop, node), or sysctl "
    "kernel.io_uring_disabled=2 before it starts"};
inline constexpr ObstacleKind kPerfEvent{"perf-event", "file", Weight::Problem, "which CRIU cannot dump",
                                         "stop the profiler (perf, rocprof, PAPI) before the dump"};
inline constexpr ObstacleKind kBpf{"bpf", "file", Weight::Problem, "which this CRIU cannot dump",
                                   "close it before the dump"};
inline constexpr ObstacleKind kAnonInode{"anon-inode", "file", Weight::Problem, "which CRIU cannot dump",
                                         "close it before the dump"};
inline constexpr ObstacleKind kSecretMemory{"secret-memory", "file", Weight::Problem,
                                            "which no other process can read",
                                            "run the program without memfd_secret(2)"};
inline constexpr ObstacleKind kPidfd{"pidfd", "file", Weight::Problem, "which CRIU dumps from 4.1 on",
                                     "install CRIU 4.1 or newer, or close it before the dump"};
inline constexpr ObstacleKind kPidfdOutside{"pidfd-outside", "file", Weight::Problem,
                                            "which is not dumped with it",
                                            "close it, or dump the process that started both"};
inline constexpr ObstacleKind kRdma{"rdma", "file", Weight::Problem,
                                    "an RDMA device, whose state CRIU cannot save",
                                    "end RDMA before the dump: NCCL_IB_DISABLE=1 for RCCL, "
                                    "UCX_TLS=tcp,sm,self for UCX"};
inline constexpr ObstacleKind kDevice{"device", "file", Weight::Problem,
                                      "a device that neither CRIU nor sluice's plugin takes",
                                      "close it before the dump, or install the plugin of its vendor"};
inline constexpr ObstacleKind kDeviceOfOthers{
    "device-of-other-plugin", "file", Weight::Warning, "a device that neither CRIU nor sluice's plugin takes",
    "another plugin in criu's directory may take it: see its documents"};
inline constexpr ObstacleKind kTun{"tun", "file", Weight::Problem,
                                   "which CRIU dumps only with the network namespace",
                                   "run the job in a network namespace of its own"};
inline constexpr ObstacleKind kSpecialFile{"special-file", "file", Weight::Problem,
                                           "which has no name that CRIU can open again",
                                           "close it before the dump"};
inline constexpr ObstacleKind kNamespaceFile{"namespace-file", "file", Weight::Problem,
                                             "a namespace that no process of the tree lives in",
                                             "close it before the dump"};
inline constexpr ObstacleKind kForeignMount{"foreign-mount",
                                            "file",
                                            Weight::Option,
                                            "on a mount that no namespace of the tree has",
                                            "a restore must be given the file (criu restore --inherit-fd)",
                                            "--external"};
inline constexpr ObstacleKind kPathTaken{"path-taken", "file", Weight::Problem,
                                         "but another file has that name now",
                                         "give the file its name back, or close it before the dump"};
inline constexpr ObstacleKind kDeletedFile{"deleted-file",
                                           "file",
                                           Weight::Option,
                                           "deleted, and larger than the 1 MiB that criu copies unasked",
                                           "its contents go into the images",
                                           "--ghost-limit"};
inline constexpr ObstacleKind kLinkRemap{
    "link-remap",
    "file",
    Weight::Option,
    "whose name is gone while the file has other names",
    "criu makes a name beside the old one (link_remap.N), which the restore takes away",
    "--link-remap"};
inline constexpr ObstacleKind kFileLock{"file-lock",
                                        "file",
                                        Weight::Option,
                                        "and has a lock or a lease on it",
                                        "criu restore needs it, too, and the lock must be free then",
                                        "--file-locks"};
inline constexpr ObstacleKind kTerminal{
    "terminal",
    "file",
    Weight::Option,
    "a terminal whose other end is outside of the tree",
    "criu restore needs it, too, and a terminal; or run the job without one (setsid, nohup)",
    "--shell-job"};
inline constexpr ObstacleKind kTerminals{"terminals", "file", Weight::Problem,
                                         "and CRIU takes no more than one whose other end is outside",
                                         "run the job with one terminal, or without (setsid, nohup)"};
inline constexpr ObstacleKind kControllingTerminal{
    "controlling-terminal", "file", Weight::Problem,
    "and CRIU needs the terminal that it stands for open beside it",
    "close /dev/tty before the dump, or run the job without a terminal (setsid, nohup)"};
inline constexpr ObstacleKind kDeviceMap{"device-map", "map", Weight::Problem,
                                         "a device that neither CRIU nor sluice's plugin takes",
                                         "unmap it before the dump"};
inline constexpr ObstacleKind kDmaBufMap{"dma-buf-map", "map", Weight::Problem, "which no plugin can restore",
                                         "unmap it before the dump"};
inline constexpr ObstacleKind kSysvShm{
    "sysv-shm", "map", Weight::Problem, "which CRIU dumps only with the IPC namespace",
    "run the job in an IPC namespace of its own (unshare --ipc, podman run --ipc=private)"};
inline constexpr ObstacleKind kUprobes{"uprobes", "map", Weight::Problem, "which CRIU dumps from 4.2 on",
                                       "install CRIU 4.2, or start the job when no tracer has probes in it"};
inline constexpr ObstacleKind kUprobesLeftOut{"uprobes-left-out",
                                              "map",
                                              Weight::Option,
                                              "which criu leaves out with this option",
                                              "criu restore needs it, too",
                                              "--allow-uprobes"};
inline constexpr ObstacleKind kCriuKernel{"criu-kernel", "criu", Weight::Problem,
                                          "which this kernel has and this CRIU does not know",
                                          "install a newer CRIU, or boot an older kernel"};

// ---- sockets
inline constexpr ObstacleKind kSocketFamily{"socket-family", "socket", Weight::Problem,
                                            "which CRIU cannot dump", "close it before the dump"};
inline constexpr ObstacleKind kMptcp{"mptcp", "socket", Weight::Problem, "which CRIU cannot dump",
                                     "run the program with plain TCP (GODEBUG=multipathtcp=0 for Go)"};
inline constexpr ObstacleKind kTcpEstablished{
    "tcp-established",
    "socket",
    Weight::Option,
    "which criu dumps with this option",
    "criu restore needs it, too: the other end must wait, and the address be there",
    "--tcp-established"};
inline constexpr ObstacleKind kTcpInFlight{"tcp-in-flight",
                                           "socket",
                                           Weight::Option,
                                           "with connections that are not accepted yet",
                                           "these are lost; or dump again in a moment",
                                           "--skip-in-flight"};
inline constexpr ObstacleKind kTcpUnknown{"tcp-unknown", "socket", Weight::Warning,
                                          "among too many of this machine to be found",
                                          "add --tcp-established if it is connected"};
inline constexpr ObstacleKind kNetlinkData{"netlink-data", "socket", Weight::Problem,
                                           "with messages that are not read yet",
                                           "dump again in a moment, when the program has read them"};
inline constexpr ObstacleKind kUnixExternal{"unix-external",
                                            "socket",
                                            Weight::Option,
                                            "connected to a socket outside of the tree",
                                            "criu restore needs it, too, and a socket of that name",
                                            "--ext-unix-sk"};
inline constexpr ObstacleKind kUnixNameless{
    "unix-nameless",
    "socket",
    Weight::Option,
    "one of a pair whose other end is outside of the tree",
    "a restore must be given a socket (criu restore --inherit-fd); or run the job without it, its output in "
    "files",
    "--external"};
inline constexpr ObstacleKind kUnixUnreachable{"unix-unreachable", "socket", Weight::Problem,
                                               "connected to a socket that CRIU cannot reach",
                                               "close it before the dump"};
inline constexpr ObstacleKind kUnixInFlight{
    "unix-in-flight", "socket", Weight::Problem,
    "with a connection that was used or closed before it was accepted", "dump again in a moment"};
inline constexpr ObstacleKind kUnixInFlightLost{
    "unix-in-flight-lost", "socket", Weight::Warning,
    "with a connection that was used or closed before it was accepted",
    "what was sent over it is lost; dump again in a moment"};
inline constexpr ObstacleKind kUnixUnknown{
    "unix-unknown", "socket", Weight::Warning, "whose other end could not be determined",
    "run sluice check as root: it asks in the process' network namespace"};

// ---- processes
inline constexpr ObstacleKind kSession{
    "session",
    "process",
    Weight::Option,
    "which criu dumps with this option",
    "criu restore needs it, too; or start the job in a session of its own (setsid)",
    "--shell-job"};
inline constexpr ObstacleKind kSessionOutside{"session-outside", "process", Weight::Problem,
                                              "whose leader is outside of its pid namespace",
                                              "start it with setsid in the container"};
inline constexpr ObstacleKind kZombie{"zombie", "process", Weight::Problem, "and has nothing to dump",
                                      "name a process that runs"};
inline constexpr ObstacleKind kDeadLeader{"dead-leader", "process", Weight::Problem, "which CRIU cannot dump",
                                          "have the program end its first thread last"};
inline constexpr ObstacleKind kNestedNamespace{"nested-namespace", "process", Weight::Problem,
                                               "that the first process of the tree does not live in",
                                               "dump from the process that made it"};
inline constexpr ObstacleKind kNoInit{
    "no-init", "process", Weight::Problem, "and CRIU dumps such a namespace from its process 1 on only",
    "name the container's first process, or let the engine dump it (podman container checkpoint)"};
inline constexpr ObstacleKind kUserNamespace{"user-namespace", "process", Weight::Problem,
                                             "which has no user 0 or no group 0",
                                             "map both (unshare --map-root-user)"};
inline constexpr ObstacleKind kMountNamespace{"mount-namespace", "process", Weight::Warning,
                                              "whose mounts are not examined here",
                                              "let the container's engine dump it: it tells criu the mounts"};
inline constexpr ObstacleKind kSeccomp{"seccomp", "process", Weight::Problem,
                                       "which only root without one of its own can read",
                                       "run criu as root on the host, not in a container"};
inline constexpr ObstacleKind kDescriptorLimit{"descriptor-limit", "process", Weight::Problem,
                                               "and criu needs 4 in it",
                                               "raise it (prlimit --pid PID --nofile=N)"};
inline constexpr ObstacleKind kAddressSpaceLimit{"address-space-limit", "process", Weight::Problem,
                                                 "and criu puts code of its own there",
                                                 "raise it (prlimit --pid PID --as=unlimited)"};
inline constexpr ObstacleKind kAddressSpaceScarce{"address-space-scarce", "process", Weight::Warning,
                                                  "and criu puts code of its own there",
                                                  "raise it (prlimit --pid PID --as=unlimited)"};
inline constexpr ObstacleKind kNotAllSeen{"not-all-seen", "process", Weight::Warning,
                                          "and the rest were not examined",
                                          "these lines cover only the first descriptors"};

}  // namespace obstacle

// The findings, each reason once: those of one kind and `group` are counted, and the first is named. Not
// thread-safe.
class Obstacles {
 public:
  // `text`: "descriptor 4 of process 12 is an io_uring (anon_inode:[io_uring])"; `kind.why` ends it.
  // `argument`: for the kind's option, if it has one.
  void add(const ObstacleKind& kind, const std::string& text, const std::string& group = {},
           const std::string& argument = {});
  // A deleted file of that many bytes: one limit applies to all.
  void add_deleted_file(const std::string& text, std::uint64_t bytes);

  Findings findings() const;
  // For the command line, each once.
  std::vector<std::string> options() const;

 private:
  struct Reason {
    const ObstacleKind* kind;
    std::string text;
    std::size_t more = 0;
  };
  std::vector<Reason> reasons_;
  std::map<std::pair<const ObstacleKind*, std::string>, std::size_t> places_;  // by kind and group
  std::map<const ObstacleKind*, std::size_t> of_a_kind_;
  std::vector<std::string> options_;
  std::set<std::string> needed_;
  std::uint64_t ghost_limit_ = 0;
};

}  // namespace sluice::cli
