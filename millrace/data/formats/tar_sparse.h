// Sparse files in tar archives. GNU tar stores the bytes that are not zeros, and a map of their ranges.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/data/formats/tar.h"

namespace millrace::data {

/// Returns a number in a tar header: octal digits, or base 256 if the first bit is set (GNU). Nothing if it is neither.
std::optional<std::uint64_t> TarNumberAt(std::string_view header, std::size_t at, std::size_t size);

/// The pax headers of a sparse file (GNU tar manual, "PAX Format").
struct PaxSparse {
  bool is_sparse = false;
  bool map_in_data = false;  ///< format 1.0: the map is in front of the data
  std::string name;
  std::optional<std::uint64_t> size;
  std::vector<std::uint64_t> map;  ///< offset, bytes, offset, bytes…

  /// Takes one pax record. Returns false if its value is invalid.
  bool Take(std::string_view key, std::string_view value);
};

/// The map of a file of type 'S', which is in its header and the blocks behind the header. They end at `end`.
struct OldSparse {
  std::vector<std::uint64_t> map;
  std::uint64_t size = 0;
  std::size_t end = 0;
};
/// Returns nothing if `bytes` do not hold all blocks. Errors: kCorrupt if the map is damaged.
Result<std::optional<OldSparse>> ReadOldSparse(std::string_view bytes, std::size_t header_at);

/// Reads the map of format 1.0 and removes it from the front of `data`. Returns false if it is damaged.
bool TakeMapFromData(std::string_view& data, std::vector<std::uint64_t>& map);

/// Makes `member` a sparse file. Returns false if the map does not fit its data and `size`.
bool SetExtents(const std::vector<std::uint64_t>& map, std::uint64_t size, TarMember& member);

/// Returns the bytes of the whole file, at most the first `most`.
std::string ExpandSparse(const TarMember& member, std::uint64_t most);

}  // namespace millrace::data
