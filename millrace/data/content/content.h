// What an object holds, whatever its format: its *content*, which is records as lines of JSON, one after another.
//
// The lines of a plain .jsonl object are its content as they are: any range of it can be read. Everything else
// (compressed lines, text, Arrow, Parquet, tar) is read a frame at a time. Offsets of records always count in the
// content; where the content of frame k starts, that of frame k - 1 has ended.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/object/store.h"

namespace millrace::data {

class Content;

/// One version of one object.
struct DataObject {
  std::shared_ptr<object::Store> store;
  object::ObjectInfo info;
  std::string url;  ///< for messages and fingerprints: "s3://bucket/key" or an absolute path
  std::shared_ptr<const Content> content = nullptr;  ///< null: the object's own lines are its content
  /// 2 or 4: the object is a Megatron .bin, its records are token ids of so many bytes, complete with whatever BOS and
  /// EOS they are to have; no content then. 0: its records are text.
  int token_bytes = 0;
  std::shared_ptr<const object::ObjectInfo> table = nullptr;  ///< with token_bytes: the .idx beside it
};

/// A range of an object that decodes by itself to whole records. Decoded it should be half a MiB to a few MiB: a frame
/// is the least that is read, and what is shuffled as one piece.
struct Frame {
  std::uint64_t offset = 0, bytes = 0;  ///< in the object; neighbours may overlap
  std::uint32_t skip = 0;  ///< decoded bytes in front that belong to the record that the frame before ends with
  std::string state;       ///< what a decoder must know to start here; the format's business
  bool operator==(const Frame&) const = default;
};
/// Larger frames cannot be held; a format that finds one fails with kUnsupported and says how to store the data
/// instead.
inline constexpr std::uint64_t kMaxFrameContent = 256 * kMiB;

/// Takes a frame, and its content where whoever found it has that at hand. May block; an error ends the search.
using FrameSink = std::function<Status(Frame frame, std::optional<Buffer> content)>;

/// How the records of one object are got at. Immutable; any thread may call any method.
class Content {
 public:
  virtual ~Content() = default;
  /// "jsonl+gzip", "parquet": part of the identity of an index, since another reader would find other records.
  virtual std::string_view format() const = 0;
  /// Calls `found` with all frames in order, each of whole records; never for an object without records. Reads what it
  /// must: headers where the format has them, everything once, front to back, where it does not; then the content comes
  /// along. Fails with kCorrupt naming object and offset where the object is not what its format demands, with kStale
  /// when it changed. Blocks.
  virtual Status FindFrames(const FrameSink& found, object::Call call) const = 0;
  /// The content of a frame: lines of JSON, each ended by '\n', the same bytes every time. Errors as above. Blocks.
  virtual Result<Buffer> ReadFrame(const Frame& frame, object::Call call) const = 0;
};

/// Reads a range of the object version; everybody's errors: kStale when the object is another now, else the store's
/// with `purpose` ("indexing", "reading records of") in front.
Status ReadRange(const DataObject& object, std::uint64_t offset, MutableByteSpan into, std::string_view purpose,
                 object::Call call);
/// What became of such a read.
Status CheckRange(const DataObject& object, std::uint64_t offset, std::uint64_t bytes, std::string_view purpose,
                  Result<std::optional<object::GetResult>> got);

}  // namespace millrace::data
