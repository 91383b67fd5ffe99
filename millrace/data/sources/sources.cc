#include "millrace/data/sources/sources.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "millrace/base/text.h"
#include "millrace/base/threads/parallel_for.h"
#include "millrace/data/formats/format.h"
#include "millrace/data/formats/megatron.h"
#include "millrace/data/sources/brace_expansion.h"
#include "millrace/data/sources/hub_configs.h"
#include "millrace/data/sources/hub_folder.h"
#include "millrace/object/blocking.h"

namespace millrace::data {
namespace {

constexpr std::string_view kGlobCharacters = "*?[";
constexpr std::uint64_t kMaxListBytes = 64 * kMiB;  ///< of a list of URLs or a README: both are held in memory
constexpr int kListThreads = 16;                    ///< small requests at a time
constexpr std::string_view kTokens = ".bin", kTable = ".idx", kReadme = "README.md", kSavedDict = "dataset_dict.json";

/// Looks only at the part of the key below the folders that the user named.
bool IsHidden(std::string_view key, std::string_view prefix) {
  std::size_t slash = prefix.rfind('/');
  if (slash != prefix.npos) key.remove_prefix(slash + 1);
  if (key.starts_with('.') || key.contains("/.")) return true;
  // As in datasets, folders like __pycache__ and __MACOSX hold no data.
  const std::size_t special = key.starts_with("__") ? 0 : key.find("/__");
  return special != key.npos && key.find('/', special + 1) != key.npos;
}

/// Makes one object of each .bin and its .idx. A glob need not match the .idx.
Result<std::vector<DataObject>> PairTokenFiles(const object::Location& at, std::vector<object::ObjectInfo> found,
                                               const std::function<std::string(std::string_view)>& url_of,
                                               object::Call call) {
  std::map<std::string, object::ObjectInfo> tables;
  std::erase_if(found, [&](object::ObjectInfo& info) {
    bool table = info.key.ends_with(kTable);
    if (table) tables.emplace(info.key, std::move(info));
    return table;
  });
  std::vector<DataObject> objects;
  for (object::ObjectInfo& info : found) {
    std::string url = url_of(info.key);
    DataObject& object = objects.emplace_back(DataObject{at.store, std::move(info), std::move(url)});
    if (!object.info.key.ends_with(kTokens)) continue;
    std::string key = TokenTableKey(object.info.key);
    std::optional<object::ObjectInfo> table;
    if (auto listed = tables.extract(key)) {
      table = std::move(listed.mapped());
    } else {
      table = MR_TRY(object::Head(*at.store, key, call));
    }
    if (!table)
      return Fail(Code::kNotFound, "{}: no {} beside these token ids says where they begin; copy that file, too",
                  object.url, kTable);
    MR_TRY(OpenTokenFile(object, *std::move(table), call));
  }
  if (!tables.empty()) {
    return Fail(Code::kNotFound, "{}: a table of token ids without its {}; copy that file, too",
                url_of(tables.begin()->first), kTokens);
  }
  return objects;
}

std::string UrlOfKey(object::Url source, std::string_view key) {
  source.key = source.scheme == object::Url::Scheme::kFile ? fmt::format("/{}", key) : std::string(key);
  return source.ToString();
}

/// The result of a listing.
struct Found {
  std::vector<object::ObjectInfo> objects;
  std::string folder;  ///< the folder that was listed, or the folder of the single object
  FolderKind kind = FolderKind::kPlain;
  bool readme = false;                     ///< the folder has a README, which may declare configurations
  std::vector<object::ObjectInfo> others;  ///< objects of a folder that hold no records by their names
};
Result<Found> Find(object::ReadStore& store, const std::string& prefix, std::string_view pattern, object::Call call) {
  Found found{.folder = prefix.substr(0, prefix.rfind('/') + 1)};
  // A glob with an ending takes every match. Other sources take the objects that hold records.
  const bool whole_names = !pattern.empty() && !pattern.ends_with('*');
  auto listed = [&](const object::ObjectInfo& info) {
    if (info.size == 0 || IsHidden(info.key, prefix)) return false;
    return pattern.empty() || HubPatternMatches(pattern, info.key);
  };
  auto visit = [&](const object::ListPage& page) {
    for (const object::ObjectInfo& info : page.objects) {
      if (pattern.empty() && IsHubFile(info.key) && found.kind == FolderKind::kPlain) found.kind = FolderKind::kHub;
      if (pattern.empty() && info.key == found.folder + std::string(kSavedDict)) found.kind = FolderKind::kSavedDict;
      found.readme |= pattern.empty() && info.key == found.folder + std::string(kReadme);
      if (!listed(info)) continue;
      const bool wanted = whole_names || MayHoldRecords(info.key) || info.key.ends_with(kTable);
      if (wanted || pattern.empty()) (wanted ? found.objects : found.others).push_back(info);
    }
    return true;
  };
  MR_TRY(object::ListAll(store, {.prefix = prefix}, visit, call));
  return found;
}

Result<Found> Resolve(const object::Location& at, object::Call call) {
  const std::size_t glob = at.key.find_first_of(kGlobCharacters);
  if (glob != at.key.npos) {
    // Keys may have brackets. Keys with stars or question marks are rare, and a glob can name them.
    if (at.key.find_first_of("*?") == at.key.npos) {
      auto named = MR_TRY(object::Head(*at.store, at.key, call));
      if (named) return Found{.objects = {*std::move(named)}, .folder = at.key.substr(0, at.key.rfind('/') + 1)};
    }
    return Find(*at.store, at.key.substr(0, glob), at.key, call);
  }
  if (at.key.empty() || at.key.ends_with('/')) return Find(*at.store, at.key, "", call);
  auto info = MR_TRY(object::Head(*at.store, at.key, call));
  if (info) return Found{.objects = {*std::move(info)}, .folder = at.key.substr(0, at.key.rfind('/') + 1)};
  // Megatron-LM names its files by what they have in common.
  info = MR_TRY(object::Head(*at.store, fmt::format("{}{}", at.key, kTokens), call));
  if (info) return Found{.objects = {*std::move(info)}};
  return Find(*at.store, at.key + "/", "", call);
}

struct FoundSplit {
  std::vector<object::ObjectInfo> objects;
  std::string format;  ///< as HubConfig::format
};

/// Appends the URLs of objects that hold no records to `left_out`.
Result<FoundSplit> FindSplit(const object::Location& at, std::string_view split,
                             const std::function<std::string(std::string_view)>& url_of,
                             std::vector<std::string>& left_out, object::Call call) {
  Found found = MR_TRY(Resolve(at, call));
  if (found.readme) {
    const std::string key = found.folder + std::string(kReadme);
    auto readme = MR_TRY(object::GetAll(*at.store, key, kMaxListBytes, std::move(call)));
    auto configs = MR_TRY(ParseHubConfigs(readme ? readme->bytes : "", url_of(key)));
    if (!configs.empty()) {
      std::ranges::move(found.others, std::back_inserter(found.objects));
      std::ranges::sort(found.objects, {}, &object::ObjectInfo::key);
      ChosenSplit chosen = MR_TRY(ChooseByConfig(configs, found.objects, found.folder, split));
      return FoundSplit{std::move(chosen.objects), chosen.config->format};
    }
  }
  for (const object::ObjectInfo& info : found.others) left_out.push_back(url_of(info.key));
  return FoundSplit{MR_TRY(ChooseSplit(std::move(found.objects), found.folder, found.kind, split)), ""};
}

/// Returns the objects at one URL, in the order of their keys.
Result<std::vector<DataObject>> ObjectsAt(object::Connection& connection, const std::string& text,
                                          const std::string& split, std::vector<std::string>& left_out,
                                          object::Call call) {
  SplitUrl place = ParseSplitUrl(text);
  if (!split.empty() && !place.split.empty() && place.split != split) {
    return Fail(Code::kInvalidArgument, "{}: the split \"{}\" is asked for as well; say one of them", text, split);
  }
  if (place.split.empty()) place.split = split;
  object::Url url = MR_TRY(object::ParseUrl(place.url));
  object::Location location = MR_TRY(object::Locate(connection, place.url));
  auto url_of = [&](std::string_view key) { return UrlOfKey(url, key); };
  auto found = FindSplit(location, place.split, url_of, left_out, call);
  if (!found) return Fail(found.error().Context(fmt::format("looking for data at {}", text)));
  if (found->objects.empty())
    return Fail(Code::kNotFound, "no data at {}: no object matches; check the URL with `millrace ls`", text);
  std::ranges::sort(found->objects, {}, &object::ObjectInfo::key);
  std::vector<DataObject> objects = MR_TRY(PairTokenFiles(location, std::move(found->objects), url_of, call));
  for (DataObject& object : objects) object.declared_format = found->format;
  return objects;
}

/// Returns the URLs that a list names, one a line.
Result<std::vector<std::string>> ReadList(object::Connection& connection, const std::string& url, object::Call call) {
  object::Location at = MR_TRY(object::Locate(connection, url));
  auto list = object::GetAll(*at.store, at.key, kMaxListBytes, call);
  if (!list) return Fail(list.error().Context(fmt::format("reading the list of data {}", url)));
  if (!*list) return Fail(Code::kNotFound, "no list of data at {}; check the URL with `millrace ls`", url);
  const std::string folder = url.substr(0, url.rfind('/') + 1);
  std::vector<std::string> urls;
  for (std::string_view line : Split((*list)->bytes, '\n')) {
    line = Trim(line);
    if (line.empty() || line.starts_with('#')) continue;
    const bool whole = line.starts_with('/') || line.find("://") != line.npos;
    urls.push_back(whole ? std::string(line) : folder + std::string(line));
  }
  if (urls.empty()) return Fail(Code::kNotFound, "the list of data {} names none; write one URL a line", url);
  return urls;
}

Result<std::vector<DataObject>> ObjectsOf(object::Connection& connection, const DataSource& source,
                                          std::vector<std::string>& left_out, object::Call call) {
  std::vector<std::string> named = {source.url};
  if (source.url.starts_with('@')) named = MR_TRY(ReadList(connection, source.url.substr(1), call));
  std::vector<std::string> urls;
  for (const std::string& url : named) std::ranges::move(MR_TRY(ExpandBraces(url)), std::back_inserter(urls));
  if (urls.size() == 1) return ObjectsAt(connection, urls[0], source.split, left_out, call);
  std::vector<std::vector<DataObject>> found(urls.size());
  std::vector<std::vector<std::string>> others(urls.size());
  MR_TRY(ParallelFor("data-list", urls.size(), kListThreads, call.stop, [&] {
    return [&](std::uint64_t i, std::stop_token stop) -> Status {
      found[i] = MR_TRY(ObjectsAt(connection, urls[i], source.split, others[i],
                                  {.stop = std::move(stop), .deadline = call.deadline}));
      return {};
    };
  }));
  std::vector<DataObject> objects;
  for (auto& some : found) std::ranges::move(some, std::back_inserter(objects));
  for (auto& some : others) std::ranges::move(some, std::back_inserter(left_out));
  return objects;
}

/// Returns the formats of all objects. Must read some of them. Skips objects of token ids.
Result<std::vector<DataFormat>> FormatsOf(const DataSource& source, std::span<const DataObject> objects,
                                          object::Call call) {
  std::vector<DataFormat> formats(objects.size());
  MR_TRY(ParallelFor("data-list", objects.size(), kListThreads, call.stop, [&] {
    return [&](std::uint64_t i, std::stop_token stop) -> Status {
      if (objects[i].token_bytes > 0) return {};
      object::Call one{.stop = std::move(stop), .deadline = call.deadline};
      const std::string& declared = source.format.empty() ? objects[i].declared_format : source.format;
      formats[i] = MR_TRY(FormatOf(declared, objects[i], std::move(one)));
      return {};
    };
  }));
  return formats;
}

}  // namespace

Result<ResolvedSources> ResolveSources(object::Connection& connection, std::span<const DataSource> sources,
                                       object::Call call, std::span<const std::string> fields) {
  if (sources.empty()) return Fail(Code::kInvalidArgument, "no data sources are given; name one in data.sources");
  ResolvedSources resolved;
  std::map<std::string, std::uint32_t> known;
  for (const DataSource& source : sources) {
    if (!std::isfinite(source.weight) || source.weight <= 0 || source.weight > 1000) {
      return Fail(Code::kInvalidArgument,
                  "{}: a weight of {} passes an epoch makes no sense; expected a number above 0", source.url,
                  source.weight);
    }
    std::vector<std::uint32_t> members;
    std::set<std::uint32_t> taken;
    std::vector<DataObject> objects = MR_TRY(ObjectsOf(connection, source, resolved.left_out, call));
    const std::vector<DataFormat> formats = MR_TRY(FormatsOf(source, objects, call));
    for (std::size_t i = 0; i < objects.size(); ++i) {
      DataObject& object = objects[i];
      if (object.token_bytes == 0) {
        object.content = MR_TRY(ContentFor(object, formats[i], fields));
      }
      // An object that is read in two formats counts as two objects.
      std::string name = fmt::format("{} {}", object.url, object.content ? object.content->format() : "");
      auto [at, fresh] = known.try_emplace(std::move(name), static_cast<std::uint32_t>(resolved.objects.size()));
      if (fresh) resolved.objects.push_back(std::move(object));
      if (taken.insert(at->second).second) members.push_back(at->second);
    }
    resolved.by_source.push_back(std::move(members));
  }
  return resolved;
}

}  // namespace millrace::data
