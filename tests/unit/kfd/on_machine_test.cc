// SPDX-License-Identifier: MIT
// The device side of sluice::kfd on a machine with a KFD: a process with BOs is found by its tracer,
// checkpointed, unpaused and restored as another process. Run by vamdgpu-run; skipped where there is no
// /dev/kfd.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <libdrm/amdgpu_drm.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "images/kfd_image.h"
#include "kfd/criu_ops.h"
#include "kfd/driver.h"
#include "kfd/matching/matching.h"
#include "kfd/memory/open_dmabufs.h"
#include "kfd/records/private_data.h"
#include "kfd/topology.h"
#include "kfd/uapi.h"
#include "proc/processes.h"

namespace sluice::kfd {
namespace {

constexpr std::uint64_t kVramAddress = 0x200000000;
constexpr std::uint64_t kVramBytes = 8192;
constexpr std::uint64_t kGttAddress = 0x300000000;
constexpr std::uint64_t kGttBytes = 4096;

// What a task reports when it has done its part.
struct Report {
  int err = -1;
  std::uint64_t value = 0;
};

// Traced and stopped, as CRIU has it.
void seize_process(pid_t pid) {
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr), 0);
  ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, pid, nullptr, nullptr), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, __WALL), pid);
  ASSERT_TRUE(WIFSTOPPED(status));
}

// A child that runs `task`, reports, and stays until it is killed.
class Task {
 public:
  explicit Task(const std::function<Report()>& task) {
    int channel[2];
    EXPECT_EQ(::pipe2(channel, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const Report report = task();
      (void)!::write(channel[1], &report, sizeof report);
      for (;;) ::pause();
    }
    ::close(channel[1]);
    Report report;
    EXPECT_EQ(::read(channel[0], &report, sizeof report), static_cast<ssize_t>(sizeof report));
    report_ = report;
    ::close(channel[0]);
  }
  ~Task() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  pid_t pid() const { return pid_; }
  const Report& report() const { return report_; }

  void seize() const { seize_process(pid_); }

 private:
  pid_t pid_ = -1;
  Report report_;
};

UniqueFd open_render(const Node& gpu) {
  return UniqueFd(
      ::open(("/dev/dri/renderD" + std::to_string(gpu.drm_render_minor)).c_str(), O_RDWR | O_CLOEXEC));
}

int allocate(int kfd, std::uint32_t gpu_id, std::uint64_t address, std::uint64_t bytes, std::uint32_t flags) {
  AllocMemoryArgs memory{};
  memory.va_addr = address;
  memory.size = bytes;
  memory.gpu_id = gpu_id;
  memory.flags = flags;
  return ::ioctl(kfd, kIocAllocMemory, &memory) == 0 ? 0 : errno;
}

// Of a BO of one page, which the file has, too.
UniqueFd make_dmabuf(int render) {
  drm_amdgpu_gem_create create{};
  create.in.bo_size = create.in.alignment = 4096;
  create.in.domains = AMDGPU_GEM_DOMAIN_VRAM;
  EXPECT_EQ(::ioctl(render, DRM_IOCTL_AMDGPU_GEM_CREATE, &create), 0) << errno;
  drm_prime_handle prime{create.out.handle, DRM_CLOEXEC | DRM_RDWR, -1};
  EXPECT_EQ(::ioctl(render, DRM_IOCTL_PRIME_HANDLE_TO_FD, &prime), 0) << errno;
  return UniqueFd(prime.fd);
}

// A child that stays until it is killed, with our descriptor table or a copy of it.
class Fork {
 public:
  explicit Fork(unsigned long flags)
      : pid_(static_cast<pid_t>(::syscall(SYS_clone, flags | SIGCHLD, nullptr, nullptr, nullptr, nullptr))) {
    if (pid_ != 0) return;
    for (;;) (void)::syscall(SYS_pause);
  }
  ~Fork() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Fork(const Fork&) = delete;
  Fork& operator=(const Fork&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

// A process with VRAM on the first GPU and GTT on the second, and a second open file of its KFD.
Report be_a_subject(const Topology& topology) {
  std::vector<const Node*> gpus;
  for (const Node& node : topology.nodes) {
    if (node.is_gpu()) gpus.push_back(&node);
  }
  UniqueFd kfd(::open(kDevicePath, O_RDWR | O_CLOEXEC));
  const int second = ::open(kDevicePath, O_RDWR | O_CLOEXEC);
  if (!kfd || second < 0) return {errno, 0};
  for (const Node* gpu : gpus) {
    AcquireVmArgs vm{static_cast<std::uint32_t>(open_render(*gpu).release()), gpu->gpu_id};
    if (::ioctl(kfd.get(), kIocAcquireVm, &vm) != 0) return {errno, 1};
  }
  if (const int err =
          allocate(kfd.get(), gpus[0]->gpu_id, kVramAddress, kVramBytes, kAllocVram | kAllocWritable)) {
    return {err, 2};
  }
  if (const int err =
          allocate(kfd.get(), gpus[1]->gpu_id, kGttAddress, kGttBytes, kAllocGtt | kAllocWritable)) {
    return {err, 3};
  }
  (void)kfd.release();
  return {0, 0};
}

class OnMachine : public ::testing::Test {
 protected:
  void SetUp() override {
    struct stat st {};
    if (::stat(kDevicePath, &st) != 0) GTEST_SKIP() << "no " << kDevicePath << " here";
    auto local = read_topology();
    ASSERT_TRUE(local.ok()) << local.error().what;
    topology = std::move(local).value();
    ASSERT_EQ(topology.gpu_count(), 2U);
  }

  // The session of the subject's process, found as the plugin finds it.
  CriuSession& open_session(const Task& subject) {
    const auto files = proc::open_device_files({subject.pid()}, std::array{kfd_device_number().value()});
    EXPECT_TRUE(files.ok()) << files.error().what;
    EXPECT_EQ(files->size(), 2U);  // two files, one KFD process
    auto fd = proc::take_descriptor(files->front().holders.front());
    EXPECT_TRUE(fd.ok()) << fd.error().what;
    EXPECT_EQ(classify_fd(fd->get(), kfd_device_number().value()).value().kind, FileKind::Kfd);
    return guard.open_session(std::move(fd).value(), "the subject");
  }

  Topology topology;
  UnpauseGuard guard;
};

TEST_F(OnMachine, the_device_opens_and_is_told_from_others) {
  const auto device = KfdDevice::open(kfd_device_number().value());
  ASSERT_TRUE(device.ok()) << device.error().what;
  EXPECT_EQ(device->version().major, 1U);
  const dev_t number = kfd_device_number().value();
  EXPECT_EQ(classify_fd(device->fd(), number).value().kind, FileKind::Kfd);
  const UniqueFd render = open_render(topology.nodes.back());
  const auto render_class = classify_fd(render.get(), number);
  ASSERT_TRUE(render_class.ok());
  EXPECT_EQ(render_class->kind, FileKind::RenderNode);
  EXPECT_EQ(render_class->render_minor, topology.nodes.back().drm_render_minor);
  EXPECT_TRUE(std::get<Match>(match_gpus(topology, topology, {})).identity);
}

TEST_F(OnMachine, a_process_is_checkpointed_and_restored) {
  const Task subject([&] { return be_a_subject(topology); });
  ASSERT_EQ(subject.report().err, 0) << "step " << subject.report().value;
  subject.seize();

  CriuSession& session = open_session(subject);
  const auto info = session.process_info();
  ASSERT_TRUE(info.ok()) << info.error().what;
  EXPECT_EQ(info->num_devices, 2U);
  EXPECT_EQ(info->num_bos, 2U);
  EXPECT_EQ(guard.paused_count(), 1U);
  auto checkpoint = session.checkpoint();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().what;
  for (const UniqueFd& dmabuf : checkpoint->dmabufs)
    EXPECT_EQ(classify_fd(dmabuf.get(), 0).value().kind, FileKind::DmaBuf);
  for (const KfdBo& bo : checkpoint->bos) {
    EXPECT_EQ(bo.bytes, bo.addr == kVramAddress ? kVramBytes : kGttBytes);
  }
  PrivateOwners owners;
  for (const DeviceIds& device : checkpoint->devices) owners.gpu_ids.push_back(device.user_gpu_id);
  for (const KfdBo& bo : checkpoint->bos) owners.bos.push_back({bo.gpu_id, false});
  owners.objects = info->num_objects;
  const auto records = PrivateData::read(checkpoint->priv_data, owners);
  ASSERT_TRUE(records.ok()) << records.error().what;
  EXPECT_TRUE(records->bo_record_bytes() == 80 || records->bo_record_bytes() == 272)
      << records->bo_record_bytes();
  ASSERT_TRUE(guard.unpause_all().ok());

  // Through the image.
  KfdImage image;
  auto named = topology_of_process(topology, checkpoint->devices);
  ASSERT_TRUE(named.ok()) << named.error().what;
  image.topology = std::move(named).value();
  for (const KfdBo& bo : checkpoint->bos) {
    image.bos.push_back({bo});
  }
  image.num_objects = info->num_objects;
  image.priv_data = checkpoint->priv_data;
  const auto decoded = decode_kfd_image(encode_kfd_image(image));
  ASSERT_TRUE(decoded.ok()) << decoded.error().what;

  // Into another process, each GPU on the other one.
  std::vector<DeviceIds> swapped = checkpoint->devices;
  std::swap(swapped[0].actual_gpu_id, swapped[1].actual_gpu_id);
  const Task restored([&]() -> Report {
    auto device = KfdDevice::open(kfd_device_number().value());
    if (!device) return {device.error().err, 0};
    std::vector<UniqueFd> renders;
    std::vector<RestoreDevice> devices;
    for (const DeviceIds& ids : swapped) {
      renders.push_back(open_render(*topology.find_gpu(ids.actual_gpu_id)));
      devices.push_back({ids.user_gpu_id, ids.actual_gpu_id, renders.back().get()});
    }
    const std::vector<KfdBo> bos(decoded->bos.begin(), decoded->bos.end());
    const auto result = restore(*device, devices, bos, decoded->num_objects, decoded->priv_data);
    if (!result) {
      std::fprintf(stderr, "%s\n", result.error().what.c_str());
      return {result.error().err, 1};
    }
    for (const RestoredBo& bo : *result) {
      if (!bo.dmabuf || bo.offset == 0) return {EIO, 2};
    }
    (void)std::move(*device).take_fd().release();
    for (UniqueFd& render : renders) (void)render.release();
    return {0, result->size()};
  });
  ASSERT_EQ(restored.report().err, 0) << "step " << restored.report().value;
  EXPECT_EQ(restored.report().value, 2U);

  const auto own = KfdDevice::open(kfd_device_number().value());
  ASSERT_TRUE(own.ok());
  const auto resumed = resume(*own, restored.pid());
  ASSERT_TRUE(resumed.ok()) << resumed.error().what;
  EXPECT_EQ(*resumed, ResumeOutcome::Resumed);
  EXPECT_EQ(resume(*own, restored.pid()).error().err, EINVAL);

  // A process restored on other GPUs is still known by its own names for them.
  restored.seize();
  const auto again = proc::open_device_files({restored.pid()}, std::array{kfd_device_number().value()});
  ASSERT_TRUE(again.ok());
  ASSERT_EQ(again->size(), 1U);
  CriuSession& second = guard.open_session(proc::take_descriptor(again->front().holders.front()).value(),
                                           "the restored process");
  ASSERT_TRUE(second.process_info().ok());
  auto second_checkpoint = second.checkpoint();
  ASSERT_TRUE(second_checkpoint.ok()) << second_checkpoint.error().what;
  EXPECT_EQ(second_checkpoint->devices.size(), 2U);
  for (const DeviceIds& ids : second_checkpoint->devices) {
    EXPECT_NE(std::find(swapped.begin(), swapped.end(), ids), swapped.end());
  }
  for (const KfdBo& bo : second_checkpoint->bos) {
    EXPECT_EQ(bo.gpu_id, checkpoint->bos[bo.addr == checkpoint->bos[0].addr ? 0 : 1].gpu_id);
  }
  EXPECT_TRUE(guard.unpause_all().ok());
}

TEST_F(OnMachine, two_files_of_one_process_are_told_from_one_that_was_inherited) {
  // The parent opens /dev/kfd; the child inherits that file and opens one of its own. Both live on.
  const Task parent([]() -> Report {
    const int inherited = ::open(kDevicePath, O_RDWR | O_CLOEXEC);
    if (inherited < 0) return {errno, 0};
    int channel[2];
    if (::pipe2(channel, O_CLOEXEC) != 0) return {errno, 1};
    const pid_t child = ::fork();
    if (child < 0) return {errno, 2};
    if (child == 0) {
      const int own = ::open(kDevicePath, O_RDWR | O_CLOEXEC);
      const int second = ::open(kDevicePath, O_RDWR | O_CLOEXEC);
      const int err = own < 0 || second < 0 ? errno : 0;
      (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
      (void)!::write(channel[1], &err, sizeof err);
      for (;;) ::pause();
    }
    int err = EIO;
    (void)!::read(channel[0], &err, sizeof err);
    ::close(inherited);  // the child's descriptor is the last one now
    return {err, static_cast<std::uint64_t>(child)};
  });
  ASSERT_EQ(parent.report().err, 0) << "step " << parent.report().value;
  const auto child = static_cast<pid_t>(parent.report().value);
  parent.seize();
  seize_process(child);

  const auto files = proc::open_device_files({child}, std::array{kfd_device_number().value()});
  ASSERT_TRUE(files.ok()) << files.error().what;
  ASSERT_EQ(files->size(), 3U);  // in order of their numbers: inherited, own, second
  std::vector<UniqueFd> fds;
  for (const proc::OpenFile& file : *files)
    fds.push_back(proc::take_descriptor(file.holders.front()).value());
  CriuSession& session = guard.open_session(std::move(fds[1]), "the child");
  ASSERT_TRUE(session.process_info().ok());
  const auto second = session.same_process(fds[2].get());
  ASSERT_TRUE(second.ok()) << second.error().what;
  EXPECT_TRUE(*second);
  const auto inherited = session.same_process(fds[0].get());
  ASSERT_TRUE(inherited.ok()) << inherited.error().what;
  EXPECT_FALSE(*inherited);
  EXPECT_TRUE(session.checkpoint().ok());
  EXPECT_TRUE(guard.unpause_all().ok());
}

TEST_F(OnMachine, a_process_that_is_not_traced_is_refused_with_the_reason) {
  const Task subject([&] { return be_a_subject(topology); });
  ASSERT_EQ(subject.report().err, 0) << "step " << subject.report().value;
  const auto files = proc::open_device_files({subject.pid()}, std::array{kfd_device_number().value()});
  ASSERT_TRUE(files.ok()) << files.error().what;
  auto fd = proc::take_descriptor(files->front().holders.front());
  ASSERT_TRUE(fd.ok()) << fd.error().what;
  CriuSession& session = guard.open_session(std::move(fd).value(), "the subject");
  const auto info = session.process_info();
  ASSERT_FALSE(info.ok());
  EXPECT_EQ(info.error().err, EBADF);
  EXPECT_NE(info.error().what.find("[SL-G05]"), std::string::npos) << info.error().what;
  EXPECT_EQ(guard.paused_count(), 0U);
}

TEST_F(OnMachine, a_dmabuf_is_listed_once_with_the_entries_of_all_tables) {
  const UniqueFd render = open_render(topology.nodes.back());
  const UniqueFd dmabuf = make_dmabuf(render.get());
  const pid_t own = ::getpid();
  const auto entries = [](const std::vector<pid_t>& pids) -> std::uint64_t {
    const auto found = open_dmabufs(pids);
    EXPECT_TRUE(found.ok()) << found.error().what;
    EXPECT_EQ(found->size(), 1U);
    EXPECT_EQ(found->front().holders, pids);
    return found->front().entries;
  };
  EXPECT_EQ(entries({own}), 1U);
  const UniqueFd second(::fcntl(dmabuf.get(), F_DUPFD_CLOEXEC, 0));
  EXPECT_EQ(entries({own}), 2U);
  const Fork sharing(CLONE_FILES);
  EXPECT_EQ(entries({own, sharing.pid()}), 2U) << "one table";
  const Fork copying(0);
  EXPECT_EQ(entries({own, copying.pid()}), 4U) << "two tables";
  EXPECT_EQ(entries({own, sharing.pid(), copying.pid()}), 4U);
}

TEST_F(OnMachine, a_dmabuf_is_taken_unless_another_file_is_in_its_place) {
  const UniqueFd render = open_render(topology.nodes.back());
  const UniqueFd dmabuf = make_dmabuf(render.get());
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const auto found = open_dmabufs({::getpid()});
  ASSERT_TRUE(found.ok() && found->size() == 1);
  EXPECT_TRUE(take_dmabuf(found->front()).ok());
  OpenDmaBuf other = found->front();
  ++other.inode;
  EXPECT_EQ(take_dmabuf(other).error().err, ESTALE);
  other = found->front();
  other.first.fd = null.get();
  EXPECT_EQ(take_dmabuf(other).error().err, ESTALE);
}

TEST_F(OnMachine, whose_memory_a_dmabuf_is_and_who_has_it_is_told_of_dmabufs_alone) {
  const Node& gpu = topology.nodes.back();
  const UniqueFd render = open_render(gpu);
  const UniqueFd dmabuf = make_dmabuf(render.get());
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const auto device = KfdDevice::open(kfd_device_number().value());
  ASSERT_TRUE(device.ok()) << device.error().what;
  EXPECT_EQ(gpu_of_dmabuf(*device, dmabuf.get()).value(), gpu.gpu_id);
  EXPECT_FALSE(gpu_of_dmabuf(*device, null.get()).ok());
  EXPECT_EQ(references_of_dmabuf(dmabuf.get()).value(), 2U) << "ours, and the driver's";
  EXPECT_EQ(references_of_dmabuf(null.get()).error().err, ENODATA);
  EXPECT_EQ(references_of_dmabuf(-1).error().err, ENOENT);
}

TEST_F(OnMachine, resume_of_a_process_without_gpu_is_no_error) {
  const Task bystander([] { return Report{0, 0}; });
  const auto own = KfdDevice::open(kfd_device_number().value());
  ASSERT_TRUE(own.ok());
  const auto outcome = resume(*own, bystander.pid());
  ASSERT_TRUE(outcome.ok()) << outcome.error().what;
  EXPECT_EQ(*outcome, ResumeOutcome::NotGpuProcess);
}

TEST_F(OnMachine, the_size_of_a_bo_record_is_what_a_checkpoint_has) {
  const Task helper([&]() -> Report {
    const auto bytes = ask_bo_record_bytes(kfd_device_number().value());
    if (!bytes) {
      std::fprintf(stderr, "%s\n", bytes.error().what.c_str());
      return {bytes.error().err, 1};
    }
    return {0, *bytes};
  });
  ASSERT_EQ(helper.report().err, 0);
  EXPECT_TRUE(helper.report().value == 80 || helper.report().value == 272) << helper.report().value;
}

TEST_F(OnMachine, a_restore_that_does_not_name_every_gpu_is_refused) {
  const Task task([&]() -> Report {
    const auto device = KfdDevice::open(kfd_device_number().value());
    if (!device) return {device.error().err, 0};
    const Node& gpu = topology.nodes.back();
    const UniqueFd render = open_render(gpu);
    const RestoreDevice devices[] = {{gpu.gpu_id, gpu.gpu_id, render.get()}};
    const std::uint8_t priv_data[16] = {1};
    const auto result = restore(*device, devices, {}, 0, priv_data);
    return {result ? 0 : result.error().err, 1};
  });
  EXPECT_EQ(task.report().err, EINVAL);
}

}  // namespace
}  // namespace sluice::kfd
