// SPDX-License-Identifier: MIT
// docs/reference/sluice.schema.json, held against what the command prints: as much of JSON Schema as that
// file uses.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sluice::cli_test {

// What is wrong with an object of `sluice COMMAND --json`; "" if the schema has it so. A member that the
// schema does not name is wrong.
std::string schema_complaint(const nlohmann::json& object);

}  // namespace sluice::cli_test
