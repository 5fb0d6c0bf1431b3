// SPDX-License-Identifier: MIT
// Every rule of GPU matching, with its switch and without; groups, CPU nodes, renamed and missing GPUs.
#include "kfd/matching/matching.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "support/machines.h"

namespace sluice::kfd {
namespace {

using test::cpu;
using test::cpx_machine;
using test::join;
using test::mi210;
using test::mi210_machine;

// The match, or a failed test.
Match match_or_die(const Topology& source, const Topology& local, const MatchRules& rules = {}) {
  MatchOutcome outcome = match_gpus(source, local, rules);
  if (const auto* refusal = std::get_if<Refusal>(&outcome)) {
    ADD_FAILURE() << refusal->text();
    return {};
  }
  return std::get<Match>(std::move(outcome));
}

Refusal refusal_or_die(const Topology& source, const Topology& local, const MatchRules& rules = {}) {
  MatchOutcome outcome = match_gpus(source, local, rules);
  if (std::holds_alternative<Match>(outcome)) {
    ADD_FAILURE() << "matched";
    return {};
  }
  return std::get<Refusal>(std::move(outcome));
}

std::uint32_t actual_of(const Match& match, std::uint32_t user_gpu_id) {
  const auto at = std::find_if(match.gpus.begin(), match.gpus.end(),
                               [&](const DeviceIds& pair) { return pair.user_gpu_id == user_gpu_id; });
  return at != match.gpus.end() ? at->actual_gpu_id : 0;
}

void expect_one_to_one(const Match& match, const Topology& source, const Topology& local) {
  EXPECT_EQ(match.gpus.size(), source.gpu_count());
  std::set<std::uint32_t> used;
  for (const DeviceIds& pair : match.gpus) {
    EXPECT_NE(source.find_gpu(pair.user_gpu_id), nullptr);
    EXPECT_NE(local.find_gpu(pair.actual_gpu_id), nullptr);
    EXPECT_TRUE(used.insert(pair.actual_gpu_id).second);
  }
}

Topology one_gpu() {
  return mi210_machine(1, false);
}

void remove_links(Topology& topology, std::uint32_t from, std::uint32_t to, bool keep_count = true) {
  for (Node& node : topology.nodes) {
    if (node.node_id != from) continue;
    const auto removed = std::erase_if(node.links, [to](const IoLink& link) { return link.node_to == to; });
    if (!keep_count) node.io_links_count -= static_cast<std::uint32_t>(removed);
  }
}

void retype_links(Topology& topology, std::uint32_t a, std::uint32_t b, std::uint32_t type) {
  for (Node& node : topology.nodes) {
    if (node.node_id != a && node.node_id != b) continue;
    for (IoLink& link : node.links) {
      if (link.node_to == a || link.node_to == b) link.type = type;
    }
  }
}

// --- properties
// -----------------------------------------------------------------------------------------------------

struct PropertyRule {
  const char* property;
  std::uint32_t Node::*member;
  const char* variable;    // nullptr: no switch
  bool MatchRules::*test;  // nullptr: no switch
  bool more_is_fine;
};

class KfdMatchingProperty : public ::testing::TestWithParam<PropertyRule> {};

TEST_P(KfdMatchingProperty, a_lesser_gpu_is_refused_by_name_unless_switched_off) {
  const PropertyRule& rule = GetParam();
  const Topology source = one_gpu();
  Topology local = one_gpu();
  local.nodes[1].*rule.member -= 1;

  const Refusal refusal = refusal_or_die(source, local);
  ASSERT_EQ(refusal.pairs.size(), 1U);
  ASSERT_EQ(refusal.pairs[0].mismatches.size(), 1U) << refusal.text();
  const Mismatch& mismatch = refusal.pairs[0].mismatches[0];
  EXPECT_EQ(mismatch.property, rule.property);
  EXPECT_EQ(mismatch.source, std::to_string(source.nodes[1].*rule.member));
  EXPECT_EQ(mismatch.local, std::to_string(local.nodes[1].*rule.member));
  EXPECT_STREQ(mismatch.variable, rule.variable);
  const std::string text = refusal.text();
  EXPECT_NE(text.find(rule.property), std::string::npos) << text;
  EXPECT_NE(text.find("0x2000"), std::string::npos) << text;

  for (const auto member :
       {&MatchRules::fw_version, &MatchRules::sdma_fw_version, &MatchRules::caches_count,
        &MatchRules::num_gws, &MatchRules::vram_size, &MatchRules::numa, &MatchRules::capability}) {
    MatchRules rules;
    rules.*member = false;
    const bool matched = std::holds_alternative<Match>(match_gpus(source, local, rules));
    EXPECT_EQ(matched, member == rule.test);
  }
}

TEST_P(KfdMatchingProperty, a_greater_gpu_serves_where_the_rule_says_at_least) {
  const PropertyRule& rule = GetParam();
  Topology local = one_gpu();
  local.nodes[1].*rule.member += 1;
  EXPECT_EQ(std::holds_alternative<Match>(match_gpus(one_gpu(), local, {})), rule.more_is_fine);
}

INSTANTIATE_TEST_SUITE_P(
    Table, KfdMatchingProperty,
    ::testing::Values(
        PropertyRule{"simd_count", &Node::simd_count, nullptr, nullptr, false},
        PropertyRule{"mem_banks_count", &Node::mem_banks_count, nullptr, nullptr, false},
        PropertyRule{"io_links_count", &Node::io_links_count, nullptr, nullptr, false},
        PropertyRule{"max_waves_per_simd", &Node::max_waves_per_simd, nullptr, nullptr, false},
        PropertyRule{"lds_size_in_kb", &Node::lds_size_in_kb, nullptr, nullptr, false},
        PropertyRule{"wave_front_size", &Node::wave_front_size, nullptr, nullptr, false},
        PropertyRule{"array_count", &Node::array_count, nullptr, nullptr, false},
        PropertyRule{"simd_arrays_per_engine", &Node::simd_arrays_per_engine, nullptr, nullptr, false},
        PropertyRule{"cu_per_simd_array", &Node::cu_per_simd_array, nullptr, nullptr, false},
        PropertyRule{"simd_per_cu", &Node::simd_per_cu, nullptr, nullptr, false},
        PropertyRule{"max_slots_scratch_cu", &Node::max_slots_scratch_cu, nullptr, nullptr, false},
        PropertyRule{"vendor_id", &Node::vendor_id, nullptr, nullptr, false},
        PropertyRule{"device_id", &Node::device_id, nullptr, nullptr, false},
        PropertyRule{"num_sdma_engines", &Node::num_sdma_engines, nullptr, nullptr, false},
        PropertyRule{"num_sdma_xgmi_engines", &Node::num_sdma_xgmi_engines, nullptr, nullptr, false},
        PropertyRule{"num_sdma_queues_per_engine", &Node::num_sdma_queues_per_engine, nullptr, nullptr,
                     false},
        PropertyRule{"num_cp_queues", &Node::num_cp_queues, nullptr, nullptr, false},
        PropertyRule{"vram_public", &Node::vram_public, nullptr, nullptr, false},
        PropertyRule{"capability", &Node::capability, "KFD_CAPABILITY_CHECK", &MatchRules::capability, false},
        PropertyRule{"num_gws", &Node::num_gws, "KFD_NUM_GWS_CHECK", &MatchRules::num_gws, true},
        PropertyRule{"caches_count", &Node::caches_count, "KFD_CACHES_COUNT_CHECK", &MatchRules::caches_count,
                     true},
        PropertyRule{"fw_version", &Node::fw_version, "KFD_FW_VER_CHECK", &MatchRules::fw_version, true},
        PropertyRule{"sdma_fw_version", &Node::sdma_fw_version, "KFD_SDMA_FW_VER_CHECK",
                     &MatchRules::sdma_fw_version, true}),
    [](const auto& test) { return std::string(test.param.property); });

TEST(KfdMatching, vram_must_be_as_much_or_more_unless_switched_off) {
  Topology local = one_gpu();
  local.nodes[1].vram_size += 1;
  EXPECT_EQ(match_or_die(one_gpu(), local).gpus.size(), 1U);
  local.nodes[1].vram_size -= 2;
  const Refusal refusal = refusal_or_die(one_gpu(), local);
  ASSERT_EQ(refusal.pairs.at(0).mismatches.size(), 1U);
  EXPECT_EQ(refusal.pairs[0].mismatches[0].property, "vram_size");
  EXPECT_EQ(refusal.pairs[0].mismatches[0].source, "68702699520");
  EXPECT_STREQ(refusal.pairs[0].mismatches[0].variable, "KFD_VRAM_SIZE_CHECK");
  MatchRules rules;
  rules.vram_size = false;
  EXPECT_EQ(match_or_die(one_gpu(), local, rules).gpus.size(), 1U);
}

TEST(KfdMatching, properties_that_never_count) {
  Topology local = one_gpu();
  Node& gpu = local.nodes[1];
  gpu.location_id = 1;
  gpu.domain = 1;
  gpu.hive_id = 1;
  gpu.drm_render_minor = 144;
  gpu.gfx_target_version = 1;
  gpu.unique_id = 1;
  gpu.gds_size_in_kb = 1;
  gpu.name = "other";
  EXPECT_TRUE(match_or_die(one_gpu(), local).identity);
}

// --- links to CPU nodes
// ---------------------------------------------------------------------------------------------

TEST(KfdMatching, fewer_valid_links_are_refused) {
  Topology source = mi210_machine(2, false);
  join(source, 1, 2, kLinkPcie);
  Topology local = source;
  // A link to a node that is not there does not count.
  for (IoLink& link : local.nodes[1].links) {
    if (link.node_to == 2) link.node_to = 77;
  }
  const Refusal refusal = refusal_or_die(source, local);
  EXPECT_NE(refusal.text().find("valid io_links 2 in the image, 1 here"), std::string::npos)
      << refusal.text();
}

TEST(KfdMatching, links_of_the_image_that_lead_nowhere_do_not_matter) {
  Topology source = one_gpu();
  source.nodes[1].links.push_back({kLinkXgmi, 9});
  EXPECT_TRUE(match_or_die(source, one_gpu()).identity);
}

TEST(KfdMatching, a_one_way_link_does_not_replace_a_two_way_one) {
  Topology one_way = one_gpu();
  remove_links(one_way, 0, 1);
  const Refusal refusal = refusal_or_die(one_gpu(), one_way);
  const Mismatch& mismatch = refusal.pairs.at(0).mismatches.at(0);
  EXPECT_EQ(mismatch.property, "link to CPU node 0");
  EXPECT_EQ(mismatch.source, "two-way PCIe");
  EXPECT_EQ(mismatch.local, "one-way PCIe");
  EXPECT_EQ(mismatch.variable, nullptr);
  EXPECT_TRUE(match_or_die(one_way, one_gpu()).identity);
}

TEST(KfdMatching, pcie_does_not_replace_xgmi_but_the_other_way_round) {
  Topology xgmi = one_gpu();
  retype_links(xgmi, 0, 1, kLinkXgmi);
  const Refusal refusal = refusal_or_die(xgmi, one_gpu());
  EXPECT_EQ(refusal.pairs.at(0).mismatches.at(0).source, "two-way XGMI");
  EXPECT_TRUE(match_or_die(one_gpu(), xgmi).identity);
}

TEST(KfdMatching, under_numa_a_shared_cpu_node_keeps_its_type_of_link) {
  const Topology source = mi210_machine(2, false);
  Topology local = mi210_machine(2, false);
  retype_links(local, 0, 1, kLinkXgmi);
  retype_links(local, 0, 2, kLinkXgmi);
  const Refusal refusal = refusal_or_die(source, local);
  EXPECT_STREQ(refusal.pairs.at(0).mismatches.at(0).variable, "KFD_NUMA_CHECK");
  MatchRules rules;
  rules.numa = false;
  EXPECT_TRUE(match_or_die(source, local, rules).identity);
}

// Two CPU nodes, GPUs as given.
Topology two_sockets(const std::vector<std::uint32_t>& cpu_of_gpu, std::uint32_t first_gpu_id = 0x2000) {
  Topology topology;
  topology.nodes = {cpu(0), cpu(1)};
  for (std::uint32_t i = 0; i < cpu_of_gpu.size(); i++) {
    topology.nodes.push_back(mi210(2 + i, first_gpu_id + i, 128 + i));
  }
  for (std::uint32_t i = 0; i < cpu_of_gpu.size(); i++) join(topology, 2 + i, cpu_of_gpu[i], kLinkPcie);
  return topology;
}

TEST(KfdMatching, gpus_of_one_socket_stay_together_under_numa) {
  // The image's GPUs 0 and 1 share a socket; here GPUs 0 and 2 do.
  const Topology source = two_sockets({0, 0, 1, 1}, 0x2000);
  const Topology local = two_sockets({0, 1, 0, 1}, 0x5000);
  const Match match = match_or_die(source, local);
  expect_one_to_one(match, source, local);
  const auto socket_of = [&](std::uint32_t user) {
    return local.find_gpu(actual_of(match, user))->links[0].node_to;
  };
  EXPECT_EQ(socket_of(0x2000), socket_of(0x2001));
  EXPECT_EQ(socket_of(0x2002), socket_of(0x2003));
  EXPECT_NE(socket_of(0x2000), socket_of(0x2002));
}

TEST(KfdMatching, numa_overrides_equal_gpu_ids) {
  const Topology source = two_sockets({0, 0, 1, 1});
  const Topology local = two_sockets({0, 1, 0, 1});
  EXPECT_FALSE(match_or_die(source, local).identity);
  MatchRules rules;
  rules.numa = false;
  EXPECT_TRUE(match_or_die(source, local, rules).identity);
}

TEST(KfdMatching, sockets_of_other_size_are_refused_under_numa_and_the_switch_is_named) {
  const Topology source = two_sockets({0, 0, 1, 1});
  const Topology local = two_sockets({0, 1, 1, 1});
  const Refusal refusal = refusal_or_die(source, local);
  EXPECT_NE(refusal.sentence.find("KFD_NUMA_CHECK=0"), std::string::npos) << refusal.sentence;
  EXPECT_NE(refusal.text().find("fits by itself"), std::string::npos);
  MatchRules rules;
  rules.numa = false;
  EXPECT_TRUE(match_or_die(source, local, rules).identity);
}

TEST(KfdMatching, two_sockets_do_not_become_one_under_numa) {
  const Topology source = two_sockets({0, 1});
  const Topology local = two_sockets({0, 0});
  (void)refusal_or_die(source, local);
  (void)refusal_or_die(local, source);
  MatchRules rules;
  rules.numa = false;
  EXPECT_TRUE(match_or_die(source, local, rules).identity);
  EXPECT_TRUE(match_or_die(local, source, rules).identity);
}

TEST(KfdMatching, swapped_sockets_are_found) {
  const Topology source = two_sockets({0, 1, 1}, 0x2000);
  const Topology local = two_sockets({1, 0, 0}, 0x5000);
  const Match match = match_or_die(source, local);
  EXPECT_EQ(actual_of(match, 0x2000), 0x5000U);
}

TEST(KfdMatching, a_lone_link_may_become_xgmi_under_numa) {
  Topology local = two_sockets({0, 1});
  retype_links(local, 0, 2, kLinkXgmi);
  EXPECT_TRUE(match_or_die(two_sockets({0, 1}), local).identity);
}

// --- XGMI groups
// ----------------------------------------------------------------------------------------------------

// Six GPUs on one CPU node; groups as lists of GPU numbers.
Topology hives(std::uint32_t first_gpu_id, const std::vector<std::vector<std::uint32_t>>& groups) {
  Topology topology = mi210_machine(6, false, first_gpu_id);
  for (const auto& group : groups) {
    for (std::size_t i = 0; i < group.size(); i++) {
      for (std::size_t j = i + 1; j < group.size(); j++)
        join(topology, 1 + group[i], 1 + group[j], kLinkXgmi);
    }
  }
  // The counts of links would decide first; here groups are to decide.
  for (Node& node : topology.nodes) node.io_links_count = 0;
  return topology;
}

TEST(KfdMatching, a_group_goes_to_one_group) {
  const Topology source = hives(0x2000, {{0, 1, 2}, {3, 4, 5}});
  const Topology local = hives(0x5000, {{0, 2, 4}, {1, 3, 5}});
  const Match match = match_or_die(source, local);
  expect_one_to_one(match, source, local);
  const auto parity = [&](std::uint32_t user) { return actual_of(match, user) % 2; };
  EXPECT_EQ(parity(0x2000), parity(0x2001));
  EXPECT_EQ(parity(0x2000), parity(0x2002));
  EXPECT_NE(parity(0x2000), parity(0x2003));
  EXPECT_EQ(parity(0x2003), parity(0x2005));
}

TEST(KfdMatching, groups_override_equal_gpu_ids) {
  EXPECT_FALSE(
      match_or_die(hives(0x2000, {{0, 1, 2}, {3, 4, 5}}), hives(0x2000, {{0, 2, 4}, {1, 3, 5}})).identity);
}

TEST(KfdMatching, groups_are_found_by_links_and_not_by_hive_id) {
  Topology source = hives(0x2000, {{0, 1}});
  for (Node& node : source.nodes) node.hive_id = node.gpu_id;
  EXPECT_TRUE(match_or_die(source, hives(0x2000, {{0, 1}})).identity);
}

TEST(KfdMatching, fewer_groups_than_the_image_are_refused) {
  Topology source = hives(0x2000, {{0, 1}, {2, 3}});
  const Topology local = hives(0x5000, {{0, 1, 2, 3}});
  const Refusal refusal = refusal_or_die(source, local);
  EXPECT_NE(refusal.sentence.find("2 XGMI groups"), std::string::npos) << refusal.sentence;
}

TEST(KfdMatching, a_larger_group_serves_and_its_rest_serves_gpus_without_a_group) {
  const Topology source = hives(0x2000, {{0, 1}});
  const Topology local = hives(0x5000, {{0, 1, 2, 3, 4, 5}});
  expect_one_to_one(match_or_die(source, local), source, local);
}

TEST(KfdMatching, a_group_that_is_too_small_is_refused) {
  const Topology source = hives(0x2000, {{0, 1, 2}});
  Topology local = hives(0x5000, {{0, 1}, {2, 3}});
  // Enough links for each GPU by itself.
  for (Node& node : local.nodes) {
    if (node.is_gpu()) node.links.push_back({kLinkPcie, 0});
  }
  const Refusal refusal = refusal_or_die(source, local);
  EXPECT_NE(refusal.sentence.find("XGMI groups"), std::string::npos) << refusal.sentence;
}

TEST(KfdMatching, one_way_xgmi_makes_no_group) {
  Topology local = hives(0x2000, {{0, 1}});
  remove_links(local, 2, 1);
  local.nodes[2].links.push_back({kLinkPcie, 1});
  EXPECT_NE(refusal_or_die(hives(0x2000, {{0, 1}}), local).sentence.find("XGMI groups"), std::string::npos);
}

TEST(KfdMatching, the_right_group_is_chosen_by_its_gpus) {
  // Only the second local group has the firmware for the image's group.
  Topology source = hives(0x2000, {{0, 1}});
  source.nodes[1].fw_version = source.nodes[2].fw_version = 100;
  Topology local = hives(0x5000, {{0, 1}, {2, 3}});
  local.nodes[3].fw_version = local.nodes[4].fw_version = 100;
  for (Node& node : source.nodes) {
    if (node.is_gpu() && node.fw_version != 100) node.fw_version = 1;
  }
  const Match match = match_or_die(source, local);
  EXPECT_EQ(actual_of(match, 0x2000), 0x5002U);
  EXPECT_EQ(actual_of(match, 0x2001), 0x5003U);
}

// --- numbers, order, size
// -------------------------------------------------------------------------------------------

TEST(KfdMatching, identity_is_preferred) {
  Topology local = mi210_machine(4, true);
  std::reverse(local.nodes.begin() + 1, local.nodes.end());
  std::uint32_t node_id = 1;
  for (auto node = local.nodes.begin() + 1; node != local.nodes.end(); ++node) node->node_id = node_id++;
  const Match match = match_or_die(mi210_machine(4, true), local);
  EXPECT_TRUE(match.identity);
  for (const DeviceIds& pair : match.gpus) EXPECT_EQ(pair.user_gpu_id, pair.actual_gpu_id);
}

TEST(KfdMatching, without_identity_the_order_of_nodes_decides) {
  const Match match = match_or_die(mi210_machine(4, true, 0x2000), mi210_machine(4, true, 0x5000));
  EXPECT_FALSE(match.identity);
  for (std::uint32_t i = 0; i < 4; i++) EXPECT_EQ(match.gpus[i], (DeviceIds{0x2000 + i, 0x5000 + i}));
}

TEST(KfdMatching, swapped_gpus_are_told_apart_by_their_properties) {
  Topology source = mi210_machine(2, false, 0x2000);
  Topology local = mi210_machine(2, false, 0x2000);
  source.nodes[1].fw_version = 100;
  local.nodes[2].fw_version = 100;
  const Match match = match_or_die(source, local);
  EXPECT_FALSE(match.identity);
  EXPECT_EQ(actual_of(match, 0x2000), 0x2001U);
  EXPECT_EQ(actual_of(match, 0x2001), 0x2000U);
}

TEST(KfdMatching, several_gpus_for_one_place_are_refused) {
  Topology source = mi210_machine(2, false, 0x2000);
  Topology local = mi210_machine(2, false, 0x5000);
  local.nodes[1].fw_version = 1;
  EXPECT_NE(refusal_or_die(source, local).sentence.find("only the same ones"), std::string::npos);
}

TEST(KfdMatching, fewer_gpus_are_refused_with_the_numbers) {
  Topology one = one_gpu();
  one.hidden.push_back({2, EPERM});
  const std::string fewer = refusal_or_die(mi210_machine(2, false), one).text();
  EXPECT_NE(fewer.find("2 GPUs visible, here 1 GPU is visible"), std::string::npos) << fewer;
  EXPECT_NE(fewer.find("hides 1 GPU"), std::string::npos) << fewer;
}

TEST(KfdMatching, of_more_gpus_those_that_fit_are_taken) {
  const Topology source = mi210_machine(2, false, 0x2000);
  Topology local = mi210_machine(4, false, 0x5000);
  local.nodes[1].simd_count = 1;  // 0x5000
  const Match match = match_or_die(source, local);
  EXPECT_FALSE(match.identity);
  ASSERT_EQ(match.gpus.size(), 2U);
  EXPECT_EQ(match.gpus[0], (DeviceIds{0x2000, 0x5001}));
  EXPECT_EQ(match.gpus[1], (DeviceIds{0x2001, 0x5002}));
  // The same machine, with GPUs that were hidden then.
  const Match same = match_or_die(source, mi210_machine(4, false, 0x2000));
  EXPECT_TRUE(same.identity);
  EXPECT_EQ(same.gpus, (std::vector<DeviceIds>{{0x2000, 0x2000}, {0x2001, 0x2001}}));
  for (Node& node : local.nodes) node.simd_count = 1;
  EXPECT_EQ(refusal_or_die(source, local).pairs.size(), 8U);
}

TEST(KfdMatching, the_table_tells_each_reason_once_with_all_gpus_that_share_it) {
  Topology local = mi210_machine(3, false, 0x5000);
  for (Node& node : local.nodes) node.fw_version = 1;
  local.nodes[3].simd_count = 1;
  const Refusal refusal = refusal_or_die(mi210_machine(3, false, 0x2000), local);
  EXPECT_EQ(refusal.pairs.size(), 9U);
  const std::string text = refusal.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
  EXPECT_NE(text.find("GPU 0x2000, 0x2001, 0x2002 on local GPU 0x5000, 0x5001: fw_version 92 in the image, 1 "
                      "here (KFD_FW_VER_CHECK=0 allows this)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("simd_count 416 in the image, 1 here; fw_version"), std::string::npos) << text;
}

TEST(KfdMatching, gpus_of_the_image_with_reasons_of_their_own_have_lines_of_their_own) {
  Topology source = mi210_machine(2, false, 0x2000);
  source.nodes[2].fw_version += 1;
  Topology local = mi210_machine(2, false, 0x5000);
  for (Node& node : local.nodes) node.fw_version = 1;
  const auto reasons = refusal_or_die(source, local).reasons();
  ASSERT_EQ(reasons.size(), 2U);
  EXPECT_EQ(reasons[0].sources, (std::vector<std::uint32_t>{0x2000}));
  EXPECT_EQ(reasons[1].sources, (std::vector<std::uint32_t>{0x2001}));
  EXPECT_EQ(reasons[1].locals, (std::vector<std::uint32_t>{0x5000, 0x5001}));
}

TEST(KfdMatching, sixty_three_partitions_against_smaller_ones_are_one_reason) {
  Topology source = cpx_machine(0x4000);
  source.nodes.pop_back();
  Topology local = cpx_machine(0x8000);
  for (Node& node : local.nodes) node.vram_size /= 2;
  const Refusal refusal = refusal_or_die(source, local);
  EXPECT_EQ(refusal.pairs.size(), 63U * 64U);
  EXPECT_LE(refusal.reasons().size(), 64U);
}

// --- wishes
// ---------------------------------------------------------------------------------------------------------

constexpr std::uint64_t kGigabytes = 1'000'000'000;

// Room on local GPUs 0x5000 and following, or 0x2000 and following; need of the image's.
MatchWishes wishes_of(std::uint32_t first_local, const std::vector<std::optional<std::uint64_t>>& room,
                      const std::vector<std::uint64_t>& need) {
  MatchWishes wishes;
  for (std::uint32_t i = 0; i < room.size(); i++) wishes.local[first_local + i].room = room[i];
  for (std::uint32_t i = 0; i < need.size(); i++) wishes.need[0x2000 + i] = need[i];
  return wishes;
}

Match wished(const Topology& source, const Topology& local, const MatchWishes& wishes) {
  MatchOutcome outcome = match_gpus(source, local, {}, wishes);
  if (const auto* refusal = std::get_if<Refusal>(&outcome)) {
    ADD_FAILURE() << refusal->text();
    return {};
  }
  return std::get<Match>(std::move(outcome));
}

Refusal not_wished(const Topology& source, const Topology& local, const MatchWishes& wishes) {
  MatchOutcome outcome = match_gpus(source, local, {}, wishes);
  if (std::holds_alternative<Match>(outcome)) {
    ADD_FAILURE() << "matched";
    return {};
  }
  return std::get<Refusal>(std::move(outcome));
}

TEST(KfdMatchWishes, a_gpu_stays_where_it_was_while_there_is_room) {
  const Topology local = mi210_machine(4, false, 0x2000);
  // More room elsewhere, but enough at home.
  const Match match = wished(one_gpu(), local, wishes_of(0x2000, {7, 90, 90, 90}, {7}));
  EXPECT_TRUE(match.identity);
}

TEST(KfdMatchWishes, without_room_at_home_the_emptiest_is_taken) {
  const Topology local = mi210_machine(4, false, 0x2000);
  EXPECT_EQ(actual_of(wished(one_gpu(), local, wishes_of(0x2000, {6, 20, 90, 80}, {7})), 0x2000), 0x2002U);
  // Of equally empty ones the first.
  EXPECT_EQ(actual_of(wished(one_gpu(), local, wishes_of(0x2000, {6, 90, 90, 90}, {7})), 0x2000), 0x2001U);
}

TEST(KfdMatchWishes, one_that_has_room_comes_before_one_of_which_nobody_knows) {
  const Topology local = mi210_machine(3, false, 0x5000);
  EXPECT_EQ(actual_of(wished(one_gpu(), local, wishes_of(0x5000, {std::nullopt, 6, 7}, {7})), 0x2000),
            0x5002U);
  EXPECT_EQ(actual_of(wished(one_gpu(), local, wishes_of(0x5000, {5, std::nullopt, 6}, {7})), 0x2000),
            0x5001U);
}

TEST(KfdMatchWishes, what_is_not_known_changes_nothing) {
  const Topology local = mi210_machine(2, false, 0x2000);
  EXPECT_TRUE(wished(one_gpu(), local, wishes_of(0x2000, {}, {7})).identity);
}

TEST(KfdMatchWishes, where_none_has_room_the_emptiest_is_tried) {
  const Topology local = mi210_machine(3, false, 0x2000);
  EXPECT_EQ(actual_of(wished(one_gpu(), local, wishes_of(0x2000, {1, 3, 2}, {7})), 0x2000), 0x2001U);
}

TEST(KfdMatchWishes, a_gpu_that_has_to_move_leaves_the_others_at_home) {
  const Topology source = mi210_machine(2, false, 0x2000);
  const Topology local = mi210_machine(4, false, 0x2000);
  // The second's own is the emptiest of all.
  const Match match = wished(source, local, wishes_of(0x2000, {0, 90, 40, 50}, {7, 7}));
  EXPECT_EQ(match.gpus, (std::vector<DeviceIds>{{0x2000, 0x2003}, {0x2001, 0x2001}}));
}

TEST(KfdMatchWishes, a_small_need_does_not_take_the_only_gpu_with_room_for_a_large_one) {
  const Topology source = mi210_machine(2, false, 0x2000);
  const Topology local = mi210_machine(2, false, 0x5000);
  const Match match = wished(source, local, wishes_of(0x5000, {100, 20}, {10, 60}));
  EXPECT_EQ(match.gpus, (std::vector<DeviceIds>{{0x2000, 0x5001}, {0x2001, 0x5000}}));
}

TEST(KfdMatchWishes, room_does_not_overrule_a_rule) {
  Topology local = mi210_machine(2, false, 0x2000);
  local.nodes[2].fw_version = 1;
  EXPECT_TRUE(wished(one_gpu(), local, wishes_of(0x2000, {0, 90}, {7})).identity);
}

TEST(KfdMatchWishes, the_emptier_socket_and_the_emptier_group_are_taken) {
  const Topology source = two_sockets({0, 0}, 0x2000);
  const Topology local = two_sockets({0, 0, 1, 1}, 0x5000);
  const Match sockets = wished(source, local, wishes_of(0x5000, {50, 60, 70, 80}, {7, 7}));
  EXPECT_EQ(sockets.gpus, (std::vector<DeviceIds>{{0x2000, 0x5003}, {0x2001, 0x5002}}));

  const Topology hive = mi210_machine(2, true, 0x2000);
  Topology hives = mi210_machine(4, false, 0x5000);
  join(hives, 1, 2, kLinkXgmi);
  join(hives, 3, 4, kLinkXgmi);
  for (Node& node : hives.nodes) node.io_links_count = hive.nodes[1].io_links_count;
  const Match groups = wished(hive, hives, wishes_of(0x5000, {50, 60, 70, 80}, {7, 7}));
  EXPECT_EQ(groups.gpus, (std::vector<DeviceIds>{{0x2000, 0x5003}, {0x2001, 0x5002}}));
}

TEST(KfdMatchWishes, a_gpu_that_cannot_be_opened_is_the_last) {
  const Topology local = mi210_machine(2, false, 0x2000);
  MatchWishes wishes = wishes_of(0x2000, {90, 1}, {7});
  wishes.local[0x2000].reachable = false;
  EXPECT_EQ(actual_of(wished(one_gpu(), local, wishes), 0x2000), 0x2001U);
  wishes.local[0x2001].reachable = false;
  EXPECT_EQ(wished(one_gpu(), local, wishes).gpus.size(), 1U);
}

TEST(KfdMatchWishes, what_is_fixed_comes_before_room_and_home) {
  const Topology source = mi210_machine(2, false, 0x2000);
  const Topology local = mi210_machine(3, false, 0x2000);
  MatchWishes wishes = wishes_of(0x2000, {90, 90, 0}, {7, 7});
  wishes.fixed = {{0x2000, 0x2002}};
  const Match match = wished(source, local, wishes);
  EXPECT_EQ(match.gpus, (std::vector<DeviceIds>{{0x2000, 0x2002}, {0x2001, 0x2001}}));
  // A GPU that the image does not have is another process'.
  wishes.fixed = {{0x9999, 0x2000}};
  EXPECT_TRUE(wished(source, local, wishes).gpus.size() == 2U);
}

TEST(KfdMatchWishes, what_is_fixed_against_a_rule_is_refused_with_the_reason) {
  Topology local = mi210_machine(2, false, 0x5000);
  local.nodes[2].fw_version = 1;
  MatchWishes wishes;
  wishes.fixed = {{0x2000, 0x5001}};
  wishes.fixed_by = "SLUICE_GPU_MAP";
  const Refusal refusal = not_wished(one_gpu(), local, wishes);
  EXPECT_NE(refusal.sentence.find("SLUICE_GPU_MAP"), std::string::npos) << refusal.sentence;
  ASSERT_EQ(refusal.pairs.size(), 1U);
  EXPECT_STREQ(refusal.pairs[0].mismatches.at(0).variable, "KFD_FW_VER_CHECK");
  wishes.fixed = {{0x2000, 0x5007}};
  EXPECT_NE(not_wished(one_gpu(), local, wishes).sentence.find("[SL-G33]"), std::string::npos);
}

TEST(KfdMatchWishes, what_is_fixed_may_leave_nothing_for_the_others) {
  const Topology source = mi210_machine(2, false, 0x2000);
  Topology local = mi210_machine(2, false, 0x5000);
  local.nodes[2].fw_version += 1;
  Topology newer = source;
  newer.nodes[2].fw_version += 1;
  MatchWishes wishes;
  wishes.fixed = {{0x2000, 0x5001}};
  wishes.fixed_by = "SLUICE_GPU_MAP";
  EXPECT_NE(not_wished(newer, local, wishes).sentence.find("SLUICE_GPU_MAP leaves no match"),
            std::string::npos);
}

TEST(KfdMatchWishes, what_others_have_is_left_to_them) {
  const Topology local = mi210_machine(2, false, 0x2000);
  MatchWishes wishes;
  wishes.taken = {0x2000};
  EXPECT_EQ(actual_of(wished(one_gpu(), local, wishes), 0x2000), 0x2001U);
  wishes.taken = {0x2000, 0x2001};
  EXPECT_FALSE(not_wished(one_gpu(), local, wishes).sentence.empty());
}

TEST(KfdMatchWishes, sixty_four_equal_gpus_of_different_room_take_few_steps) {
  const Topology source = cpx_machine(0x4000);
  const Topology local = cpx_machine(0x8000);
  MatchWishes wishes;
  for (std::uint32_t i = 0; i < 64; i++) {
    wishes.local[0x8000 + i].room = (i * 37 % 64) * kGigabytes;
    wishes.need[0x4000 + i] = (i * 11 % 64) * kGigabytes;
  }
  const Match match = wished(source, local, wishes);
  expect_one_to_one(match, source, local);
  EXPECT_LT(match.steps, 2'000'000U);
}

TEST(KfdMatching, sixty_four_equal_partitions_take_few_steps) {
  const Topology source = cpx_machine(0x4000);
  EXPECT_TRUE(match_or_die(source, source).identity);
  const Topology local = cpx_machine(0x8000);
  const Match match = match_or_die(source, local);
  expect_one_to_one(match, source, local);
  EXPECT_LT(match.steps, 2'000'000U);
}

TEST(KfdMatching, sixty_four_partitions_without_a_solution_are_refused_in_few_steps) {
  // Each fits each, but one socket of the image holds 33.
  Topology source = cpx_machine(0x4000);
  for (Node& node : source.nodes) {
    if (node.node_id != 34) continue;
    for (IoLink& link : node.links) {
      if (link.type == kLinkPcie) link.node_to = 0;
    }
  }
  source.nodes[0].links.push_back({kLinkPcie, 34});
  const Refusal refusal = refusal_or_die(source, cpx_machine(0x8000));
  EXPECT_NE(refusal.sentence.find("KFD_NUMA_CHECK=0"), std::string::npos) << refusal.sentence;
  EXPECT_LT(refusal.steps, 2'000'000U);
}

TEST(KfdMatching, thirty_two_pairs_that_cannot_fit_end_within_the_bound) {
  // The image has 32 groups of two; here are 32 groups, but one of them is of one GPU too few.
  const auto pairs = [](std::uint32_t first_gpu_id, bool damaged) {
    Topology topology = mi210_machine(64, false, first_gpu_id);
    for (std::uint32_t i = 0; i < 32; i++) join(topology, 1 + 2 * i, 2 + 2 * i, kLinkXgmi);
    if (damaged) {
      // GPUs 0 and 1 lose each other; GPU 1 joins the pair of 2 and 3. 31 pairs' worth of groups plus a lone
      // GPU.
      remove_links(topology, 1, 2);
      remove_links(topology, 2, 1);
      topology.nodes[1].links.push_back({kLinkPcie, 3});
      join(topology, 2, 3, kLinkXgmi);
    }
    for (Node& node : topology.nodes) node.io_links_count = 0;
    return topology;
  };
  EXPECT_EQ(match_or_die(pairs(0x2000, false), pairs(0x8000, false)).gpus.size(), 64U);
  const Refusal refusal = refusal_or_die(pairs(0x2000, false), pairs(0x8000, true));
  EXPECT_LT(refusal.steps, 3 * kMatchStepsMax);
}

// Only the groups, which come last, show that no choice of CPU nodes helps.
TEST(KfdMatching, a_search_that_would_take_too_long_ends_and_names_the_way_out) {
  const auto groups_of = [](const std::vector<std::uint32_t>& sizes) {
    const std::uint32_t gpus = std::accumulate(sizes.begin(), sizes.end(), 0U);
    Topology topology;
    for (std::uint32_t i = 0; i < gpus; i++) topology.nodes.push_back(cpu(i));
    for (std::uint32_t i = 0; i < gpus; i++) topology.nodes.push_back(mi210(gpus + i, 0x2000 + i, 128 + i));
    for (std::uint32_t i = 0; i < gpus; i++) join(topology, gpus + i, i, kLinkPcie);
    std::uint32_t first = gpus;
    for (const std::uint32_t size : sizes) {
      for (std::uint32_t i = first; i < first + size; i++) {
        for (std::uint32_t j = first; j < i; j++) join(topology, i, j, kLinkXgmi);
      }
      first += size;
    }
    for (Node& node : topology.nodes) node.io_links_count = 0;
    return topology;
  };
  const Refusal refusal = refusal_or_die(groups_of({3, 3, 2, 2, 2, 2, 2}), groups_of({6, 2, 2, 2, 2, 2, 2}));
  EXPECT_NE(refusal.sentence.find("[SL-G44]"), std::string::npos) << refusal.sentence;
  EXPECT_GT(refusal.steps, kMatchStepsMax);
}

// The first group would do for the image's, but has the only GPU that is large enough for the third.
TEST(KfdMatching, a_group_is_left_to_a_gpu_that_fits_nowhere_else) {
  Topology source = mi210_machine(3, false, 0x2000);
  join(source, 1, 2, kLinkXgmi);
  Topology local = mi210_machine(4, false, 0x2000);
  join(local, 1, 2, kLinkXgmi);
  join(local, 3, 4, kLinkXgmi);
  source.nodes[3].vram_size *= 2;
  local.nodes[1].vram_size *= 2;
  for (Topology* const topology : {&source, &local})
    for (Node& node : topology->nodes) node.io_links_count = 0;
  const Match match = match_or_die(source, local);
  EXPECT_EQ(actual_of(match, 0x2002), 0x2000U);
  EXPECT_GE(actual_of(match, 0x2000), 0x2002U);
}

TEST(KfdMatching, more_cpu_nodes_than_are_tracked_are_refused) {
  Topology large = one_gpu();
  for (std::uint32_t id = 100; id < 165; id++) large.nodes.push_back(cpu(id));
  for (const auto& [source, local] : {std::pair(large, one_gpu()), std::pair(one_gpu(), large)})
    EXPECT_NE(refusal_or_die(source, local).sentence.find("64 CPU nodes"), std::string::npos);
}

TEST(KfdMatching, more_gpus_than_a_process_can_have_are_refused) {
  EXPECT_NE(refusal_or_die(mi210_machine(65, false), mi210_machine(65, false)).sentence.find("64"),
            std::string::npos);
}

TEST(KfdMatching, no_gpus_match_no_gpus) {
  EXPECT_TRUE(match_or_die(Topology(), Topology()).gpus.empty());
}

// --- environment
// ----------------------------------------------------------------------------------------------------

ParsedMatchRules parse(const std::map<std::string, std::string>& environment) {
  return parse_match_rules([&](const char* name) -> const char* {
    const auto at = environment.find(name);
    return at != environment.end() ? at->second.c_str() : nullptr;
  });
}

TEST(KfdMatchRules, every_switch_has_its_variable) {
  EXPECT_EQ(parse({}).rules, MatchRules());
  const std::pair<const char*, bool MatchRules::*> table[] = {
      {"KFD_FW_VER_CHECK", &MatchRules::fw_version},
      {"KFD_SDMA_FW_VER_CHECK", &MatchRules::sdma_fw_version},
      {"KFD_CACHES_COUNT_CHECK", &MatchRules::caches_count},
      {"KFD_NUM_GWS_CHECK", &MatchRules::num_gws},
      {"KFD_VRAM_SIZE_CHECK", &MatchRules::vram_size},
      {"KFD_NUMA_CHECK", &MatchRules::numa},
      {"KFD_CAPABILITY_CHECK", &MatchRules::capability},
  };
  for (const auto& [variable, member] : table) {
    for (const char* off : {"0", "NO", "no", "No"}) {
      MatchRules expected;
      expected.*member = false;
      const ParsedMatchRules parsed = parse({{variable, off}});
      EXPECT_EQ(parsed.rules, expected) << variable << "=" << off;
      EXPECT_TRUE(parsed.warnings.empty());
    }
    for (const char* on : {"1", "YES", "yes"}) {
      const ParsedMatchRules parsed = parse({{variable, on}});
      EXPECT_EQ(parsed.rules, MatchRules()) << variable << "=" << on;
      EXPECT_TRUE(parsed.warnings.empty());
    }
    for (const char* other : {"", "2", "true", "off", "00", " 0", "N"}) {
      const ParsedMatchRules parsed = parse({{variable, other}});
      EXPECT_EQ(parsed.rules, MatchRules()) << variable << "=" << other;
      ASSERT_EQ(parsed.warnings.size(), 1U);
      EXPECT_NE(parsed.warnings[0].find(variable), std::string::npos);
      EXPECT_NE(parsed.warnings[0].find(other), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace sluice::kfd
