// Samples in tar archives, as webdataset lays them out: consecutive files whose names differ in their extension alone.
//
// A sample is one record. Its fields: "__key__", the path up to the first dot of the file's name; and for every file
// its extension ("txt", "en.txt"; lower case) with the file's text. The members of an object in a json or jsn file
// become fields of the sample. Files with the extensions txt, text and transcript are always text. Files with other
// extensions are text if they are UTF-8 without NUL, else they are skipped, as pictures and sound. A file whose
// extension ends in ".gz", such as "json.gz", is decoded first. Directories, links, files without an extension or key,
// and files whose name starts with "__" are skipped, too.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/data/formats/syntax.h"

namespace millrace::data {

std::unique_ptr<const Syntax> MakeTarSyntax();

/// A stored range of a sparse file. Everything between two ranges is zeros.
struct TarExtent {
  std::uint64_t offset = 0, bytes = 0;  ///< in the file
};

struct TarMember {
  std::string name;
  std::string_view data;  ///< the stored bytes of the file; of a sparse file only its extents
  bool is_sparse = false;
  std::uint64_t size = 0;          ///< of the whole file
  std::vector<TarExtent> extents;  ///< of a sparse file: the ranges that `data` fills, ascending
  std::size_t end = 0;             ///< where the next member's headers start
  bool is_file = false;            ///< a regular file
  bool ends_archive = false;
};
/// Returns the member whose first header starts at `at`. Headers of long names and pax headers belong to the member.
/// Nothing if `bytes` do not hold all of it. Reads ustar, GNU and pax archives, and all of GNU tar's sparse files.
/// `offset` is the position of `bytes` in the archive, for messages.
/// Errors: kCorrupt if a checksum is wrong or the map of a sparse file is impossible.
Result<std::optional<TarMember>> ReadTarMember(std::string_view bytes, std::size_t at, std::uint64_t offset);

}  // namespace millrace::data
