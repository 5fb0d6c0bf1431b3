// SPDX-License-Identifier: MIT
#include "json_schema.h"

#include <algorithm>
#include <fstream>

namespace sluice::cli_test {
namespace {

using nlohmann::json;

const json& schema() {
  static const json all = [] {
    std::ifstream file(SLUICE_SCHEMA);
    return json::parse(file);
  }();
  return all;
}

bool is_of_type(const json& value, const std::string& type) {
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  return type == "null" && value.is_null();
}

std::string complaint(const json& rule, const json& value, const std::string& where);

std::string complaint_of_members(const json& rule, const json& value, const std::string& where) {
  for (const json& name : rule.value("required", json::array())) {
    if (!value.contains(name.get<std::string>())) return where + " lacks " + name.get<std::string>();
  }
  const json properties = rule.value("properties", json::object());
  const json others = rule.value("additionalProperties", json(true));
  for (const auto& [name, member] : value.items()) {
    const bool named = properties.contains(name);
    if (!named && others.is_boolean()) {
      if (!others.get<bool>()) return where + " has " + name + ", which the schema does not name";
      continue;
    }
    std::string wrong = complaint(named ? properties[name] : others, member, where + "." + name);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string complaint(const json& rule, const json& value, const std::string& where) {
  if (rule.contains("$ref")) {
    const std::string name = rule["$ref"].get<std::string>().substr(sizeof("#/$defs/") - 1);
    return complaint(schema()["$defs"].at(name), value, where);
  }
  if (rule.contains("anyOf")) {
    std::string wrong;
    for (const json& one : rule["anyOf"]) {
      wrong = complaint(one, value, where);
      if (wrong.empty()) break;
    }
    return wrong;
  }
  if (rule.contains("const") && value != rule["const"]) return where + " is " + value.dump();
  if (rule.contains("enum") &&
      std::find(rule["enum"].begin(), rule["enum"].end(), value) == rule["enum"].end())
    return where + " is " + value.dump();
  if (rule.contains("type")) {
    const json types = rule["type"].is_array() ? rule["type"] : json::array({rule["type"]});
    if (std::none_of(types.begin(), types.end(), [&](const json& type) { return is_of_type(value, type); }))
      return where + " is " + value.dump();
  }
  if (rule.contains("minimum") && value.is_number() && value < rule["minimum"])
    return where + " is " + value.dump();
  if (value.is_object()) return complaint_of_members(rule, value, where);
  if (!value.is_array() || !rule.contains("items")) return "";
  for (const json& item : value) {
    std::string wrong = complaint(rule["items"], item, where + "[]");
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace

std::string schema_complaint(const json& object) {
  if (!object.is_object() || !object.contains("command")) return "no object with a command";
  const std::string command = object["command"];
  std::string wrong = complaint(schema()["$defs"].at("refusal"), object, command);
  if (wrong.empty()) return wrong;
  return complaint(schema()["$defs"].at(object.contains("stats") ? "show-stats" : command), object, command);
}

}  // namespace sluice::cli_test
