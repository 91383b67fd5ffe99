#include "millrace/data/hdf5/sample_shard.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/base/threads/sync.h"
#include "millrace/data/hdf5/hdf5_dataset.h"
#include "millrace/data/hdf5/hdf5_group.h"
#include "millrace/data/hdf5/stored_sample.h"

namespace millrace::data {
namespace {

enum ShardTable : std::uint8_t { kIds, kMask, kSegments, kPositions, kHidden, kNextSentence };
constexpr std::array<std::string_view, 6> kTableNames = {
    "input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels"};
/// Samples of a frame, in bytes: enough for the store's throughput, little enough to be shuffled.
constexpr std::uint64_t kFrameBytes = 2 * kMiB;
/// Chunks with a smaller gap between them are read at once, in reads of at most kMaxChunksRead. Guesses.
constexpr std::uint64_t kJoinGap = 256 * kKiB, kMaxChunksRead = 16 * kMiB;

/// The tables of a shard. Immutable.
struct ShardTables {
  std::array<Hdf5Dataset, kTableNames.size()> tables;
  bool has_labels = false;  ///< of next sentences
  StoredSampleLayout layout;
  std::uint64_t rows = 0, frame_rows = 0;
};

/// A chunk of one table, which has rows of a frame.
struct ChunkOfFrame {
  std::size_t table = 0, chunk = 0;
  const Hdf5Chunk* place = nullptr;
};

std::int64_t ElementAt(const Hdf5Dataset& table, const std::byte* from) {
  switch (table.element_bytes) {
    case 1:
      return table.is_signed ? LoadLittle<std::int8_t>(from) : LoadLittle<std::uint8_t>(from);
    case 2:
      return table.is_signed ? LoadLittle<std::int16_t>(from) : LoadLittle<std::uint16_t>(from);
    case 4:
      return table.is_signed ? LoadLittle<std::int32_t>(from) : std::int64_t{LoadLittle<std::uint32_t>(from)};
    default:
      return LoadLittle<std::int64_t>(from);  // unsigned numbers above the largest signed one become negative
  }
}

/// Puts the elements of a frame's chunks into records. One thread.
class RecordFiller {
 public:
  RecordFiller(const ShardTables& shard, const StoredSampleFrame& frame)
      : shard_(shard),
        frame_(frame),
        content_(frame.rows * frame.layout.bytes()),
        masks_(frame.rows * frame.layout.tokens) {
    for (std::uint64_t row = 0; !shard.has_labels && row < frame.rows; ++row) Store(row, 4, kIgnoreLabel);
  }

  /// Errors: kCorrupt, without the name of the file, if a number makes no sense.
  Status Add(const ChunkOfFrame& of, ByteSpan elements) {
    const Hdf5Dataset& table = shard_.tables[of.table];
    const std::uint64_t first_row = of.chunk / table.column_chunks() * table.chunk_rows;
    const std::uint64_t first_column = of.chunk % table.column_chunks() * table.chunk_columns;
    const std::uint64_t columns = std::min(table.chunk_columns, table.columns - first_column);
    const std::uint64_t begin = std::max(first_row, frame_.first_row);
    const std::uint64_t end = std::min({first_row + table.chunk_rows, table.rows, frame_.first_row + frame_.rows});
    for (std::uint64_t row = begin; row < end; ++row) {
      const std::byte* from =
          elements.data() + (row - first_row) * table.chunk_columns * static_cast<std::uint64_t>(table.element_bytes);
      for (std::uint64_t c = 0; c < columns; ++c, from += table.element_bytes) {
        if (Put(of.table, row - frame_.first_row, first_column + c, ElementAt(table, from))) continue;
        return Fail(Code::kCorrupt, "{} of sample {} has the impossible number {}", kTableNames[of.table], row,
                    ElementAt(table, from));
      }
    }
    return {};
  }

  /// Errors: as Add.
  Result<Buffer> Finish() {
    const std::uint64_t tokens = frame_.layout.tokens;
    for (std::uint64_t row = 0; row < frame_.rows; ++row) {
      const auto mask = std::span(masks_).subspan(row * tokens, tokens);
      const auto padding = std::ranges::find(mask, 0);
      if (std::find(padding, mask.end(), 1) != mask.end()) {
        return Fail(Code::kCorrupt, "sample {} has padding in front of tokens", frame_.first_row + row);
      }
      Store(row, 0, static_cast<std::int32_t>(padding - mask.begin()));
    }
    return std::move(content_);
  }

 private:
  bool Put(std::size_t table, std::uint64_t row, std::uint64_t column, std::int64_t number) {
    const StoredSampleLayout& layout = frame_.layout;
    if (number < 0 || number > std::numeric_limits<std::int32_t>::max()) return false;
    const auto narrow = static_cast<std::int32_t>(number);
    switch (table) {
      case kIds:
        Store(row, layout.ids_at() + 4 * column, narrow);
        return true;
      case kMask:
        masks_[row * layout.tokens + column] = static_cast<std::uint8_t>(number);
        return number <= 1;
      case kSegments:
        At(row)[layout.segments_at() + column] = static_cast<std::byte>(number);
        return number <= 255;
      case kPositions:
        Store(row, layout.positions_at() + 4 * column, narrow);
        return true;
      case kHidden:
        Store(row, layout.hidden_at() + 4 * column, narrow);
        return true;
      default:
        Store(row, 4, narrow);
        return number <= 1;
    }
  }

  std::byte* At(std::uint64_t row) { return content_.data() + row * frame_.layout.bytes(); }
  void Store(std::uint64_t row, std::uint64_t at, std::int32_t number) { StoreLittle(At(row) + at, number); }

  const ShardTables& shard_;
  const StoredSampleFrame& frame_;
  Buffer content_;
  std::vector<std::uint8_t> masks_;  ///< [rows, tokens]
};

class SampleShard final : public Content {
 public:
  explicit SampleShard(DataObject object) : object_(std::move(object)) {}
  std::string_view format() const override { return "hdf5"; }
  bool holds_samples() const override { return true; }

  Status FindFrames(const FrameSink& found, object::Call call) const override {
    const auto shard = MR_TRY(Tables(std::move(call)));
    for (std::uint64_t row = 0; row < shard->rows; row += shard->frame_rows) {
      const StoredSampleFrame samples{
          .first_row = row,
          .rows = static_cast<std::uint32_t>(std::min(shard->frame_rows, shard->rows - row)),
          .layout = shard->layout};
      Frame frame{.state = samples.Encode()};
      for (const ChunkOfFrame& chunk : ChunksOf(*shard, samples)) {
        frame.offset = frame.bytes == 0 ? chunk.place->address : std::min(frame.offset, chunk.place->address);
        frame.bytes += chunk.place->bytes;
      }
      MR_TRY(found(std::move(frame), std::nullopt));
    }
    return {};
  }

  Result<Buffer> ReadFrame(const Frame& frame, object::Call call) const override {
    const auto samples = StoredSampleFrame::Decode(frame.state);
    if (!samples) return Fail(samples.error().Context(object_.url));
    const auto shard = MR_TRY(Tables(call));
    const StoredSampleLayout& layout = shard->layout;
    if (samples->layout.tokens != layout.tokens || samples->layout.predictions != layout.predictions ||
        samples->rows > shard->rows || samples->first_row > shard->rows - samples->rows) {
      return Fail(Code::kCorrupt, "{}: its index names other samples; delete the index to have it rebuilt",
                  object_.url);
    }
    RecordFiller filler(*shard, *samples);
    std::vector<ChunkOfFrame> chunks = ChunksOf(*shard, *samples);
    std::ranges::sort(chunks, {}, [](const ChunkOfFrame& one) { return one.place->address; });
    for (std::size_t i = 0; i < chunks.size();) i = MR_TRY(ReadChunks(*shard, chunks, i, filler, call));
    auto content = filler.Finish();
    if (!content) return Fail(content.error().Context(object_.url));
    return content;
  }

 private:
  /// Reads the chunks from the i-th on that lie near each other. Returns the number of the next one.
  Result<std::size_t> ReadChunks(const ShardTables& shard, std::span<const ChunkOfFrame> chunks, std::size_t i,
                                 RecordFiller& filler, const object::Call& call) const {
    const std::uint64_t begin = chunks[i].place->address;
    std::uint64_t end = begin;
    std::size_t last = i;
    for (; last < chunks.size(); ++last) {
      const Hdf5Chunk& place = *chunks[last].place;
      const std::uint64_t with = std::max(end, place.address + place.bytes);
      if (last > i && (place.address > end + kJoinGap || with - begin > kMaxChunksRead)) break;
      end = with;
    }
    Buffer bytes(end - begin);
    MR_TRY(ReadRange(object_, begin, bytes.span(), "reading samples of", call));
    for (; i < last; ++i) {
      const ByteSpan stored = bytes.span().subspan(chunks[i].place->address - begin, chunks[i].place->bytes);
      auto elements = DecodeHdf5Chunk(shard.tables[chunks[i].table], chunks[i].chunk, stored);
      Status added = elements ? filler.Add(chunks[i], elements->span()) : std::unexpected(elements.error());
      if (!added) return Fail(added.error().Context(object_.url));
    }
    return last;
  }

  static std::vector<ChunkOfFrame> ChunksOf(const ShardTables& shard, const StoredSampleFrame& frame) {
    std::vector<ChunkOfFrame> chunks;
    for (std::size_t t = 0; t < kTableNames.size(); ++t) {
      const Hdf5Dataset& table = shard.tables[t];
      if ((t == kNextSentence && !shard.has_labels) || frame.rows == 0) continue;
      const std::uint64_t first = frame.first_row / table.chunk_rows * table.column_chunks();
      const std::uint64_t end = ((frame.first_row + frame.rows - 1) / table.chunk_rows + 1) * table.column_chunks();
      for (std::uint64_t c = first; c < end; ++c) chunks.push_back({t, c, &table.chunks[c]});
    }
    return chunks;
  }

  /// Returns the tables. Reads them in the first call.
  Result<std::shared_ptr<const ShardTables>> Tables(object::Call call) const {
    MutexLock lock(mutex_);
    if (!tables_) tables_ = MR_TRY(ReadTables(std::move(call)));
    return tables_;
  }

  Result<std::shared_ptr<const ShardTables>> ReadTables(object::Call call) const {
    MetadataReader file(object_, std::move(call));
    const auto members = MR_TRY(ReadRootGroup(file));
    auto shard = std::make_shared<ShardTables>();
    for (std::size_t t = 0; t < kTableNames.size(); ++t) {
      const std::string name(kTableNames[t]);
      const auto member = members.find(name);
      if (member == members.end()) {
        if (t == kNextSentence) continue;
        return Fail(
            Code::kUnsupported,
            "{}: this HDF5 file has no {}. Files of samples, as NVIDIA's create_pretraining_data.py writes them, have\n"
            "input_ids, input_mask, segment_ids, masked_lm_positions, masked_lm_ids and mostly next_sentence_labels",
            object_.url, name);
      }
      shard->tables[t] = MR_TRY(ReadHdf5Dataset(file, member->second, name));
      if (t == kNextSentence) shard->has_labels = true;
    }
    MR_TRY(CheckShapes(file, *shard));
    MR_TRY(ChooseFrames(file, *shard));
    return shard;
  }

  static Status CheckShapes(MetadataReader& file, ShardTables& shard) {
    const auto& tables = shard.tables;
    shard.rows = tables[kIds].rows;
    for (std::size_t t = 0; t < tables.size(); ++t) {
      if (t == kNextSentence && !shard.has_labels) continue;
      const std::uint64_t columns = t == kNextSentence                ? 1
                                    : t == kPositions || t == kHidden ? tables[kPositions].columns
                                                                      : tables[kIds].columns;
      if (tables[t].rows != shard.rows || tables[t].columns != columns) {
        return file.Corrupt(fmt::format("{} has {} rows of {}, which do not go with the others", kTableNames[t],
                                        tables[t].rows, tables[t].columns));
      }
    }
    shard.layout = {.tokens = static_cast<std::uint32_t>(tables[kIds].columns),
                    .predictions = static_cast<std::uint32_t>(tables[kPositions].columns)};
    return {};
  }

  /// A frame has whole chunks of every table but the labels, which are small.
  static Status ChooseFrames(MetadataReader& file, ShardTables& shard) {
    std::uint64_t least = 1;
    for (std::size_t t = kIds; t <= kHidden; ++t) {
      if (shard.tables[t].pads_edges) least = std::max(least, shard.tables[t].chunk_rows);
    }
    const std::uint64_t bytes = shard.layout.bytes(), rows = std::max<std::uint64_t>(kFrameBytes / bytes, 1);
    shard.frame_rows = (rows + least - 1) / least * least;
    if (std::min(shard.frame_rows, shard.rows) > kMaxFrameContent / bytes) {
      return file.Unsupported(
          fmt::format("its chunks of {} samples exceed {} together", least, FormatBytes(kMaxFrameContent)));
    }
    return {};
  }

  const DataObject object_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<const ShardTables> tables_ MR_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<const Content> MakeSampleShard(DataObject object) {
  return std::make_shared<SampleShard>(std::move(object));
}

}  // namespace millrace::data
