// A bucket in memory, for tests and as a scratch store.
#pragma once

#include <memory>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/object/store.h"

namespace millrace::object {

struct MemoryStoreOptions {
  std::string name = "memory";  ///< Describe() gives "memory:NAME"; Copy accepts it as source_bucket
  /// Tests of multipart code set a small min_part and max_parts.
  Limits limits;
  /// True: completions run before the call returns, on the caller's thread. False: one by one on a thread of the store.
  bool inline_completions = false;
  /// True: ETags as those of S3, the MD5 of the bytes or of the parts' MD5s, so equal bytes have equal ETags.
  bool md5_etags = false;
  Clock* clock = &SystemClock();  ///< must outlive the store
};

/// Fulfils the whole contract of Store. By default ETags count up from 1, so two versions never share one and runs
/// repeat exactly. Keeps objects and the parts of unfinished uploads in memory, without a limit.
std::shared_ptr<Store> MakeMemoryStore(MemoryStoreOptions options = {});

}  // namespace millrace::object
