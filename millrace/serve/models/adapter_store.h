// The adapters of a served model: which there are, and those that are in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/location.h"
#include "millrace/object/store.h"
#include "millrace/serve/language_model.h"

namespace millrace::serve {

/// The places of adapters.
struct AdapterPlaces {
  std::map<std::string, std::string> urls;  ///< by name
  std::string folder_url;                   ///< each of its subfolders is an adapter of that name; empty: none
  object::Location folder = {};             ///< the same; its key is empty or ends in "/"
};

/// Grants an adapter that is being loaded the memory that it takes. Called once, before the memory is used.
using ReserveMemory = std::function<Status(std::uint64_t bytes)>;
/// Loads the adapter at a URL. Any thread, several at a time. Blocks.
using LoadAdapter =
    std::function<Result<std::shared_ptr<const Adapter>>(const std::string& url, const ReserveMemory&, object::Call)>;

/// The counters of an AdapterStore since it started, and its present state.
struct AdapterCounters {
  std::uint64_t loads = 0, failed_loads = 0, evictions = 0;
  std::uint64_t bytes = 0;  ///< of adapters in memory, and of those that are being loaded
  int loaded = 0;
};

/// Loads adapters when somebody wants them, and keeps them in memory while they fit a limit: the ones that were wanted
/// last. An adapter that a text uses stays. So an adapter is read anew after it was evicted, and not before.
/// Thread-safe.
class AdapterStore {
 public:
  AdapterStore(AdapterPlaces places, std::uint64_t most_bytes, LoadAdapter load, Logger log = {})
      : places_(std::move(places)), most_bytes_(most_bytes), load_(std::move(load)), log_(std::move(log)) {}

  /// Returns an adapter, loaded if need be. Blocks. One load serves all callers that wait for it.
  /// Errors: kNotFound if there is none of this name; kThrottled if texts under way use the memory that it needs;
  /// kResourceExhausted if it takes more than the limit; kCancelled if `stop` fires; those of loading it.
  Result<std::shared_ptr<const Adapter>> Get(const std::string& name, std::stop_token stop) MR_EXCLUDES(mutex_);

  /// Returns the names that there are now, in their order. Blocks on a listing of the folder. Errors: those of listing.
  Result<std::vector<std::string>> Names(object::Call call) const;
  /// Returns whether an adapter of this name may be there, without a request: the folder may have any.
  bool MayHave(std::string_view name) const;
  AdapterCounters counters() const MR_EXCLUDES(mutex_);

 private:
  /// One adapter that is in memory, or that is being loaded.
  struct Entry {
    std::shared_ptr<const Adapter> adapter;  ///< null while it is loaded
    std::uint64_t bytes = 0;
    std::uint64_t last_use = 0;
    std::optional<Error> error;  ///< why it could not be loaded
  };
  std::string UrlOf(const std::string& name) const;
  Status Reserve(Entry& entry, std::uint64_t bytes) MR_EXCLUDES(mutex_);
  bool EvictOne() MR_REQUIRES(mutex_);
  Result<std::shared_ptr<const Adapter>> Load(const std::string& name, const std::shared_ptr<Entry>& entry,
                                              std::stop_token stop) MR_EXCLUDES(mutex_);

  const AdapterPlaces places_;
  const std::uint64_t most_bytes_;
  const LoadAdapter load_;
  const Logger log_;

  mutable Mutex mutex_;
  CondVar ended_;  ///< a load has ended
  std::map<std::string, std::shared_ptr<Entry>> entries_ MR_GUARDED_BY(mutex_);
  std::uint64_t uses_ MR_GUARDED_BY(mutex_) = 0;
  AdapterCounters counters_ MR_GUARDED_BY(mutex_);
};

/// Returns whether an adapter may have this name: it is one segment of a path, of at most 255 bytes, without control
/// characters.
bool IsAdapterName(std::string_view name);

}  // namespace millrace::serve
