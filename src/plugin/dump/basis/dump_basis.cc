// SPDX-License-Identifier: MIT
#include "plugin/dump/basis/dump_basis.h"

#include "images/files/files.h"
#include "images/files/key.h"
#include "pipeline/extents/extent_cloner.h"
#include "settings/settings.h"

namespace sluice::plugin {

Result<void> DumpBasis::prepare() {
  SLUICE_TRY_ASSIGN(dump_id, random_dump_id());
  store.set_keys(ImageKeys(settings::read_key(config)));
  SLUICE_TRY(store.keys().usable());
  SLUICE_TRY_ASSIGN(sums, new_sum_method(store.keys()));
  return {};
}

// A pre-dump's lanes give up BOs that the job frees, so nobody follows them.
Result<void> DumpBasis::look_for_parent() {
  SLUICE_TRY_ASSIGN(parent, find_parent(store, config));
  const std::optional<int> directory = store.directory();
  const bool wants_replicas =
      directory && config.checksum && config.dedup != settings::Dedup::Off && !policy.job_runs;
  clone_block_bytes = parent.clone_block_bytes;
  if (!parent.chain && wants_replicas) clone_block_bytes = shareable_block_bytes(*directory);
  shares_replicas = wants_replicas && (clone_block_bytes != 0 || config.dedup == settings::Dedup::On);
  if (parent.chain) sums = parent.chain->parent().sum_method();
  // An overwritten file has no holes, so it would not be smaller.
  if (parent.chain || lacks() != Lacks::Nothing) config.reuse_files = false;
  return {};
}

Lacks DumpBasis::lacks() const {
  if (clone_block_bytes != 0) return Lacks::Nothing;
  if (parent.chain) return Lacks::Parents;
  return shares_replicas ? Lacks::Replicas : Lacks::Nothing;
}

std::string DumpBasis::name_of(const std::string& in_dump) const {
  return policy.job_runs ? predump_name(in_dump) : partial_name(in_dump, lacks());
}

Result<void> DumpBasis::save(const std::string& name, std::span<const std::uint8_t> payload) const {
  SLUICE_TRY(store.save(name, payload, config.sync));
  return sync();
}

Result<void> DumpBasis::sync() const {
  return config.sync ? store.sync() : Result<void>();
}

}  // namespace sluice::plugin
