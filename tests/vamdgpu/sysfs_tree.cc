// SPDX-License-Identifier: MIT
// Writer of the virtual sysfs and /dev directories. See sysfs_tree.h. The links between directories are
// relative and lie as in the kernel, so that realpath, ".." and readlink give what programs expect.
#include "sysfs_tree.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <system_error>
#include <utility>

namespace vamdgpu {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kDrmMajor = 226;

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, pattern);
  const int length = vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  if (length < 0 || static_cast<std::size_t>(length) >= sizeof text)
    throw std::system_error(EOVERFLOW, std::generic_category(), "line of a virtual sysfs file");
  return text;
}

[[noreturn]] void fail(const fs::path& path) {
  throw std::system_error(errno, std::generic_category(), path.string());
}

void write_file(const fs::path& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0444);
  if (fd < 0) fail(path);
  const ssize_t written = ::write(fd, text.data(), text.size());
  const int error = written < 0 ? errno : ENOSPC;
  ::close(fd);
  if (written != static_cast<ssize_t>(text.size())) {
    errno = error;
    fail(path);
  }
}

// Something that stands for a character device: its type in a directory listing is right where mknod is
// allowed, and a program that reaches it without the front finds the null device in both cases.
void write_node(const fs::path& path) {
  if (::mknod(path.c_str(), S_IFCHR | 0666, makedev(1, 3)) == 0) return;
  if (errno != EPERM && errno != EACCES) fail(path);
  fs::create_symlink("/dev/null", path);
}

// Texts of one topology, in the order in which directories can be made.
class TopologyTexts {
 public:
  explicit TopologyTexts(const Topology& topology) : topology_(topology) {
    add_file("generation_id", format("%" PRIu32 "\n", topology.generation_id));
    add_file("system_properties", system_properties_text(topology));
    add_directory("nodes");
    for (std::size_t i = 0; i < topology.nodes.size(); ++i) add_node(i);
  }

  std::vector<TopologyText> take() { return std::move(texts_); }

 private:
  void add_file(const std::string& path, const std::string& text) { texts_.push_back({path, text, gpu_id_}); }
  void add_directory(const std::string& path) { texts_.push_back({path + "/", "", gpu_id_}); }

  // DIRECTORY/0/properties, DIRECTORY/1/properties ...
  template <typename Item, typename Text>
  void add_list(const std::string& directory, const std::vector<Item>& items, const Text& text) {
    add_directory(directory);
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::string item = directory + "/" + std::to_string(i);
      add_directory(item);
      add_file(item + "/properties", text(items[i]));
    }
  }

  void add_node(std::size_t number) {
    const TopologyNode& node = topology_.nodes[number];
    const std::string directory = "nodes/" + std::to_string(number);
    const auto link_text = [&](const Link& link) {
      return link_properties_text(link, static_cast<std::uint32_t>(number), topology_.link_sdma_masks);
    };
    gpu_id_ = node.gpu_id;
    add_directory(directory);
    add_file(directory + "/gpu_id", format("%" PRIu32 "\n", node.gpu_id));
    add_file(directory + "/name", node.name + "\n");
    add_file(directory + "/properties", properties_text(node.properties));
    add_list(directory + "/mem_banks", node.memory_banks, memory_bank_text);
    add_list(directory + "/caches", node.caches, cache_text);
    add_list(directory + "/io_links", node.io_links, link_text);
    add_list(directory + "/p2p_links", node.p2p_links, link_text);
    add_directory(directory + "/perf");
    gpu_id_ = 0;
  }

  const Topology& topology_;
  std::uint32_t gpu_id_ = 0;
  std::vector<TopologyText> texts_;
};

// dev, uevent and the links that every DRM minor has below its PCI device.
void write_drm_minor(const fs::path& root, const PciGpu& gpu, const fs::path& device, const char* prefix,
                     std::uint32_t minor) {
  const std::string name = prefix + std::to_string(minor);
  const fs::path below_device = fs::path("drm") / name;
  const fs::path directory = root / device / below_device;
  fs::create_directories(directory);
  write_file(directory / "dev", format("%" PRIu32 ":%" PRIu32 "\n", kDrmMajor, minor));
  write_file(directory / "uevent",
             format("MAJOR=%" PRIu32 "\nMINOR=%" PRIu32 "\nDEVNAME=dri/%s\nDEVTYPE=drm_minor\n", kDrmMajor,
                    minor, name.c_str()));
  fs::create_symlink("../../../" + pci_address(gpu), directory / "device");
  fs::create_symlink("../../../../../class/drm", directory / "subsystem");

  // sys/class/drm/NAME and sys/dev/char/226:M point at it; both are two levels below sys.
  const fs::path target = fs::path("../..") / device.lexically_relative("sys") / below_device;
  fs::create_symlink(target, root / "sys/class/drm" / name);
  const std::string number = format("%" PRIu32 ":%" PRIu32, kDrmMajor, minor);
  fs::create_symlink(target, root / "sys/dev/char" / number);
  write_node(root / "dev/dri" / name);
  fs::create_symlink("../dri/" + name, root / "dev/char" / number);
}

void write_gpu(const fs::path& root, const PciGpu& gpu) {
  const std::string address = pci_address(gpu);
  const fs::path device = fs::path("sys/devices") / ("pci" + address.substr(0, 7)) / address;
  const fs::path directory = root / device;
  fs::create_directories(directory / "drm");
  const auto attribute = [&](const char* name, const std::string& text) {
    write_file(directory / name, text);
  };
  attribute("vendor", format("0x%04" PRIx32 "\n", gpu.vendor_id));
  attribute("device", format("0x%04" PRIx32 "\n", gpu.device_id));
  attribute("subsystem_vendor", format("0x%04" PRIx32 "\n", gpu.subsystem_vendor_id));
  attribute("subsystem_device", format("0x%04" PRIx32 "\n", gpu.subsystem_device_id));
  attribute("revision", format("0x%02" PRIx32 "\n", gpu.revision));
  attribute("class", format("0x%06" PRIx32 "\n", gpu.class_code));
  attribute("numa_node", format("%" PRIu32 "\n", gpu.numa_node));
  attribute("unique_id", format("%016" PRIx64 "\n", gpu.unique_id));
  attribute("mem_info_vram_total", format("%" PRIu64 "\n", gpu.vram_bytes));
  attribute("mem_info_vis_vram_total", format("%" PRIu64 "\n", gpu.visible_vram_bytes));
  attribute("mem_info_gtt_total", format("%" PRIu64 "\n", gpu.gtt_bytes));
  // Of a machine on which nothing runs; the front says what is in use when they are opened.
  attribute("mem_info_vram_used", "0\n");
  attribute("mem_info_gtt_used", "0\n");
  attribute("uevent", format("DRIVER=amdgpu\nPCI_CLASS=%" PRIX32 "\nPCI_ID=%04" PRIX32 ":%04" PRIX32
                             "\nPCI_SUBSYS_ID=%04" PRIX32 ":%04" PRIX32 "\nPCI_SLOT_NAME=%s\n",
                             gpu.class_code, gpu.vendor_id, gpu.device_id, gpu.subsystem_vendor_id,
                             gpu.subsystem_device_id, address.c_str()));
  fs::create_symlink("../../../bus/pci", directory / "subsystem");
  fs::create_symlink("../../../bus/pci/drivers/amdgpu", directory / "driver");

  const fs::path from_bus = fs::path("../../../devices") / ("pci" + address.substr(0, 7)) / address;
  fs::create_symlink(from_bus, root / "sys/bus/pci/devices" / address);
  fs::create_symlink(fs::path("../../../..") / device.lexically_relative("sys"),
                     root / "sys/bus/pci/drivers/amdgpu" / address);
  write_drm_minor(root, gpu, device, "card", gpu.card_minor);
  write_drm_minor(root, gpu, device, "renderD", gpu.render_minor);
}

void link_real_pci_devices(const fs::path& directory) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/sys/bus/pci/devices", error)) {
    const fs::path target = fs::canonical(entry.path(), error);
    if (!error && !fs::exists(fs::symlink_status(directory / entry.path().filename())))
      fs::create_symlink(target, directory / entry.path().filename());
  }
}

void write_kfd(const fs::path& root, const SystemTree& tree) {
  const fs::path kfd = root / "sys/devices/virtual/kfd/kfd";
  fs::create_directories(kfd);
  write_topology(kfd / "topology", tree.topology);
  write_file(kfd / "dev", format("%" PRIu32 ":0\n", tree.kfd_major));
  write_file(kfd / "uevent",
             format("MAJOR=%" PRIu32 "\nMINOR=0\nDEVNAME=kfd\nDEVMODE=0666\n", tree.kfd_major));
  fs::create_symlink("../../../../class/kfd", kfd / "subsystem");
  fs::create_directories(root / "sys/class/kfd");
  fs::create_symlink("../../devices/virtual/kfd/kfd", root / "sys/class/kfd/kfd");
  const std::string number = format("%" PRIu32 ":0", tree.kfd_major);
  fs::create_symlink("../../devices/virtual/kfd/kfd", root / "sys/dev/char" / number);
  write_node(root / "dev/kfd");
  fs::create_symlink("../kfd", root / "dev/char" / number);
}

}  // namespace

std::string properties_text(const std::vector<Property>& properties) {
  std::string text;
  for (const Property& property : properties)
    text += format("%s %" PRIu64 "\n", property.name.c_str(), property.value);
  return text;
}

std::string memory_bank_text(const MemoryBank& bank) {
  return properties_text({{"heap_type", bank.heap_type},
                          {"size_in_bytes", bank.size_bytes},
                          {"flags", bank.flags},
                          {"width", bank.width_bits},
                          {"mem_clk_max", bank.clock_max_mhz}});
}

std::string cache_text(const Cache& cache) {
  std::string text = properties_text({{"processor_id_low", cache.processor_id_low},
                                      {"level", cache.level},
                                      {"size", cache.size_kib},
                                      {"cache_line_size", cache.line_bytes},
                                      {"cache_lines_per_tag", 0},
                                      {"association", 0},
                                      {"latency", 0},
                                      {"type", cache.type}});
  // A list of ones and zeroes, 32 or more of them: the one line of the tree that is not "name number".
  constexpr std::uint32_t kSiblingMapLeast = 32;
  const std::uint32_t entries = cache.siblings > kSiblingMapLeast ? cache.siblings : kSiblingMapLeast;
  text += "sibling_map ";
  for (std::uint32_t i = 0; i < entries; ++i) {
    if (i != 0) text += ',';
    text += i < cache.siblings ? '1' : '0';
  }
  return text + "\n";
}

std::string link_properties_text(const Link& link, std::uint32_t node_from, bool sdma_mask) {
  std::vector<Property> lines = {{"type", link.type},
                                 {"version_major", 0},
                                 {"version_minor", 0},
                                 {"node_from", node_from},
                                 {"node_to", link.node_to},
                                 {"weight", link.weight},
                                 {"min_latency", 0},
                                 {"max_latency", 0},
                                 {"min_bandwidth", link.min_bandwidth},
                                 {"max_bandwidth", link.max_bandwidth},
                                 {"recommended_transfer_size", 0}};
  if (sdma_mask) lines.push_back({"recommended_sdma_engine_id_mask", link.sdma_engine_id_mask});
  lines.push_back({"flags", link.flags});
  return properties_text(lines);
}

std::string system_properties_text(const Topology& topology) {
  return properties_text({{"platform_oem", topology.platform_oem},
                          {"platform_id", topology.platform_id},
                          {"platform_rev", topology.platform_rev}});
}

std::string pci_address(const PciGpu& gpu) {
  return format("%04" PRIx32 ":%02" PRIx32 ":00.0", gpu.domain, gpu.bus);
}

std::vector<TopologyText> topology_texts(const Topology& topology) {
  return TopologyTexts(topology).take();
}

void write_topology(const fs::path& directory, const Topology& topology) {
  fs::create_directories(directory);
  for (const TopologyText& text : topology_texts(topology)) {
    if (text.path.back() == '/')
      fs::create_directory(directory / text.path.substr(0, text.path.size() - 1));
    else
      write_file(directory / text.path, text.text);
  }
}

void write_system_tree(const fs::path& root, const SystemTree& tree) {
  for (const char* directory :
       {"sys/class/drm", "sys/dev/char", "sys/bus/pci/devices", "sys/bus/pci/drivers/amdgpu",
        "sys/module/amdgpu/parameters", "dev/dri", "dev/char", "run/sluice"})
    fs::create_directories(root / directory);
  write_file(root / "sys/class/drm/version", "drm 1.1.0 20060810\n");
  write_file(root / "sys/module/amdgpu/initstate", "live\n");
  if (!tree.driver_version.empty())
    write_file(root / "sys/module/amdgpu/version", tree.driver_version + "\n");
  write_kfd(root, tree);
  for (const PciGpu& gpu : tree.gpus) write_gpu(root, gpu);
  link_real_pci_devices(root / "sys/bus/pci/devices");
}

void write_hidden_list(const fs::path& file, const SystemTree& tree) {
  std::string text;
  for (std::size_t i = 0; i < tree.topology.nodes.size(); ++i)
    if (tree.topology.nodes[i].hidden) text += "node " + std::to_string(i) + "\n";
  for (const PciGpu& gpu : tree.gpus)
    if (gpu.hidden) text += "render " + std::to_string(gpu.render_minor) + "\n";
  write_file(file, text);
}

}  // namespace vamdgpu
