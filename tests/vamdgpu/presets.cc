// SPDX-License-Identifier: MIT
// The presets' numbers and the arithmetic that turns options into nodes and links. See presets.h for the
// sources.
#include "presets.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <stdexcept>
#include <string>

namespace vamdgpu {
namespace {

constexpr std::uint32_t kFamilyAi = 141;
constexpr std::uint32_t kVendorAmd = 0x1002;
constexpr std::uint64_t kPlatformOem = 4777524452235890003;
constexpr std::uint64_t kPlatformId = 85015745549651;
constexpr std::uint64_t kPlatformRev = 2;
constexpr std::uint32_t kPageBytes = 4096;  // the GPU's
constexpr std::uint32_t kFirstSimdId = 2147487744;
constexpr std::uint64_t kSmallBarBytes = std::uint64_t{256} << 20;
constexpr std::uint32_t kCardsWithOwnSlot = 8;  // GPU 9 and later sit in the next PCI domain

// Weights of a path, as the kernel adds them up: CPU to CPU, CPU to GPU, GPU to GPU over XGMI.
constexpr std::uint32_t kWeightCpuCpu = 32;
constexpr std::uint32_t kWeightCpuGpu = 20;
constexpr std::uint32_t kWeightXgmi = 15;

constexpr std::uint32_t kLinkEnabled = 1;
constexpr std::uint32_t kLinkNonCoherent = 2;

// One kind of GPU cache; `per_array` of them sit in each shader array, or one for each active compute unit,
// or `whole` for the device.
struct CacheKind {
  enum class Count { PerComputeUnit, PerArray, Whole } count;
  std::uint32_t number;
  std::uint32_t level, size_kib, line_bytes, type, siblings;
};

struct CardSlot {
  std::uint32_t bus;
  std::uint64_t unique_id;
};

struct Model {
  const char* name;  // nodes/N/name
  std::uint32_t device_id, subsystem_device_id, revision, class_code;
  std::uint32_t compute_units, xccs, arrays, units_per_array;
  std::uint32_t gfx_target_version, engine_mhz;
  std::uint32_t sdma_engines, sdma_xgmi_engines;
  std::uint32_t fw_version, sdma_fw_version, capability, capability2, debug_prop;
  std::uint32_t memory_width_bits, memory_mhz;
  std::uint32_t pcie_min_bandwidth, pcie_max_bandwidth, xgmi_bandwidth;
  std::uint32_t hive_size;
  std::array<std::uint64_t, 2> hive_ids;
  std::array<CardSlot, kCardsWithOwnSlot> slots;
  std::array<CacheKind, 5> caches;
  std::uint32_t cpu_cores, cpu_mhz;
  std::uint64_t cpu_memory_bytes;
  std::uint32_t cpu_memory_width_bits, cpu_memory_mhz;
};

constexpr std::uint32_t kDataCache = 9;          // data | compute units
constexpr std::uint32_t kInstructionCache = 10;  // instruction | compute units

constexpr Model kMi210 = {
    .name = "aldebaran",
    .device_id = 0x740F,
    .subsystem_device_id = 0x0C34,
    .revision = 0x02,
    .class_code = 0x038000,
    .compute_units = 104,
    .xccs = 1,
    .arrays = 8,
    .units_per_array = 14,
    .gfx_target_version = 90010,
    .engine_mhz = 1700,
    .sdma_engines = 2,
    .sdma_xgmi_engines = 3,
    .fw_version = 92,
    .sdma_fw_version = 9,
    .capability = 746037888,
    .capability2 = 0,
    .debug_prop = 470,
    .memory_width_bits = 4096,
    .memory_mhz = 1600,
    .pcie_min_bandwidth = 312,
    .pcie_max_bandwidth = 32000,
    .xgmi_bandwidth = 50000,
    .hive_size = 4,
    .hive_ids = {12609507387757274807U, 18091350218769748594U},
    .slots = {{{0x63, 1801979520617338022U},
               {0x43, 5847760019078012339U},
               {0x03, 10645161697164847644U},
               {0x26, 4847253685048710349U},
               {0xE3, 12585367064092601175U},
               {0xC3, 11779194899033552202U},
               {0x83, 17888023871577450191U},
               {0xA3, 14073402507705256557U}}},
    .caches = {{{CacheKind::Count::PerComputeUnit, 1, 1, 16, 64, kDataCache, 1},
                {CacheKind::Count::PerArray, 7, 1, 32, 64, kInstructionCache, 2},
                {CacheKind::Count::PerArray, 7, 1, 16, 64, kDataCache, 2},
                {CacheKind::Count::Whole, 1, 2, 8192, 128, kDataCache, 14},
                {CacheKind::Count::Whole, 0, 0, 0, 0, 0, 0}}},
    .cpu_cores = 64,
    .cpu_mhz = 2450,
    .cpu_memory_bytes = 67155521536,
    .cpu_memory_width_bits = 64,
    .cpu_memory_mhz = 2666,
};

constexpr Model kMi300x = {
    .name = "ip discovery",
    .device_id = 0x74A1,
    .subsystem_device_id = 0x74A1,
    .revision = 0x00,
    .class_code = 0x120000,
    .compute_units = 304,
    .xccs = 8,
    .arrays = 32,
    .units_per_array = 10,
    .gfx_target_version = 90402,
    .engine_mhz = 2100,
    .sdma_engines = 2,
    .sdma_xgmi_engines = 14,
    .fw_version = 177,
    .sdma_fw_version = 24,
    .capability = 2893521536,
    .capability2 = 0,
    .debug_prop = 1511,
    .memory_width_bits = 8192,
    .memory_mhz = 1300,
    .pcie_min_bandwidth = 0,
    .pcie_max_bandwidth = 64000,
    .xgmi_bandwidth = 64000,
    .hive_size = 8,
    .hive_ids = {15188982192727901047U, 2095653680343411291U},
    .slots = {{{0x05, 16404946649897475633U},
               {0x27, 2472748907779728154U},
               {0x47, 15565237874008425757U},
               {0x65, 12035684874187068538U},
               {0x85, 15304831566906821053U},
               {0xA7, 13644590235195043050U},
               {0xC7, 13326531576914550249U},
               {0xE5, 15931900197903628278U}}},
    .caches = {{{CacheKind::Count::PerComputeUnit, 1, 1, 32, 128, kDataCache, 1},
                {CacheKind::Count::PerArray, 5, 1, 64, 128, kInstructionCache, 2},
                {CacheKind::Count::PerArray, 5, 1, 16, 64, kDataCache, 2},
                {CacheKind::Count::Whole, 1, 2, 4096, 128, kDataCache, 10},
                {CacheKind::Count::Whole, 1, 3, 262144, 64, kDataCache, 10}}},
    .cpu_cores = 96,
    .cpu_mhz = 2750,
    .cpu_memory_bytes = 1081864880128,
    .cpu_memory_width_bits = 64,
    .cpu_memory_mhz = 5600,
};

const Model& model_of(Preset preset) {
  return preset == Preset::Mi210 ? kMi210 : kMi300x;
}

// gfx9 kernels: 40 waves a compute unit, at most 512 an array; a wave's entry in the control stack has 8
// bytes, before it lies a header of 40; VGPRs, SGPRs, LDS and hardware registers of a compute unit take
// 0x95000 bytes. Per XCC.
struct SaveArea {
  std::uint32_t control_stack_bytes, whole_bytes, debug_bytes;
};

SaveArea save_area(const Model& model) {
  constexpr std::uint32_t kUnitBytes = 0x80000 + 0x4000 + 0x10000 + 0x1000;
  const auto page_align = [](std::uint32_t bytes) {
    return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  };
  const std::uint32_t units = model.compute_units / model.xccs;
  const std::uint32_t waves = std::min(units * 40, model.arrays * 512);
  const std::uint32_t control = page_align(40 + waves * 8 + 8);
  return {control, control + page_align(units * kUnitBytes), (waves * 32 + 63) / 64 * 64};
}

std::vector<Cache> caches_of(const Model& model, std::uint32_t simd_id_base) {
  std::vector<Cache> caches;
  for (const CacheKind& kind : model.caches) {
    std::uint32_t number = kind.number;
    if (kind.count == CacheKind::Count::PerComputeUnit) number *= model.compute_units;
    if (kind.count == CacheKind::Count::PerArray) number *= model.arrays;
    const std::uint32_t slots = model.arrays * model.units_per_array;
    for (std::uint32_t i = 0; i < number; ++i) {
      const std::uint32_t first_unit = number == 0 ? 0 : i * (slots / number);
      caches.push_back(
          {simd_id_base + first_unit, kind.level, kind.size_kib, kind.line_bytes, kind.type, kind.siblings});
    }
  }
  return caches;
}

// Stays the same for the same card, size and slot, as KFD's own hash does.
std::uint32_t crc16(const std::vector<std::uint32_t>& words) {
  std::uint32_t crc = 0;
  for (const std::uint32_t word : words)
    for (unsigned bit = 0; bit < 32; ++bit) {
      const std::uint32_t in = (word >> bit) & 1;
      crc = ((crc ^ in) & 1) != 0 ? (crc >> 1) ^ 0xA001 : crc >> 1;
    }
  return crc;
}

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

// Everything the builders below ask about one GPU.
struct Gpu {
  std::uint32_t node = 0;  // topology node
  std::uint32_t cpu = 0;   // topology node of its CPU
  unsigned hive = 0;
  std::uint32_t domain = 0;
  CardSlot slot{};
  std::uint32_t gpu_id = 0;
  std::uint32_t render_minor = 0;
};

class Builder {
 public:
  explicit Builder(const MachineOptions& options) : options_(options), model_(model_of(options.preset)) {
    check();
    choose_driver();
    place();
    choose_ids();
  }

  MachineDescription build() const {
    MachineDescription machine;
    machine.config = config();
    machine.tree.kfd_major = options_.kfd_major;
    machine.tree.driver_version = options_.out_of_tree;
    machine.tree.topology = topology();
    for (unsigned i = 0; i < options_.gpus; ++i) machine.tree.gpus.push_back(pci_gpu(i));
    return machine;
  }

 private:
  bool linux_612() const { return kfd_minor_version_ >= kKfdLinux612; }
  bool linux_72() const { return kfd_minor_version_ >= kKfdLinux72; }

  void choose_driver() {
    if (options_.out_of_tree.empty()) {
      kfd_minor_version_ = options_.kfd_minor_version;
      bo_record_bytes_ = linux_612() ? VAMDGPU_BO_RECORD_LINUX_612 : VAMDGPU_BO_RECORD_LINUX_61;
      return;
    }
    const auto* const driver =
        std::find_if(std::begin(kOutOfTreeDrivers), std::end(kOutOfTreeDrivers),
                     [&](const OutOfTreeDriver& one) { return one.version == options_.out_of_tree; });
    require(driver != std::end(kOutOfTreeDrivers), "out_of_tree: no such version");
    kfd_minor_version_ = driver->kfd_minor_version;
    bo_record_bytes_ = driver->bo_record_bytes;
  }

  void check() const {
    require(options_.gpus >= 1 && options_.gpus <= VAMDGPU_MAX_GPUS, "gpus: 1 to 16");
    require(options_.cpu_nodes >= 1 && options_.cpu_nodes <= 16, "cpu_nodes: 1 to 16");
    require(options_.vram_bytes > 0 && options_.vram_bytes % kPageBytes == 0,
            "vram_bytes: a multiple of 4096");
    require(options_.gtt_bytes > 0 && options_.gtt_bytes % kPageBytes == 0, "gtt_bytes: a multiple of 4096");
    require(options_.kfd_major != 0 && options_.kfd_major != 226, "kfd_major: not DRM's");
    require(options_.gpu_ids.size() <= options_.gpus, "gpu_ids: more than gpus");
    require(options_.minors.size() <= options_.gpus, "minors: more than gpus");
    require(options_.hidden.empty() || *options_.hidden.rbegin() < options_.gpus, "hidden: no such GPU");
    std::vector<unsigned> order = options_.node_order;
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < order.size(); ++i) require(order[i] == i, "node_order: each GPU once");
    require(order.empty() || order.size() == options_.gpus, "node_order: each GPU once");
  }

  void place() {
    gpus_.resize(options_.gpus);
    const unsigned hive_size = options_.hive_size != 0 ? options_.hive_size : model_.hive_size;
    for (unsigned position = 0; position < options_.gpus; ++position) {
      const unsigned index = options_.node_order.empty() ? position : options_.node_order[position];
      Gpu& gpu = gpus_[index];
      gpu.node = options_.cpu_nodes + position;
      gpu.cpu = index * options_.cpu_nodes / options_.gpus;
      gpu.hive = index / hive_size;
      gpu.domain = index / kCardsWithOwnSlot;
      gpu.slot = model_.slots[index % kCardsWithOwnSlot];
      gpu.slot.unique_id += index / kCardsWithOwnSlot;
    }
  }

  void choose_ids() {
    std::set<std::uint32_t> ids(options_.gpu_ids.begin(), options_.gpu_ids.end());
    require(ids.size() == options_.gpu_ids.size(), "gpu_ids: not unique");
    require(ids.empty() || (*ids.begin() >= 1 && *ids.rbegin() <= 65535), "gpu_ids: 1 to 65535");
    std::set<std::uint32_t> minors;
    for (unsigned i = 0; i < options_.gpus; ++i) {
      Gpu& gpu = gpus_[i];
      if (i < options_.gpu_ids.size()) {
        gpu.gpu_id = options_.gpu_ids[i];
      } else {
        gpu.gpu_id = crc16({kVendorAmd, model_.device_id, gpu.domain, gpu.slot.bus,
                            static_cast<std::uint32_t>(options_.vram_bytes),
                            static_cast<std::uint32_t>(options_.vram_bytes >> 32)});
        while (gpu.gpu_id == 0 || ids.count(gpu.gpu_id) != 0) gpu.gpu_id = (gpu.gpu_id + 1) & 0xFFFF;
        ids.insert(gpu.gpu_id);
      }
      gpu.render_minor = i < options_.minors.size() ? options_.minors[i] : options_.minor_base + i;
      require(gpu.render_minor >= 128 && gpu.render_minor <= 191, "render minors: 128 to 191");
      require(minors.insert(gpu.render_minor).second, "render minors: not unique");
    }
  }

  bool joined(const Gpu& a, const Gpu& b) const {
    return options_.fabric == Fabric::Xgmi && a.hive == b.hive;
  }

  std::uint64_t hive_id(const Gpu& gpu) const {
    if (options_.fabric != Fabric::Xgmi) return 0;
    return model_.hive_ids[gpu.hive % 2] + gpu.hive / 2;
  }

  vamdgpu_machine_config config() const {
    vamdgpu_machine_config config{};
    config.num_gpus = options_.gpus;
    config.kfd_major = options_.kfd_major;
    config.kfd_minor_version = kfd_minor_version_;
    config.bo_record_bytes = options_.bo_record_bytes.value_or(bo_record_bytes_);
    config.out_of_tree = options_.out_of_tree.empty() ? 0 : 1;
    config.evict_once = options_.evict_once ? 1 : 0;
    config.change_handle = options_.change_handle ? 1 : 0;
    config.list_handles = options_.list_handles.value_or(linux_72()) ? 1 : 0;
    config.tolerant_sdma = options_.tolerant_sdma ? 1 : 0;
    const SaveArea area = save_area(model_);
    for (unsigned i = 0; i < options_.gpus; ++i) {
      vamdgpu_gpu_config& gpu = config.gpus[i];
      gpu.gpu_id = gpus_[i].gpu_id;
      gpu.render_minor = gpus_[i].render_minor;
      gpu.card_minor = gpus_[i].render_minor - 128;
      gpu.family = kFamilyAi;
      gpu.device_id = model_.device_id;
      gpu.sdma_instances = model_.sdma_engines + model_.sdma_xgmi_engines;
      gpu.sdma_max_bytes = 1U << 22;  // what every kernel from 6.1 to 7.2 is safe with on both chips
      gpu.doorbell_bytes = 8192;
      gpu.sdma_xgmi = model_.sdma_xgmi_engines;
      gpu.mqd_bytes = 2048 * model_.xccs;
      gpu.ctl_stack_bytes = area.control_stack_bytes;
      gpu.cwsr_bytes = area.whole_bytes;
      gpu.debug_bytes = area.debug_bytes;
      gpu.xccs = model_.xccs;
      gpu.vram_public = options_.large_bar ? 1 : 0;
      gpu.vram_bytes = options_.vram_bytes;
      gpu.gtt_bytes = options_.gtt_bytes;
      gpu.sdma_bytes_per_s = options_.sdma_bytes_per_s;
    }
    return config;
  }

  Topology topology() const {
    Topology topology;
    topology.platform_oem = kPlatformOem;
    topology.platform_id = kPlatformId;
    topology.platform_rev = kPlatformRev;
    topology.link_sdma_masks = linux_612();
    topology.nodes.resize(options_.cpu_nodes + options_.gpus);
    topology.generation_id = static_cast<std::uint32_t>(topology.nodes.size());
    for (std::uint32_t cpu = 0; cpu < options_.cpu_nodes; ++cpu) topology.nodes[cpu] = cpu_node(cpu);
    for (unsigned i = 0; i < options_.gpus; ++i) topology.nodes[gpus_[i].node] = gpu_node(i);
    return topology;
  }

  // GPUs in the order of their nodes: links are listed that way.
  std::vector<unsigned> by_node() const {
    std::vector<unsigned> order(options_.gpus);
    for (unsigned i = 0; i < options_.gpus; ++i) order[gpus_[i].node - options_.cpu_nodes] = i;
    return order;
  }

  Link pcie_to_cpu(std::uint32_t node_to, std::uint32_t flags) const {
    return {kLinkPcie,           node_to, kWeightCpuGpu, model_.pcie_min_bandwidth, model_.pcie_max_bandwidth,
            default_sdma_mask(), flags};
  }

  std::uint32_t default_sdma_mask() const { return (1U << model_.sdma_engines) - 1; }
  std::uint32_t xgmi_sdma_mask() const {
    return ((1U << model_.sdma_xgmi_engines) - 1) << model_.sdma_engines;
  }

  TopologyNode cpu_node(std::uint32_t cpu) const {
    TopologyNode node;
    node.memory_banks.push_back(
        {0, model_.cpu_memory_bytes, 0, model_.cpu_memory_width_bits, model_.cpu_memory_mhz});
    for (std::uint32_t other = 0; other < options_.cpu_nodes; ++other)
      if (other != cpu) node.io_links.push_back({kLinkHyperTransport, other, kWeightCpuCpu, 0, 0, 0, 0});
    for (const unsigned i : by_node()) {
      const Gpu& gpu = gpus_[i];
      if (gpu.cpu == cpu)
        node.io_links.push_back(pcie_to_cpu(gpu.node, kLinkEnabled | kLinkNonCoherent));
      else
        node.p2p_links.push_back(
            {kLinkPcie, gpu.node, kWeightCpuGpu + kWeightCpuCpu, 0, 0, 0, kLinkEnabled | kLinkNonCoherent});
    }
    node.properties = common_properties(node, {{"cpu_cores_count", model_.cpu_cores},
                                               {"cpu_core_id_base", std::uint64_t{cpu} * model_.cpu_cores}});
    node.properties.push_back({"max_engine_clk_ccompute", model_.cpu_mhz});
    return node;
  }

  TopologyNode gpu_node(unsigned index) const {
    const Gpu& gpu = gpus_[index];
    TopologyNode node;
    node.gpu_id = gpu.gpu_id;
    node.name = model_.name;
    node.hidden = options_.hidden.count(index) != 0;
    node.memory_banks.push_back(
        {options_.large_bar ? 1U : 2U, options_.vram_bytes, 0, model_.memory_width_bits, model_.memory_mhz});
    const std::uint32_t position = gpu.node - options_.cpu_nodes;
    const std::uint32_t simd_id_base = kFirstSimdId + position * model_.arrays * model_.units_per_array;
    node.caches = caches_of(model_, simd_id_base);
    gpu_links(gpu, &node);

    const SaveArea area = save_area(model_);
    node.properties = common_properties(node, {{"simd_count", std::uint64_t{model_.compute_units} * 4},
                                               {"simd_id_base", simd_id_base},
                                               {"max_waves_per_simd", 8},
                                               {"lds_size_in_kb", 64},
                                               {"num_gws", 64},
                                               {"wave_front_size", 64},
                                               {"array_count", model_.arrays},
                                               {"simd_arrays_per_engine", 1},
                                               {"cu_per_simd_array", model_.units_per_array},
                                               {"simd_per_cu", 4},
                                               {"max_slots_scratch_cu", 32},
                                               {"gfx_target_version", model_.gfx_target_version},
                                               {"vendor_id", kVendorAmd},
                                               {"device_id", model_.device_id},
                                               {"location_id", gpu.slot.bus << 8},
                                               {"domain", gpu.domain},
                                               {"drm_render_minor", gpu.render_minor},
                                               {"hive_id", hive_id(gpu)},
                                               {"num_sdma_engines", model_.sdma_engines},
                                               {"num_sdma_xgmi_engines", model_.sdma_xgmi_engines},
                                               {"num_sdma_queues_per_engine", 8},
                                               {"num_cp_queues", 24},
                                               {"cwsr_size", area.whole_bytes},
                                               {"ctl_stack_size", area.control_stack_bytes}});
    const auto add = [&node](const char* name, std::uint64_t value) {
      node.properties.push_back({name, value});
    };
    add("max_engine_clk_fcompute", model_.engine_mhz);
    add("local_mem_size", 0);
    add("fw_version", model_.fw_version);
    add("capability", model_.capability);
    if (linux_72()) add("capability2", model_.capability2);
    if (linux_612()) add("debug_prop", model_.debug_prop);
    add("sdma_fw_version", model_.sdma_fw_version);
    add("unique_id", gpu.slot.unique_id);
    if (linux_612()) add("num_xcc", model_.xccs);
    add("max_engine_clk_ccompute", model_.cpu_mhz);
    return node;
  }

  void gpu_links(const Gpu& gpu, TopologyNode* node) const {
    node->io_links.push_back(pcie_to_cpu(gpu.cpu, kLinkEnabled));
    for (std::uint32_t cpu = 0; cpu < options_.cpu_nodes; ++cpu)
      if (cpu != gpu.cpu)
        node->p2p_links.push_back({kLinkPcie, cpu, kWeightCpuGpu + kWeightCpuCpu, 0, 0, 0, kLinkEnabled});
    for (const unsigned i : by_node()) {
      const Gpu& peer = gpus_[i];
      if (&peer == &gpu) continue;
      if (joined(gpu, peer)) {
        node->io_links.push_back({kLinkXgmi, peer.node, kWeightXgmi, model_.xgmi_bandwidth,
                                  model_.xgmi_bandwidth, xgmi_sdma_mask(), kLinkEnabled});
      } else if (options_.large_bar) {  // the kernel offers PCIe peer access only when all VRAM is reachable
        const std::uint32_t weight = 2 * kWeightCpuGpu + (gpu.cpu == peer.cpu ? 0 : kWeightCpuCpu);
        node->p2p_links.push_back({kLinkPcie, peer.node, weight, 0, 0, 0, kLinkEnabled | kLinkNonCoherent});
      }
    }
  }

  // The lines that CPU and GPU nodes have in common, in the kernel's order; those not in `values` are 0, the
  // counts are what the node has.
  std::vector<Property> common_properties(const TopologyNode& node,
                                          const std::vector<Property>& values) const {
    std::vector<Property> lines;
    for (const char* name : {"cpu_cores_count",
                             "simd_count",
                             "mem_banks_count",
                             "caches_count",
                             "io_links_count",
                             "p2p_links_count",
                             "cpu_core_id_base",
                             "simd_id_base",
                             "max_waves_per_simd",
                             "lds_size_in_kb",
                             "gds_size_in_kb",
                             "num_gws",
                             "wave_front_size",
                             "array_count",
                             "simd_arrays_per_engine",
                             "cu_per_simd_array",
                             "simd_per_cu",
                             "max_slots_scratch_cu",
                             "gfx_target_version",
                             "vendor_id",
                             "device_id",
                             "location_id",
                             "domain",
                             "drm_render_minor",
                             "hive_id",
                             "num_sdma_engines",
                             "num_sdma_xgmi_engines",
                             "num_sdma_queues_per_engine",
                             "num_cp_queues"})
      lines.push_back({name, 0});
    if (linux_612()) {
      lines.push_back({"cwsr_size", 0});
      lines.push_back({"ctl_stack_size", 0});
    }
    const auto set = [&lines](const Property& property) {
      for (Property& line : lines)
        if (line.name == property.name) line.value = property.value;
    };
    for (const Property& property : values) set(property);
    set({"mem_banks_count", node.memory_banks.size()});
    set({"caches_count", node.caches.size()});
    set({"io_links_count", node.io_links.size()});
    set({"p2p_links_count", node.p2p_links.size()});
    return lines;
  }

  PciGpu pci_gpu(unsigned index) const {
    const Gpu& gpu = gpus_[index];
    PciGpu pci;
    pci.domain = gpu.domain;
    pci.bus = gpu.slot.bus;
    pci.vendor_id = kVendorAmd;
    pci.device_id = model_.device_id;
    pci.subsystem_vendor_id = kVendorAmd;
    pci.subsystem_device_id = model_.subsystem_device_id;
    pci.revision = model_.revision;
    pci.class_code = model_.class_code;
    pci.card_minor = gpu.render_minor - 128;
    pci.render_minor = gpu.render_minor;
    pci.numa_node = gpu.cpu;
    pci.unique_id = gpu.slot.unique_id;
    pci.vram_bytes = options_.vram_bytes;
    pci.visible_vram_bytes =
        options_.large_bar ? options_.vram_bytes : std::min(options_.vram_bytes, kSmallBarBytes);
    pci.gtt_bytes = options_.gtt_bytes;
    pci.hidden = options_.hidden.count(index) != 0;
    return pci;
  }

  const MachineOptions& options_;
  const Model& model_;
  std::uint32_t kfd_minor_version_ = 0, bo_record_bytes_ = 0;  // of the driver
  std::vector<Gpu> gpus_;                                      // by GPU index
};

}  // namespace

MachineDescription describe(const MachineOptions& options) {
  return Builder(options).build();
}

std::optional<Preset> preset_by_name(std::string_view name) {
  if (name == preset_name(Preset::Mi210)) return Preset::Mi210;
  if (name == preset_name(Preset::Mi300x)) return Preset::Mi300x;
  return std::nullopt;
}

std::string_view preset_name(Preset preset) {
  return preset == Preset::Mi210 ? "mi210" : "mi300x";
}

std::uint64_t property_value(const TopologyNode& node, std::string_view name) {
  for (const Property& property : node.properties)
    if (property.name == name) return property.value;
  return 0;
}

}  // namespace vamdgpu
