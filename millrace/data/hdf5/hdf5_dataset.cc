#include "millrace/data/hdf5/hdf5_dataset.h"

#include <algorithm>
#include <array>
#include <utility>

#include "millrace/data/hdf5/hdf5_group.h"

namespace millrace::data {
namespace {

/// Rows of tables that are stored in one piece are read in parts of about this many bytes.
constexpr std::uint64_t kPieceBytes = 256 * kKiB;
constexpr std::uint64_t kMaxRows = std::uint64_t{1} << 40, kMaxColumns = std::uint64_t{1} << 24;
constexpr std::size_t kMaxFilters = 8;

std::uint64_t DivideUp(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

/// Fills a data set from the messages of its header. One thread.
class DatasetReader {
 public:
  DatasetReader(MetadataReader& file, const std::string& name) : file_(file), name_(name) {}

  Result<Hdf5Dataset> Read(std::uint64_t address) {
    const std::vector<Hdf5Message> messages = MR_TRY(ReadObjectHeader(file_, address));
    for (const Hdf5Message& message : messages) {
      FieldCursor cursor(message.bytes.span());
      if (message.type == Hdf5MessageType::kDataspace) MR_TRY(ReadShape(cursor));
      if (message.type == Hdf5MessageType::kDatatype) MR_TRY(ReadType(cursor));
      if (message.type == Hdf5MessageType::kFilters) MR_TRY(ReadFilters(cursor));
    }
    if (dimensions_ == 0 || made_.element_bytes == 0) return Unsupported("is not a table of integers");
    if (made_.rows > kMaxRows || made_.columns == 0 || made_.columns > kMaxColumns) {
      return Corrupt("has an impossible size");
    }
    bool stored = false;
    for (const Hdf5Message& message : messages) {
      if (message.type != Hdf5MessageType::kLayout) continue;
      MR_TRY(ReadLayout(FieldCursor(message.bytes.span())));
      stored = true;
    }
    if (!stored) return Corrupt("is stored nowhere");
    return std::move(made_);
  }

 private:
  std::unexpected<Error> Corrupt(std::string_view why) const {
    return file_.Corrupt(fmt::format("its data set {} {}", name_, why));
  }
  std::unexpected<Error> Unsupported(std::string_view what) const {
    return file_.Unsupported(fmt::format("its data set {} {}", name_, what));
  }

  Status ReadShape(FieldCursor cursor) {
    const std::uint8_t version = cursor.U8(), dimensions = cursor.U8();
    if (version != 1 && version != 2) return Unsupported("has a shape of another version");
    if (dimensions < 1 || dimensions > 2) return Unsupported("does not have one or two dimensions");
    cursor.Skip(version == 1 ? 6 : 2);  // flags, type, reserved
    made_.rows = cursor.U64();
    made_.columns = dimensions == 2 ? cursor.U64() : 1;
    if (!cursor.ok()) return Corrupt("has no shape");
    dimensions_ = dimensions;
    return {};
  }

  Status ReadType(FieldCursor cursor) {
    constexpr std::uint8_t kInteger = 0;
    const std::uint8_t kind = cursor.U8() & 15, bits = cursor.U8();
    cursor.Skip(2);
    const std::uint32_t bytes = cursor.U32();
    const std::uint16_t first_bit = cursor.U16(), precision = cursor.U16();
    const bool plain = bytes <= 8 && (bytes & (bytes - 1)) == 0 && bytes > 0 && precision == 8 * bytes;
    if (kind != kInteger || !plain || first_bit != 0 || !cursor.ok()) return Unsupported("does not hold integers");
    if ((bits & 1) != 0 && bytes > 1) return Unsupported("is big-endian");
    made_.element_bytes = static_cast<int>(bytes);
    made_.is_signed = (bits & 8) != 0;
    return {};
  }

  Status ReadFilters(FieldCursor cursor) {
    const std::uint8_t version = cursor.U8(), count = cursor.U8();
    if (version != 1 && version != 2) return Unsupported("has filters of another version");
    if (version == 1) cursor.Skip(6);
    if (count > kMaxFilters) return Corrupt("has too many filters");
    for (std::uint8_t i = 0; i < count; ++i) {
      const std::uint16_t id = cursor.U16();
      const std::size_t name_bytes = version == 1 || id >= 256 ? cursor.U16() : 0;
      cursor.Skip(2);
      const std::size_t values = cursor.U16();
      cursor.Skip(version == 1 ? (name_bytes + 7) / 8 * 8 : name_bytes);
      cursor.Skip(4 * values + (version == 1 && values % 2 == 1 ? 4 : 0));
      if (id < 1 || id > 3) return Unsupported(fmt::format("is compressed by filter {}", id));
      made_.filters.push_back(static_cast<Hdf5Filter>(id));
    }
    return cursor.ok() ? Status() : Corrupt("has broken filters");
  }

  Status ReadLayout(FieldCursor cursor) {
    const std::uint8_t version = cursor.U8(), kind = cursor.U8();
    if (version == 4 && kind == 1) return ReadContiguous(cursor);
    if (version != 3) return Unsupported("is stored as only newer or much older libraries do");
    switch (kind) {
      case 1:
        return ReadContiguous(cursor);
      case 2:
        return ReadChunked(cursor);
      default:
        return Unsupported("is stored inside the header");
    }
  }

  Status ReadContiguous(FieldCursor cursor) {
    const std::uint64_t address = cursor.U64(), bytes = cursor.U64(), row_bytes = made_.columns * made_.element_bytes;
    if (!cursor.ok() || made_.rows > file_.file_bytes() / row_bytes || bytes != made_.rows * row_bytes ||
        address > file_.file_bytes() || bytes > file_.file_bytes() - address) {
      return Corrupt("does not have the bytes of its rows");
    }
    if (!made_.filters.empty()) return Corrupt("has filters without chunks");
    made_.pads_edges = false;
    made_.chunk_columns = made_.columns;
    made_.chunk_rows = std::clamp<std::uint64_t>(kPieceBytes / row_bytes, 1, std::max<std::uint64_t>(made_.rows, 1));
    for (std::uint64_t row = 0; row < made_.rows; row += made_.chunk_rows) {
      const std::uint64_t rows = std::min(made_.chunk_rows, made_.rows - row);
      made_.chunks.push_back({address + row * row_bytes, static_cast<std::uint32_t>(rows * row_bytes), 0});
    }
    return {};
  }

  Status ReadChunked(FieldCursor cursor) {
    const std::uint8_t dimensions = cursor.U8();  // one more, for the bytes of an element
    const std::uint64_t tree = cursor.U64();
    made_.chunk_rows = cursor.U32();
    made_.chunk_columns = dimensions == 3 ? cursor.U32() : 1;
    const std::uint32_t element = cursor.U32();
    if (!cursor.ok() || dimensions != dimensions_ + 1 || element != static_cast<std::uint32_t>(made_.element_bytes) ||
        made_.chunk_rows == 0 || made_.chunk_columns == 0) {
      return Corrupt("has chunks of an impossible size");
    }
    // Both factors have 32 bits, and an element at most 8 bytes.
    const auto chunk_bytes = static_cast<unsigned __int128>(made_.chunk_rows) * made_.chunk_columns * element;
    if (chunk_bytes > kMaxHdf5Chunk) return Unsupported("has chunks of more than 64 MiB");
    const std::uint64_t across = made_.column_chunks(), down = DivideUp(made_.rows, made_.chunk_rows);
    // A chunk's place in the file takes more than 32 bytes, so a small file cannot ask for much memory here.
    if (down > file_.file_bytes() / 32 / across) return Corrupt("lacks some of its chunks");
    made_.chunks.assign(down * across, {kNoAddress, 0, 0});
    std::uint64_t found = 0;
    auto leaf = [&](FieldCursor body, std::uint16_t entries) -> Status {
      for (std::uint16_t i = 0; i < entries; ++i) MR_TRY(AddChunk(body, across, found));
      return {};
    };
    if (made_.rows > 0) {
      MR_TRY(VisitBtreeLeaves(file_, tree, 1, 8 + 8 * std::size_t{dimensions}, made_.chunks.size(), leaf));
    }
    return found == made_.chunks.size() ? Status() : Corrupt("lacks some of its chunks");
  }

  Status AddChunk(FieldCursor& body, std::uint64_t across, std::uint64_t& found) {
    Hdf5Chunk chunk{.bytes = body.U32(), .skipped_filters = body.U32()};
    const std::uint64_t row = body.U64(), column = dimensions_ == 2 ? body.U64() : 0;
    body.Skip(8);
    chunk.address = body.U64();
    const std::uint64_t at = row / made_.chunk_rows * across + column / made_.chunk_columns;
    const bool placed = row < made_.rows && column < made_.columns && row % made_.chunk_rows == 0 &&
                        column % made_.chunk_columns == 0 && body.ok();
    if (!placed || made_.chunks[at].address != kNoAddress) return Corrupt("has a chunk at an impossible place");
    // Compressed bytes may be somewhat longer than plain ones.
    const std::uint64_t most = 2 * made_.chunk_rows * made_.chunk_columns * made_.element_bytes + 4096;
    if (chunk.bytes == 0 || chunk.bytes > most || chunk.address > file_.file_bytes() ||
        chunk.bytes > file_.file_bytes() - chunk.address) {
      return Corrupt("has a chunk behind the end of the file");
    }
    made_.chunks[at] = chunk;
    ++found;
    return {};
  }

  MetadataReader& file_;
  const std::string& name_;
  Hdf5Dataset made_;
  int dimensions_ = 0;
};

}  // namespace

std::uint64_t Hdf5Dataset::DecodedBytes(std::size_t i) const {
  const std::uint64_t elements = chunk_rows * chunk_columns;
  if (pads_edges) return elements * element_bytes;
  return std::min(chunk_rows, rows - i * chunk_rows) * columns * element_bytes;
}

Result<Hdf5Dataset> ReadHdf5Dataset(MetadataReader& file, std::uint64_t address, const std::string& name) {
  return DatasetReader(file, name).Read(address);
}

}  // namespace millrace::data
