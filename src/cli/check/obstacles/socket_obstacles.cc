// SPDX-License-Identifier: MIT
#include <sys/socket.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <string_view>

#include "base/printable.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "cli/check/obstacles/dump_obstacles.h"
#include "cli/check/obstacles/unix_sockets.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kTableBytes = 8 * kMiB;  // of /proc/PID/net/tcp: fifty thousand sockets
constexpr unsigned kEstablished = 1, kSynReceived = 3, kTimeWait = 6, kClosed = 7,
                   kListening = 10;  // linux/tcp_states

// A socket, and a process that has it.
struct OpenSocket {
  const TaskFacts* task = nullptr;
  const OpenDescriptor* descriptor = nullptr;
  std::string protocol;  // the kernel's name: "TCPv6", "UNIX-STREAM", "AF_VSOCK"

  std::string text() const { return descriptor_text(*task, *descriptor) + " is "; }
};

std::uint64_t socket_inode(const std::string& link) {
  constexpr std::string_view kPrefix = "socket:[";
  return link.starts_with(kPrefix) ? std::strtoull(&link[kPrefix.size()], nullptr, 10) : 0;
}

// Every socket has this attribute (the kernel's net/socket.c); reading it opens nothing.
std::string protocol_of(const TaskFacts& task, const OpenDescriptor& descriptor) {
  const std::string path = task.directory + "/fd/" + std::to_string(descriptor.fd);
  std::array<char, 64> name{};
  const ssize_t length = ::getxattr(path.c_str(), "system.sockprotoname", name.data(), name.size() - 1);
  return length > 0 ? name.data() : "";
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// From Linux 6.16 on, sockets of other families refuse the options of UNIX sockets, which CRIU before 4.2
// reads.
bool kernel_refuses_unix_options() {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  int value = 0;
  socklen_t length = sizeof value;
  return fd && ::getsockopt(fd.get(), SOL_SOCKET, SO_PASSCRED, &value, &length) != 0 && errno == EOPNOTSUPP;
}

class SocketLook {
 public:
  SocketLook(const DumpTree& tree, const DumpSurroundings& around, Obstacles& found)
      : around_(around),
        found_(found),
        own_net_(namespaces_of(around.self)[kNetNs]),
        refuses_options_(around.criu_is_before(4, 2) && kernel_refuses_unix_options()) {
    for (const TaskFacts& task : tree.tasks) {
      for (const OpenDescriptor& descriptor : task.descriptors) {
        const std::uint64_t inode = socket_inode(descriptor.link);
        if (inode == 0 || sockets_.count(inode) != 0) continue;
        sockets_.emplace(inode, OpenSocket{&task, &descriptor, protocol_of(task, descriptor)});
      }
      if (task.namespaces[kNetNs] != 0) net_.emplace(task.namespaces[kNetNs], &task);  // a dead one has none
    }
  }

  void look() {
    for (const auto& [inode, socket] : sockets_) look_at_protocol(inode, socket);
    if (!tcp_.empty()) look_at_tcp();
    if (!netlink_.empty()) look_at_netlink();
    if (!unix_.empty()) look_at_unix();
  }

 private:
  using Sockets = std::map<std::uint64_t, const OpenSocket*>;

  void look_at_protocol(std::uint64_t inode, const OpenSocket& socket) {
    const std::string& name = socket.protocol;
    if (is_one_of(name, {"UNIX", "UNIX-STREAM"})) {
      unix_.emplace(inode, &socket);
    } else if (name == "NETLINK") {
      netlink_.emplace(inode, &socket);
    } else if (is_one_of(name, {"TCP", "TCPv6", "UDP", "UDPv6", "UDP-Lite", "UDPLITEv6", "RAW", "RAWv6",
                                "PING", "PINGv6", "PACKET"})) {
      if (name.starts_with("TCP")) tcp_.emplace(inode, &socket);
      if (refuses_options_) found_.add(obstacle::kCriuKernel, socket.text() + "a socket with fewer options");
    } else if (is_one_of(name, {"MPTCP", "MPTCPv6"})) {
      found_.add(obstacle::kMptcp, socket.text() + "a multipath TCP socket");
    } else if (!name.empty()) {
      found_.add(obstacle::kSocketFamily, socket.text() + "a socket of " + printable(name), name);
    }
  }

  // Lines of a table in /proc/PID/net, split into words. False: there are more than were read.
  template <class Line>
  static bool read_table(const std::string& path, const Line& line) {
    const std::string text = proc_text(path, kTableBytes);
    std::array<std::string_view, 16> words;
    for (std::string_view rest = text; !rest.empty();) {
      std::string_view row = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), row.size() + 1));
      words.fill({});
      for (std::string_view& word : words) {
        row.remove_prefix(std::min(row.size(), row.find_first_not_of(' ')));
        word = row.substr(0, row.find(' '));
        row.remove_prefix(word.size());
      }
      line(words);
    }
    return text.size() < kTableBytes;
  }

  static std::uint64_t number(std::string_view word, int base) {
    return std::strtoull(std::string(word.substr(0, 20)).c_str(), nullptr, base);
  }

  // "sl local rem st tx:rx ..:.. retrnsmt uid timeout inode". A socket in no table has no address yet.
  void look_at_tcp() {
    bool whole = true;
    Sockets left = tcp_;
    for (const auto& [space, task] : net_) {
      for (const char* table : {"/net/tcp", "/net/tcp6"}) {
        whole &= read_table(task->directory + table, [&](const std::array<std::string_view, 16>& words) {
          const auto socket = left.find(number(words[9], 10));
          if (socket == left.end()) return;
          const std::size_t colon = words[4].find(':');
          const std::uint64_t waiting =
              colon == std::string_view::npos ? 0 : number(words[4].substr(colon + 1), 16);
          look_at_connection(*socket->second, static_cast<unsigned>(number(words[3], 16)), waiting);
          left.erase(socket);
        });
      }
    }
    if (whole) return;
    for (const auto& [inode, socket] : left)
      found_.add(obstacle::kTcpUnknown, socket->text() + "a TCP socket");
  }

  void look_at_connection(const OpenSocket& socket, unsigned state, std::uint64_t waiting) {
    if (state == kListening) {
      if (waiting > 0) found_.add(obstacle::kTcpInFlight, socket.text() + "a listening TCP socket");
    } else if (state != kClosed && state != kTimeWait && state != kSynReceived) {
      found_.add(obstacle::kTcpEstablished, socket.text() + "a TCP connection");
    }
  }

  // "sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode".
  void look_at_netlink() {
    for (const auto& [space, task] : net_) {
      (void)read_table(task->directory + "/net/netlink", [&](const std::array<std::string_view, 16>& words) {
        const auto socket = netlink_.find(number(words[9], 10));
        if (socket != netlink_.end() && number(words[4], 10) > 0)
          found_.add(obstacle::kNetlinkData, socket->second->text() + "a netlink socket");
      });
    }
  }

  void look_at_unix() {
    UnixSockets all;
    for (const auto& [space, task] : net_) {
      auto sockets = unix_sockets(task->directory, space != own_net_);
      if (!sockets) {
        for (const auto& [inode, socket] : unix_)
          found_.add(obstacle::kUnixUnknown, socket->text() + "a unix socket");
        return;
      }
      all.merge(*sockets);
    }
    std::set<std::uint32_t> in_flight;
    for (const auto& [inode, socket] : all)
      in_flight.insert(socket.in_flight.begin(), socket.in_flight.end());
    for (const auto& [inode, socket] : unix_) {
      const auto told = all.find(static_cast<std::uint32_t>(inode));
      if (told != all.end()) {
        look_at_unix(inode, *socket, told->second, all, in_flight);
      } else if (socket_inode(link_now(*socket)) == inode) {
        found_.add(obstacle::kUnixUnreachable, socket->text() + "a unix socket of another network namespace");
      }
    }
  }

  static std::string link_now(const OpenSocket& socket) {
    const std::string path = socket.task->directory + "/fd/" + std::to_string(socket.descriptor->fd);
    std::array<char, 64> text{};
    const ssize_t length = ::readlink(path.c_str(), text.data(), text.size());
    return length < 0 ? std::string() : std::string(text.data(), static_cast<std::size_t>(length));
  }

  // As CRIU's dump_one_unix_fd and __dump_external_socket do.
  void look_at_unix(std::uint64_t inode, const OpenSocket& open, const UnixSocket& socket,
                    const UnixSockets& all, const std::set<std::uint32_t>& in_flight) {
    constexpr unsigned kBothWays = 3;
    const std::string text = open.text() + "a unix socket";
    const ObstacleKind& in_flight_kind =
        around_.criu_is_before(3, 18) ? obstacle::kUnixInFlightLost : obstacle::kUnixInFlight;
    if (socket.state == kListening) {
      if (std::count(socket.in_flight.begin(), socket.in_flight.end(), 0U) != 0)
        found_.add(in_flight_kind, text);
    } else if (socket.peer != 0) {
      if (sockets_.count(socket.peer) != 0) return;
      const auto peer = all.find(socket.peer);
      if (peer == all.end() || (peer->second.peer != inode && !peer->second.named)) {
        found_.add(obstacle::kUnixUnreachable, text);
      } else if (peer->second.type == SOCK_DGRAM && peer->second.named) {
        found_.add(obstacle::kUnixExternal, text);
      } else {
        found_.add(obstacle::kUnixNameless, text, {}, "unix[" + std::to_string(inode) + "]");
      }
    } else if (socket.state == kEstablished && socket.type != SOCK_DGRAM) {
      if (in_flight.count(static_cast<std::uint32_t>(inode)) != 0) {
        if (socket.to_be_sent > 0) found_.add(in_flight_kind, text);
      } else if (socket.shutdown != kBothWays) {
        found_.add(obstacle::kUnixUnreachable, text);
      }
    }
  }

  const DumpSurroundings& around_;
  Obstacles& found_;
  std::uint64_t own_net_;
  bool refuses_options_;                           // and this criu reads them
  std::map<std::uint64_t, OpenSocket> sockets_;    // the tree's, by inode
  std::map<std::uint64_t, const TaskFacts*> net_;  // one process per network namespace
  Sockets unix_, tcp_, netlink_;
};

}  // namespace

void find_socket_obstacles(const DumpTree& tree, const DumpSurroundings& around, Obstacles& found) {
  SocketLook(tree, around, found).look();
}

}  // namespace sluice::cli
