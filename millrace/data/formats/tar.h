// Samples in tar archives, as webdataset lays them out: consecutive files whose names differ in their extension alone.
//
// A sample is one record. Its fields: "__key__", the path up to the first dot of the file's name; and for every file
// its extension ("txt", "en.txt"; lower case) with the file's text. Files of the extensions json and jsn hold an object
// whose members become fields instead. Of other files than these and txt, text, transcript only those count that are
// UTF-8 without NUL: pictures and sound are passed over. So are directories, links, files without an extension or key,
// and those whose name starts with "__".
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

/// Bytes of a sparse file that are stored; zeros lie between two of them.
struct TarExtent {
  std::uint64_t offset = 0, bytes = 0;  ///< in the file
};

struct TarMember {
  std::string name;
  std::string_view data;  ///< what is stored of the file: all of it, unless it is sparse
  bool is_sparse = false;
  std::uint64_t size = 0;          ///< of the whole file
  std::vector<TarExtent> extents;  ///< of a sparse file: where `data` belong, ascending
  std::size_t end = 0;             ///< where the next member's headers start
  bool is_file = false;            ///< a regular one
  bool ends_archive = false;
};
/// The member whose headers (long names among them) start at `at`; nothing if `bytes` do not hold all of it. Reads
/// ustar, GNU and pax archives, and GNU tar's sparse files in all their forms. Fails with kCorrupt on a header whose
/// checksum does not hold and on a map of a sparse file that cannot be; `offset` is where `bytes` start in the archive,
/// for the message.
Result<std::optional<TarMember>> ReadTarMember(std::string_view bytes, std::size_t at, std::uint64_t offset);

}  // namespace millrace::data
