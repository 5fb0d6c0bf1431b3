// SPDX-License-Identifier: MIT
#include <algorithm>
#include <sstream>

#include "base/units.h"
#include "cli/check/obstacles/dump_obstacles.h"
#include "cli/text.h"
#include "proc/directory.h"

namespace sluice::cli {
namespace {

// Descriptors that criu has open in a process at once: two ends of its socket pair, and two files (compel,
// criu/pie/parasite.c).
constexpr std::uint64_t kCriuDescriptors = 4;
// criu's code and stacks in a process with one thread were between 64 and 150 KiB; more threads need more.
constexpr std::uint64_t kLeastCriuCode = 64 * kKiB;
constexpr std::uint64_t kMostCriuCode = 4 * kMiB;

// Whether an id map of a user namespace ("0 100000 65536") maps number 0.
bool maps_zero(const std::string& path) {
  std::istringstream map(proc_text(path, 65536));
  std::uint64_t inside = 0;
  std::uint64_t outside = 0;
  std::uint64_t count = 0;
  while (map >> inside >> outside >> count) {
    if (inside == 0 && count > 0) return true;
  }
  return false;
}

bool may_read_filters(const DumpSurroundings& around) {
  constexpr unsigned kCapSysAdmin = 21;
  const std::string status = proc_text(around.self + "/status", 16384);
  const auto effective = std::strtoull(std::string(line_of(status, "CapEff:\t")).c_str(), nullptr, 16);
  return line_of(status, "Seccomp:\t") == "0" && (effective >> kCapSysAdmin & 1U) != 0;
}

// CRIU's requirements for the first process only.
void look_at_root(const TaskFacts& root, const Namespaces& own, Obstacles& found) {
  const std::string text = process_text(root);
  if (root.state == 'Z') {
    if (root.threads <= 1) found.add(obstacle::kZombie, text + " has ended");
    return;
  }
  if (root.inner_session && *root.inner_session != 0 && root.inner_pid != *root.inner_session)
    found.add(obstacle::kSession,
              text + " is no leader of a session (" + std::to_string(root.session) + " is)");
  if (root.namespaces[kPidNs] != own[kPidNs] && root.inner_pid > 1)
    found.add(obstacle::kNoInit,
              text + " is number " + std::to_string(root.inner_pid) + " of its pid namespace");
  if (root.namespaces[kUserNs] != own[kUserNs] &&
      (!maps_zero(root.directory + "/uid_map") || !maps_zero(root.directory + "/gid_map")))
    found.add(obstacle::kUserNamespace, text + " is in a user namespace");
  if (root.namespaces[kMntNs] != own[kMntNs])
    found.add(obstacle::kMountNamespace, text + " is in a mount namespace of its own");
}

// CRIU takes these namespaces from the first process, and supports no others in a tree.
void look_at_namespaces(const TaskFacts& task, const TaskFacts& root, const Namespaces& own,
                        Obstacles& found) {
  for (const NamespaceKind kind : {kPidNs, kIpcNs, kUtsNs, kUserNs, kCgroupNs, kTimeNs}) {
    const std::uint64_t space = task.namespaces[kind];
    if (space != 0 && space != root.namespaces[kind] && space != own[kind])
      found.add(obstacle::kNestedNamespace,
                process_text(task) + " is in a namespace of its own (" + kNamespaces[kind] + ")",
                kNamespaces[kind]);
  }
  if (task.namespaces[kTimeForChildrenNs] != task.namespaces[kTimeNs])
    found.add(obstacle::kNestedNamespace,
              process_text(task) + " has made a namespace for its children (time)", "time");
}

void look_at_limits(const TaskFacts& task, Obstacles& found) {
  if (task.descriptor_limit) {
    const std::uint64_t limit = *task.descriptor_limit;
    const auto used = static_cast<std::uint64_t>(std::count_if(
        task.descriptors.begin(), task.descriptors.end(), [limit](const OpenDescriptor& descriptor) {
          return static_cast<std::uint64_t>(descriptor.fd) < limit;
        }));
    if (limit - used < kCriuDescriptors)
      found.add(obstacle::kDescriptorLimit, process_text(task) + " has " + std::to_string(limit - used) +
                                                " descriptors left of " + std::to_string(limit));
  }
  if (task.address_space_limit) {
    const std::uint64_t left =
        *task.address_space_limit - std::min(*task.address_space_limit, task.address_space);
    const std::string text = process_text(task) + " has " + bytes_text(left) + " of address space left";
    if (left < kLeastCriuCode) {
      found.add(obstacle::kAddressSpaceLimit, text);
    } else if (left < kMostCriuCode) {
      found.add(obstacle::kAddressSpaceScarce, text);
    }
  }
}

}  // namespace

void find_process_obstacles(const DumpTree& tree, const DumpSurroundings& around, Obstacles& found) {
  const Namespaces own = namespaces_of(around.self);
  const TaskFacts& root = tree.tasks.front();
  const bool reads_filters = may_read_filters(around);
  look_at_root(root, own, found);
  for (const TaskFacts& task : tree.tasks) {
    look_at_namespaces(task, root, own, found);
    if (task.state == 'Z') {
      if (task.threads > 1)
        found.add(obstacle::kDeadLeader,
                  "the first thread of " + process_text(task) + " has ended while others run");
      continue;
    }
    if (task.inner_session && *task.inner_session == 0)
      found.add(obstacle::kSessionOutside, process_text(task) + " is of a session");
    if (task.seccomp != 0 && !reads_filters)
      found.add(obstacle::kSeccomp, process_text(task) + " has a filter of system calls (seccomp)");
    look_at_limits(task, found);
  }
  if (tree.cut)
    found.add(obstacle::kNotAllSeen, std::to_string(tree.descriptors) + " descriptors were looked at");
}

}  // namespace sluice::cli
