#include "millrace/data/sources/hub_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "millrace/base/text.h"

namespace millrace::data {
namespace {

constexpr std::array<std::string_view, 3> kDescriptions = {"dataset_dict.json", "dataset_info.json", "state.json"};
/// The words in names of folders and files that stand for a split.
constexpr std::pair<std::string_view, std::string_view> kWords[] = {
    {"train", "train"},      {"training", "train"}, {"validation", "validation"},
    {"valid", "validation"}, {"dev", "validation"}, {"val", "validation"},
    {"test", "test"},        {"testing", "test"},   {"eval", "test"},
    {"evaluation", "test"}};
constexpr std::array<std::string_view, 3> kSplits = {"train", "validation", "test"};

std::string_view BaseName(std::string_view path) { return path.substr(path.rfind('/') + 1); }

bool AllDigits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// Returns "train" for "x-train-00000-of-00005.parquet". Empty if the name is not of a shard.
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

bool IsSeparator(char c) { return std::string_view("-._ 0123456789").contains(c); }

/// Returns true if the name has the word between separators. The end of a folder's name counts as a separator.
bool HasWord(std::string_view name, std::string_view word, bool is_folder) {
  for (std::size_t at = name.find(word); at != name.npos; at = name.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool begins = at == 0 || IsSeparator(name[at - 1]);
    if (begins && (end == name.size() ? is_folder : IsSeparator(name[end]))) return true;
  }
  return false;
}

/// Returns true if the name of the file, or with `by_folder` of a folder on its path, has a word of the split.
bool NamesSplit(std::string_view path, std::string_view split, bool by_folder) {
  auto has = [&](std::string_view name) {
    return std::ranges::any_of(
        kWords, [&](const auto& word) { return word.second == split && HasWord(name, word.first, by_folder); });
  };
  if (!by_folder) return has(BaseName(path));
  std::vector<std::string_view> parts = Split(path, '/');
  parts.pop_back();
  return std::ranges::any_of(parts, has);
}

/// Returns true if "-00000-of-00005" is at `at`, and a dot behind it.
bool IsShardEnd(std::string_view name, std::size_t at) {
  constexpr std::size_t kDigits = 5;  // as datasets' push_to_hub writes them
  constexpr std::string_view kOf = "-of-";
  if (name.size() < at + 1 + 2 * kDigits + kOf.size() || name[at] != '-') return false;
  return AllDigits(name.substr(at + 1, kDigits)) && name.substr(at + 1 + kDigits).starts_with(kOf) &&
         AllDigits(name.substr(at + 1 + kDigits + kOf.size(), kDigits)) &&
         name.find('.', at + 1 + 2 * kDigits + kOf.size()) != name.npos;
}

/// Returns SPLIT for "data/SPLIT-00000-of-00005.parquet". Empty for other paths.
std::string_view ShardSplit(std::string_view path) {
  constexpr std::string_view kData = "data/";
  if (!path.starts_with(kData)) return {};
  path.remove_prefix(kData.size());
  if (path.contains('/')) return {};
  for (std::size_t at = path.size(); at-- > 0;) {
    if (IsShardEnd(path, at)) return path.substr(0, at);
  }
  return {};
}

std::vector<NamedSplit> ShardSplits(const std::vector<std::string_view>& paths) {
  std::map<std::string, std::vector<std::size_t>, std::less<>> by_name;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (std::string_view split = ShardSplit(paths[i]); !split.empty()) by_name[std::string(split)].push_back(i);
  }
  std::vector<NamedSplit> splits;
  for (auto& [name, members] : by_name) splits.push_back({name, std::move(members)});
  return splits;
}

/// Returns the splits of a saved DatasetDict, which has a folder for each.
std::vector<NamedSplit> SplitsByFolder(const std::vector<std::string_view>& paths) {
  std::map<std::string, std::vector<std::size_t>, std::less<>> by_name;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::size_t slash = paths[i].find('/');
    if (slash != paths[i].npos) by_name[std::string(paths[i].substr(0, slash))].push_back(i);
  }
  std::vector<NamedSplit> splits;
  for (auto& [name, members] : by_name) splits.push_back({name, std::move(members)});
  return splits;
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

std::vector<NamedSplit> SplitsByNames(const std::vector<std::string_view>& paths) {
  std::vector<NamedSplit> splits = ShardSplits(paths);
  for (const bool by_folder : {true, false}) {
    if (!splits.empty()) break;
    for (std::string_view split : kSplits) {
      NamedSplit named{.name = std::string(split), .paths = {}};
      for (std::size_t i = 0; i < paths.size(); ++i) {
        if (NamesSplit(paths[i], split, by_folder)) named.paths.push_back(i);
      }
      if (!named.paths.empty()) splits.push_back(std::move(named));
    }
  }
  if (splits.empty() && !paths.empty()) {
    splits.push_back({.name = std::string(kSplits[0]), .paths = std::vector<std::size_t>(paths.size())});
    std::iota(splits[0].paths.begin(), splits[0].paths.end(), std::size_t{0});
  }
  return splits;
}

Result<std::vector<object::ObjectInfo>> ChooseSplit(std::vector<object::ObjectInfo> found, std::string_view folder,
                                                    FolderKind kind, std::string_view split) {
  if (kind != FolderKind::kPlain)
    std::erase_if(found, [](const object::ObjectInfo& info) { return IsCache(info.key); });
  if (kind == FolderKind::kPlain && split.empty()) return found;
  std::vector<std::string_view> paths;
  for (const object::ObjectInfo& info : found) paths.push_back(PathIn(folder, info.key));
  std::vector<NamedSplit> splits = kind == FolderKind::kSavedDict ? SplitsByFolder(paths) : SplitsByNames(paths);
  std::vector<std::string_view> names;
  for (const NamedSplit& one : splits) names.emplace_back(one.name);
  if (split.empty() && splits.size() > 1) {
    std::ranges::sort(names);
    return Fail(Code::kInvalidArgument, "there are the splits {}; say which, as URL#{}", fmt::join(names, ", "),
                std::ranges::find(names, "train") != names.end() ? "train" : names[0]);
  }
  auto chosen = std::ranges::find_if(splits, [&](const NamedSplit& one) { return split.empty() || one.name == split; });
  std::vector<object::ObjectInfo> members;
  if (chosen != splits.end()) {
    for (std::size_t i : chosen->paths) members.push_back(found[i]);
    return members;
  }
  if (split.empty()) return found;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (fmt::format("/{}", paths[i]).contains(fmt::format("/{}/", split))) members.push_back(found[i]);
  }
  if (!members.empty()) return members;
  std::ranges::sort(names);
  return Fail(Code::kNotFound, "{}; choose one that the names tell of: {}", UnknownName("split", split, names),
              names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
}

}  // namespace millrace::data
