// One object or file from here to there, whole or not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "millrace/base/memory_budget.h"
#include "millrace/object/store.h"

namespace millrace::transfer {

struct CopySettings {
  std::uint64_t part_bytes = 8 * kMiB;
  int parallel_parts = 8;
  /// Told of bytes as they move, on the thread that copies. May be empty.
  std::function<void(std::uint64_t bytes)> on_bytes;
};

/// All of these block, may be called by any thread, and hold memory in flight against `budget`. After a failure the
/// destination is as it was before; what had been moved is removed.

/// Fails with kStale when the file changes meanwhile, kIsDirectory and the like when it is no regular file.
Status Upload(const std::string& path, object::Store& store, const std::string& key, MemoryBudget& budget,
              const object::PutOptions& put, const CopySettings& settings, object::Call call);

/// Writes a hidden sibling of `path`, sets the object's modification time and renames it. Makes folders as needed.
/// `info` names one version: another one meanwhile fails with kStale.
Status Download(object::Store& store, const object::ObjectInfo& info, const std::string& path, MemoryBudget& budget,
                const CopySettings& settings, object::Call call);

/// Server-side, in parts where the object is larger than one request may copy. `source_bucket` is where `info` is,
/// empty for the bucket of `to`; `from` is its store.
Status CopyObject(object::Store& from, const object::ObjectInfo& info, object::Store& to, const std::string& key,
                  const std::string& source_bucket, const CopySettings& settings, object::Call call);

/// From local file to local file, as Download does.
Status CopyFile(const std::string& from, const std::string& to, const CopySettings& settings, object::Call call);

/// The local path for an item beneath a folder. Fails with kInvalidArgument on names that would lead out of the folder
/// or that no file can have ("..", empty segments, NUL).
Result<std::string> LocalPath(const std::string& folder, const std::string& name);

}  // namespace millrace::transfer
