// The header of the safetensors container: a u64 length and JSON. The tensors' data follow it without holes. Works on
// memory only.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/format/tensor_meta.h"

namespace millrace::checkpoint {

/// One tensor of a file; its bytes follow those of the entry before it.
struct SafetensorsEntry {
  std::string name;
  TensorMeta meta;
  std::uint64_t offset = 0;  ///< of its bytes, from the start of the file
};

/// The longest header that readers accept, as in the reference implementation.
inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

/// Returns the bytes in front of the data: length and header. Sets the entries' offsets. Pads the header so that the
/// data begin at a multiple of 8. If the entries are sorted by element size, largest first, every tensor is aligned.
/// `metadata` becomes the header's `__metadata__`.
std::string MakeSafetensorsHeader(std::vector<SafetensorsEntry>& entries,
                                  const std::map<std::string, std::string>& metadata = {});

/// Returns the length of the JSON header, which the first 8 bytes of a file hold. `name` names the file in messages.
/// Errors: kCorrupt if the file or kMaxSafetensorsHeader is smaller.
Result<std::uint64_t> ParseSafetensorsLength(ByteSpan first_8_bytes, std::uint64_t file_size, std::string_view name);
/// Returns the entries in order of offset.
/// Errors: kCorrupt unless they fill the file exactly, without holes or overlaps; kUnsupported for an element type that
/// DType lacks.
Result<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(std::string_view json, std::uint64_t file_size,
                                                             std::string_view name);

/// Returns the name of a missing shard, such as "model-00002-of-00003.safetensors" if `files` has the first shard only.
/// Returns an empty text if no shard is missing. For folders without an index: an interrupted copy or export leaves
/// such folders.
std::string MissingShard(const std::set<std::string>& files);

}  // namespace millrace::checkpoint
