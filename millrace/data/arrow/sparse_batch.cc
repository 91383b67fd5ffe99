#include "millrace/data/arrow/sparse_batch.h"

#include <arrow/array.h>
#include <arrow/array/concatenate.h>
#include <arrow/extension_type.h>
#include <arrow/io/memory.h>
#include <arrow/ipc/reader.h>
#include <arrow/type_traits.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "millrace/base/text.h"
#include "millrace/data/arrow/status.h"

namespace millrace::data::arrow_format {
namespace {

constexpr std::uint32_t kMessageBegin = 0xFFFFFFFF;
constexpr std::size_t kEndBytes = 8;
constexpr std::int64_t kMostRows = std::int64_t{1} << 60;  // sums of two do not overflow

const arrow::DataType* StorageOf(const arrow::DataType* type) {
  if (type->id() != arrow::Type::EXTENSION) return type;
  return static_cast<const arrow::ExtensionType*>(type)->storage_type().get();
}

}  // namespace

SparseBatch::~SparseBatch() {
  batch_.reset();
  if (memory_ != nullptr) ::munmap(memory_, mapped_);
}

Result<std::unique_ptr<SparseBatch>> SparseBatch::Open(const DataObject& object, object::ByteRange message,
                                                       const arrow::Buffer& preamble, const std::vector<int>& columns,
                                                       object::Call call) {
  auto made = std::unique_ptr<SparseBatch>(new SparseBatch(object, message));
  MR_TRY(made->Map(preamble, call));
  if (!made->LayOut(columns)) made.reset();
  return made;
}

Status SparseBatch::Map(const arrow::Buffer& preamble, const object::Call& call) {
  if (message_.length < 8 || message_.offset > object_.info.size ||
      message_.length > object_.info.size - message_.offset) {
    return Damaged();
  }
  batch_at_ = static_cast<std::size_t>(preamble.size());
  mapped_ = batch_at_ + message_.length + kEndBytes;
  void* mapped = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return Fail(Code::kResourceExhausted, "{}: no addresses for a record batch of {}", object_.url,
                FormatBytes(message_.length));
  }
  memory_ = static_cast<std::byte*>(mapped);
  std::memcpy(memory_, preamble.data(), batch_at_);
  MutableByteSpan batch(memory_ + batch_at_, message_.length);
  MR_TRY(ReadRange(object_, message_.offset, batch.first(8), "reading", call));
  std::uint64_t head = 4, metadata = LoadLittle<std::uint32_t>(batch.data());
  if (metadata == kMessageBegin) {
    head = 8;
    metadata = LoadLittle<std::uint32_t>(batch.data() + 4);
  }
  if (metadata > message_.length - head) return Damaged();
  MR_TRY(ReadRange(object_, message_.offset + head, batch.subspan(head, metadata), "reading", call));
  StoreLittle(memory_ + mapped_ - kEndBytes, std::uint64_t{kMessageBegin});
  return {};
}

bool SparseBatch::LayOut(const std::vector<int>& columns) {
  auto options = arrow::ipc::IpcReadOptions::Defaults();
  options.use_threads = false;
  options.included_fields = columns;
  auto stream = std::make_shared<arrow::io::BufferReader>(std::make_shared<arrow::Buffer>(
      reinterpret_cast<const std::uint8_t*>(memory_), static_cast<std::int64_t>(mapped_)));
  auto reader = arrow::ipc::RecordBatchStreamReader::Open(stream, options);
  if (!reader.ok() || !(*reader)->ReadNext(&batch_).ok() || !batch_) return false;
  return std::ranges::all_of(batch_->column_data(), [&](const auto& data) { return Count(*data); });
}

/// False if a buffer is not where the object's bytes go, or not aligned there.
bool SparseBatch::Count(const arrow::ArrayData& data) {
  for (const auto& buffer : data.buffers) {
    if (!buffer || buffer->size() == 0) continue;
    const auto* at = reinterpret_cast<const std::byte*>(buffer->data());
    if (at < memory_ + batch_at_ || at + buffer->size() > memory_ + mapped_ - kEndBytes) return false;
    if ((at - memory_) % 8 != 0) return false;
    bytes_ += static_cast<std::uint64_t>(buffer->size());
  }
  return std::ranges::all_of(data.child_data, [&](const auto& child) { return Count(*child); });
}

Result<std::shared_ptr<arrow::RecordBatch>> SparseBatch::Read(std::uint64_t first, std::uint64_t rows,
                                                              arrow::MemoryPool* pool, const object::Call& call) {
  if (first > this->rows() || rows > this->rows() - first) return Damaged();
  const auto from = static_cast<std::int64_t>(first), count = static_cast<std::int64_t>(rows);
  arrow::ArrayVector columns;
  for (const auto& data : batch_->column_data()) {
    MR_TRY(Want(*data, from, count, call));
    // A copy: checks of a whole array would stumble over what was not fetched.
    auto slice = arrow::MakeArray(data->Slice(from, count));
    columns.push_back(MR_ARROW_TRY(object_.url, arrow::Concatenate({slice}, pool)));
  }
  return arrow::RecordBatch::Make(batch_->schema(), count, std::move(columns));
}

/// Fetches all that `rows` of an array from `first` on are made of.
Status SparseBatch::Want(const arrow::ArrayData& data, std::int64_t first, std::int64_t rows,
                         const object::Call& call) {
  if (data.offset < 0 || data.offset > kMostRows || data.length > kMostRows) return Damaged();
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
      return WantOffsets<std::int32_t>(data, at, rows, call);
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
    case arrow::Type::LARGE_LIST:
      return WantOffsets<std::int64_t>(data, at, rows, call);
    case arrow::Type::FIXED_SIZE_LIST: {
      const std::int64_t each = static_cast<const arrow::FixedSizeListType&>(storage).list_size();
      if (rows == 0 || each == 0) return {};
      const std::int64_t lists = each < 0 ? 0 : data.child_data[0]->length / each;
      if (at > lists || rows > lists - at) return Damaged();
      return Want(*data.child_data[0], at * each, rows * each, call);
    }
    case arrow::Type::STRUCT:
      for (const auto& child : data.child_data) MR_TRY(Want(*child, at, rows, call));
      return {};
    default:
      break;
  }
  if (!arrow::is_fixed_width(type)) {
    return Fail(Code::kUnsupported,
                "{}: the record batch at byte {} is {} and has a column of the type {}, which cannot be read in parts; "
                "write smaller batches (pyarrow: max_chunksize)",
                object_.url, message_.offset, FormatBytes(message_.length), data.type->ToString());
  }
  return Fetch(data.buffers[1], at, rows, storage.byte_width(), call);
}

template <class Offset>
Status SparseBatch::WantOffsets(const arrow::ArrayData& data, std::int64_t at, std::int64_t rows,
                                const object::Call& call) {
  if (rows == 0) return {};
  MR_TRY(Fetch(data.buffers[1], at, rows + 1, sizeof(Offset), call));
  const auto* offsets = reinterpret_cast<const Offset*>(data.buffers[1]->data()) + at;
  if (offsets[0] < 0 || !std::is_sorted(offsets, offsets + rows + 1)) return Damaged();
  const auto first = static_cast<std::int64_t>(offsets[0]), end = static_cast<std::int64_t>(offsets[rows]);
  if (!data.child_data.empty()) return Want(*data.child_data[0], first, end - first, call);
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
  const auto place = static_cast<std::size_t>(reinterpret_cast<const std::byte*>(buffer->data()) - memory_) +
                     static_cast<std::size_t>(from);
  return ReadRange(object_, message_.offset + (place - batch_at_), {memory_ + place, static_cast<std::size_t>(bytes)},
                   "reading records of", call);
}

std::unexpected<Error> SparseBatch::Damaged() const {
  return Fail(Code::kCorrupt, "{}: the record batch at byte {} is damaged", object_.url, message_.offset);
}

}  // namespace millrace::data::arrow_format
