// SPDX-License-Identifier: MIT
#include "images/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "images/files/digest.h"
#include "images/files/files.h"
#include "images/undeclared_sharing.h"

namespace sluice {

Error two_names_of_one(const std::string& name, const std::string& other) {
  return {EBADMSG, formatted("{} and {} are of one open file, so one of them is another dump's; use another "
                             "checkpoint [SL-I95]",
                             name, other)};
}

namespace {

void note_contradiction(Checkpoint& all, const Error& error) {
  if (!all.contradiction) all.contradiction = error;
  all.unreadable.push_back(error);
}

// A damaged image, or one that is no file, says nothing to anybody.
void note_unread(Checkpoint& all, const Error& error) {
  const bool is_there = error.err != ENOENT && error.err != EBADMSG && error.err != EINVAL;
  if (is_there && !all.unread) all.unread = error;
  all.unreadable.push_back(error);
}

template <class Image, class Unpack>
void read_all(const MetadataReader& source, std::vector<std::string> names, std::string_view prefix,
              Unpack unpack, SameDump& dump, Checkpoint& all, std::vector<NumberedImage<Image>>& images) {
  keep_images(names, prefix);
  std::map<std::string, std::string> known;  // by the name in a complete checkpoint
  for (const std::string& name : names) {
    const auto complete = complete_name(name);
    if (complete) all.partial_names.insert(name);
    if (const auto [other, is_new] = known.emplace(complete.value_or(name), name); !is_new) {
      note_contradiction(all, two_names_of_one(name, other->second));
      continue;
    }
    const std::optional<int> id = id_of_image(name);
    if (!id) continue;  // unreached: the name of none of ours
    const auto payload = source.load(name);
    if (!payload) {
      note_unread(all, payload.error());
      continue;
    }
    Result<Image> image = unpack(*payload, name, source.keys());
    if (!image) {
      all.unreadable.push_back(image.error());
    } else if (const auto same = dump.add(name, image->dump_id, image->id); !same) {
      note_contradiction(all, same.error());
    } else {
      images.push_back({*id, std::move(*image)});
    }
  }
  std::sort(images.begin(), images.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
}

// Whether a KFD uses the file: its process restores both.
bool has_kfd_of(const RenderImage& render, const Checkpoint& all) {
  return std::any_of(all.kfd.begin(), all.kfd.end(), [&](const auto& each) {
    return !each.image.alias_of && render.pid.value_or(each.image.pid) == each.image.pid;
  });
}

// Numbers of the shared memory that an image makes.
std::set<std::uint32_t> shared_memory_made(const Checkpoint& all) {
  std::set<std::uint32_t> made;
  const auto add = [&made](const auto& bos) {
    for (const auto& bo : bos)
      if (!bo.imports) made.insert(bo.shared);
  };
  for (const auto& [id, image] : all.kfd) add(image.bos);
  for (const auto& [id, image] : all.render) add(image.bos);
  return made;
}

// The name that an image would have there.
std::string in_style_of(const Checkpoint& all, const std::string& name) {
  const Lacks lacks = lacks_among({all.partial_names.begin(), all.partial_names.end()});
  return lacks == Lacks::Nothing ? name : partial_name(name, lacks);
}

// What must have existed, by images and names of contents files, but is missing. One lost file leaves many
// traces: those that a known loss explains are not lost files of their own.
std::vector<Error> look_for_lost_images(const std::vector<std::string>& names, const Checkpoint& all) {
  std::vector<Error> lost;
  std::set<std::string> here;
  for (const auto& [id, image] : all.kfd) here.insert(kfd_image_name(id));
  for (const auto& [id, image] : all.render) here.insert(render_image_name(id));
  const auto expect = [&](const std::string& name, const std::string& needed) {
    if (here.insert(needed).second)
      lost.push_back({ENOENT, name + " is of " + in_style_of(all, needed) + ", which is not here"});
  };
  for (const auto& [id, image] : all.kfd) {
    if (image.alias_of)
      expect(all.name_of(kfd_image_name(id)), kfd_image_name(static_cast<int>(*image.alias_of)));
  }
  for (const auto& [name, metadata] : contents_among(names)) expect(name, metadata);
  const auto is_kfd = [](const std::string& name) { return name.starts_with(kKfdPrefix); };
  const auto lost_kfds = std::count_if(here.begin(), here.end(), is_kfd) - std::ssize(all.kfd);

  std::set<std::uint32_t> homeless;  // processes whose KFD image is not here
  for (const auto& [id, image] : all.render) {
    if (!image.kfd_acquired.value_or(false) || has_kfd_of(image, all)) continue;
    if (homeless.insert(image.pid.value_or(0)).second && std::ssize(homeless) > lost_kfds)
      lost.push_back(
          {ENOENT, all.name_of(render_image_name(id)) + " is of a KFD process whose image is not here"});
  }
  if (!lost.empty()) return lost;

  const std::set<std::uint32_t> made = shared_memory_made(all);
  std::vector<std::string> sharers;
  const auto expect_memory = [&](std::string name, bool needs) {
    if (needs) sharers.push_back(std::move(name));
  };
  const auto needs_memory = [&made](const auto& bos) {
    return std::any_of(bos.begin(), bos.end(),
                       [&](const auto& bo) { return bo.imports && !made.contains(bo.shared); });
  };
  for (const auto& [id, image] : all.kfd)
    expect_memory(all.name_of(kfd_image_name(id)), needs_memory(image.bos));
  for (const auto& [id, image] : all.render)
    expect_memory(all.name_of(render_image_name(id)), needs_memory(image.bos));
  for (const auto& [id, image] : all.dmabufs)
    expect_memory(dmabuf_image_name(id), !made.contains(image.shared));
  if (!sharers.empty()) {
    const std::string more =
        sharers.size() > 1 ? ", and so do " + std::to_string(sharers.size() - 1) + " more" : "";
    lost.push_back({ENOENT, sharers.front() + " shares memory with an image that is not here" + more});
  }
  return lost;
}

void look_for_undeclared_sharing(Checkpoint& all) {
  UndeclaredSharing sharing;
  const auto look = [&](const std::string& name, const auto& image) {
    if (const auto good = sharing.add(name, image); !good) all.lost.push_back(good.error());
  };
  for (const auto& [id, image] : all.kfd) look(all.name_of(kfd_image_name(id)), image);
  for (const auto& [id, image] : all.render) look(all.name_of(render_image_name(id)), image);
}

}  // namespace

std::string Checkpoint::name_of(const std::string& name) const {
  if (is_predump()) return predump_name(name);
  for (const Lacks lacks : {Lacks::Parents, Lacks::Replicas}) {
    if (std::string partial = partial_name(name, lacks); partial_names.contains(partial)) return partial;
  }
  return name;
}

std::vector<NumberedPages> pages_of(const Checkpoint& checkpoint) {
  std::vector<NumberedPages> all;
  const auto add = [&](int id, const std::optional<DumpId>& dump_id, PagesSet set) {
    set.predump = checkpoint.is_predump();
    all.push_back({id, dump_id.value_or(DumpId{}), std::move(set)});
  };
  for (const auto& [id, image] : checkpoint.kfd) {
    for (PagesSet& set : pages_of(image)) add(id, image.dump_id, std::move(set));
  }
  for (const auto& [id, image] : checkpoint.render) {
    if (image.has_contents()) add(id, image.dump_id, pages_of(image));
  }
  return all;
}

Result<Checkpoint> read_checkpoint(const MetadataReader& source) {
  SLUICE_TRY_ASSIGN(const std::vector<std::string> names, source.names());
  Checkpoint all;
  SameDump dump;
  read_all(source, names, kKfdPrefix, unpack_kfd_image, dump, all, all.kfd);
  read_all(source, names, kRenderPrefix, unpack_render_image, dump, all, all.render);
  read_all(source, names, kDmaBufPrefix, unpack_dmabuf_image, dump, all, all.dmabufs);
  // All of them have the key's digest, or none.
  if (!dump.empty())
    std::transform(all.unreadable.begin(), all.unreadable.end(), all.unreadable.begin(), beside_signed);
  if (!all.empty() && all.unreadable.empty()) {
    all.lost = look_for_lost_images(names, all);
    look_for_undeclared_sharing(all);
  }
  return all;
}

}  // namespace sluice
