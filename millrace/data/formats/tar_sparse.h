// Sparse files in tar archives, as GNU tar stores them: the bytes that are not zeros, and a map of where they belong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/data/formats/tar.h"

namespace millrace::data {

/// A number in a tar header: octal digits, or base 256 when the first bit is set (GNU). Nothing if it is none.
std::optional<std::uint64_t> TarNumberAt(std::string_view header, std::size_t at, std::size_t size);

/// What the pax headers of a member say about a sparse file; README of GNU tar, "PAX Format".
struct PaxSparse {
  bool is_sparse = false;
  bool map_in_data = false;  ///< format 1.0: the map stands in front of the data
  std::string name;
  std::optional<std::uint64_t> size;
  std::vector<std::uint64_t> map;  ///< offset, bytes, offset, bytes…

  /// Takes one record. False if its value cannot be.
  bool Take(std::string_view key, std::string_view value);
};

/// The map in the header of a file of type 'S', and in the blocks behind it. `end` is where these end. Nothing if
/// `bytes` do not hold all of them.
struct OldSparse {
  std::vector<std::uint64_t> map;
  std::uint64_t size = 0;
  std::size_t end = 0;
};
Result<std::optional<OldSparse>> ReadOldSparse(std::string_view bytes, std::size_t header_at);

/// Takes the map of format 1.0 off the front of `data`. False if it cannot be.
bool TakeMapFromData(std::string_view& data, std::vector<std::uint64_t>& map);

/// Makes `member`, whose data are what is stored, a sparse file. False if the map does not fit the data and the size.
bool SetExtents(const std::vector<std::uint64_t>& map, std::uint64_t size, TarMember& member);

/// The file's bytes, at most the first `most` of them.
std::string ExpandSparse(const TarMember& member, std::uint64_t most);

}  // namespace millrace::data
