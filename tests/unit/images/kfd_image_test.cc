// SPDX-License-Identifier: MIT
// The KFD image: there and back, as upstream's plugin writes it, and damaged.
#include "images/kfd_image.h"

#include <criu-amdgpu.pb-c.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>

#include "kfd/uapi.h"
#include "support/machines.h"

namespace sluice {
namespace {

using kfd::IoLink;
using kfd::Node;
using kfd::Topology;
using test::cpx_machine;
using test::mi210_machine;
using test::mi300x_machine;

KfdImage sample() {
  KfdImage image;
  image.pid = 4711;
  image.topology = mi210_machine(2, true);
  image.bos = {
      {{0x7f0000000000, 4096, 0x100000000, 0x2000, kfd::kAllocVram | kfd::kAllocWritable}, kNoHandle},
      {{0x7f0000200000, 1U << 21, 0x100001000, 0x2001,
        kfd::kAllocGtt | kfd::kAllocWritable | kfd::kAllocCoherent},
       7},
      {{0x7f0000600000, 8192, 0xC000000000000000, 0x2001, kfd::kAllocDoorbell}, kNoHandle}};
  image.num_objects = 5;
  image.shm = {4096, 0x12345678};
  image.priv_data = {1, 0, 0, 0, 2, 0, 0, 255};
  image.sluice_version = "0.1.0";
  image.kernel_release = "6.1.0-test";
  image.kfd_minor_version = 11;
  image.bo_record_bytes = 80;
  image.dump_id = DumpId{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  image.has_sums = true;
  return image;
}

TEST(KfdImage, there_and_back) {
  const KfdImage image = sample();
  const auto decoded = decode_kfd_image(encode_kfd_image(image));
  ASSERT_TRUE(decoded.ok()) << decoded.error().what;
  EXPECT_EQ(*decoded, image);
}

TEST(KfdImage, there_and_back_of_big_machines) {
  for (const Topology& machine : {mi300x_machine(), cpx_machine()}) {
    KfdImage image = sample();
    image.topology = machine;
    image.bos.clear();
    image.alias_of = 3;
    const auto decoded = decode_kfd_image(encode_kfd_image(image));
    ASSERT_TRUE(decoded.ok()) << decoded.error().what;
    EXPECT_EQ(*decoded, image);
  }
}

KfdImage with_imports() {
  KfdImage image = sample();
  for (const std::size_t i : {0U, 2U}) {
    image.bos[i].shared = 5 + static_cast<std::uint32_t>(i);
    image.bos[i].imports = true;
  }
  return image;
}

TEST(KfdImage, imported_bos_keep_their_places) {
  const KfdImage image = with_imports();
  const auto decoded = decode_kfd_image(encode_kfd_image(image));
  ASSERT_TRUE(decoded.ok()) << decoded.error().what;
  EXPECT_EQ(*decoded, image);
}

TEST(KfdImage, links_that_lead_nowhere_are_not_stored) {
  KfdImage image = sample();
  image.topology.nodes[1].links.push_back({kfd::kLinkXgmi, 9});
  const auto decoded = decode_kfd_image(encode_kfd_image(image));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->topology.nodes, sample().topology.nodes);
}

// Edits the message between the two directions.
std::vector<std::uint8_t> edited(const KfdImage& image, const std::function<void(CriuKfd&)>& edit) {
  const std::vector<std::uint8_t> bytes = encode_kfd_image(image);
  CriuKfd* message = criu_kfd__unpack(nullptr, bytes.size(), bytes.data());
  edit(*message);
  std::vector<std::uint8_t> result(criu_kfd__get_packed_size(message));
  criu_kfd__pack(message, result.data());
  criu_kfd__free_unpacked(message, nullptr);
  return result;
}

// A reader that makes its BOs independent ones must not find them.
TEST(KfdImage, imported_bos_are_not_among_upstreams) {
  edited(with_imports(), [](CriuKfd& message) {
    EXPECT_EQ(message.num_of_bos, 1U);
    EXPECT_EQ(message.n_bo_entries, 1U);
    EXPECT_EQ(message.n_imported_bos, 2U);
  });
}

TEST(KfdImage, damaged_imports_are_refused_by_name) {
  const struct {
    std::function<void(CriuKfd&)> damage;
    const char* words;
  } cases[] = {
      {[](CriuKfd& message) { message.imported_bos[1]->index = 0; }, "imported BO 0 is out of order"},
      {[](CriuKfd& message) { message.imported_bos[1]->index = 3; }, "imported BO 3 is out of order"},
      {[](CriuKfd& message) { std::swap(message.imported_bos[0], message.imported_bos[1]); }, "out of order"},
      {[](CriuKfd& message) { message.imported_bos[0]->index = UINT32_MAX; }, "out of order"},
      {[](CriuKfd& message) { message.imported_bos[0]->bo->has_shared = 0; }, "whose memory"},
      {[](CriuKfd& message) { message.imported_bos[0]->bo->has_handle = 0; }, "imported BO 0 has no handle"},
      {[](CriuKfd& message) { message.imported_bos[0]->bo->gpu_id = 77; }, "GPU 77"},
      {[](CriuKfd& message) { message.imported_bos[0]->bo->size = 0; }, "no size"},
  };
  for (const auto& damaged : cases) {
    const auto decoded = decode_kfd_image(edited(with_imports(), damaged.damage));
    ASSERT_FALSE(decoded.ok()) << damaged.words;
    EXPECT_EQ(decoded.error().err, EBADMSG);
    EXPECT_NE(decoded.error().what.find(damaged.words), std::string::npos) << decoded.error().what;
  }
}

TEST(KfdImage, upstreams_image_has_none_of_our_fields) {
  KfdImage image = sample();
  image.sluice_version.clear();
  image.kernel_release.clear();
  image.kfd_minor_version = 0;
  image.bo_record_bytes = 0;
  image.dump_id.reset();
  for (Node& node : image.topology.nodes) {
    node.name.clear();
    node.gfx_target_version = node.location_id = 0;
    node.unique_id = 0;
  }
  const auto bytes = edited(image, [](CriuKfd& message) {
    EXPECT_EQ(message.sluice_version, nullptr);
    EXPECT_EQ(message.kernel_release, nullptr);
    EXPECT_FALSE(message.has_kfd_minor_version || message.has_bo_record_bytes || message.has_alias_of);
    EXPECT_FALSE(message.has_dump_id);
    for (std::size_t i = 0; i < message.n_device_entries; i++) {
      KfdDeviceEntry& entry = *message.device_entries[i];
      entry.has_gfx_target_version = entry.has_location_id = entry.has_unique_id = 0;
    }
  });
  const auto decoded = decode_kfd_image(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.error().what;
  EXPECT_EQ(*decoded, image);
}

// As the plugins of CRIU 3.17 to 4.2 write it.
TEST(KfdImage, a_bo_without_a_handle_is_one_without_any) {
  KfdImage image = sample();
  image.dump_id.reset();
  const auto decoded = decode_kfd_image(edited(image, [](CriuKfd& message) {
    for (std::size_t i = 0; i < message.n_bo_entries; i++) message.bo_entries[i]->has_handle = 0;
  }));
  ASSERT_TRUE(decoded.ok()) << decoded.error().what;
  image.bos[1].handle = kNoHandle;
  EXPECT_EQ(decoded->bos, image.bos);
}

// Upstream's plugin goes through both in this order when it looks for GPUs that fit.
TEST(KfdImage, nodes_and_links_are_stored_as_the_topology_lists_them) {
  KfdImage image = sample();
  image.topology = mi210_machine(3, true);
  const std::vector<Node>& nodes = image.topology.nodes;
  const std::vector<IoLink> backwards(nodes[3].links.rbegin(), nodes[3].links.rend());
  ASSERT_NE(backwards, nodes[3].links);
  image.topology.listing = {
      {3, backwards}, {9, {{kfd::kLinkPcie, 0}}}, {0, nodes[0].links}, {2, nodes[2].links}};
  edited(image, [&](CriuKfd& message) {
    ASSERT_EQ(message.n_device_entries, 4U);
    std::vector<std::uint32_t> stored;
    for (std::size_t i = 0; i < 4; i++) stored.push_back(message.device_entries[i]->node_id);
    EXPECT_EQ(stored, (std::vector<std::uint32_t>{3, 0, 2, 1})) << "9 is hidden, 1 is not listed";
    ASSERT_EQ(message.device_entries[0]->n_iolinks, backwards.size());
    for (std::size_t i = 0; i < backwards.size(); i++)
      EXPECT_EQ(message.device_entries[0]->iolinks[i]->node_to_id, backwards[i].node_to);
  });
  const auto decoded = decode_kfd_image(encode_kfd_image(image));
  ASSERT_TRUE(decoded.ok()) << decoded.error().what;
  for (std::uint32_t id = 0; id < 4; id++) EXPECT_EQ(decoded->topology.nodes[id].node_id, id);
  EXPECT_EQ(encode_kfd_image(*decoded), encode_kfd_image(image));
}

// Upstream's reader takes a node with cores for a CPU and reads nothing else of it.
TEST(KfdImage, a_gpu_with_cpu_cores_is_stored_as_a_gpu) {
  KfdImage image = sample();
  image.topology.nodes[1].cpu_cores_count = 8;
  edited(image, [](CriuKfd& message) {
    EXPECT_EQ(message.device_entries[0]->cpu_cores_count, 64U);
    EXPECT_EQ(message.device_entries[1]->cpu_cores_count, 0U);
    EXPECT_NE(message.device_entries[1]->simd_count, 0U);
  });
}

// One GPU node as bytes that follow from the wire format alone: field numbers must never move.
TEST(KfdImage, wire_numbers_are_upstreams) {
  KfdImage image;
  image.pid = 1;
  image.priv_data = {9};
  Node node;
  node.gpu_id = 3;
  node.vram_size = 5;
  node.links = {};
  image.topology.nodes = {node};
  image.bos = {{{1, 2, 3, 3, 4}, 6}};
  const auto bytes = edited(image, [](CriuKfd& message) {
    KfdDeviceEntry& entry = *message.device_entries[0];
    entry.has_gfx_target_version = entry.has_location_id = entry.has_unique_id = 0;
  });
  std::vector<std::uint8_t> expected = {0x08, 1, 0x10, 1, 0x18, 0};  // pid, num_of_gpus, num_of_cpus
  std::vector<std::uint8_t> entry;
  for (unsigned field = 1; field <= 31; field++) {
    const unsigned key = field << 3;
    if (key < 128) {
      entry.push_back(static_cast<std::uint8_t>(key));
    } else {
      entry.push_back(static_cast<std::uint8_t>((key & 127) | 128));
      entry.push_back(static_cast<std::uint8_t>(key >> 7));
    }
    entry.push_back(field == 2 ? 3 : field == 31 ? 5 : 0);
  }
  expected.insert(expected.end(), {0x22, static_cast<std::uint8_t>(entry.size())});
  expected.insert(expected.end(), entry.begin(), entry.end());
  const std::uint8_t rest[] = {0x28, 1,                                                         // num_of_bos
                               0x32, 12, 0x08, 1, 0x10, 2, 0x18, 3, 0x20, 4, 0x28, 3, 0x30, 6,  // bo_entries
                               0x38, 0,  0x40, 0, 0x48, 0,  // num_of_objects, shared_mem_*
                               0x52, 1,  9};                // priv_data
  expected.insert(expected.end(), std::begin(rest), std::end(rest));
  EXPECT_EQ(bytes, expected);
}

struct Damage {
  const char* name;
  std::function<void(CriuKfd&)> edit;
  const char* complaint;
};

class KfdImageDamage : public ::testing::TestWithParam<Damage> {};

TEST_P(KfdImageDamage, is_refused_and_named) {
  const auto decoded = decode_kfd_image(edited(sample(), GetParam().edit));
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.error().err, EBADMSG);
  EXPECT_NE(decoded.error().what.find(GetParam().complaint), std::string::npos) << decoded.error().what;
}

INSTANTIATE_TEST_SUITE_P(
    Table, KfdImageDamage,
    ::testing::Values(
        Damage{"gpu_missing", [](CriuKfd& m) { m.num_of_gpus = 3; }, "3 nodes and announces 4"},
        Damage{"counts_overflow", [](CriuKfd& m) { m.num_of_gpus = m.num_of_cpus = 0xFFFFFFFF; },
               "announces"},
        Damage{"kinds_swapped", [](CriuKfd& m) { std::swap(m.num_of_gpus, m.num_of_cpus); },
               "2 GPUs and announces 1"},
        Damage{"bo_missing", [](CriuKfd& m) { m.num_of_bos = 4; }, "3 BOs and announces 4"},
        Damage{"bo_count_wraps", [](CriuKfd& m) { m.num_of_bos = ~std::uint64_t{0}; },
               "3 BOs and announces 18446744073709551615"},
        Damage{"gpu_twice", [](CriuKfd& m) { m.device_entries[1]->gpu_id = m.device_entries[2]->gpu_id; },
               "twice"},
        Damage{"node_twice", [](CriuKfd& m) { m.device_entries[1]->node_id = 2; }, "node 2 twice"},
        Damage{"gpu_id_range", [](CriuKfd& m) { m.device_entries[1]->gpu_id = 65536; }, "16 bits"},
        Damage{"vram_public_range", [](CriuKfd& m) { m.device_entries[1]->vram_public = 2; }, "vram_public"},
        Damage{"link_type", [](CriuKfd& m) { m.device_entries[1]->iolinks[0]->type = 5; }, "link of type 5"},
        Damage{"bo_gpu", [](CriuKfd& m) { m.bo_entries[1]->gpu_id = 0x2002; }, "BO 1 is on GPU 8194"},
        Damage{"bo_cpu", [](CriuKfd& m) { m.bo_entries[1]->gpu_id = 0; }, "BO 1 is on GPU 0"},
        Damage{"bo_empty", [](CriuKfd& m) { m.bo_entries[0]->size = 0; }, "BO 0 has no size"},
        Damage{"bo_wraps", [](CriuKfd& m) { m.bo_entries[0]->size = ~std::uint64_t{0}; }, "address space"},
        Damage{"handle_missing", [](CriuKfd& m) { m.bo_entries[1]->has_handle = 0; }, "BO 1 has no handle"},
        Damage{"dump_id_short", [](CriuKfd& m) { m.dump_id.len = 15; }, "dump_id has 15 bytes"}),
    [](const auto& test) { return std::string(test.param.name); });

// To match them takes time and memory by the product of their numbers.
TEST(KfdImage, a_topology_that_no_machine_has_is_refused) {
  KfdImage gpus = sample();
  gpus.topology = mi210_machine(65, false);
  KfdImage cpus = sample();
  for (std::uint32_t id = 100; id < 165; id++)
    cpus.topology.nodes.push_back({.node_id = id, .cpu_cores_count = 1});
  KfdImage links = sample();
  const IoLink first = links.topology.nodes.back().links.front();
  links.topology.nodes.back().links.assign(kfd::kLinksMax + 1, first);
  for (const auto& [image, complaint] :
       {std::pair(gpus, "65 GPUs"), {cpus, "CPU nodes"}, {links, "257 links"}}) {
    const auto decoded = decode_kfd_image(encode_kfd_image(image));
    ASSERT_FALSE(decoded.ok()) << complaint;
    EXPECT_EQ(decoded.error().err, EBADMSG);
    EXPECT_NE(decoded.error().what.find(complaint), std::string::npos) << decoded.error().what;
  }
  links.topology.nodes.back().links.pop_back();
  EXPECT_TRUE(decode_kfd_image(encode_kfd_image(links)).ok());
}

TEST(KfdImage, truncated_at_every_length_is_refused_or_consistent) {
  const std::vector<std::uint8_t> bytes = encode_kfd_image(sample());
  std::size_t refused = 0;
  for (std::size_t length = 0; length < bytes.size(); length++) {
    // A copy of its own, so that a read past the end is seen.
    const std::vector<std::uint8_t> part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
    if (!decode_kfd_image(part).ok()) refused++;
  }
  // Only our optional fields, at the end, can be missing unnoticed.
  EXPECT_GT(refused, bytes.size() - 80);
}

TEST(KfdImage, bit_flips_never_crash) {
  const std::vector<std::uint8_t> bytes = encode_kfd_image(sample());
  for (std::size_t i = 0; i < bytes.size(); i++) {
    for (unsigned b = 0; b < 8; b++) {
      std::vector<std::uint8_t> damaged = bytes;
      damaged[i] = static_cast<std::uint8_t>(damaged[i] ^ (1U << b));
      if (const auto decoded = decode_kfd_image(damaged)) {
        for (const BoEntry& bo : decoded->bos) EXPECT_NE(decoded->topology.find_gpu(bo.gpu_id), nullptr);
      }
    }
  }
}

// What only messages show cannot make up a line of a log, nor command a terminal.
TEST(KfdImage, texts_are_made_printable) {
  KfdImage image = sample();
  image.sluice_version = "0.1\nError (cr-restore.c): made up";
  image.kernel_release = "\x1b[2J6.12";
  for (Node& node : image.topology.nodes) node.name = std::string(100, '\x07');
  const auto decoded = decode_kfd_image(encode_kfd_image(image));
  ASSERT_TRUE(decoded.ok()) << decoded.error().what;
  EXPECT_EQ(decoded->sluice_version, "0.1?Error (cr-restore.c): made up");
  EXPECT_EQ(decoded->kernel_release, "?[2J6.12");
  for (const Node& node : decoded->topology.nodes) {
    if (node.is_gpu()) {
      EXPECT_EQ(node.name, std::string(64, '?'));
    }
  }
}

// Millions of the smallest BOs there can be: unpacked they would take many times the image's own size.
TEST(KfdImage, a_message_of_tiny_parts_takes_bounded_memory) {
  const std::uint8_t tiny[] = {0x32, 12, 0x08, 1, 0x10, 2, 0x18, 3, 0x20, 4, 0x28, 3, 0x30, 6};
  std::vector<std::uint8_t> bytes = encode_kfd_image(sample());
  const auto grow_by = [&](std::size_t parts) {
    for (std::size_t i = 0; i < parts; ++i) bytes.insert(bytes.end(), std::begin(tiny), std::end(tiny));
    return decode_kfd_image(bytes).error().what;
  };
  EXPECT_NE(grow_by(300'000).find("300003 BOs and announces 3"), std::string::npos);
  EXPECT_NE(grow_by(3'700'000).find("not a criu_kfd message"), std::string::npos);
}

TEST(KfdImage, random_bytes_never_crash) {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; round++) {
    std::vector<std::uint8_t> junk(random() % 300);
    for (auto& byte : junk) byte = static_cast<std::uint8_t>(random());
    (void)decode_kfd_image(junk);
  }
}

TEST(KfdImage, names_gpus_as_the_process_does) {
  const Topology local = mi210_machine(2, true, 0x5000);
  const kfd::DeviceIds devices[] = {{0x2001, 0x5000}, {0x2000, 0x5001}};
  const auto named = topology_of_process(local, devices);
  ASSERT_TRUE(named.ok()) << named.error().what;
  EXPECT_EQ(named->nodes[1].gpu_id, 0x2001U);
  EXPECT_EQ(named->nodes[2].gpu_id, 0x2000U);
  EXPECT_EQ(named->nodes[0].gpu_id, 0U);
}

TEST(KfdImage, a_gpu_that_is_hidden_from_the_process_is_left_out_with_its_links) {
  const Topology local = mi210_machine(3, true, 0x5000);
  const kfd::DeviceIds devices[] = {{0x2000, 0x5000}, {0x2002, 0x5002}};
  const auto named = topology_of_process(local, devices);
  ASSERT_TRUE(named.ok()) << named.error().what;
  ASSERT_EQ(named->nodes.size(), local.nodes.size() - 1);
  EXPECT_EQ(named->gpu_count(), 2U);
  EXPECT_EQ(named->nodes[0].gpu_id, 0U);
  EXPECT_EQ(named->nodes[1].gpu_id, 0x2000U);
  EXPECT_EQ(named->nodes[2].gpu_id, 0x2002U);

  KfdImage image = sample();
  image.topology = *named;
  image.bos.clear();
  const auto decoded = decode_kfd_image(encode_kfd_image(image));
  ASSERT_TRUE(decoded.ok()) << decoded.error().what;
  EXPECT_EQ(decoded->topology.nodes.size(), named->nodes.size());
  for (const Node& node : decoded->topology.nodes) {
    for (const IoLink& link : node.links) EXPECT_TRUE(decoded->topology.valid(link));
  }
}

TEST(KfdImage, the_process_cannot_have_what_sysfs_does_not_show) {
  const Topology local = mi210_machine(2, true, 0x5000);
  const kfd::DeviceIds others[] = {{0x2000, 0x5000}, {0x2001, 0x5002}};
  EXPECT_EQ(topology_of_process(local, others).error().err, ENODEV);
  const kfd::DeviceIds twice[] = {{0x2000, 0x5000}, {0x2001, 0x5000}};
  EXPECT_EQ(topology_of_process(local, twice).error().err, EIO);
}

}  // namespace
}  // namespace sluice
