// Flags for written objects, shared by cp, mv, sync, pipe and duplicate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "millrace/object/object_info.h"
#include "millrace/object/requests.h"

namespace millrace::cli {

inline constexpr std::uint64_t kPartBytes = 8 * kMiB;

/// The flags of a command line about the objects it writes.
struct WriteFlags {
  std::optional<std::uint64_t> part_bytes;  ///< nothing: kPartBytes, and more for large downloads
  std::string content_type;
  std::vector<std::string> metadata;  ///< name=value
  object::Attributes attributes;

  void AddTo(CLI::App& command);
  /// Errors: kInvalidArgument if flags contradict each other. Call it first.
  Status Check() const;
  /// Returns the options of an upload. Without a flag, the ending of the name decides the content type.
  object::PutOptions ForUpload(const std::string& name) const;
  /// Returns the options of a copy inside the store. Without flags, content type and metadata are the source's.
  object::CopyOptions ForCopy() const;
};

/// Adds a flag that takes a size such as 16MiB.
void AddSizeFlag(CLI::App& command, const std::string& name, std::uint64_t& into, const std::string& description);
void AddSizeFlag(CLI::App& command, const std::string& name, std::optional<std::uint64_t>& into,
                 const std::string& description);

}  // namespace millrace::cli
