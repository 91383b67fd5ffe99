#include "millrace/data/sources.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "millrace/base/text.h"
#include "millrace/object/blocking.h"

namespace millrace::data {
namespace {

constexpr std::string_view kGlobCharacters = "*?";

/// Of the part of the key that the listing found, not of the folders that the user named.
bool IsHidden(std::string_view key, std::string_view prefix) {
  std::size_t slash = prefix.rfind('/');
  if (slash != prefix.npos) key.remove_prefix(slash + 1);
  return key.starts_with('.') || key.find("/.") != key.npos;
}

Status CheckUncompressed(std::string_view url) {
  for (std::string_view suffix : {".gz", ".zst", ".bz2", ".xz", ".lz4"}) {
    if (url.ends_with(suffix)) {
      return Fail(Code::kUnsupported,
                  "{}: records of a compressed object cannot be read by range; store it uncompressed", url);
    }
  }
  return {};
}

std::string UrlOfKey(const object::Url& source, std::string_view key) {
  return source.scheme == object::Url::Scheme::kS3 ? fmt::format("s3://{}/{}", source.bucket, key)
                                                   : fmt::format("/{}", key);
}

/// Objects under `prefix` that match `pattern` (empty: all).
Result<std::vector<object::ObjectInfo>> Find(object::Store& store, const std::string& prefix, std::string_view pattern,
                                             object::Call call) {
  std::vector<object::ObjectInfo> found;
  auto visit = [&](const object::ListPage& page) {
    for (const object::ObjectInfo& info : page.objects) {
      if (info.size == 0 || IsHidden(info.key, prefix)) continue;
      if (pattern.empty() || GlobMatches(pattern, info.key)) found.push_back(info);
    }
    return true;
  };
  MR_TRY(object::ListAll(store, {.prefix = prefix}, visit, call));
  return found;
}

Result<std::vector<object::ObjectInfo>> Resolve(const object::Location& at, object::Call call) {
  std::size_t glob = at.key.find_first_of(kGlobCharacters);
  if (glob != at.key.npos) return Find(*at.store, at.key.substr(0, glob), at.key, call);
  if (at.key.empty() || at.key.ends_with('/')) return Find(*at.store, at.key, "", call);
  auto info = MR_TRY(object::Head(*at.store, at.key, call));
  if (info) return std::vector{*std::move(info)};
  return Find(*at.store, at.key + "/", "", call);
}

}  // namespace

bool GlobMatches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = pattern.npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p, ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Result<ResolvedSources> ResolveSources(object::Connection& connection, std::span<const Source> sources,
                                       object::Call call) {
  if (sources.empty()) return Fail(Code::kInvalidArgument, "no data sources are given");
  ResolvedSources resolved;
  std::map<std::string, std::uint32_t> known;
  for (const Source& source : sources) {
    if (!std::isfinite(source.weight) || source.weight <= 0 || source.weight > 1000) {
      return Fail(Code::kInvalidArgument, "{}: a weight of {} passes an epoch makes no sense", source.url,
                  source.weight);
    }
    object::Url url = MR_TRY(object::ParseUrl(source.url));
    object::Location location = MR_TRY(object::Locate(connection, source.url));
    auto found = Resolve(location, call);
    if (!found) return Fail(found.error().Context(fmt::format("looking for data at {}", source.url)));
    if (found->empty()) return Fail(Code::kNotFound, "no data at {}: no object matches", source.url);
    std::ranges::sort(*found, {}, &object::ObjectInfo::key);
    auto& members = resolved.by_source.emplace_back();
    for (object::ObjectInfo& info : *found) {
      std::string name = UrlOfKey(url, info.key);
      MR_TRY(CheckUncompressed(name));
      auto [at, fresh] = known.try_emplace(name, static_cast<std::uint32_t>(resolved.objects.size()));
      if (fresh) resolved.objects.push_back({location.store, std::move(info), std::move(name)});
      members.push_back(at->second);
    }
  }
  return resolved;
}

}  // namespace millrace::data
