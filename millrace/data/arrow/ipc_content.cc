#include "millrace/data/arrow/ipc_content.h"

#include <arrow/buffer.h>
#include <arrow/io/memory.h>
#include <arrow/ipc/message.h>
#include <arrow/ipc/reader.h>
#include <arrow/memory_pool.h>
#include <arrow/util/compression.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "millrace/base/text.h"
#include "millrace/base/threads/sync.h"
#include "millrace/data/arrow/ipc_metadata.h"
#include "millrace/data/arrow/json_rows.h"
#include "millrace/data/arrow/memory.h"
#include "millrace/data/arrow/sparse_batch.h"
#include "millrace/data/arrow/status.h"

namespace millrace::data::arrow_format {
namespace {

/// The least bytes of a frame of whole batches. 512 KiB: the size of a chunk of plain records (order/plan.h).
constexpr std::uint64_t kFrameBytes = 512 * kKiB;
/// Bytes of a read that looks for a message's header. A guess: headers are mostly smaller, bodies mostly larger.
constexpr std::uint64_t kWindowBytes = 64 * kKiB;
/// A guess: far more than a schema of thousands of columns needs. Bounds what a damaged length can allocate.
constexpr std::uint64_t kMaxMetadataBytes = 64 * kMiB;
/// Batches of more than 8 MiB are read in slices of about 4 MiB (kFrameTarget). Each slice of a compressed batch
/// decompresses everything in front of it, so these slices are larger and fewer. 8 and 32 MiB are guesses.
constexpr std::uint64_t kSplitBytes = 8 * kMiB, kSliceBytes = 4 * kMiB, kCompressedSliceBytes = 32 * kMiB;
/// The decompressed size of smaller compressed batches is not looked up, which costs a read for each buffer. A guess:
/// 1 MiB rarely decompresses to more than a slice.
constexpr std::uint64_t kLookBytes = 1 * kMiB;
/// A guess: the state of each frame names every dictionary, with 16 bytes.
constexpr std::size_t kMaxDictionaries = 1024;
/// u64 words of a dictionary and of a slice in a frame's state (README.md).
constexpr std::size_t kDictionaryWords = 2, kSliceWords = 3;
constexpr std::uint32_t kContinuation = 0xFFFFFFFF;  ///< begins each message, since Arrow 0.15
/// The file format is a stream between this magic and a footer. The footer only repeats the offsets of the batches.
constexpr std::string_view kFileMagic{"ARROW1\0\0", 8};

/// One message of a stream, and its range in the object.
struct MessageAt {
  arrow::ipc::MessageType type{};
  std::uint64_t offset = 0, bytes = 0;
  bool compressed = false;  ///< a record batch with compressed buffers
};

/// Reads the headers of a stream's messages, one after the other, without their bodies.
class MessageWalk {
 public:
  MessageWalk(const DataObject& object, object::Call call) : object_(object), call_(std::move(call)) {}

  /// Returns the next message. Nothing at the end of the stream.
  Result<std::optional<MessageAt>> Next() {
    if (at_ == 0 && MR_TRY(Bytes(0, kFileMagic.size())) == kFileMagic) at_ = kFileMagic.size();
    const std::uint64_t size = object_.info.size;
    if (at_ == size) return std::nullopt;  // a stream may lack its end marker
    std::string_view head = MR_TRY(Bytes(at_, 8));
    if (head.size() < 4) return Corrupt("is cut off");
    auto length = LoadLittle<std::uint32_t>(AsBytes(head).data());
    std::uint64_t prefix = 4;  // streams of Arrow before 0.15 have no continuation marker
    if (length == kContinuation) {
      if (head.size() < 8) return Corrupt("is cut off");
      length = LoadLittle<std::uint32_t>(AsBytes(head).data() + 4);
      prefix = 8;
    }
    if (length == 0) return std::nullopt;
    if (length > kMaxMetadataBytes || length > size - at_ - prefix) {
      return Corrupt("does not begin as one, or is cut off");
    }
    std::string metadata(MR_TRY(Bytes(at_, prefix + length)).substr(prefix));
    auto message = arrow::ipc::Message::Open(arrow::Buffer::FromString(metadata), nullptr);
    if (!message.ok()) return Corrupt(message.status().message());
    std::int64_t body = (*message)->body_length();
    if (body < 0 || static_cast<std::uint64_t>(body) > size - at_ - prefix - length) return Corrupt("is cut off");
    MessageAt found{(*message)->type(), at_, prefix + length + static_cast<std::uint64_t>(body)};
    if (found.type == arrow::ipc::MessageType::RECORD_BATCH) {
      auto codec = TakeCompression(std::as_writable_bytes(std::span(metadata)));
      if (!codec) return Fail(codec.error().Context(fmt::format("{}: the record batch at byte {}", object_.url, at_)));
      found.compressed = *codec != arrow::Compression::UNCOMPRESSED;
    }
    at_ += found.bytes;
    return found;
  }

 private:
  std::unexpected<Error> Corrupt(std::string_view why) const {
    return Fail(Code::kCorrupt, "{}: the Arrow message at byte {} {}", object_.url, at_, why);
  }

  /// Returns `count` bytes from `offset` on, less at the object's end. Valid until the next call.
  Result<std::string_view> Bytes(std::uint64_t offset, std::uint64_t count) {
    count = std::min(count, object_.info.size - offset);
    if (offset < window_at_ || offset + count > window_at_ + window_.size()) {
      window_ = Buffer(std::min(std::max(count, kWindowBytes), object_.info.size - offset));
      window_at_ = offset;
      MR_TRY(ReadRange(object_, offset, window_.span(), "reading", call_));
    }
    return AsText(window_).substr(offset - window_at_, count);
  }

  const DataObject& object_;
  const object::Call call_;
  std::uint64_t at_ = 0;
  Buffer window_;
  std::uint64_t window_at_ = 0;
};

class IpcContent final : public Content {
 public:
  IpcContent(DataObject object, std::vector<std::string> fields)
      : object_(std::move(object)),
        fields_(std::move(fields)),
        format_(fmt::format("arrow({})", fmt::join(fields_, ","))) {}

  std::string_view format() const override { return format_; }

  Status FindFrames(const FrameSink& found, object::Call call) const override {
    return Guard(object_.url, [&]() -> Status {
      MessageWalk walk(object_, call);
      MR_TRY(Begin(walk));
      Frame open;
      auto close = [&]() -> Status {
        Frame next{.state = open.state};  // the dictionaries stay in force
        return open.bytes > 0 ? found(std::exchange(open, std::move(next)), std::nullopt) : Status();
      };
      while (auto message = MR_TRY(walk.Next())) {
        if (message->type == arrow::ipc::MessageType::DICTIONARY_BATCH) {
          MR_TRY(close());
          MR_TRY(AddDictionary(*message, open.state));
          continue;
        }
        if (message->bytes > (message->compressed ? kLookBytes : kSplitBytes) &&
            message->type == arrow::ipc::MessageType::RECORD_BATCH) {
          MR_TRY(close());
          if (MR_TRY(FindSlices(*message, open.state, found, call))) continue;
        }
        MR_TRY(CheckBatch(*message));
        if (open.bytes == 0) open.offset = message->offset;
        open.bytes = message->offset + message->bytes - open.offset;
        if (open.bytes >= kFrameBytes) MR_TRY(close());
      }
      return close();
    });
  }

  Result<Buffer> ReadFrame(const Frame& frame, object::Call call) const override {
    std::string what = fmt::format("{}: the record batches at byte {}", object_.url, frame.offset);
    return Guard(what, [&]() -> Result<Buffer> {
      auto schema = MR_TRY(LoadSchema(call));
      MemoryLimit memory;
      if (IsSlice(frame.state)) return ReadSlice(frame, *schema, memory, what, call);
      std::shared_ptr<arrow::Buffer> stream = MR_TRY(Assemble(schema->message, frame, memory, call));
      auto options = arrow::ipc::IpcReadOptions::Defaults();
      options.memory_pool = memory.pool();
      options.use_threads = false;
      // Writers align their buffers, but a damaged object may not.
      options.ensure_alignment = arrow::ipc::Alignment::kDataTypeSpecificAlignment;
      options.included_fields = schema->columns;
      auto reader = MR_ARROW_TRY(
          what, arrow::ipc::RecordBatchStreamReader::Open(std::make_shared<arrow::io::BufferReader>(stream), options));
      RecordLines lines;
      std::shared_ptr<arrow::RecordBatch> batch;
      while (true) {
        MR_ARROW_TRY(what, reader->ReadNext(&batch));
        if (!batch) break;
        MR_TRY(AppendRows(*batch, what, lines));
      }
      return lines.TakeLines();
    });
  }

 private:
  struct Schema {
    MessageAt message;
    std::vector<int> columns;  ///< the wanted ones
  };

  /// Returns true for the state of a slice, which has kSliceWords behind the dictionaries.
  static bool IsSlice(std::string_view state) { return state.size() % (8 * kDictionaryWords) != 0; }

  /// Cuts a batch that is too large for a frame into slices. Returns false if it is small or can only be read whole.
  Result<bool> FindSlices(const MessageAt& message, const std::string& dictionaries, const FrameSink& found,
                          const object::Call& call) const {
    auto schema = MR_TRY(LoadSchema(call));
    MemoryLimit memory;
    auto batch = MR_TRY(OpenSparse(*schema, dictionaries, {message.offset, message.bytes}, memory, call));
    if (!batch) return false;
    const std::uint64_t rows = batch->rows(), bytes = std::max<std::uint64_t>(batch->bytes(), 1);
    const std::uint64_t slice_bytes = batch->compressed() ? kCompressedSliceBytes : kSliceBytes;
    if (message.bytes <= kSplitBytes && bytes <= slice_bytes) return false;
    // Floating point, because a product with `rows`, which may be up to 2^60, would overflow.
    const double share = std::min(1.0, static_cast<double>(slice_bytes) / static_cast<double>(bytes));
    const auto each = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(rows) * share));
    for (std::uint64_t first = 0; first < rows; first += each) {
      const std::uint64_t count = std::min(each, rows - first);
      std::array<std::byte, 8 * kSliceWords> slice;
      StoreLittle(slice.data(), message.bytes);
      StoreLittle(slice.data() + 8, first);
      StoreLittle(slice.data() + 16, count);
      const auto of_bytes = static_cast<double>(bytes) * static_cast<double>(count) / static_cast<double>(rows);
      MR_TRY(found({.offset = message.offset,
                    .bytes = std::min(message.bytes, static_cast<std::uint64_t>(of_bytes) + 1),
                    .state = dictionaries + std::string(AsText(slice))},
                   std::nullopt));
    }
    return true;
  }

  Result<Buffer> ReadSlice(const Frame& frame, const Schema& schema, MemoryLimit& memory, const std::string& what,
                           const object::Call& call) const {
    const std::string_view state = frame.state;
    if (state.size() < 8 * kSliceWords) return Fail(Code::kCorrupt, "{}: the index is damaged; delete it", what);
    const std::size_t dictionaries = state.size() - 8 * kSliceWords;
    const std::byte* slice = AsBytes(state).data() + dictionaries;
    auto batch = MR_TRY(OpenSparse(schema, state.substr(0, dictionaries),
                                   {frame.offset, LoadLittle<std::uint64_t>(slice)}, memory, call));
    if (!batch) return Fail(Code::kCorrupt, "{}: not those that their index was made of; delete the index", what);
    auto rows = MR_TRY(
        batch->Read(LoadLittle<std::uint64_t>(slice + 8), LoadLittle<std::uint64_t>(slice + 16), memory.pool(), call));
    RecordLines lines;
    MR_TRY(AppendRows(*rows, what, lines));
    return lines.TakeLines();
  }

  Result<std::unique_ptr<SparseBatch>> OpenSparse(const Schema& schema, std::string_view dictionaries,
                                                  object::ByteRange message, MemoryLimit& memory,
                                                  const object::Call& call) const {
    auto stream = MR_TRY(Assemble(schema.message, {.state = std::string(dictionaries)}, memory, call));
    const auto preamble = arrow::SliceBuffer(stream, 0, stream->size() - 8);  // without the end marker
    return SparseBatch::Open(object_, message, *preamble, schema.columns, call);
  }

  /// Returns the stream's first message. Errors: kCorrupt if it is not a schema.
  Result<MessageAt> Begin(MessageWalk& walk) const {
    auto first = MR_TRY(walk.Next());
    if (!first || first->type != arrow::ipc::MessageType::SCHEMA) {
      return Fail(Code::kCorrupt, "{}: does not begin with a schema, as Arrow data do", object_.url);
    }
    return *first;
  }

  Status AddDictionary(const MessageAt& message, std::string& state) const {
    if (state.size() / 16 >= kMaxDictionaries) {
      return Fail(Code::kUnsupported, "{}: more than {} dictionaries; write the columns without", object_.url,
                  kMaxDictionaries);
    }
    std::array<std::byte, 16> entry;
    StoreLittle(entry.data(), message.offset);
    StoreLittle(entry.data() + 8, message.bytes);
    state += AsText(entry);
    return {};
  }

  Status CheckBatch(const MessageAt& message) const {
    if (message.type != arrow::ipc::MessageType::RECORD_BATCH) {
      return Fail(Code::kUnsupported, "{}: the Arrow message at byte {} holds no rows", object_.url, message.offset);
    }
    if (message.bytes > kMaxFrameContent) {
      return Fail(Code::kUnsupported,
                  "{}: the record batch at byte {} is {}, one column cannot be cut, and {} is the most; write smaller "
                  "ones (datasets: writer_batch_size, pyarrow: max_chunksize)",
                  object_.url, message.offset, FormatBytes(message.bytes), FormatBytes(kMaxFrameContent));
    }
    return {};
  }

  /// Returns the schema. Reads it in the first call.
  Result<std::shared_ptr<const Schema>> LoadSchema(object::Call call) const {
    MutexLock lock(mutex_);
    if (schema_) return schema_;
    MessageWalk walk(object_, call);
    auto schema = std::make_shared<Schema>(Schema{.message = MR_TRY(Begin(walk))});
    MemoryLimit memory;
    auto stream = MR_TRY(Assemble(schema->message, {}, memory, call));
    auto reader = MR_ARROW_TRY(
        object_.url, arrow::ipc::RecordBatchStreamReader::Open(std::make_shared<arrow::io::BufferReader>(stream)));
    schema->columns = MR_TRY(ChooseColumns(reader->schema()->field_names(), fields_, object_.url));
    schema_ = schema;
    return schema_;
  }

  /// Reads the frame as a stream of its own: schema, dictionaries, the frame's batches, and the end marker.
  Result<std::shared_ptr<arrow::Buffer>> Assemble(const MessageAt& schema, const Frame& frame, MemoryLimit& memory,
                                                  object::Call call) const {
    std::vector<object::ByteRange> parts = {{schema.offset, schema.bytes}};
    for (std::size_t i = 0; i + 16 <= frame.state.size(); i += 16) {
      const std::byte* entry = AsBytes(frame.state).data() + i;
      parts.push_back({LoadLittle<std::uint64_t>(entry), LoadLittle<std::uint64_t>(entry + 8)});
    }
    if (frame.bytes > 0) parts.push_back({frame.offset, frame.bytes});
    std::uint64_t bytes = 8;
    for (const object::ByteRange& part : parts) {
      if (part.length > object_.info.size || part.offset > object_.info.size - part.length) {
        return Fail(Code::kCorrupt, "{}: the index names bytes beyond the end; delete the index", object_.url);
      }
      bytes += part.length;
    }
    std::shared_ptr<arrow::Buffer> stream =
        MR_ARROW_TRY(object_.url, arrow::AllocateBuffer(static_cast<std::int64_t>(bytes), memory.pool()));
    MutableByteSpan into(reinterpret_cast<std::byte*>(stream->mutable_data()), bytes);
    for (const object::ByteRange& part : parts) {
      MR_TRY(ReadRange(object_, part.offset, into.first(part.length), "reading records of", call));
      into = into.subspan(part.length);
    }
    StoreLittle(into.data(), std::uint64_t{kContinuation});
    return stream;
  }

  const DataObject object_;
  const std::vector<std::string> fields_;
  const std::string format_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<const Schema> schema_ MR_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<const Content> MakeIpcContent(DataObject object, std::vector<std::string> fields) {
  return std::make_shared<IpcContent>(std::move(object), std::move(fields));
}

}  // namespace millrace::data::arrow_format
