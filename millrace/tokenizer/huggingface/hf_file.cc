#include "millrace/tokenizer/huggingface/hf_file.h"

#include <algorithm>
#include <map>
#include <set>

#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::tokenizer::hf {
namespace {

const Json kNull;

}  // namespace

const Json& Member(const Json& object, const char* key) {
  if (!object.is_object()) return kNull;
  auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

std::string StringMember(const Json& object, const char* key) {
  const Json& value = Member(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

bool BoolMember(const Json& object, const char* key, bool otherwise) {
  const Json& value = Member(object, key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

std::unexpected<Error> Unsupported(std::string_view part, const Json& what) {
  std::string text = what.is_object() && what.contains("type") ? StringMember(what, "type") : what.dump(-1, ' ', true);
  if (text.size() > 200) text = text.substr(0, 200) + "…";
  return Fail(Code::kUnsupported, "the tokenizer's {} ({}) is not supported", part, text);
}

std::vector<Json> Steps(const Json& value, const char* plural) {
  if (value.is_null()) return {};
  if (StringMember(value, "type") != "Sequence") return {value};
  const Json& steps = Member(value, plural);
  return steps.is_array() ? steps.get<std::vector<Json>>() : std::vector<Json>{value};
}

TokenId TokenizerFile::IdOf(std::string_view token) const {
  for (const AddedToken& one : added) {
    if (one.text == token) return one.id;
  }
  return kNoToken;
}

Status CheckFoundEarly(const AddedToken& added) {
  if (!added.normalized) return {};
  return Fail(Code::kUnsupported,
              "the tokenizer's added token \"{}\" is looked for in normalized text, which this model does not support; "
              "set \"normalized\": false to find the token as written",
              added.text);
}

std::string ModelType(const Json& file) {
  const Json& model = Member(file, "model");
  std::string type = StringMember(model, "type");
  return type.empty() && model.contains("merges") ? "BPE" : type;
}

bool IsOneCharacter(std::string_view text) {
  return !text.empty() && DecodeUtf8(text.data(), text.data() + text.size()).length == text.size();
}

Status CheckAddedIds(const TokenizerFile& file) {
  std::map<std::string_view, TokenId> known;
  for (std::size_t id = 0; id < file.tokens.size(); ++id) {
    if (!file.tokens[id].empty()) known.emplace(file.tokens[id], static_cast<TokenId>(id));
  }
  auto next = static_cast<TokenId>(Member(Member(file.json, "model"), "vocab").size());
  std::set<std::string_view> seen;
  for (const AddedToken& added : file.added) {
    const auto found = known.find(added.text);
    const TokenId expected = found != known.end() ? found->second : next++;
    const auto at = static_cast<std::size_t>(expected);
    const bool taken = found == known.end() && at < file.tokens.size() && !file.tokens[at].empty();
    if (taken || added.id != expected || !seen.insert(added.text).second) {
      return Fail(
          Code::kUnsupported,
          "the tokenizer's added token \"{}\" has the id {}, where the library gives {}; such a file is not supported",
          added.text, added.id, taken ? "one that is taken" : fmt::format("{}", expected));
    }
  }
  return {};
}

Result<std::vector<std::pair<std::string, std::string>>> ReadMerges(const Json& merges) {
  if (!merges.is_array()) {
    return Fail(Code::kInvalidArgument,
                "the tokenizer's model has no merges; expected \"merges\", a list of pairs of tokens");
  }
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const Json& merge : merges) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      pairs.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    std::string text = merge.is_string() ? merge.get<std::string>() : "";
    std::size_t space = text.find(' ');
    if (space == text.npos || text.find(' ', space + 1) != text.npos) {
      return Fail(Code::kInvalidArgument, "the merge {} is not two tokens; expected two texts, or one with one space",
                  pairs.size());
    }
    pairs.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return pairs;
}

std::unexpected<Error> FailMerge(const TokenizerFile& file, std::string_view left, std::string_view right) {
  auto special = [&](const AddedToken& added) {
    return added.special &&
           (added.text == left || added.text == right || (added.text.starts_with(left) && added.text.ends_with(right)));
  };
  const auto found = std::ranges::find_if(file.added, special);
  if (found != file.added.end()) {
    return Fail(Code::kUnsupported, "a merge of the special token \"{}\" is not supported: documents could forge it",
                found->text);
  }
  return Fail(Code::kInvalidArgument,
              "the merge of \"{}\" and \"{}\" is not of tokens that make one; add both and what they make to "
              "\"vocab\", or remove the merge",
              left, right);
}

}  // namespace millrace::tokenizer::hf
