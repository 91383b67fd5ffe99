// The safetensors container: u64 length, JSON header, data without holes. Bytes in, bytes out; no stores, no threads.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/checkpoint/format/manifest.h"

namespace millrace::checkpoint {

/// One tensor of a file; its bytes follow those of the entry before it.
struct SafetensorsEntry {
  std::string name;
  TensorMeta meta;
  std::uint64_t offset = 0;  ///< of its bytes, from the start of the file
};

/// The longest header that readers accept, as in the reference implementation.
inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

/// Where each tensor goes, and the bytes in front of the data. Sets the entries' offsets. The header is padded so that
/// the data start at a multiple of 8; entries sorted by size of their elements, largest first, are then all aligned.
/// `metadata` becomes the header's `__metadata__`.
std::string MakeSafetensorsHeader(std::vector<SafetensorsEntry>& entries,
                                  const std::map<std::string, std::string>& metadata = {});

/// The length of the JSON header that a file's first 8 bytes announce; kCorrupt when it cannot be. `name` names the
/// file.
Result<std::uint64_t> ParseSafetensorsLength(ByteSpan first_8_bytes, std::uint64_t file_size, std::string_view name);
/// The entries in order of offset. Fails with kCorrupt unless they fill the file exactly, without holes or overlaps,
/// and with kUnsupported on an element type we do not have.
Result<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(std::string_view json, std::uint64_t file_size,
                                                             std::string_view name);

/// Of files of which some are named as shards, "model-00001-of-00003.safetensors", the name of a shard that is missing;
/// empty: none is. For folders without an index, as a copy or an export leaves one that was cut off.
std::string MissingShard(const std::set<std::string>& files);

}  // namespace millrace::checkpoint
