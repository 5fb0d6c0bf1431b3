// SPDX-License-Identifier: MIT
#include "images/chain/predump_images.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "images/chain/predump_mark.h"
#include "images/files/digest.h"
#include "images/files/files.h"

namespace sluice {
namespace {

Result<void> check_dump(const std::string& name, const std::optional<DumpId>& its, const DumpId& wanted) {
  if (its == wanted) return {};
  return Error{EBADMSG, name + " is of another pre-dump; make another one [SL-I34]"};
}

Result<void> add_image(const ImageSource& source, const std::string& name, const DumpId& dump_id,
                       Checkpoint& all) {
  const std::optional<int> id = id_of_image(name);
  const auto is_image_of = [&](std::string (*name_of)(int)) {
    return id && name == predump_name(name_of(*id));
  };
  const bool of_kfd = is_image_of(kfd_image_name);
  if (!of_kfd && !is_image_of(render_image_name))
    return Error{EBADMSG, std::string(kPreDumpMark) +
                              " names a file that is no image of a pre-dump; make another one [SL-I33]"};
  SLUICE_TRY_ASSIGN(const std::vector<std::uint8_t> bytes, read_image(source, name));
  if (of_kfd) {
    SLUICE_TRY_ASSIGN(KfdImage image, unpack_kfd_image(bytes, name, source.keys()));
    SLUICE_TRY(check_dump(name, image.dump_id, dump_id));
    all.kfd.push_back({*id, std::move(image)});
  } else {
    SLUICE_TRY_ASSIGN(RenderImage image, unpack_render_image(bytes, name, source.keys()));
    SLUICE_TRY(check_dump(name, image.dump_id, dump_id));
    all.render.push_back({*id, std::move(image)});
  }
  return {};
}

Result<PreDumpMark> read_mark(const ImageSource& source) {
  SLUICE_TRY_ASSIGN(const std::vector<std::uint8_t> payload, read_image(source, kPreDumpMark));
  return unpack_predump_mark(payload, source.keys());
}

}  // namespace

Result<Checkpoint> read_checkpoint_or_predump(const ImageSource& source) {
  SLUICE_TRY_ASSIGN(Checkpoint all, read_checkpoint(source));
  if (!all.empty()) return all;
  SLUICE_TRY_ASSIGN(const std::vector<std::string> names, source.names());
  const bool begun = std::any_of(names.begin(), names.end(),
                                 [](const std::string& name) { return name.starts_with(kPreDumpPrefix); });
  if (std::find(names.begin(), names.end(), kPreDumpMark) == names.end()) {
    all.predump = begun ? PreDumpState::Unfinished : PreDumpState::None;
    return all;
  }
  all.predump = PreDumpState::Finished;
  const auto mark = read_mark(source);
  if (!mark) {
    all.unreadable.push_back(mark.error());
    return all;
  }
  for (const std::string& name : mark->images) {
    if (const auto added = add_image(source, name, mark->dump_id, all); !added)
      all.unreadable.push_back(beside_signed(added.error()));
  }
  return all;
}

}  // namespace sluice
