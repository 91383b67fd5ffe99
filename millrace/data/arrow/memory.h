// What decoding one frame may take.
#pragma once

#include <arrow/memory_pool.h>

#include "millrace/base/bytes.h"

namespace millrace::data::arrow_format {

/// A pool of limited size: damaged bytes ask for any amount. One thread.
class MemoryLimit {
 public:
  arrow::MemoryPool* pool() { return &pool_; }

 private:
  arrow::CappedMemoryPool pool_{arrow::system_memory_pool(), static_cast<std::int64_t>(1 * kGiB)};
};

}  // namespace millrace::data::arrow_format
