#include "millrace/tokenizer/hf_file.h"

namespace millrace::tokenizer::hf {
namespace {

const Json kNull;

}  // namespace

const Json& Get(const Json& object, const char* key) {
  if (!object.is_object()) return kNull;
  auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

std::string Text(const Json& object, const char* key) {
  const Json& value = Get(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

bool Flag(const Json& object, const char* key, bool otherwise) {
  const Json& value = Get(object, key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

std::unexpected<Error> Unsupported(std::string_view part, const Json& what) {
  std::string text = what.is_object() && what.contains("type") ? Text(what, "type") : what.dump(-1, ' ', true);
  if (text.size() > 200) text = text.substr(0, 200) + "…";
  return Fail(Code::kUnsupported, "its {} ({}) is not supported", part, text);
}

std::vector<Json> Steps(const Json& value, const char* plural) {
  if (value.is_null()) return {};
  if (Text(value, "type") != "Sequence") return {value};
  const Json& steps = Get(value, plural);
  return steps.is_array() ? steps.get<std::vector<Json>>() : std::vector<Json>{value};
}

TokenId File::IdOf(std::string_view token) const {
  for (const AddedToken& one : added) {
    if (one.text == token) return one.id;
  }
  return kNoToken;
}

Status CheckFoundEarly(const AddedToken& added) {
  if (!added.normalized) return {};
  return Fail(Code::kUnsupported,
              "its added token \"{}\" is looked for in normalized text, which is not supported with this model; set "
              "\"normalized\": false, if it is to be found as it is written",
              added.text);
}

}  // namespace millrace::tokenizer::hf
