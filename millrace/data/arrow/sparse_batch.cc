#include "millrace/data/arrow/sparse_batch.h"

#include <arrow/array.h>
#include <arrow/array/concatenate.h>
#include <arrow/extension_type.h>
#include <arrow/io/memory.h>
#include <arrow/ipc/reader.h>
#include <arrow/type_traits.h>
#include <arrow/util/bit_util.h>
#include <arrow/util/compression.h>
#include <arrow/util/type_fwd.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "millrace/base/text.h"
#include "millrace/data/arrow/ipc_metadata.h"
#include "millrace/data/arrow/status.h"
#include "millrace/data/records/content.h"

namespace millrace::data::arrow_format {
namespace {

// Arrow's format: each message begins with the continuation marker. The marker and a zero length end the stream.
constexpr std::uint32_t kMessageBegin = 0xFFFFFFFF;
constexpr std::size_t kEndBytes = 8;
constexpr std::int64_t kMaxRows = std::int64_t{1} << 60;  // the sum of two does not overflow
/// The most decompressed bytes of one batch. 1 TiB: reserved addresses, which fit in the 128 TiB of a process.
constexpr std::uint64_t kMaxDecompressed = std::uint64_t{1} << 40;
/// 64 bytes: the alignment that Arrow recommends for buffers.
constexpr std::uint64_t kAlignment = 64;
/// Ranges of a buffer with a smaller gap between them are read at once. A guess: 64 KiB cost less than a round trip.
constexpr std::int64_t kSmallGap = 64 * kKiB;

const arrow::DataType* StorageOf(const arrow::DataType* type) {
  if (type->id() != arrow::Type::EXTENSION) return type;
  return static_cast<const arrow::ExtensionType*>(type)->storage_type().get();
}

/// Returns true if offsets and widths tell which bytes of such a column belong to some of its rows.
bool CanBeCut(const arrow::DataType& type) {
  const arrow::DataType& storage = *StorageOf(&type);
  switch (storage.id()) {
    case arrow::Type::NA:
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
      return true;
    case arrow::Type::LIST:
    case arrow::Type::MAP:
    case arrow::Type::LARGE_LIST:
    case arrow::Type::FIXED_SIZE_LIST:
    case arrow::Type::STRUCT:
      return std::ranges::all_of(storage.fields(), [](const auto& field) { return CanBeCut(*field->type()); });
    default:
      return arrow::is_fixed_width(storage.id());
  }
}

/// The size of one read, and the decompressed bytes that are dropped at a time. A guess: one read costs a round trip,
/// and the output stays in the second-level cache.
constexpr std::uint64_t kInputBytes = 1 * kMiB, kOutputBytes = 256 * kKiB;

const std::uint8_t* ToArrow(const std::byte* bytes) { return reinterpret_cast<const std::uint8_t*>(bytes); }
std::uint8_t* ToArrow(std::byte* bytes) { return reinterpret_cast<std::uint8_t*>(bytes); }

/// Decompresses the range `compressed` of the object, and fills `into` with the decompressed bytes from `first` on.
/// Decompresses everything in front of `first` too, about a MiB at a time. Blocks.
/// Errors: kCorrupt if the compressed bytes are damaged or end early; else those of ReadRange.
Status ReadCompressedPart(const DataObject& object, object::ByteRange compressed, arrow::Compression::type codec,
                          std::uint64_t first, MutableByteSpan into, const object::Call& call) {
  auto undoes = MR_ARROW_TRY(object.url, arrow::util::Codec::Create(codec));
  auto decoder = MR_ARROW_TRY(object.url, undoes->MakeDecompressor());
  auto damaged = [&] {
    return Fail(Code::kCorrupt, "{}: the compressed buffer at byte {} is damaged", object.url, compressed.offset);
  };
  Buffer input(std::min(kInputBytes, compressed.length)), passed(kOutputBytes);
  std::uint64_t fetched = 0, made = 0;  // compressed bytes that were read, decompressed bytes that were made
  ByteSpan rest;
  while (made < first + into.size()) {
    if (rest.empty() && fetched < compressed.length) {
      const auto some = input.span().first(std::min<std::uint64_t>(input.size(), compressed.length - fetched));
      MR_TRY(ReadRange(object, compressed.offset + fetched, some, "reading records of", call));
      fetched += some.size();
      rest = some;
    }
    // Bytes in front of `first` go to a scratch buffer, the others to `into`.
    const MutableByteSpan room = made < first
                                     ? passed.span().first(std::min<std::uint64_t>(passed.size(), first - made))
                                     : into.subspan(made - first);
    auto done = decoder->Decompress(static_cast<std::int64_t>(rest.size()), ToArrow(rest.data()),
                                    static_cast<std::int64_t>(room.size()), ToArrow(room.data()));
    if (!done.ok()) return damaged();
    rest = rest.subspan(static_cast<std::size_t>(done->bytes_read));
    made += static_cast<std::uint64_t>(done->bytes_written);
    const bool stuck = done->bytes_read == 0 && done->bytes_written == 0;
    const bool at_end = decoder->IsFinished() || (stuck && (!rest.empty() || fetched == compressed.length));
    if (at_end && made < first + into.size()) return damaged();
  }
  return {};
}

}  // namespace

SparseBatch::~SparseBatch() {
  batch_.reset();
  for (const Mapping& mapping : {stream_, decompressed_}) {
    if (mapping.memory != nullptr) ::munmap(mapping.memory, mapping.bytes);
  }
}

Result<std::unique_ptr<SparseBatch>> SparseBatch::Open(const DataObject& object, object::ByteRange message,
                                                       const arrow::Buffer& preamble, const std::vector<int>& columns,
                                                       object::Call call) {
  auto made = std::unique_ptr<SparseBatch>(new SparseBatch(object, message));
  MR_TRY(made->Map(preamble, call));
  if (!made->LayOut(columns)) return nullptr;
  MR_TRY(made->CheckRows());
  if (made->compressed()) MR_TRY(made->MapDecompressed(call));
  return made;
}

Result<SparseBatch::Mapping> SparseBatch::MapAddresses(std::size_t bytes) const {
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return Fail(Code::kResourceExhausted, "{}: no addresses for a record batch of {}", object_.url, FormatBytes(bytes));
  }
  return Mapping{static_cast<std::byte*>(mapped), bytes};
}

Status SparseBatch::Map(const arrow::Buffer& preamble, const object::Call& call) {
  if (message_.length < 8 || message_.offset > object_.info.size ||
      message_.length > object_.info.size - message_.offset) {
    return Damaged();
  }
  batch_at_ = static_cast<std::size_t>(preamble.size());
  stream_ = MR_TRY(MapAddresses(batch_at_ + message_.length + kEndBytes));
  std::memcpy(stream_.memory, preamble.data(), batch_at_);
  MutableByteSpan batch(stream_.memory + batch_at_, message_.length);
  MR_TRY(ReadRange(object_, message_.offset, batch.first(8), "reading", call));
  std::uint64_t head = 4, metadata = LoadLittle<std::uint32_t>(batch.data());
  if (metadata == kMessageBegin) {
    head = 8;
    metadata = LoadLittle<std::uint32_t>(batch.data() + 4);
  }
  if (metadata > message_.length - head) return Damaged();
  MR_TRY(ReadRange(object_, message_.offset + head, batch.subspan(head, metadata), "reading", call));
  auto codec = TakeCompression(batch.subspan(head, metadata));
  if (!codec) {
    return Fail(codec.error().Context(fmt::format("{}: the record batch at byte {}", object_.url, message_.offset)));
  }
  codec_ = *codec;
  StoreLittle(stream_.memory + stream_.bytes - kEndBytes, std::uint64_t{kMessageBegin});
  return {};
}

bool SparseBatch::LayOut(const std::vector<int>& columns) {
  auto options = arrow::ipc::IpcReadOptions::Defaults();
  options.use_threads = false;
  options.included_fields = columns;
  auto stream = std::make_shared<arrow::io::BufferReader>(std::make_shared<arrow::Buffer>(
      reinterpret_cast<const std::uint8_t*>(stream_.memory), static_cast<std::int64_t>(stream_.bytes)));
  auto reader = arrow::ipc::RecordBatchStreamReader::Open(stream, options);
  if (!reader.ok() || !(*reader)->ReadNext(&batch_).ok() || !batch_) return false;
  return std::ranges::all_of(batch_->column_data(),
                             [&](const auto& data) { return CanBeCut(*data->type) && CheckBuffers(*data); });
}

/// Adds up bytes_. Returns false if a buffer is outside the message's addresses, or not aligned there.
bool SparseBatch::CheckBuffers(const arrow::ArrayData& data) {
  for (const auto& buffer : data.buffers) {
    if (!buffer || buffer->size() == 0) continue;
    const auto* at = reinterpret_cast<const std::byte*>(buffer->data());
    const std::byte* end = stream_.memory + stream_.bytes - kEndBytes;
    if (at < stream_.memory + batch_at_ || at > end || buffer->size() > end - at) return false;
    if (!compressed() && (at - stream_.memory) % 8 != 0) return false;
    bytes_ += static_cast<std::uint64_t>(buffer->size());
  }
  return std::ranges::all_of(data.child_data, [&](const auto& child) { return CheckBuffers(*child); });
}

Status SparseBatch::CheckRows() const {
  const std::int64_t rows = batch_->num_rows();
  if (rows < 0 || rows > kMaxRows) return Damaged();
  for (const auto& data : batch_->column_data()) {
    if (data->length != rows) return Damaged();
  }
  return {};
}

/// Reserves addresses for the decompressed buffers, and makes batch_ point to them.
Status SparseBatch::MapDecompressed(const object::Call& call) {
  for (const auto& data : batch_->column_data()) MR_TRY(FindCompressed(*data, call));
  std::uint64_t bytes = 0;
  bytes_ = 0;
  for (const CompressedBuffer& buffer : compressed_) {
    if (buffer.bytes > kMaxDecompressed || bytes > kMaxDecompressed) return Damaged();
    bytes += (buffer.bytes + kAlignment - 1) / kAlignment * kAlignment;
    bytes_ += buffer.bytes;
  }
  if (bytes > kMaxDecompressed) return Damaged();
  decompressed_ = MR_TRY(MapAddresses(static_cast<std::size_t>(bytes + kAlignment)));
  std::byte* target = decompressed_.memory;
  for (CompressedBuffer& buffer : compressed_) {
    buffer.target = target;
    target += (buffer.bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  std::vector<std::shared_ptr<arrow::ArrayData>> columns;
  std::size_t next = 0;
  for (const auto& data : batch_->column_data()) columns.push_back(WithTargets(*data, next));
  batch_ = arrow::RecordBatch::Make(batch_->schema(), batch_->num_rows(), std::move(columns));
  return {};
}

/// Reads the size in front of each buffer: its decompressed bytes, or -1 if this buffer is not compressed.
Status SparseBatch::FindCompressed(const arrow::ArrayData& data, const object::Call& call) {
  constexpr std::uint64_t kSizeBytes = 8;
  for (const auto& buffer : data.buffers) {
    if (!buffer || buffer->size() == 0) continue;
    const auto there = static_cast<std::uint64_t>(buffer->size());
    if (there < kSizeBytes) return Damaged();
    const auto at = message_.offset +
                    static_cast<std::uint64_t>(reinterpret_cast<const std::byte*>(buffer->data()) - stream_.memory) -
                    batch_at_;
    std::byte size[kSizeBytes];
    MR_TRY(ReadRange(object_, at, size, "reading", call));
    const auto said = LoadLittle<std::int64_t>(size);
    if (said < -1) return Damaged();
    compressed_.push_back({.at = {at + kSizeBytes, there - kSizeBytes},
                           .compressed = said >= 0,
                           .bytes = said >= 0 ? static_cast<std::uint64_t>(said) : there - kSizeBytes});
  }
  for (const auto& child : data.child_data) MR_TRY(FindCompressed(*child, call));
  return {};
}

/// Returns `data` with the targets of compressed buffers, from compressed_[next] on, in place of the buffers.
std::shared_ptr<arrow::ArrayData> SparseBatch::WithTargets(const arrow::ArrayData& data, std::size_t& next) const {
  auto changed = std::make_shared<arrow::ArrayData>(data);
  for (auto& buffer : changed->buffers) {
    if (!buffer || buffer->size() == 0) continue;
    const CompressedBuffer& source = compressed_[next++];
    buffer = std::make_shared<arrow::Buffer>(reinterpret_cast<const std::uint8_t*>(source.target),
                                             static_cast<std::int64_t>(source.bytes));
  }
  for (auto& child : changed->child_data) child = WithTargets(*child, next);
  return changed;
}

Result<std::shared_ptr<arrow::RecordBatch>> SparseBatch::Read(std::uint64_t first, std::uint64_t rows,
                                                              arrow::MemoryPool* pool, const object::Call& call) {
  if (first > this->rows() || rows > this->rows() - first) return Damaged();
  const auto from = static_cast<std::int64_t>(first), count = static_cast<std::int64_t>(rows);
  arrow::ArrayVector columns;
  for (const auto& data : batch_->column_data()) {
    MR_TRY(FetchRows(*data, from, count, call));
    // A copy, because later checks of the whole array would read bytes that were not fetched.
    auto slice = arrow::MakeArray(data->Slice(from, count));
    columns.push_back(MR_ARROW_TRY(object_.url, arrow::Concatenate({slice}, pool)));
  }
  return arrow::RecordBatch::Make(batch_->schema(), count, std::move(columns));
}

/// Fetches all bytes of `rows` rows of an array, from `first` on.
Status SparseBatch::FetchRows(const arrow::ArrayData& data, std::int64_t first, std::int64_t rows,
                              const object::Call& call) {
  if (data.offset < 0 || data.offset > kMaxRows || data.length > kMaxRows) return Damaged();
  if (first < 0 || rows < 0 || first > data.length || rows > data.length - first) return Damaged();
  const std::int64_t at = data.offset + first;
  const arrow::DataType& storage = *StorageOf(data.type.get());
  const arrow::Type::type type = storage.id();
  auto bits = [&](std::size_t i) { return Fetch(data.buffers[i], at / 8, (at + rows + 7) / 8 - at / 8, 1, call); };
  if (type == arrow::Type::NA) return {};
  if (!data.buffers.empty() && data.buffers[0]) MR_TRY(bits(0));
  switch (type) {
    case arrow::Type::BOOL:
      return bits(1);
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
    case arrow::Type::LIST:
    case arrow::Type::MAP:
      return FetchOffsets<std::int32_t>(data, at, rows, call);
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
    case arrow::Type::LARGE_LIST:
      return FetchOffsets<std::int64_t>(data, at, rows, call);
    case arrow::Type::FIXED_SIZE_LIST: {
      const std::int64_t each = static_cast<const arrow::FixedSizeListType&>(storage).list_size();
      if (rows == 0 || each == 0) return {};
      const std::int64_t lists = each < 0 ? 0 : data.child_data[0]->length / each;
      if (at > lists || rows > lists - at) return Damaged();
      return FetchRows(*data.child_data[0], at * each, rows * each, call);
    }
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
      return FetchViews(data, at, rows, call);
    case arrow::Type::STRUCT:
      for (const auto& child : data.child_data) MR_TRY(FetchRows(*child, at, rows, call));
      return {};
    default:
      break;
  }
  return Fetch(data.buffers[1], at, rows, storage.byte_width(), call);
}

/// A view is inline, or names a range of one of the buffers.
Status SparseBatch::FetchViews(const arrow::ArrayData& data, std::int64_t at, std::int64_t rows,
                               const object::Call& call) {
  using View = arrow::BinaryViewType::c_type;
  MR_TRY(Fetch(data.buffers[1], at, rows, sizeof(View), call));
  if (rows == 0) return {};
  const auto* views = reinterpret_cast<const View*>(data.buffers[1]->data()) + at;
  const std::uint8_t* valid = data.buffers[0] ? data.buffers[0]->data() : nullptr;
  struct CompressedRange {
    std::int32_t buffer;
    std::int64_t first, end;
  };
  std::vector<CompressedRange> parts;
  for (std::int64_t i = 0; i < rows; ++i) {
    const View& view = views[i];
    if ((valid != nullptr && !arrow::bit_util::GetBit(valid, at + i)) || view.is_inline()) continue;
    if (view.ref.buffer_index < 0 || view.ref.offset < 0) return Damaged();
    parts.push_back({view.ref.buffer_index, view.ref.offset, std::int64_t{view.ref.offset} + view.size()});
  }
  std::ranges::sort(parts, {}, [](const CompressedRange& part) { return std::pair(part.buffer, part.first); });
  for (std::size_t i = 0; i < parts.size();) {
    CompressedRange whole = parts[i];
    for (++i; i < parts.size() && parts[i].buffer == whole.buffer; ++i) {
      // A compressed buffer is read from its beginning for each range, so its ranges are joined whatever the gap.
      if (!compressed() && parts[i].first - whole.end > kSmallGap) break;
      whole.end = std::max(whole.end, parts[i].end);
    }
    const std::size_t buffer = 2 + static_cast<std::size_t>(whole.buffer);
    if (buffer >= data.buffers.size()) return Damaged();
    MR_TRY(Fetch(data.buffers[buffer], whole.first, whole.end - whole.first, 1, call));
  }
  return {};
}

template <class Offset>
Status SparseBatch::FetchOffsets(const arrow::ArrayData& data, std::int64_t at, std::int64_t rows,
                                 const object::Call& call) {
  if (rows == 0) return {};
  MR_TRY(Fetch(data.buffers[1], at, rows + 1, sizeof(Offset), call));
  const auto* offsets = reinterpret_cast<const Offset*>(data.buffers[1]->data()) + at;
  if (offsets[0] < 0 || !std::is_sorted(offsets, offsets + rows + 1)) return Damaged();
  const auto first = static_cast<std::int64_t>(offsets[0]), end = static_cast<std::int64_t>(offsets[rows]);
  if (!data.child_data.empty()) return FetchRows(*data.child_data[0], first, end - first, call);
  return Fetch(data.buffers[2], first, end - first, 1, call);
}

Status SparseBatch::Fetch(const std::shared_ptr<arrow::Buffer>& buffer, std::int64_t first, std::int64_t count,
                          std::int64_t width, const object::Call& call) {
  if (count == 0 || width == 0) return {};
  if (!buffer || first < 0 || count < 0 || width < 0) return Damaged();
  const std::int64_t there = buffer->size() / width;
  if (first > there || count > there - first) return Damaged();
  const std::int64_t from = first * width, bytes = count * width;
  fetched_ += static_cast<std::uint64_t>(bytes);
  if (fetched_ > kMaxFrameContent) {
    return Fail(Code::kUnsupported, "{}: rows of the record batch at byte {} hold more than {}", object_.url,
                message_.offset, FormatBytes(kMaxFrameContent));
  }
  const auto* start = reinterpret_cast<const std::byte*>(buffer->data());
  if (compressed()) return Decompress(start, static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(bytes), call);
  const auto at = static_cast<std::size_t>(start - stream_.memory) + static_cast<std::size_t>(from);
  return ReadRange(object_, message_.offset + (at - batch_at_), {stream_.memory + at, static_cast<std::size_t>(bytes)},
                   "reading records of", call);
}

Status SparseBatch::Decompress(const std::byte* buffer, std::uint64_t from, std::uint64_t bytes,
                               const object::Call& call) {
  // The last of those with this target: a buffer without bytes has the same target as the next one.
  const auto source = std::prev(std::ranges::upper_bound(compressed_, buffer, {}, &CompressedBuffer::target));
  const MutableByteSpan into(source->target + from, static_cast<std::size_t>(bytes));
  if (!source->compressed) return ReadRange(object_, source->at.offset + from, into, "reading records of", call);
  return ReadCompressedPart(object_, source->at, codec_, from, into, call);
}

std::unexpected<Error> SparseBatch::Damaged() const {
  return Fail(Code::kCorrupt, "{}: the record batch at byte {} is damaged", object_.url, message_.offset);
}

}  // namespace millrace::data::arrow_format
