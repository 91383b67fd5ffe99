// Finds the members of an HDF5 file's outermost group, and the messages that describe an object.
//
// The format is public (HDF5 File Format Specification 3.0). Everything that h5py writes with its default or with
// libver "v108" can be read: superblocks 0 to 3, object headers 1 and 2, groups with symbol tables or with up to eight
// links in their headers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/data/hdf5/hdf5_bytes.h"

namespace millrace::data {

/// The type of a message in an object header.
enum class Hdf5MessageType : std::uint16_t {
  kDataspace = 1,
  kLinkInfo = 2,
  kDatatype = 3,
  kLink = 6,
  kLayout = 8,
  kFilters = 11,
  kContinuation = 16,
  kSymbolTable = 17,
};

struct Hdf5Message {
  Hdf5MessageType type{};
  Buffer bytes;
};

/// Returns the messages of the object whose header is at `address`. Blocks. Errors: those of MetadataReader.
Result<std::vector<Hdf5Message>> ReadObjectHeader(MetadataReader& file, std::uint64_t address);

/// Returns the addresses of the object headers of the outermost group's members, by name. Blocks.
/// Errors: kCorrupt if it is no HDF5 file; kUnsupported if this reader lacks a structure.
Result<std::map<std::string, std::uint64_t>> ReadRootGroup(MetadataReader& file);

/// Calls `leaf` with the body of each leaf of a B-tree of version 1, in the order of their keys: keys and children
/// alternate, and there are `entries` children. Keys have `key_bytes` bytes. Blocks.
/// Errors: kCorrupt if nodes have other levels than their parents say, or there are more than `most` children.
Status VisitBtreeLeaves(MetadataReader& file, std::uint64_t root, std::uint8_t type, std::size_t key_bytes,
                        std::uint64_t most, const std::function<Status(FieldCursor body, std::uint16_t entries)>& leaf);

}  // namespace millrace::data
