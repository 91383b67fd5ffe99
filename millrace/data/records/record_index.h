// An index of the usable records of one object: the start and the number of tokens of each. docs/formats/index.md has
// the bytes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/data/records/broken_reason.h"
#include "millrace/data/records/frame.h"

namespace millrace::data {

/// Everything that the content of an index depends on. Indexes with equal identities are equal.
struct IndexIdentity {
  std::string etag;        ///< of the object
  std::uint64_t size = 0;  ///< of the object, in bytes
  std::string template_text;
  std::string tokenizer;  ///< fingerprint; empty: the index has no token counts
  std::string format;     ///< Content::format(); empty: the object's own lines are the content
  bool hashes = false;    ///< the index has hashes of documents; it also serves readers who want none
  bool operator==(const IndexIdentity&) const = default;
};

/// Returns a hash of a document's text alone, wherever it is stored. Part of the index's format: the results never
/// change.
std::uint16_t DocumentHash(std::string_view document);

struct RecordExtent {
  std::uint64_t offset = 0;  ///< in the content
  std::uint32_t bytes = 0;   ///< to the next record or the end of the block; includes unusable lines behind the record
  std::uint32_t tokens = 0;  ///< of the document's text; 0 if not counted
  std::uint16_t hash = 0;    ///< DocumentHash; 0 if the index has none
  bool operator==(const RecordExtent&) const = default;
};

struct BrokenLine {
  std::uint64_t offset = 0;  ///< in the content
  BrokenReason reason{};
  bool operator==(const BrokenLine&) const = default;
};

/// A frame, and the range of the content that it holds.
struct IndexedFrame {
  Frame frame;
  std::uint64_t content_offset = 0;
  std::uint32_t content_bytes = 0;
  bool operator==(const IndexedFrame&) const = default;
};

/// Takes about three bytes a record, five with hashes, in memory and in the file. Immutable once built; any thread may
/// read it.
class RecordIndex {
 public:
  /// Broken lines that an index names. 1000 bounds the header, which is parsed as JSON; all are counted.
  static constexpr std::size_t kMaxNamedBroken = 1000;

  std::uint64_t records() const { return records_; }
  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t broken_count() const;
  const std::array<std::uint64_t, kBrokenReasons>& broken_by_reason() const { return broken_by_reason_; }
  const std::vector<BrokenLine>& broken() const { return broken_; }  ///< the first kMaxNamedBroken, by offset
  /// Returns how many records, usable or not, stand in front of broken()[i].
  std::uint64_t RecordsBefore(std::size_t i) const;

  /// Returns DataObject::token_bytes. An index of token ids is never stored, because the object's table is as good.
  int token_bytes() const { return token_bytes_; }

  bool has_hashes() const { return hashes_; }

  /// Returns no frames if the object's own lines are the content.
  std::span<const IndexedFrame> frames() const { return frames_; }
  /// Returns the frame that holds the content at `offset`. REQUIRES: frames() is not empty.
  const IndexedFrame& FrameAt(std::uint64_t offset) const;

  /// Consecutive records that one read can fetch. The blocks cover all records in order.
  struct Block {
    std::uint64_t first_record = 0;
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0, records = 0;
  };
  std::size_t blocks() const { return blocks_.size(); }
  Block block(std::size_t i) const;
  /// Appends the extents of block i.
  void Decode(std::size_t i, std::vector<RecordExtent>& into) const;

  std::string Serialize(const IndexIdentity& identity) const;
  /// Errors: kCorrupt if the bytes are damaged or not an index; kStale if their identity is not `expected`.
  static Result<RecordIndex> Parse(std::string_view bytes, const IndexIdentity& expected);

 private:
  friend class RecordIndexBuilder;
  /// A block as the index stores it; `payload` is where its bits start.
  struct PackedBlock {
    std::uint64_t first_record = 0, offset = 0;
    std::uint32_t bytes = 0, payload = 0, min_delta = 0, min_tokens = 0;
    std::uint8_t delta_bits = 0, token_bits = 0;
    std::uint16_t records = 0;
  };
  std::uint64_t PayloadBytes(const PackedBlock& entry) const;
  /// Sizes of the sections that follow the header.
  struct Sections {
    std::uint64_t blocks = 0;   ///< entries
    std::uint64_t payload = 0;  ///< bytes
    std::uint64_t frames = 0;   ///< entries
  };
  Status ParseHeader(std::string_view header, const IndexIdentity& expected, Sections& sections);
  Status CheckBlocks(std::uint64_t content_bytes) const;
  Status ParseFrames(std::string_view bytes, std::uint64_t count, std::uint64_t object_bytes);
  /// Returns the bytes of content that the frames hold; 0 without frames.
  std::uint64_t FramedBytes() const {
    return frames_.empty() ? 0 : frames_.back().content_offset + frames_.back().content_bytes;
  }

  int token_bytes_ = 0;
  bool hashes_ = false;
  std::vector<IndexedFrame> frames_;
  std::vector<PackedBlock> blocks_;
  std::vector<std::byte> payload_;
  std::uint64_t records_ = 0, tokens_ = 0;
  std::array<std::uint64_t, kBrokenReasons> broken_by_reason_{};
  std::vector<BrokenLine> broken_;
};

/// Makes an index of the lines of an object, or of a part of one: a frame, or any range of plain lines. Lines come in
/// ascending order of offset. One thread.
class RecordIndexBuilder {
 public:
  /// With `hashes` the index keeps the hashes that Add gets. All parts that are appended must agree in this.
  explicit RecordIndexBuilder(bool hashes = false) { index_.hashes_ = hashes; }
  /// All lines are of this frame, and their offsets count from its start. REQUIRES: no line was added.
  void SetFrame(Frame frame, std::uint32_t content_bytes);
  /// The records are token ids of `token_bytes` bytes each. REQUIRES: no record was added.
  void SetTokenBytes(int token_bytes) { index_.token_bytes_ = token_bytes; }
  /// Adds a usable record. `line_bytes` is the length of its line with the newline.
  void Add(std::uint64_t offset, std::uint64_t line_bytes, std::uint32_t tokens, std::uint16_t hash = 0);
  void AddBroken(std::uint64_t offset, BrokenReason reason);
  /// Appends the lines of the next part. If it is a frame, its content follows the content so far.
  void Append(const RecordIndex& next);
  Result<RecordIndex> Finish();

 private:
  // Part of the format (docs/formats/index.md).
  static constexpr std::size_t kBlockRecords = 256;
  static constexpr std::uint64_t kMaxGap = 64 * kKiB, kMaxBlockBytes = 1ull << 31;
  void CloseBlock();

  struct Pending {
    std::uint64_t offset;
    std::uint32_t tokens;
    std::uint16_t hash;
  };
  std::vector<Pending> open_;
  std::uint64_t open_end_ = 0;
  RecordIndex index_;
};

}  // namespace millrace::data
