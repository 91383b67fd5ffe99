// A bucket in memory: for tests, and for tools that want a scratch store.
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
  /// True: completions run before the call returns, in the caller's thread. False: one by one on a thread of the
  /// store's.
  bool inline_completions = false;
  /// True: ETags as S3 gives them, the MD5 of the bytes or that of the parts' MD5s. The same bytes have the same one.
  bool md5_etags = false;
  Clock* clock = &SystemClock();  ///< must outlive the store
};

/// Keeps the whole Store contract. ETags count up from 1, unless told otherwise, so two versions never share one and
/// runs repeat exactly. Holds objects and parts of unfinished uploads in full; nothing bounds them but the caller.
std::shared_ptr<Store> MakeMemoryStore(MemoryStoreOptions options = {});

}  // namespace millrace::object
