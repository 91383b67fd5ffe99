// Flags for written objects, shared by cp, mv, sync, pipe and duplicate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "millrace/object/connect_options.h"
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
  std::string metadata_directive;  ///< "COPY" or "REPLACE", of copies inside the store; empty: by the other flags

  void AddTo(CLI::App& command);
  /// Errors: kInvalidArgument if flags contradict each other. Call it first.
  Status Check() const;
  /// Errors: kInvalidArgument if a store with these limits takes no parts of --part-size.
  Status CheckParts(const object::Limits& limits) const;
  /// Returns the options of an upload. Without a flag, the ending of the name decides the content type.
  object::PutOptions ForUpload(const std::string& name) const;
  /// Returns the options of a copy inside the store. Without flags, content type and metadata are the source's.
  object::CopyOptions ForCopy() const;

 private:
  /// Returns whether the flags have metadata or a header that describes the content.
  bool HasMetadata() const;
};

/// The flags of a command line about the store of a copy's source, where it is not the destination's. What is not given
/// is as for the destination; only the endpoint is not, if a profile is given, because profiles name endpoints.
struct SourceFlags {
  std::string endpoint_url, profile, region;

  void AddTo(CLI::App& command);
  bool any() const { return !endpoint_url.empty() || !profile.empty() || !region.empty(); }
  /// Replaces what is other for the source.
  void Apply(object::ConnectOptions& options) const;
};

/// Adds a flag that takes a size such as 16MiB.
void AddSizeFlag(CLI::App& command, const std::string& name, std::uint64_t& into, const std::string& description);
void AddSizeFlag(CLI::App& command, const std::string& name, std::optional<std::uint64_t>& into,
                 const std::string& description);

}  // namespace millrace::cli
