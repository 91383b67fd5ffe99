// Where the usable records of one object start and how many tokens each has; docs/formats/index.md has the
// bytes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/data/content/content.h"
#include "millrace/data/records/record_template.h"

namespace millrace::data {

/// What an index was made for. Two indexes with equal identities are equal.
struct IndexIdentity {
  std::string etag;        ///< of the object
  std::uint64_t size = 0;  ///< of the object, in bytes
  std::string template_text;
  std::string tokenizer;  ///< fingerprint; empty: tokens are not counted
  std::string format;     ///< Content::format(); empty: the object's own lines
  bool hashes = false;    ///< of documents are in it; one that has them serves those who want none
  bool operator==(const IndexIdentity&) const = default;
};

/// Of a document's text: equal ones have equal hashes, wherever they are stored. Part of the index's format: never
/// changes.
std::uint16_t DocumentHash(std::string_view document);

struct RecordExtent {
  std::uint64_t offset = 0;  ///< in the content
  std::uint32_t bytes = 0;   ///< to the next record or the end of its block: the record and what nobody owns behind it
  std::uint32_t tokens = 0;  ///< of the document's text; 0 when not counted
  std::uint16_t hash = 0;    ///< DocumentHash; 0 when the index has none
  bool operator==(const RecordExtent&) const = default;
};

struct BrokenLine {
  std::uint64_t offset = 0;  ///< in the content
  Broken reason{};
  bool operator==(const BrokenLine&) const = default;
};

/// A frame and its place in the content.
struct IndexedFrame {
  Frame frame;
  std::uint64_t content_offset = 0;
  std::uint32_t content_bytes = 0;
  bool operator==(const IndexedFrame&) const = default;
};

/// Immutable once built; any thread may read it. About three bytes a record, five with hashes, in memory as in the
/// file.
class RecordIndex {
 public:
  static constexpr std::size_t kMaxNamedBroken = 1000;

  std::uint64_t records() const { return records_; }
  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t broken_count() const;
  const std::array<std::uint64_t, kBrokenKinds>& broken_by_reason() const { return broken_by_reason_; }
  const std::vector<BrokenLine>& broken() const { return broken_; }  ///< the first kMaxNamedBroken, by offset

  /// As DataObject::token_bytes. Such an index is never stored: the object's table is as good.
  int token_bytes() const { return token_bytes_; }

  bool has_hashes() const { return hashes_; }

  /// Empty: the object's own lines are the content.
  std::span<const IndexedFrame> frames() const { return frames_; }
  /// The frame that holds the content at `offset`. Only where there are frames.
  const IndexedFrame& FrameAt(std::uint64_t offset) const;

  /// The runs of consecutive records that one read can fetch; they cover all records in order.
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
  /// Fails with kCorrupt if the bytes are damaged or not an index, with kStale if they are for something else than
  /// `expected`.
  static Result<RecordIndex> Parse(std::string_view bytes, const IndexIdentity& expected);

 private:
  friend class RecordIndexBuilder;
  struct Entry {
    std::uint64_t first_record = 0, offset = 0;
    std::uint32_t bytes = 0, payload = 0, min_delta = 0, min_tokens = 0;
    std::uint8_t delta_bits = 0, token_bits = 0;
    std::uint16_t records = 0;
  };
  std::uint64_t PayloadBytes(const Entry& entry) const;
  /// What follows the header.
  struct Sections {
    std::uint64_t blocks = 0;   ///< entries
    std::uint64_t payload = 0;  ///< bytes
    std::uint64_t frames = 0;   ///< entries
  };
  Status ParseHeader(std::string_view header, const IndexIdentity& expected, Sections& sections);
  Status CheckBlocks(std::uint64_t content_bytes) const;
  Status ParseFrames(std::string_view bytes, std::uint64_t count, std::uint64_t object_bytes);
  /// Of the frames; 0 without any.
  std::uint64_t FramedBytes() const {
    return frames_.empty() ? 0 : frames_.back().content_offset + frames_.back().content_bytes;
  }

  int token_bytes_ = 0;
  bool hashes_ = false;
  std::vector<IndexedFrame> frames_;
  std::vector<Entry> blocks_;
  std::vector<std::byte> payload_;
  std::uint64_t records_ = 0, tokens_ = 0;
  std::array<std::uint64_t, kBrokenKinds> broken_by_reason_{};
  std::vector<BrokenLine> broken_;
};

/// Takes the lines of an object, or of a part of one (a frame, or any range of plain lines), in order of offset. One
/// owner.
class RecordIndexBuilder {
 public:
  /// With `hashes` the index keeps those that Add is given. Parts that are put together agree in this.
  explicit RecordIndexBuilder(bool hashes = false) { index_.hashes_ = hashes; }
  /// The lines are those of this frame, alone: their offsets count from its start. Before any line.
  void SetFrame(Frame frame, std::uint32_t content_bytes);
  /// The records are token ids of so many bytes each. Before any record.
  void SetTokenBytes(int token_bytes) { index_.token_bytes_ = token_bytes; }
  /// A usable record whose line, newline included, is `line_bytes` long.
  void Add(std::uint64_t offset, std::uint64_t line_bytes, std::uint32_t tokens, std::uint16_t hash = 0);
  void AddBroken(std::uint64_t offset, Broken reason);
  /// The lines of the part that follows. Frames follow each other in the content.
  void Append(const RecordIndex& next);
  Result<RecordIndex> Finish();

 private:
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
