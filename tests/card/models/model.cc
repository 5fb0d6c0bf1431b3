// SPDX-License-Identifier: MIT
#include "models/model.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace sluice::card {

std::span<const Model* const> all_models() {
  static const std::array<const Model*, 2> models = {&mi210(), &mi300x()};
  return models;
}

const Model* find_model(std::string_view name) {
  for (const Model* model : all_models()) {
    const bool same = std::equal(name.begin(), name.end(), model->name.begin(), model->name.end(),
                                 [](char a, char b) { return a == std::tolower(b); });
    if (same) return model;
  }
  return nullptr;
}

}  // namespace sluice::card
