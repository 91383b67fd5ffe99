#include "millrace/checkpoint/convert/file_importer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "millrace/base/text.h"
#include "millrace/checkpoint/convert/torch/zip.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/format/chunk_sums.h"
#include "millrace/checkpoint/format/provenance.h"
#include "millrace/transfer/stream/multipart_writer.h"
#include "millrace/transfer/stream/ranged_reader.h"

namespace millrace::checkpoint {
namespace {

/// The bytes of one checksum: as Writer::Options::chunk_bytes, so that imported and saved checkpoints read alike.
constexpr std::uint64_t kChunkBytes = 1 * kMiB;
/// The largest gap to read over. A guess: a new stream costs a request's latency.
constexpr std::uint64_t kGap = 256 * kKiB;
/// Requests in flight for reading. A guess: uploads run beside them and use the network too.
constexpr int kParallel = 4;

std::uint64_t SpanOf(const SourceBox& source_box, const TensorMeta& box) {
  if (source_box.coding) return box.bytes() / source_box.coding->unit * source_box.coding->stored_unit;
  if (source_box.strides.empty()) return box.bytes();
  std::uint64_t last = 0;
  for (std::size_t d = 0; d < source_box.strides.size(); ++d)
    last += static_cast<std::uint64_t>(box.shape[d] - 1) * static_cast<std::uint64_t>(source_box.strides[d]);
  return (last + 1) * DTypeBytes(box.dtype);
}

/// Copies the elements of a strided view in C order.
void GatherStrided(ByteSpan from, const TensorMeta& box, const std::vector<std::int64_t>& strides,
                   MutableByteSpan into) {
  const std::uint64_t element = DTypeBytes(box.dtype);
  std::vector<std::int64_t> index(box.shape.size(), 0);
  std::int64_t at = 0;
  for (std::uint64_t done = 0; done < into.size(); done += element) {
    std::memcpy(into.data() + done, from.data() + static_cast<std::uint64_t>(at) * element, element);
    for (std::size_t d = index.size(); d-- > 0;) {
      at += strides[d];
      if (++index[d] < box.shape[d]) break;
      at -= index[d] * strides[d];
      index[d] = 0;
    }
  }
}

}  // namespace

/// Streams a list of extents, in order. Extents that are neighbours in a file share one read-ahead stream.
class FileImporter::ExtentReader {
 public:
  /// A byte range of a file of the source.
  struct Extent {
    std::string_view file;
    std::uint64_t offset = 0, size = 0;
    std::uint64_t end() const { return offset + size; }
  };

  ExtentReader(const ImportSource& source, MemoryBudget& budget, std::vector<Extent> order, object::Call call)
      : source_(source), budget_(budget), order_(std::move(order)), call_(std::move(call)) {}

  /// Passes the bytes of the next extent to `sink`.
  Status Stream(const Sink& sink) {
    const Extent& extent = order_[next_++];
    if (!reader_ || extent.file != file_ || extent.offset < position_ || extent.end() > end_) Open();
    MR_TRY(Take(extent.offset - position_, [](ByteSpan) { return Status(); }));
    return Take(extent.size, sink);
  }
  /// Releases the stream's memory. Call it before a large reservation, which would wait for that memory.
  void Close() { reader_.reset(); }
  /// Skips the next extent.
  void Skip() { ++next_; }

 private:
  /// Opens a stream over extent next_ - 1 and over the extents that follow it with small gaps.
  void Open() {
    const Extent& first = order_[next_ - 1];
    end_ = first.end();
    for (std::size_t i = next_; i < order_.size(); ++i) {
      const Extent& more = order_[i];
      if (more.file != first.file || more.offset < end_ || more.offset - end_ > kGap) break;
      end_ = more.end();
    }
    file_ = first.file;
    position_ = first.offset;
    rest_ = {};
    reader_.emplace(*source_.folder.store, budget_, source_.files.at(std::string(file_)),
                    transfer::RangedReader::Options{.parallel_parts = kParallel,
                                                    .range = object::ByteRange{position_, end_ - position_}});
  }
  Status Take(std::uint64_t size, const Sink& sink) {
    while (size > 0) {
      if (rest_.empty()) rest_ = MR_TRY(reader_->Next(call_));
      if (rest_.empty()) return Fail(Code::kStale, "{}/{} became shorter", source_.name, file_);
      const ByteSpan bytes = rest_.first(std::min<std::uint64_t>(size, rest_.size()));
      MR_TRY(sink(bytes));
      rest_ = rest_.subspan(bytes.size());
      position_ += bytes.size();
      size -= bytes.size();
    }
    return {};
  }

  const ImportSource& source_;
  MemoryBudget& budget_;
  const std::vector<Extent> order_;
  const object::Call call_;
  std::size_t next_ = 0;
  std::optional<transfer::RangedReader> reader_;
  std::string_view file_;
  std::uint64_t position_ = 0, end_ = 0;
  ByteSpan rest_;  ///< bytes from the reader that are not consumed yet
};

Status FileImporter::Plan() {
  for (const auto& [tensor, meta] : source_.tensors) MR_TRY(meta.Check(fmt::format("{}: {}", source_.name, tensor)));
  MR_TRY(PlanBlocks());
  PlanFiles();
  PlanChecksums();
  return {};
}

Result<Manifest> FileImporter::ManifestOf(const std::string& attempt) const {
  Manifest manifest;
  manifest.step = options_.step;
  manifest.attempt = attempt;
  manifest.created = FormatIso8601(SystemClock().Wall());
  manifest.written_by = LocalProvenance("millrace ckpt import", "");
  manifest.meta = source_.meta;
  manifest.tensors = source_.tensors;
  for (std::size_t file = 0; file < files(); ++file) manifest.files[FileName(attempt, file)] = {.size = sizes_[file]};
  for (const auto& [source_box, block] : block_of_) {
    const TensorBlock& from = blocks_[block];
    const std::uint64_t elements = from.entry.meta.elements();
    manifest.slices.push_back({source_box->tensor, source_box->begin, elements, FileName(attempt, from.file),
                               from.entry.offset,
                               Simplified(source_box->box, source_.tensors.at(source_box->tensor).shape)});
  }
  MR_TRY(manifest.Check(source_.name));
  return manifest;
}

std::string FileImporter::FileName(const std::string& attempt, std::size_t file) {
  return RankFile(attempt, static_cast<int>(file));
}

std::string FileImporter::Identity() const {
  std::string identity = fmt::format("1\n{}\n{}\n", options_.step, DumpJson(source_.meta));
  for (const auto& [name, info] : source_.files) identity += fmt::format("{} {} {}\n", name, info.size, info.etag);
  for (const TensorBlock& block : blocks_) {
    identity += fmt::format("{} {} {}\n", block.file, block.source_box->file, block.source_box->offset);
  }
  for (const std::string& header : headers_) identity += header;
  return identity;
}

Status FileImporter::Write(object::Store& store, const std::string& folder, const std::string& attempt,
                           const std::vector<std::size_t>& chosen, const FileDone& done) {
  std::vector<ExtentReader::Extent> order;
  for (const TensorBlock& block : blocks_) {
    if (!std::ranges::binary_search(chosen, block.file)) continue;
    const std::string_view file = block.source_box->file;
    if (block.gap_before > 0) order.push_back({file, block.begin() - block.gap_before, block.gap_before});
    order.push_back({file, block.begin(), block.span});
    if (block.gap_after > 0) order.push_back({file, block.end(), block.gap_after});
  }
  ExtentReader reader(source_, budget_, std::move(order), call_);
  std::size_t next = 0;
  for (const std::size_t file : chosen) {
    transfer::MultipartWriter writer(store, budget_, folder + FileName(attempt, file), {});
    ChunkSums sums(kChunkBytes);
    const Sink sink = [&](ByteSpan bytes) {
      sums.Add(bytes);
      return writer.Write(bytes, call_);
    };
    MR_TRY(sink(AsBytes(headers_[file])));
    while (next < blocks_.size() && blocks_[next].file < file) ++next;
    for (; next < blocks_.size() && blocks_[next].file == file; ++next) MR_TRY(WriteBlock(blocks_[next], reader, sink));
    MR_TRY(writer.Finish(call_));
    MR_TRY(done(file, sums.Finish()));
  }
  return {};
}

Status FileImporter::VerifyRest() {
  std::vector<ExtentReader::Extent> order;
  std::vector<const SourceChecksum*> rest;
  std::uint64_t number = 0;
  for (const SourceChecksum& checksum : source_.checksums) {
    if (covered_.contains(&checksum) || !options_.share.Has(number++)) continue;
    rest.push_back(&checksum);
    order.push_back({checksum.file, checksum.offset, checksum.size});
  }
  ExtentReader reader(source_, budget_, std::move(order), call_);
  for (const SourceChecksum* checksum : rest) {
    std::uint32_t crc = 0;
    MR_TRY(reader.Stream([&](ByteSpan bytes) {
      crc = ZipCrc32(bytes, crc);
      return Status();
    }));
    if (crc != checksum->crc32) return Fail(Damaged(*checksum));
  }
  return {};
}

SafetensorsEntry FileImporter::EntryOf(const SourceBox& source_box, const TensorMeta& meta) {
  SafetensorsEntry entry{source_box.tensor, meta};
  const Box box = Simplified(source_box.box, meta.shape);
  if (!box.whole()) {
    entry.name += fmt::format("[{}]", ToString(box));
    entry.meta.shape.assign(box.lengths.begin(), box.lengths.end());
  }
  if (source_box.elements > 0) {
    entry.name += fmt::format("[{}:{}]", source_box.begin, source_box.begin + source_box.elements);
    entry.meta.shape = {static_cast<std::int64_t>(source_box.elements)};
  }
  return entry;
}

Status FileImporter::PlanBlocks() {
  using BlockIdentity =
      std::tuple<std::string, std::uint64_t, std::vector<std::int64_t>, DType, std::vector<std::int64_t>>;
  std::map<BlockIdentity, std::size_t> known;
  for (const SourceBox& source_box : source_.boxes) {
    const TensorMeta& meta = source_.tensors.at(source_box.tensor);
    if (Status inside = CheckBox(source_box.box, meta.shape); !inside)
      return Fail(inside.error().Context(fmt::format("{}: tensor {}", source_.name, source_box.tensor)));
    if (const std::uint64_t most = ElementsOf(source_box.box, meta.shape);
        source_box.elements > most || source_box.begin > most - source_box.elements)
      return Fail(Code::kCorrupt, "{}: a run of tensor {} ends outside its box", source_.name, source_box.tensor);
    TensorBlock block{.source_box = &source_box, .entry = EntryOf(source_box, meta)};
    block.span = SpanOf(source_box, block.entry.meta);
    const auto file = source_.files.find(source_box.file);
    if (file == source_.files.end() || block.span > file->second.size ||
        source_box.offset > file->second.size - block.span)
      return Fail(Code::kCorrupt, "{}: tensor {} does not lie inside {}", source_.name, source_box.tensor,
                  source_box.file);
    const auto [same, added] = known.emplace(
        BlockIdentity{source_box.file, source_box.offset, block.entry.meta.shape, meta.dtype, source_box.strides},
        blocks_.size());
    block_index_.emplace_back(&source_box, same->second);
    if (added) blocks_.push_back(std::move(block));
  }
  return {};
}

void FileImporter::PlanChecksums() {
  std::map<std::pair<std::string_view, std::uint64_t>, const SourceChecksum*> by_offset;
  for (const SourceChecksum& checksum : source_.checksums)
    by_offset.emplace(std::pair(std::string_view(checksum.file), checksum.offset), &checksum);
  const auto range_of = [&](const TensorBlock& block) -> const SourceChecksum* {
    auto after = by_offset.upper_bound({block.source_box->file, block.begin()});
    if (after == by_offset.begin()) return nullptr;
    const SourceChecksum& range = *(--after)->second;
    const bool inside = range.file == block.source_box->file && block.end() <= range.offset + range.size;
    return inside ? &range : nullptr;
  };
  for (std::size_t first = 0, last = 0; first < blocks_.size(); first = std::max(last, first + 1)) {
    const SourceChecksum* range = range_of(blocks_[first]);
    last = first;
    if (range == nullptr || !covered_.insert(range).second) continue;
    std::uint64_t position = range->offset;
    for (; last < blocks_.size() && range_of(blocks_[last]) == range && blocks_[last].begin() >= position; ++last) {
      if (!options_.share.is_all() && blocks_[last].file != blocks_[first].file) break;
      // The gaps of a strided block are read with it, but nothing around it.
      if (!blocks_[last].source_box->strides.empty() && blocks_[last].span != range->size) break;
      blocks_[last].checksum = range;
      blocks_[last].gap_before = blocks_[last].begin() - position;
      position = blocks_[last].end();
    }
    if (last == first) {
      covered_.erase(range);
      continue;
    }
    blocks_[first].begins_range = true;
    blocks_[last - 1].ends_range = true;
    blocks_[last - 1].gap_after = range->offset + range->size - position;
  }
}

void FileImporter::PlanFiles() {
  std::vector<std::size_t> order(blocks_.size()), place(blocks_.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return KeyOf(blocks_[a]) < KeyOf(blocks_[b]); });
  std::vector<TensorBlock> sorted;
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[order[i]] = i;
    sorted.push_back(std::move(blocks_[order[i]]));
  }
  blocks_ = std::move(sorted);
  for (const auto& [source_box, block] : block_index_) block_of_.emplace_back(source_box, place[block]);

  for (std::size_t first = 0, last = 0; first < blocks_.size(); first = last) {
    std::vector<SafetensorsEntry> entries;
    for (std::uint64_t bytes = 0; last < blocks_.size(); ++last) {
      bytes += blocks_[last].entry.meta.bytes();
      if (last > first && bytes > options_.file_bytes) break;
      entries.push_back(blocks_[last].entry);
    }
    headers_.push_back(MakeSafetensorsHeader(entries, {{"format", "pt"}}));
    std::uint64_t size = headers_.back().size();
    for (std::size_t i = first; i < last; ++i) {
      blocks_[i].entry.offset = entries[i - first].offset;
      blocks_[i].file = headers_.size() - 1;
      size += entries[i - first].meta.bytes();
    }
    sizes_.push_back(size);
  }
}

std::tuple<int, std::string_view, std::uint64_t> FileImporter::KeyOf(const TensorBlock& block) {
  return {-static_cast<int>(DTypeBytes(block.entry.meta.dtype)), block.source_box->file, block.source_box->offset};
}

Status FileImporter::WriteBlock(const TensorBlock& block, ExtentReader& reader, const Sink& sink) {
  if (block.begins_range) crc_ = 0;
  const Sink only_checked = [&](ByteSpan bytes) {
    crc_ = ZipCrc32(bytes, crc_);
    return Status();
  };
  const Sink checked = [&](ByteSpan bytes) {
    if (block.checksum != nullptr) crc_ = ZipCrc32(bytes, crc_);
    if (block.source_box->strides.empty() && progress_) progress_(bytes.size());
    return block.source_box->strides.empty() ? sink(bytes) : Status();
  };
  if (block.gap_before > 0) MR_TRY(reader.Stream(only_checked));
  if (block.source_box->coding) {
    MR_TRY(WriteDecoded(block, reader, sink));
  } else if (block.source_box->strides.empty()) {
    MR_TRY(reader.Stream(checked));
  } else {
    MR_TRY(WriteStrided(block, reader, checked, sink));
  }
  if (block.gap_after > 0) MR_TRY(reader.Stream(only_checked));
  if (block.ends_range && crc_ != block.checksum->crc32) return Fail(Damaged(*block.checksum));
  return {};
}

Status FileImporter::WriteDecoded(const TensorBlock& block, ExtentReader& reader, const Sink& sink) {
  constexpr std::uint64_t kStep = 1 * kMiB;  // a guess: fits in the second-level cache
  const SourceCoding& coding = *block.source_box->coding;
  const std::uint64_t units =
      std::min(std::max<std::uint64_t>(1, kStep / coding.stored_unit), block.span / coding.stored_unit);
  const std::uint64_t stored_bytes = units * coding.stored_unit, bytes = units * coding.unit;
  if (stored_bytes + bytes > budget_.total() / 2) {
    return Fail(Code::kResourceExhausted, "{}: a piece of tensor {} is decoded in {}; raise --memory-budget",
                source_.name, block.source_box->tensor, FormatBytes(stored_bytes + bytes));
  }
  Buffer stored(stored_bytes), decoded(bytes);
  std::uint64_t filled = 0;
  const auto decode = [&]() -> Status {
    const MutableByteSpan made = decoded.span().first(filled / coding.stored_unit * coding.unit);
    coding.decode(stored.span().first(std::exchange(filled, 0)), made);
    if (progress_) progress_(made.size());
    return sink(made);
  };
  MR_TRY(reader.Stream([&](ByteSpan some) -> Status {
    while (!some.empty()) {
      const std::uint64_t taken = std::min<std::uint64_t>(some.size(), stored.size() - filled);
      std::memcpy(stored.data() + filled, some.data(), taken);
      filled += taken;
      some = some.subspan(taken);
      if (filled == stored.size()) MR_TRY(decode());
    }
    return {};
  }));
  return filled > 0 ? decode() : Status();
}

Status FileImporter::WriteStrided(const TensorBlock& block, ExtentReader& reader, const Sink& checked,
                                  const Sink& sink) {
  const std::uint64_t bytes = block.entry.meta.bytes();
  if (block.span + bytes > budget_.total() / 2) {
    return Fail(Code::kResourceExhausted,
                "{}: tensor {} is not in C order. To rearrange its {} bytes takes more than half of the memory budget: "
                "raise --memory-budget, or save it .contiguous()",
                source_.name, block.source_box->tensor, bytes);
  }
  reader.Close();
  reader.Skip();
  Reservation reserved = MR_TRY(budget_.Acquire(block.span + bytes, call_.stop));
  Buffer from(block.span), into(bytes);
  MR_TRY(transfer::ReadInto(*source_.folder.store, source_.files.at(block.source_box->file), block.source_box->offset,
                            from.span(), kParallel, 8 * kMiB, call_));
  MR_TRY(checked(from));
  GatherStrided(from, block.entry.meta, block.source_box->strides, into.span());
  if (progress_) progress_(bytes);
  return sink(into);
}

Error FileImporter::Damaged(const SourceChecksum& checksum) const {
  return {Code::kCorrupt, fmt::format("{}/{}: bytes {} to {} are damaged: their CRC-32 is not the one that torch wrote",
                                      source_.name, checksum.file, checksum.offset, checksum.offset + checksum.size)};
}

}  // namespace millrace::checkpoint
