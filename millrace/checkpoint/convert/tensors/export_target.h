// The destination of an export, and the counts of what it wrote.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/threads/memory_budget.h"
#include "millrace/object/location.h"

namespace millrace::checkpoint {

struct ExportTarget {
  object::Location to;       ///< a folder's key is empty or ends with a slash
  MemoryBudget& budget;      ///< for the bytes in flight
  std::uint64_t file_bytes;  ///< ExportOptions::file_bytes
};

struct ExportResult {
  std::uint64_t tensors = 0, files = 0, bytes = 0;  ///< bytes: of all files
  std::vector<std::string> notes = {};              ///< sentences for the user: what was not exported, and why
};

}  // namespace millrace::checkpoint
