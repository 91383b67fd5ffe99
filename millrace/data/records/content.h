// The content of an object of any format, as records: lines of JSON, one after another.
//
// The lines of a plain .jsonl object are its content as they are, and any range of them can be read. Everything else
// (compressed lines, text, Arrow, Parquet, tar) is read one frame at a time. Offsets of records always count in the
// content. The content of a frame starts where the content of the frame before ends.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/data/records/data_object.h"
#include "millrace/data/records/frame.h"

namespace millrace::data {

/// Takes a frame. `content` is the frame's content if the search has decoded it anyway. May block. An error ends the
/// search.
using FrameSink = std::function<Status(Frame frame, std::optional<Buffer> content)>;

/// Reads the records of one object. Immutable; any thread may call any method.
class Content {
 public:
  virtual ~Content() = default;
  /// Returns the format's name ("jsonl+gzip", "parquet"). The name is part of an index's identity, because another
  /// reader would find other records.
  virtual std::string_view format() const = 0;
  /// Returns true if the records are no lines but samples of a fixed size (hdf5/stored_sample.h).
  virtual bool holds_samples() const { return false; }
  /// Calls `found` with all frames in order. Each holds whole records. An object without records has no frame. Formats
  /// with headers read only those. Others read the whole object once, front to back, and pass each frame's content.
  /// Blocks.
  /// Errors: kCorrupt, naming object and offset, if the object breaks the rules of its format; kStale if the object has
  /// changed; the first error of `found`.
  virtual Status FindFrames(const FrameSink& found, object::Call call) const = 0;
  /// Returns the content of a frame: lines of JSON, each ended by '\n', or samples. Always the same bytes. Blocks.
  /// Errors: as FindFrames.
  virtual Result<Buffer> ReadFrame(const Frame& frame, object::Call call) const = 0;
  /// Says where in the object records are: "line 17", and what is wrong with their form. `records` are ascending
  /// numbers from 0. Returns nothing if the format has no better places than bytes. Reads the object from its start.
  /// Blocks. Errors: as FindFrames.
  virtual Result<std::vector<std::string>> NameRecords(std::span<const std::uint64_t> /*records*/,
                                                       object::Call /*call*/) const {
    return std::vector<std::string>();
  }
};

}  // namespace millrace::data
