// SPDX-License-Identifier: MIT
// Repeated fields of protobuf-c's messages: a number, and an array of pointers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace sluice {

// What a field is packed from. It may be moved; the messages stay where they are.
template <class Message>
class Repeated {
 public:
  explicit Repeated(std::size_t most) {
    messages_.reserve(most);
    pointers_.reserve(most);
  }
  Repeated(Repeated&&) = default;
  // `init`: the message's __INIT. REQUIRES: there are fewer than `most` so far.
  Message& add(const Message& init) {
    pointers_.push_back(&messages_.emplace_back(init));
    return messages_.back();
  }
  // The field, valid during this object's life.
  void put(std::size_t& number, Message**& field) {
    number = pointers_.size();
    field = pointers_.data();
  }

 private:
  std::vector<Message> messages_;
  std::vector<Message*> pointers_;
};

// The same of texts, which their owner keeps: packing only reads them.
inline std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  return pointers;
}

}  // namespace sluice
