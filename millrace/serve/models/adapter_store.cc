#include "millrace/serve/models/adapter_store.h"

#include <algorithm>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/object/blocking.h"

namespace millrace::serve {
namespace {

constexpr std::size_t kMaxNameBytes = 255;

}  // namespace

bool IsAdapterName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name != "." && name != ".." &&
         std::ranges::all_of(name,
                             [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f && c != '/'; });
}

bool AdapterStore::MayHave(std::string_view name) const {
  return places_.urls.contains(std::string(name)) || (!places_.folder_url.empty() && IsAdapterName(name));
}

std::string AdapterStore::UrlOf(const std::string& name) const {
  const auto named = places_.urls.find(name);
  if (named != places_.urls.end()) return named->second;
  return fmt::format("{}{}{}", places_.folder_url, places_.folder_url.ends_with('/') ? "" : "/", name);
}

Result<std::vector<std::string>> AdapterStore::Names(object::Call call) const {
  std::vector<std::string> names;
  for (const auto& [name, url] : places_.urls) names.push_back(name);
  if (!places_.folder_url.empty()) {
    const object::ListRequest request{.prefix = places_.folder.key, .delimiter = "/"};
    MR_TRY(object::ListAll(
        *places_.folder.store, request,
        [&](const object::ListPage& page) {
          for (const std::string& prefix : page.common_prefixes) {
            std::string name = prefix.substr(places_.folder.key.size());
            if (name.ends_with('/')) name.pop_back();
            if (IsAdapterName(name)) names.push_back(std::move(name));
          }
          return true;
        },
        std::move(call)));
  }
  std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());
  return names;
}

AdapterCounters AdapterStore::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

Result<std::shared_ptr<const Adapter>> AdapterStore::Get(const std::string& name, std::stop_token stop) {
  if (!MayHave(name))
    return Fail(Code::kNotFound, "there is no adapter \"{}\"; `GET /v1/models` lists those of this server", name);
  MutexLock lock(mutex_);
  while (!stop.stop_requested()) {
    std::shared_ptr<Entry>& at = entries_[name];
    if (!at) {
      const std::shared_ptr<Entry> mine = at = std::make_shared<Entry>();
      lock.Unlock();
      return Load(name, mine, std::move(stop));
    }
    const std::shared_ptr<Entry> entry = at;
    ended_.Wait(mutex_, stop, [&entry] { return entry->adapter != nullptr || entry->error.has_value(); });
    if (entry->adapter) {
      entry->last_use = ++uses_;
      return entry->adapter;
    }
    // The caller that began to load it may have gone away. This caller must not fail because of that.
    if (entry->error && entry->error->code() != Code::kCancelled) return Fail(*entry->error);
  }
  return Fail(Code::kCancelled, "the client has gone or the server stops");
}

Result<std::shared_ptr<const Adapter>> AdapterStore::Load(const std::string& name, const std::shared_ptr<Entry>& entry,
                                                          std::stop_token stop) {
  const std::string url = UrlOf(name);
  auto loaded = load_(url, [&](std::uint64_t bytes) { return Reserve(*entry, bytes); },
                      {.stop = std::move(stop), .deadline = {}});
  {
    MutexLock lock(mutex_);
    if (loaded) {
      entry->adapter = *loaded;
      entry->last_use = ++uses_;
      ++counters_.loads;
      ++counters_.loaded;
    } else {
      entry->error = loaded.error();
      entries_.erase(name);
      counters_.bytes -= entry->bytes;
      if (loaded.error().code() != Code::kCancelled) ++counters_.failed_loads;
    }
  }
  ended_.NotifyAll();
  if (loaded) {
    log_.Info("adapter loaded", {{"name", name}, {"from", url}, {"bytes", entry->bytes}});
  } else {
    log_.Warning("adapter not loaded", {{"name", name}, {"from", url}, {"error", loaded.error()}});
  }
  return loaded;
}

Status AdapterStore::Reserve(Entry& entry, std::uint64_t bytes) {
  if (bytes > most_bytes_) {
    return Fail(Code::kResourceExhausted,
                "the adapter takes {}, and all adapters together may take {}; give more with "
                "--adapter-memory",
                FormatBytes(bytes), FormatBytes(most_bytes_));
  }
  MutexLock lock(mutex_);
  while (bytes > most_bytes_ - counters_.bytes) {
    if (EvictOne()) continue;
    return Fail(Code::kThrottled, "the adapter takes {}, and other adapters that are in use take {} of {}; try again",
                FormatBytes(bytes), FormatBytes(counters_.bytes), FormatBytes(most_bytes_));
  }
  entry.bytes = bytes;
  counters_.bytes += bytes;
  return {};
}

/// Removes the adapter that nobody uses and that was wanted longest ago. Returns whether there was one.
bool AdapterStore::EvictOne() {
  auto oldest = entries_.end();
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    // New users come from here only, under the lock.
    if (!at->second->adapter || at->second->adapter.use_count() > 1) continue;
    if (oldest == entries_.end() || at->second->last_use < oldest->second->last_use) oldest = at;
  }
  if (oldest == entries_.end()) return false;
  counters_.bytes -= oldest->second->bytes;
  ++counters_.evictions;
  --counters_.loaded;
  log_.Info("adapter evicted", {{"name", oldest->first}});
  entries_.erase(oldest);
  return true;
}

}  // namespace millrace::serve
