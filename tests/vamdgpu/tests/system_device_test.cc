// SPDX-License-Identifier: MIT
// What the machine shows of itself in sysfs and through libdrm, and that its parts agree: topology, PCI
// devices, DRM nodes and the configuration that Control reports. Runs on a virtual machine of either front
// (device_kit.h).
#include <stdlib.h>
#include <sys/mount.h>
#include <xf86drm.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "device_kit.h"

namespace vamdgpu::tests {
namespace {

namespace fs = std::filesystem;

const fs::path kNodes = "/sys/class/kfd/kfd/topology/nodes";

std::string text_of(const fs::path& path) {
  std::ifstream stream(path);
  EXPECT_TRUE(stream.is_open()) << path;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::map<std::string, std::uint64_t> properties_of(const fs::path& path) {
  std::istringstream lines(text_of(path));
  std::map<std::string, std::uint64_t> properties;
  std::string name;
  std::uint64_t value = 0;
  while (lines >> name >> value) properties[name] = value;
  return properties;
}

class SystemDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    control_ = machine();
    ASSERT_NE(control_, nullptr) << "not on a virtual machine";
    for (int node = 0; fs::exists(kNodes / std::to_string(node)); ++node) {
      const std::uint64_t gpu_id = std::stoull(text_of(kNodes / std::to_string(node) / "gpu_id"));
      if (gpu_id != 0) nodes_[static_cast<std::uint32_t>(gpu_id)] = kNodes / std::to_string(node);
    }
  }

  const vamdgpu_gpu_config& gpu(unsigned index) const { return control_->config().gpus[index]; }
  unsigned gpus() const { return control_->config().num_gpus; }

  std::unique_ptr<Control> control_;
  std::map<std::uint32_t, fs::path> nodes_;  // of GPUs, by gpu_id
};

TEST_F(SystemDevice, EachGpuHasATopologyNode) {
  ASSERT_EQ(nodes_.size(), gpus());
  for (unsigned i = 0; i < gpus(); ++i) {
    ASSERT_EQ(nodes_.count(gpu(i).gpu_id), 1u);
    const fs::path node = nodes_[gpu(i).gpu_id];
    auto properties = properties_of(node / "properties");
    EXPECT_EQ(properties["drm_render_minor"], gpu(i).render_minor);
    EXPECT_EQ(properties["device_id"], gpu(i).device_id);
    EXPECT_EQ(properties_of(node / "mem_banks/0/properties")["size_in_bytes"], gpu(i).vram_bytes);
    for (const char* list : {"mem_banks", "caches", "io_links", "p2p_links"}) {
      const auto entries = fs::directory_iterator(node / list);
      EXPECT_EQ(static_cast<std::uint64_t>(std::distance(begin(entries), end(entries))),
                properties[std::string(list) + "_count"])
          << node / list;
    }
  }
}

TEST_F(SystemDevice, LibdrmFindsEachGpuWhereTopologySaysItIs) {
  for (unsigned i = 0; i < gpus(); ++i) {
    const Fd render = open_render(*control_, i);
    ASSERT_GE(render.get(), 0);
    drmDevicePtr device = nullptr;
    ASSERT_EQ(drmGetDevice2(render.get(), DRM_DEVICE_GET_PCI_REVISION, &device), 0);
    auto properties = properties_of(nodes_[gpu(i).gpu_id] / "properties");
    EXPECT_EQ(device->bustype, DRM_BUS_PCI);
    EXPECT_EQ(device->businfo.pci->domain, properties["domain"]);
    EXPECT_EQ(device->businfo.pci->bus, properties["location_id"] >> 8);
    EXPECT_EQ(device->businfo.pci->dev, 0);
    EXPECT_EQ(device->businfo.pci->func, 0);
    EXPECT_EQ(device->deviceinfo.pci->vendor_id, 0x1002);
    EXPECT_EQ(device->deviceinfo.pci->device_id, gpu(i).device_id);
    EXPECT_EQ(device->deviceinfo.pci->subvendor_id, 0x1002);
    EXPECT_EQ(std::string(device->nodes[DRM_NODE_RENDER]),
              "/dev/dri/renderD" + std::to_string(gpu(i).render_minor));
    drmFreeDevice(&device);
  }
}

TEST_F(SystemDevice, LibdrmListsEveryGpuOnce) {
  drmDevicePtr devices[64];
  const int count = drmGetDevices2(0, devices, 64);
  unsigned amd = 0;
  for (int i = 0; i < count; ++i)
    if (devices[i]->bustype == DRM_BUS_PCI && devices[i]->deviceinfo.pci->vendor_id == 0x1002 &&
        (devices[i]->available_nodes & 1 << DRM_NODE_RENDER) != 0)
      ++amd;
  drmFreeDevices(devices, count);
  EXPECT_EQ(amd, gpus());
}

TEST_F(SystemDevice, DriverIsAmdgpu) {
  EXPECT_EQ(text_of("/sys/module/amdgpu/initstate"), "live\n");
  for (unsigned i = 0; i < gpus(); ++i) {
    const fs::path device =
        fs::path("/sys/class/drm/renderD" + std::to_string(gpu(i).render_minor)) / "device";
    EXPECT_EQ(fs::canonical(device / "driver"), fs::canonical("/sys/bus/pci/drivers/amdgpu"));
    EXPECT_EQ(fs::canonical(device / "subsystem"), fs::canonical("/sys/bus/pci"));
    EXPECT_EQ(std::stoull(text_of(device / "mem_info_vram_total")), gpu(i).vram_bytes);
    EXPECT_EQ(std::stoull(text_of(device / "mem_info_gtt_total")), gpu(i).gtt_bytes);
    EXPECT_EQ(std::stoull(text_of(device / "unique_id"), nullptr, 16),
              properties_of(nodes_[gpu(i).gpu_id] / "properties")["unique_id"]);
    EXPECT_TRUE(fs::exists("/sys/bus/pci/drivers/amdgpu" / fs::canonical(device).filename()));
  }
}

TEST_F(SystemDevice, MemoryInUseIsThatOfAllPrograms) {
  const auto in_use = [&](unsigned i, const char* name) {
    return std::stoull(
        text_of(fs::path("/sys/class/drm/renderD" + std::to_string(gpu(i).render_minor)) / "device" / name));
  };
  for (unsigned i = 0; i < gpus(); ++i) {
    const std::uint64_t vram = in_use(i, "mem_info_vram_used");
    const std::uint64_t gtt = in_use(i, "mem_info_gtt_used");
    EXPECT_EQ(in_child([&] {
                const Fd render = open_render(*control_, i);
                drm_amdgpu_gem_create create{};
                create.in.bo_size = 1 << 20;
                create.in.domains = AMDGPU_GEM_DOMAIN_VRAM;
                ASSERT_EQ(call(render.get(), DRM_IOCTL_AMDGPU_GEM_CREATE, &create), 0);
                create = {};
                create.in.bo_size = 2 << 20;
                create.in.domains = AMDGPU_GEM_DOMAIN_GTT;
                ASSERT_EQ(call(render.get(), DRM_IOCTL_AMDGPU_GEM_CREATE, &create), 0);
                EXPECT_EQ(in_use(i, "mem_info_vram_used"), vram + (1 << 20));
                EXPECT_EQ(in_use(i, "mem_info_gtt_used"), gtt + (2 << 20));
              }),
              0);
    EXPECT_EQ(in_use(i, "mem_info_vram_used"), vram);
    EXPECT_EQ(in_use(i, "mem_info_gtt_used"), gtt);
  }
}

}  // namespace
}  // namespace vamdgpu::tests
