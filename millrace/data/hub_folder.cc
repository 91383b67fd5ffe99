#include "millrace/data/hub_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <utility>

#include "millrace/base/text.h"

namespace millrace::data {
namespace {

constexpr std::array<std::string_view, 3> kDescriptions = {"dataset_dict.json", "dataset_info.json", "state.json"};
/// What a split may be called, and what it then is.
constexpr std::pair<std::string_view, std::string_view> kWords[] = {
    {"train", "train"},      {"training", "train"}, {"validation", "validation"},
    {"valid", "validation"}, {"val", "validation"}, {"dev", "validation"},
    {"test", "test"},        {"testing", "test"},   {"eval", "test"},
    {"evaluation", "test"}};

std::string_view BaseName(std::string_view path) { return path.substr(path.rfind('/') + 1); }

bool AllDigits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// "train" of "x-train-00000-of-00005.parquet"; empty where the name is not a shard's.
std::string_view ShardName(std::string_view name) {
  std::size_t of = name.find("-of-");
  if (of == name.npos) return {};
  std::string_view total = name.substr(of + 4);
  std::string_view before = name.substr(0, of);
  std::size_t dash = before.rfind('-');
  if (dash == before.npos || !AllDigits(before.substr(dash + 1)) || !AllDigits(total.substr(0, total.find('.')))) {
    return {};
  }
  before = before.substr(0, dash);
  return before.substr(before.rfind('-') + 1);
}

/// The split that a word of the text stands for; words end where neither letter nor digit follows.
std::string_view SplitIn(std::string_view text) {
  std::string lower = ToLower(text);
  for (std::size_t i = 0; i < lower.size();) {
    std::size_t end = i;
    while (end < lower.size() && std::isalnum(static_cast<unsigned char>(lower[end])) != 0) ++end;
    for (auto [word, split] : kWords) {
      if (std::string_view(lower).substr(i, end - i) == word) return split;
    }
    i = end + 1;
  }
  return {};
}

bool IsCache(std::string_view key) {
  std::string_view name = BaseName(key);
  return name.starts_with("cache-") && name.ends_with(".arrow");
}

std::string_view PathIn(std::string_view folder, std::string_view key) {
  return key.starts_with(folder) ? key.substr(folder.size()) : BaseName(key);
}

}  // namespace

SplitUrl ParseSplitUrl(std::string_view text) {
  std::size_t hash = text.rfind('#');
  if (hash == text.npos || text.find('/', hash) != text.npos) return {std::string(text), ""};
  return {std::string(text.substr(0, hash)), std::string(text.substr(hash + 1))};
}

bool IsHubFile(std::string_view key) {
  std::string_view name = BaseName(key);
  if (std::ranges::find(kDescriptions, name) != kDescriptions.end()) return true;
  return !ShardName(name).empty() && (name.ends_with(".parquet") || name.ends_with(".arrow"));
}

std::string SplitOf(std::string_view path) {
  std::string_view shard = ShardName(BaseName(path));
  // "data-00000-of-00001.arrow" is what save_to_disk calls the shards of any split.
  if (!shard.empty() && shard != "data" && shard != "part" && shard != "shard") {
    std::string_view known = SplitIn(shard) == ToLower(shard) ? SplitIn(shard) : shard;
    return std::string(known);
  }
  while (true) {
    std::size_t slash = path.rfind('/');
    if (std::string_view split = SplitIn(BaseName(path)); !split.empty()) return std::string(split);
    if (slash == path.npos) return "";
    path = path.substr(0, slash);
  }
}

Result<std::vector<object::ObjectInfo>> ChooseSplit(std::vector<object::ObjectInfo> found, std::string_view folder,
                                                    bool hub, std::string_view split) {
  if (hub) std::erase_if(found, [](const object::ObjectInfo& info) { return IsCache(info.key); });
  if (!hub && split.empty()) return found;
  std::set<std::string> splits;
  for (const object::ObjectInfo& info : found) splits.insert(SplitOf(PathIn(folder, info.key)));
  if (split.empty()) {
    if (splits.size() <= 1) return found;
    splits.erase("");
    return Fail(Code::kInvalidArgument, "there are the splits {}; say which, as URL#{}", fmt::join(splits, ", "),
                splits.contains("train") ? "train" : *splits.begin());
  }
  std::erase_if(found, [&](const object::ObjectInfo& info) {
    std::string_view path = PathIn(folder, info.key);
    bool in_folder = fmt::format("/{}", path).find(fmt::format("/{}/", split)) != std::string::npos;
    return SplitOf(path) != split && !in_folder;
  });
  if (found.empty()) {
    splits.erase("");
    std::vector<std::string_view> names(splits.begin(), splits.end());
    return Fail(Code::kNotFound, "{}; names tell of {}", UnknownName("split", split, names),
                splits.empty() ? "none" : fmt::format("{}", fmt::join(splits, ", ")));
  }
  return found;
}

}  // namespace millrace::data
