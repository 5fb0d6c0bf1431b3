// SPDX-License-Identifier: MIT
// A process that has what CRIU refuses or wants an option for, or a harmless neighbour of it:
//
//   obstacle-subject DIR THING[,THING...] [PROGRAM ARGUMENTS...]
//
// makes the things, then either becomes PROGRAM, which inherits their descriptors, or says "ready pid=N" into
// the FIFO DIR/out and waits to be dumped or killed. A thing that this kernel does not have: "cannot THING:
// reason". Files that it makes are in DIR.
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/netlink.h>
#include <linux/perf_event.h>
#include <linux/rtnetlink.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

std::string directory;

// A system call's answer; the program ends where it is an error.
int must(long answer, const char* what) {
  if (answer < 0) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
  return static_cast<int>(answer);
}

int file(const std::string& name, int flags = O_RDWR | O_CREAT) {
  return must(::open((directory + "/" + name).c_str(), flags, 0600), name.c_str());
}

void* map(int fd, off_t offset = 0, int protection = PROT_READ, int flags = MAP_SHARED) {
  void* const at = ::mmap(nullptr, 4096, protection, flags, fd, offset);
  if (at == MAP_FAILED) must(-1, "mmap");
  return at;
}

void device(const char* path, int flags = O_RDONLY) {
  must(::open(path, flags), path);
}

void write_bytes(int fd, std::size_t bytes) {
  const std::vector<char> text(bytes, 'x');
  must(::write(fd, text.data(), text.size()), "write");
}

[[noreturn]] void wait_for_ever() {
  for (;;) (void)::pause();
}

// A child that does `first` and stays.
void child(const std::function<void()>& first) {
  std::array<int, 2> ready{};
  must(::pipe2(ready.data(), O_CLOEXEC), "pipe2");
  if (must(::fork(), "fork") == 0) {
    first();
    (void)::close(ready[0]);
    (void)::close(ready[1]);
    wait_for_ever();
  }
  (void)::close(ready[1]);
  char none = 0;
  (void)!::read(ready[0], &none, 1);
  (void)::close(ready[0]);
}

sockaddr_in loopback() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// A listening socket of TCP; its address in `address`.
int listening(sockaddr_in& address) {
  const int fd = must(::socket(AF_INET, SOCK_STREAM, 0), "socket");
  address = loopback();
  socklen_t length = sizeof address;
  must(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), "bind");
  must(::listen(fd, 4), "listen");
  must(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), "getsockname");
  return fd;
}

int connect_to(const sockaddr_in& address) {
  const int fd = must(::socket(AF_INET, SOCK_STREAM, 0), "socket");
  must(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), "connect");
  return fd;
}

sockaddr_un unix_address(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = directory + "/" + name;
  std::memcpy(address.sun_path, path.c_str(), std::min(path.size(), sizeof address.sun_path - 1));
  return address;
}

int unix_listening(const std::string& name) {
  const int fd = must(::socket(AF_UNIX, SOCK_STREAM, 0), "socket");
  const sockaddr_un address = unix_address(name);
  must(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), "bind");
  must(::listen(fd, 4), "listen");
  return fd;
}

int unix_connect(const std::string& name, int type) {
  const int fd = must(::socket(AF_UNIX, type, 0), "socket");
  const sockaddr_un address = unix_address(name);
  must(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), "connect");
  return fd;
}

void socket_pair(int type) {
  std::array<int, 2> ends{};
  must(::socketpair(AF_UNIX, type, 0, ends.data()), "socketpair");
}

void io_uring() {
  io_uring_params parameters{};
  const int ring = must(::syscall(SYS_io_uring_setup, 8, &parameters), "io_uring_setup");
  must(::fcntl(ring, F_SETFD, 0), "fcntl");
  map(ring, IORING_OFF_SQ_RING, PROT_READ | PROT_WRITE);
}

void perf_event() {
  perf_event_attr wanted{};
  wanted.size = sizeof wanted;
  wanted.type = PERF_TYPE_SOFTWARE;
  wanted.config = PERF_COUNT_SW_PAGE_FAULTS;
  must(::syscall(SYS_perf_event_open, &wanted, 0, -1, -1, 0), "perf_event_open");
}

void bpf_map() {
  bpf_attr wanted{};
  wanted.map_type = BPF_MAP_TYPE_ARRAY;
  wanted.key_size = 4;
  wanted.value_size = 8;
  wanted.max_entries = 1;
  must(::syscall(SYS_bpf, BPF_MAP_CREATE, &wanted, sizeof wanted), "bpf");
}

void seccomp() {
  sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  sock_fprog program = {1, &allow};
  must(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
  must(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
}

void netlink_with_data() {
  const int fd = must(::socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE), "socket");
  struct {
    nlmsghdr head;
    ifinfomsg what;
  } question{};
  question.head.nlmsg_len = sizeof question;
  question.head.nlmsg_type = RTM_GETLINK;
  question.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  must(::send(fd, &question, sizeof question, 0), "send");
}

void secret_memory() {
  const int fd = must(::syscall(SYS_memfd_secret, 0), "memfd_secret");
  must(::ftruncate(fd, 4096), "ftruncate");
  map(fd, 0, PROT_READ | PROT_WRITE);
}

// The limit of what is open now and `more`.
void limit_descriptors(rlim_t more) {
  const int highest = must(::dup(STDIN_FILENO), "dup");
  (void)::close(highest);
  const rlimit limit = {static_cast<rlim_t>(highest) + more, static_cast<rlim_t>(highest) + more};
  must(::setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
}

void limit_address_space(rlim_t more) {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit limit = {pages * 4096 + more, pages * 4096 + more};
  must(::setrlimit(RLIMIT_AS, &limit), "setrlimit");
}

void lowered_limits() {
  for (const auto resource : {RLIMIT_FSIZE, RLIMIT_STACK, RLIMIT_DATA, RLIMIT_NPROC}) {
    const rlimit limit = {4096, 4096};
    must(::setrlimit(resource, &limit), "setrlimit");
  }
}

void unix_of_another_namespace() {
  const int home = must(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), "ns/net");
  must(::unshare(CLONE_NEWNET), "unshare");
  socket_pair(SOCK_STREAM);
  must(::setns(home, CLONE_NEWNET), "setns");
}

// A thread that stays when the first one is gone.
void dead_leader() {
  pthread_t thread{};
  const auto stay = [](void*) -> void* { wait_for_ever(); };
  if (::pthread_create(&thread, nullptr, stay, nullptr) != 0) must(-1, "pthread_create");
}

void tcp_connection() {
  sockaddr_in address{};
  const int server = listening(address);
  connect_to(address);
  must(::accept4(server, nullptr, nullptr, 0), "accept");
}

void in_flight_tcp() {
  sockaddr_in address{};
  listening(address);
  connect_to(address);
}

void shared_memory() {
  const int id = must(::shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600), "shmget");
  void* const at = ::shmat(id, nullptr, 0);
  must(::shmctl(id, IPC_RMID, nullptr), "shmctl");
  if (reinterpret_cast<long>(at) == -1) must(-1, "shmat");
}

void lose_one_name() {
  file("with-two-names");
  must(::link((directory + "/with-two-names").c_str(), (directory + "/other-name").c_str()), "link");
  must(::unlink((directory + "/with-two-names").c_str()), "unlink");
}

void deleted(const std::string& name, std::size_t bytes) {
  write_bytes(file(name), bytes);
  must(::unlink((directory + "/" + name).c_str()), "unlink");
}

// What nobody has anything against.
void harmless() {
  for (const char* path : {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"})
    device(path);
  map(must(::open("/dev/zero", O_RDWR), "/dev/zero"), 0, PROT_READ | PROT_WRITE);
  map(-1, 0, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  for (const int type : {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET}) socket_pair(type);
  sockaddr_in address{};
  listening(address);
  unix_listening("listening");
  const sockaddr_in any = loopback();
  const int datagrams = must(::socket(AF_INET, SOCK_DGRAM, 0), "socket");
  must(::bind(datagrams, reinterpret_cast<const sockaddr*>(&any), sizeof any), "bind");
  must(::socket(AF_INET, SOCK_STREAM, 0), "socket");
  must(::socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE), "socket");
  std::array<int, 2> ends{};
  must(::pipe(ends.data()), "pipe");
  must(::epoll_create1(0), "epoll_create1");
  must(::eventfd(1, 0), "eventfd");
  must(::timerfd_create(CLOCK_MONOTONIC, 0), "timerfd_create");
  must(::inotify_init1(0), "inotify_init1");
  sigset_t none;
  sigemptyset(&none);
  must(::signalfd(-1, &none, 0), "signalfd");
  must(::memfd_create("memory", 0), "memfd_create");
  map(file("ordinary", O_RDWR | O_CREAT), 0, PROT_READ, MAP_PRIVATE);
  deleted("small", 100);
  must(::open("/proc/self/ns/net", O_RDONLY), "ns/net");
  const int master = must(::posix_openpt(O_RDWR | O_NOCTTY), "posix_openpt");
  must(::unlockpt(master), "unlockpt");
  must(::open(::ptsname(master), O_RDWR | O_NOCTTY), "pts");
  const pid_t ended = must(::fork(), "fork");
  if (ended == 0) ::_exit(0);
  siginfo_t how{};
  must(::waitid(P_PID, static_cast<id_t>(ended), &how, WEXITED | WNOWAIT), "waitid");  // and stays a zombie
}

const std::map<std::string, std::function<void()>>& things() {
  static const std::map<std::string, std::function<void()>> all = {
      {"nothing", [] {}},
      {"harmless", harmless},
      {"io-uring", io_uring},
      {"perf-event", perf_event},
      {"bpf-map", bpf_map},
      {"userfaultfd", [] { must(::syscall(SYS_userfaultfd, 0), "userfaultfd"); }},
      {"secret-memory", secret_memory},
      {"pidfd", [] { must(::syscall(SYS_pidfd_open, ::getpid(), 0), "pidfd_open"); }},
      {"pidfd-outside", [] { must(::syscall(SYS_pidfd_open, ::getppid(), 0), "pidfd_open"); }},
      {"rdma", [] { device("/dev/infiniband/rdma_cm", O_RDWR); }},
      {"device", [] { device("/dev/cpu_dma_latency", O_RDWR); }},
      {"device-map", [] { map(must(::open("/dev/mem", O_RDONLY), "/dev/mem"), 0xf0000); }},
      {"tun", [] { device("/dev/net/tun", O_RDWR); }},
      {"namespace-file",
       [] {
         const int home = must(::open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC), "ns/uts");
         must(::unshare(CLONE_NEWUTS), "unshare");
         must(::open("/proc/self/ns/uts", O_RDONLY), "ns/uts");
         must(::setns(home, CLONE_NEWUTS), "setns");
         (void)::close(home);
       }},
      {"sysv-shm", shared_memory},
      {"xdp", [] { must(::socket(AF_XDP, SOCK_RAW, 0), "socket"); }},
      {"mptcp", [] { must(::socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP), "socket"); }},
      {"netlink-data", netlink_with_data},
      {"unix-in-flight",
       [] {
         unix_listening("in-flight");
         write_bytes(unix_connect("in-flight", SOCK_STREAM), 1);
       }},
      {"unix-other-namespace", unix_of_another_namespace},
      {"unix-external", [] { unix_connect("server", SOCK_DGRAM); }},
      {"tcp-established", tcp_connection},
      {"tcp-in-flight", in_flight_tcp},
      {"file-lock", [] { must(::flock(file("locked"), LOCK_EX), "flock"); }},
      {"lease",
       [] {
         (void)::close(file("leased"));
         must(::fcntl(file("leased", O_RDONLY), F_SETLEASE, F_RDLCK), "F_SETLEASE");
       }},
      {"deleted-file", [] { deleted("large", 3U << 20U); }},
      {"link-remap", lose_one_name},
      {"file-in-shadow", [] { file("shadow/file"); }},
      {"current-terminal",
       [] {
         device("/dev/tty", O_RDWR);
         (void)::close(9);
       }},
      {"seccomp", seccomp},
      {"descriptor-limit", [] { limit_descriptors(2); }},
      {"enough-descriptors", [] { limit_descriptors(4); }},
      {"address-space-limit", [] { limit_address_space(8192); }},
      {"enough-address-space", [] { limit_address_space(64U << 20U); }},
      {"lowered-limits", lowered_limits},
      {"dead-leader", dead_leader},
      {"nested-namespace", [] { child([] { must(::unshare(CLONE_NEWIPC), "unshare"); }); }},
      {"child", [] { child([] {}); }},
      {"zombie",
       [] {
         const pid_t ended = must(::fork(), "fork");
         if (ended == 0) ::_exit(0);
         siginfo_t how{};
         must(::waitid(P_PID, static_cast<id_t>(ended), &how, WEXITED | WNOWAIT), "waitid");
       }},
  };
  return all;
}

void say(const std::string& line) {
  const int out = ::open((directory + "/out").c_str(), O_WRONLY | O_CLOEXEC);
  (void)!::write(out, line.data(), line.size());
  (void)::close(out);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  directory = argv[1];
  std::istringstream names(argv[2]);
  bool leader_ends = false;
  for (std::string name; std::getline(names, name, ',');) {
    try {
      things().at(name)();
    } catch (const std::exception& problem) {
      say("cannot " + name + ": " + problem.what() + "\n");
      return 1;
    }
    leader_ends |= name == "dead-leader";
  }
  if (argc > 3) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      (void)::execv(argv[3], argv + 3);
      ::_exit(127);
    }
    int status = 0;
    (void)TEMP_FAILURE_RETRY(::waitpid(pid, &status, 0));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  }
  say("ready pid=" + std::to_string(::getpid()) + "\n");
  if (leader_ends) (void)::syscall(SYS_exit, 0);  // of the thread alone
  wait_for_ever();
}
