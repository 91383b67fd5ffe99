// The conversations behind responses, for requests that go on with one (previous_response_id).
#pragma once

#include <cstddef>
#include <list>
#include <optional>
#include <string>

#include "millrace/base/json.h"
#include "millrace/base/threads/sync.h"

namespace millrace::serve {

/// Keeps the messages of the conversations that were answered last, in memory. Thread-safe.
class ResponseStore {
 public:
  /// `most_bytes`: of all messages as JSON; older conversations are dropped.
  explicit ResponseStore(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  void Put(std::string id, int user, const Json& messages) MR_EXCLUDES(mutex_);
  /// Returns the messages of that response; nothing if it is not kept, or is another user's.
  std::optional<Json> Find(const std::string& id, int user) MR_EXCLUDES(mutex_);

 private:
  struct Kept {
    std::string id;
    int user = 0;
    std::string messages;  ///< JSON
  };
  const std::size_t most_bytes_;
  Mutex mutex_;
  std::list<Kept> kept_ MR_GUARDED_BY(mutex_);  ///< the last first
  std::size_t bytes_ MR_GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::serve
