// A frame: the part of an object that is read and decoded at once.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/base/bytes.h"

namespace millrace::data {

/// A range of an object that decodes by itself to whole records. A frame is the least that is read, and the unit of
/// shuffling. So it should decode to half a MiB up to a few MiB.
struct Frame {
  std::uint64_t offset = 0, bytes = 0;  ///< in the object; neighbours may overlap
  std::uint32_t skip = 0;  ///< decoded bytes at the start that belong to the last record of the frame before
  std::string state;       ///< what a decoder must know to start here; each format defines its own
  bool operator==(const Frame&) const = default;
};

/// The most bytes that a frame may decode to, since a frame is held in memory as a whole. A format that finds a larger
/// frame fails with kUnsupported and says how to store the data instead.
inline constexpr std::uint64_t kMaxFrameContent = 256 * kMiB;

}  // namespace millrace::data
