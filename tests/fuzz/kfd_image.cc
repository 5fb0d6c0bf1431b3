// SPDX-License-Identifier: MIT
// amdgpu-kfd-<id>.img, the private data in it, and the matching of the machine that it describes.
#include "images/kfd_image.h"

#include <cerrno>
#include <numeric>
#include <variant>

#include "fuzz.h"
#include "images/metadata.h"
#include "kfd/matching/matching.h"
#include "kfd/records/queue_records.h"

using namespace sluice;

namespace {

fuzz::Goal an_image("an image that can be read"), records("one whose private data can be edited"),
    machine("one whose GPUs match themselves");

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto image = decode_kfd_image({data, size});
  if (!image) {
    FUZZ_CHECK(image.error().err > 0 && !image.error().what.empty());
    return 0;
  }
  an_image.reach();
  // Links that lead nowhere are read but not written.
  const auto written = decode_kfd_image(encode_kfd_image(*image));
  FUZZ_CHECK(written.ok() && written->bos == image->bos && written->priv_data == image->priv_data);
  const auto again = decode_kfd_image(encode_kfd_image(*written));
  FUZZ_CHECK(again.ok() && *again == *written);

  if (const auto private_data = private_records(*image)) {
    records.reach();
    FUZZ_CHECK(private_data->edit({}, {}) == image->priv_data);
    std::vector<std::size_t> all(image->bos.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    for (const std::size_t i : all) (void)private_data->bo(i);
    const kfd::QueueLosses losses = kfd::losses_of_queues(*private_data, image->topology);
    FUZZ_CHECK(losses.waves + losses.stack_words <= image->num_objects);
    const std::uint32_t more[] = {1, 2};
    FUZZ_CHECK(private_data->edit(all, {}).size() <= image->priv_data.size());
    FUZZ_CHECK(private_data->edit({}, more).size() >= image->priv_data.size() + 2 * 8);
    // Where the image does not say the size of a record, another is never found.
    KfdImage silent = *image;
    silent.bo_record_bytes = 0;
    const auto found = private_records(silent);
    FUZZ_CHECK(!found || found->bo_record_bytes() == private_data->bo_record_bytes());
  } else {
    FUZZ_CHECK(private_data.error().err == EBADMSG);
  }

  constexpr std::size_t kFewGpus = 8;  // the search is bounded, but that bound is for restores
  if (image->topology.gpu_count() > kFewGpus) return 0;
  const kfd::MatchOutcome outcome = kfd::match_gpus(image->topology, image->topology, kfd::MatchRules{});
  if (const auto* match = std::get_if<kfd::Match>(&outcome)) {
    if (!match->gpus.empty()) machine.reach();
    FUZZ_CHECK(match->gpus.size() == image->topology.gpu_count());
  } else {
    FUZZ_CHECK(!std::get<kfd::Refusal>(outcome).text().empty());
  }
  return 0;
}
