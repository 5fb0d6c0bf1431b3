// SPDX-License-Identifier: MIT
#include "control/mailbox.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace sluice::card {
namespace {

// An access that is partly in the page is the GPU's, which knows no register there.
bool in_page(Bar bar, std::uint64_t offset, std::size_t length) {
  return bar == Bar::kRegisters && offset >= mailbox::kPage &&
         offset + length <= mailbox::kPage + mailbox::kPageBytes;
}

}  // namespace

void Mailbox::read(Bar bar, std::uint64_t offset, std::span<std::byte> out) {
  if (!in_page(bar, offset, out.size())) return gpu_.read(bar, offset, out);
  const std::uint64_t at = offset - mailbox::kPage;
  if (at >= mailbox::kTextAt) {
    std::memcpy(out.data(), text_.data() + (at - mailbox::kTextAt), out.size());
    return;
  }
  const std::uint32_t value = at == mailbox::kMagicAt    ? mailbox::kMagic
                              : at == mailbox::kLengthAt ? length_
                                                         : 0;
  std::fill(out.begin(), out.end(), std::byte{0});
  std::memcpy(out.data(), &value, std::min(out.size(), sizeof value));
}

void Mailbox::write(Bar bar, std::uint64_t offset, std::span<const std::byte> in) {
  if (!in_page(bar, offset, in.size())) return gpu_.write(bar, offset, in);
  const std::uint64_t at = offset - mailbox::kPage;
  if (at >= mailbox::kTextAt) {
    std::memcpy(text_.data() + (at - mailbox::kTextAt), in.data(), in.size());
  } else if (at == mailbox::kLengthAt && in.size() == sizeof(std::uint32_t)) {
    std::uint32_t length = 0;
    std::memcpy(&length, in.data(), sizeof length);
    run(length);
  }
}

void Mailbox::reset() {
  text_ = {};
  length_ = 0;
  gpu_.reset();
}

void Mailbox::run(std::uint32_t length) {
  // The guest's text: not longer than there is room for, and nothing is taken for a number of bytes twice.
  const std::size_t asked = std::min<std::size_t>(length, Control::kLongest);
  std::string answer = control_.run({reinterpret_cast<const char*>(text_.data()), asked});
  answer.resize(std::min(answer.size(), text_.size()));
  std::memcpy(text_.data(), answer.data(), answer.size());
  length_ = static_cast<std::uint32_t>(answer.size());
}

}  // namespace sluice::card
