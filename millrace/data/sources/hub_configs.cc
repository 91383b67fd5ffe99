#include "millrace/data/sources/hub_configs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "millrace/base/config.h"
#include "millrace/base/text.h"
#include "millrace/data/formats/format.h"
#include "millrace/data/sources/hub_folder.h"

namespace millrace::data {
namespace {

using config::Node;

constexpr std::string_view kDefaultSplit = "train", kDefaultConfig = "default", kWildcards = "*?[";

Result<std::vector<std::string>> Strings(const Node& node) {
  std::vector<std::string> strings;
  if (!node.IsSequence()) {
    strings.push_back(MR_TRY(node.String()));
    return strings;
  }
  for (const Node& one : node.Elements()) strings.push_back(MR_TRY(one.String()));
  return strings;
}

/// Parses data_files: a path, a list of paths, a list of maps with a split and its paths, or a map of splits to paths.
Status ParseDataFiles(const Node& files, HubConfig& config) {
  auto add = [&](std::string split, std::vector<std::string> patterns) -> Status {
    for (std::string& pattern : patterns) {
      if (pattern.starts_with('/') || pattern.find("://") != pattern.npos || pattern.find("::") != pattern.npos) {
        return Fail(files.Invalid(fmt::format("\"{}\" is not inside of the data set", pattern)));
      }
      while (pattern.starts_with("./")) pattern.erase(0, 2);
    }
    if (std::ranges::any_of(config.splits, [&](const auto& other) { return other.first == split; })) {
      return Fail(files.Invalid(fmt::format("the split \"{}\" is there twice", split)));
    }
    config.splits.emplace_back(std::move(split), std::move(patterns));
    return {};
  };
  if (files.IsMap()) {
    for (const std::string& split : files.Keys()) MR_TRY(add(split, MR_TRY(Strings(files[split]))));
    return {};
  }
  const std::vector<Node> elements = files.IsSequence() ? files.Elements() : std::vector<Node>{};
  if (elements.empty() || !elements[0].IsMap()) return add(std::string(kDefaultSplit), MR_TRY(Strings(files)));
  for (const Node& one : elements) {
    if (!one["split"] || !one["path"]) return Fail(one.Invalid("needs a split and a path"));
    MR_TRY(add(MR_TRY(one["split"].String()), MR_TRY(Strings(one["path"]))));
  }
  return {};
}

/// Sets the format that an option for load_dataset asks for.
Status ParseLoaderOption(const std::string& key, const Node& value, HubConfig& config) {
  // Others describe the data, or say how load_dataset is to keep them.
  constexpr std::array<std::string_view, 9> kWithoutEffect = {"config_name", "default",   "data_dir",
                                                              "data_files",  "features",  "description",
                                                              "version",     "chunksize", "dataset_info"};
  if (std::ranges::find(kWithoutEffect, key) != kWithoutEffect.end()) return {};
  std::string format;
  if (key == "sep" || key == "delimiter") {
    const std::string delimiter = MR_TRY(value.String());
    format = fmt::format("csv+delimiter={}", delimiter == "\t" ? "tab" : delimiter);
  } else if (key == "field") {
    format = fmt::format("json:{}", MR_TRY(value.String()));
  } else if (key == "sample_by" && MR_TRY(value.String()) == "line") {
    format = "lines";
  } else if (key == "sample_by" && MR_TRY(value.String()) == "document") {
    format = "text";
  } else {
    config.unsupported = value
                             .Invalid(fmt::format("the option {} for load_dataset is not supported, and would change "
                                                  "the records; name the objects and their format instead",
                                                  key))
                             .message();
    return {};
  }
  if (!config.format.empty() && config.format != format) {
    return Fail(
        value.Invalid(fmt::format("the option {} does not fit the others, which ask for {}", key, config.format)));
  }
  config.format = std::move(format);
  return {};
}

Result<HubConfig> ParseConfig(const Node& node) {
  HubConfig config;
  if (!node.IsMap() || !node["config_name"]) return Fail(node.Invalid("a configuration needs a config_name"));
  for (const std::string& key : node.Keys()) MR_TRY(ParseLoaderOption(key, node[key], config));
  config.name = MR_TRY(node["config_name"].String());
  if (node["default"]) config.is_default = MR_TRY(node["default"].Bool());
  if (node["data_dir"]) {
    config.folder = MR_TRY(node["data_dir"].String());
    while (config.folder.starts_with("./")) config.folder.erase(0, 2);
    if (config.folder == ".") config.folder.clear();
    if (config.folder.starts_with('/') || config.folder.find("://") != config.folder.npos) {
      return Fail(node["data_dir"].Invalid(fmt::format("\"{}\" is not inside of the data set", config.folder)));
    }
    if (!config.folder.empty() && !config.folder.ends_with('/')) config.folder += '/';
  }
  if (node["data_files"]) MR_TRY(ParseDataFiles(node["data_files"], config));
  return config;
}

std::string NamesOf(const std::vector<HubConfig>& configs) {
  std::vector<std::string_view> names;
  for (const HubConfig& config : configs) names.push_back(config.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

const HubConfig* Find(const std::vector<HubConfig>& configs, std::string_view name) {
  auto found = std::ranges::find(configs, name, &HubConfig::name);
  return found == configs.end() ? nullptr : &*found;
}

const HubConfig* Default(const std::vector<HubConfig>& configs) {
  if (configs.size() == 1) return &configs[0];
  auto marked = std::ranges::find(configs, true, &HubConfig::is_default);
  return marked != configs.end() ? &*marked : Find(configs, kDefaultConfig);
}

/// The objects of each split, each object once, in the order of the patterns.
using Splits = std::vector<std::pair<std::string, std::vector<object::ObjectInfo>>>;

/// Finds splits by the names of the folder's objects.
Splits SplitsByName(const std::vector<object::ObjectInfo>& listed, std::string_view folder) {
  std::vector<const object::ObjectInfo*> inside;
  std::vector<std::string_view> paths;
  for (const object::ObjectInfo& info : listed) {
    if (!info.key.starts_with(folder) || !MayHoldRecords(info.key)) continue;
    inside.push_back(&info);
    paths.push_back(std::string_view(info.key).substr(folder.size()));
  }
  Splits splits;
  for (NamedSplit& split : SplitsByNames(paths)) {
    auto& members = splits.emplace_back(std::move(split.name), std::vector<object::ObjectInfo>()).second;
    for (std::size_t i : split.paths) members.push_back(*inside[i]);
  }
  return splits;
}

Result<std::vector<object::ObjectInfo>> Matching(const std::vector<object::ObjectInfo>& listed, std::string_view folder,
                                                 const std::vector<std::string>& patterns) {
  std::vector<object::ObjectInfo> matching;
  std::set<std::string_view> taken;
  for (const std::string& pattern : patterns) {
    const bool names_one = pattern.find_first_of(kWildcards) == pattern.npos;
    bool any = false;
    for (const object::ObjectInfo& info : listed) {
      if (!names_one && !MayHoldRecords(info.key)) continue;
      if (!info.key.starts_with(folder) || !HubPatternMatches(pattern, info.key.substr(folder.size()))) continue;
      any = true;
      if (taken.insert(info.key).second) matching.push_back(info);
    }
    if (!any && names_one) {
      return Fail(Code::kNotFound, "the README names {}{}, and it is not there; give the URL of the files themselves",
                  folder, pattern);
    }
  }
  return matching;
}

/// A part of a pattern: the characters that it matches. With `repeats` it matches any number of them.
struct GlobToken {
  std::string_view set;  ///< the inside of "[…]"
  bool all_but = false;  ///< matches the characters outside the set
  bool slashes = false;  ///< matches '/', too
  bool repeats = false;

  bool IsSlash() const { return set == "/" && !all_but; }
  bool Takes(char c) const {
    if (c == '/' && !slashes) return IsSlash();
    bool in = false;
    for (std::size_t i = 0; i < set.size(); ++i) {
      const bool range = i + 2 < set.size() && set[i + 1] == '-';
      in |= range ? set[i] <= c && c <= set[i + 2] : set[i] == c;
      if (range) i += 2;
    }
    return in != all_but;
  }
};

std::vector<GlobToken> Tokens(std::string_view pattern) {
  std::vector<GlobToken> tokens;
  for (std::size_t i = 0; i < pattern.size();) {
    std::string_view rest = pattern.substr(i);
    const std::size_t close = rest[0] == '[' ? rest.find(']', rest.starts_with("[!") ? 3 : 2) : rest.npos;
    if (rest.starts_with("**")) {
      tokens.push_back({.all_but = true, .slashes = true, .repeats = true});
      i += 2;
    } else if (rest[0] == '*' || rest[0] == '?') {
      tokens.push_back({.all_but = true, .repeats = rest[0] == '*'});
      ++i;
    } else if (close != rest.npos) {
      const bool all_but = rest[1] == '!';
      tokens.push_back({.set = rest.substr(all_but ? 2 : 1, close - (all_but ? 2 : 1)), .all_but = all_but});
      i += close + 1;
    } else {
      tokens.push_back({.set = rest.substr(0, 1)});
      ++i;
    }
  }
  return tokens;
}

}  // namespace

Result<std::vector<HubConfig>> ParseHubConfigs(std::string_view readme, const std::string& what) {
  std::string yaml;
  bool closed = false;
  std::size_t number = 0;
  for (std::string_view line : Split(readme, '\n')) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool mark = line == "---";
    if (number++ == 0) {
      if (!mark) return std::vector<HubConfig>{};
      yaml += '\n';  // keeps the README's line numbers for messages
      continue;
    }
    closed = mark;
    if (closed) break;
    yaml += line;
    yaml += '\n';
  }
  // A README without configurations may hold YAML that this parser does not support.
  if (!closed || !(yaml.starts_with("configs:") || yaml.find("\nconfigs:") != yaml.npos)) {
    return std::vector<HubConfig>{};
  }
  const auto document = MR_TRY(config::Document::Parse(yaml, what));
  std::vector<HubConfig> configs;
  for (const Node& node : document.Root()["configs"].Elements()) {
    HubConfig config = MR_TRY(ParseConfig(node));
    if (Find(configs, config.name)) {
      return Fail(node.Invalid(fmt::format("the configuration \"{}\" is there twice", config.name)));
    }
    configs.push_back(std::move(config));
  }
  return configs;
}

Result<ChosenSplit> ChooseByConfig(const std::vector<HubConfig>& configs, const std::vector<object::ObjectInfo>& listed,
                                   std::string_view folder, std::string_view wanted) {
  const std::size_t colon = wanted.find(':');
  const HubConfig* config = Find(configs, wanted.substr(0, colon));
  std::string_view split;
  if (colon != wanted.npos) {
    split = wanted.substr(colon + 1);
    if (!config) {
      return Fail(Code::kNotFound, "no configuration \"{}\"; choose one of the README's: {}", wanted.substr(0, colon),
                  NamesOf(configs));
    }
  } else if (!config) {
    config = Default(configs);
    split = wanted;
  }
  if (!config) {
    return Fail(Code::kInvalidArgument, "the README has the configurations {}; say which, as URL#{}{}",
                NamesOf(configs), configs[0].name, split.empty() ? "" : fmt::format(":{}", split));
  }
  if (!config->unsupported.empty()) return Fail(Code::kUnsupported, "{}", config->unsupported);
  const std::string where = fmt::format("{}{}", folder, config->folder);
  Splits splits;
  for (const auto& [name, patterns] : config->splits) {
    splits.emplace_back(name, MR_TRY(Matching(listed, where, patterns)));
  }
  if (config->splits.empty()) splits = SplitsByName(listed, where);
  if (split.empty() && splits.size() == 1) split = splits[0].first;
  if (split.empty()) split = kDefaultSplit;
  std::vector<std::string_view> names;
  for (auto& [name, objects] : splits) {
    if (name == split) return ChosenSplit{std::move(objects), config};
    names.push_back(name);
  }
  return Fail(Code::kNotFound, "{}; choose one of the configuration \"{}\": {}{}", UnknownName("split", split, names),
              config->name, names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")),
              configs.size() == 1 ? "" : fmt::format(" (configurations are {})", NamesOf(configs)));
}

bool HubPatternMatches(std::string_view pattern, std::string_view path) {
  const std::vector<GlobToken> tokens = Tokens(pattern);
  // at[i]: the path so far matches the first i tokens.
  std::vector<bool> at(tokens.size() + 1), next;
  at[0] = true;
  auto skip_empty_matches = [&] {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (!at[i] || !tokens[i].repeats) continue;
      at[i + 1] = true;
      // "a/**/b" also matches "a/b".
      if (tokens[i].slashes && i + 1 < tokens.size() && tokens[i + 1].IsSlash()) at[i + 2] = true;
    }
  };
  skip_empty_matches();
  for (char c : path) {
    next.assign(at.size(), false);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (at[i] && tokens[i].Takes(c)) next[tokens[i].repeats ? i : i + 1] = true;
    }
    at.swap(next);
    skip_empty_matches();
  }
  return at.back();
}

}  // namespace millrace::data
