#include "millrace/data/plan.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace millrace::data {
namespace {

/// Keys of independent permutations. Part of the order of every run: never changes.
enum class Purpose : std::uint64_t { kPieces = 1, kRecords = 2, kSubset = 3 };
std::uint64_t KeyOf(std::uint64_t seed, Purpose purpose, std::uint64_t a, std::uint64_t b) {
  std::uint64_t key = Mix64(seed);
  for (std::uint64_t word : {static_cast<std::uint64_t>(purpose), a, b}) key = Mix64(key + word);
  return key;
}

}  // namespace

std::size_t EpochOrder::Find(std::uint64_t unit) const {
  auto after = std::upper_bound(windows.begin(), windows.end(), unit,
                                [](std::uint64_t u, const Window& window) { return u < window.first_unit; });
  return static_cast<std::size_t>(after - windows.begin()) - 1;
}

WindowOrder::Place WindowOrder::Document(std::uint32_t k) const {
  auto at = static_cast<std::uint32_t>(order(k));
  auto piece = static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), at) - starts.begin()) - 1;
  return {pieces[piece].chunk, at - starts[piece]};
}

WindowOrder::Hit WindowOrder::Find(std::uint32_t unit) const {
  if (ends.empty()) return {unit, unit};
  auto k = static_cast<std::uint32_t>(std::upper_bound(ends.begin(), ends.end(), unit) - ends.begin());
  return {k, k == 0 ? 0 : ends[k - 1]};
}

Result<Plan> Plan::Make(std::span<const RecordIndex> indexes, std::span<const std::vector<std::uint32_t>> by_source,
                        std::span<const Source> sources, PlanOptions options) {
  Plan plan(indexes, options);
  for (std::uint32_t i = 0; i < indexes.size(); ++i) plan.MakeChunks(i);
  plan.object_chunks_.push_back(static_cast<std::uint32_t>(plan.chunks_.size()));
  for (std::size_t s = 0; s < sources.size(); ++s) plan.AddSource(sources[s], s, by_source[s]);
  for (const Piece& piece : plan.pieces_) {
    plan.units_ += piece.units;
    plan.records_ += piece.records;
  }
  bool pack = options.mode == Mode::kPack;
  plan.samples_ = !pack ? plan.units_ : plan.units_ == 0 ? 0 : (plan.units_ - 1) / options.sequence_length;
  if (plan.samples_ == 0) {
    return Fail(Code::kInvalidArgument, "the data hold less than one sample: {} usable records, {} {}", plan.records_,
                plan.units_, pack ? "tokens" : "records");
  }
  return plan;
}

void Plan::MakeChunks(std::uint32_t object) {
  object_chunks_.push_back(static_cast<std::uint32_t>(chunks_.size()));
  const RecordIndex& index = indexes_[object];
  const bool framed = !index.frames().empty();
  std::uint64_t frame_end = 0;
  std::vector<RecordExtent> extents;
  Chunk open{.object = object};
  auto close = [&] {
    if (open.records > 0) chunks_.push_back(open);
  };
  for (std::size_t b = 0; b < index.blocks(); ++b) {
    extents.clear();
    index.Decode(b, extents);
    for (std::uint32_t i = 0; i < extents.size(); ++i) {
      const RecordExtent& record = extents[i];
      bool fits =
          framed ? record.offset < frame_end
                 : record.offset == open.offset + open.bytes && open.bytes + std::uint64_t{record.bytes} <= kChunkBytes;
      if (open.records == 0 || !fits) {
        close();
        if (framed) {
          const IndexedFrame& frame = index.FrameAt(record.offset);
          frame_end = frame.content_offset + frame.content_bytes;
        }
        open = {.object = object,
                .block = static_cast<std::uint32_t>(b),
                .skip = i,
                .offset = record.offset,
                .first_document = documents_};
      }
      ++open.records;
      ++documents_;
      open.bytes = static_cast<std::uint32_t>(record.offset + record.bytes - open.offset);
      open.tokens += record.tokens;
    }
  }
  close();
}

std::vector<RecordExtent> Plan::Extents(std::uint32_t number) const {
  const Chunk& chunk = chunks_[number];
  std::vector<RecordExtent> extents;
  extents.reserve(chunk.skip + chunk.records + 256);
  for (std::size_t b = chunk.block; extents.size() < std::size_t{chunk.skip} + chunk.records; ++b) {
    indexes_[chunk.object].Decode(b, extents);
  }
  extents.erase(extents.begin(), extents.begin() + chunk.skip);
  extents.resize(chunk.records);
  return extents;
}

Piece Plan::PieceOf(std::uint32_t number, std::uint32_t records) const {
  const Chunk& chunk = chunks_[number];
  if (options_.mode == Mode::kPad) return {number, records, records};
  std::uint64_t tokens = chunk.tokens;
  if (records < chunk.records) {
    tokens = 0;
    std::vector<RecordExtent> extents = Extents(number);
    for (std::uint32_t i = 0; i < records; ++i) tokens += extents[i].tokens;
  }
  return {number, records, tokens + std::uint64_t{records} * AddedTokens(chunk)};
}

void Plan::AddSource(const Source& source, std::size_t number, std::span<const std::uint32_t> objects) {
  std::vector<std::uint32_t> members;
  std::uint64_t records = 0;
  for (std::uint32_t object : objects) {
    for (std::uint32_t c = object_chunks_[object]; c < object_chunks_[object + 1]; ++c) members.push_back(c);
    records += indexes_[object].records();
  }
  const double whole = std::floor(source.weight);
  for (auto passes = static_cast<std::uint64_t>(whole); passes > 0; --passes) {
    for (std::uint32_t c : members) pieces_.push_back(PieceOf(c, chunks_[c].records));
  }
  auto wanted = static_cast<std::uint64_t>(std::floor((source.weight - whole) * static_cast<double>(records) + 0.5));
  Permutation subset(members.size(), KeyOf(options_.seed, Purpose::kSubset, number, 0));
  std::vector<std::pair<std::uint32_t, std::uint32_t>> chosen;
  for (std::uint64_t i = 0; wanted > 0; ++i) {
    std::uint32_t c = members[subset(i)];
    auto take = static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted, chunks_[c].records));
    chosen.emplace_back(c, take);
    wanted -= take;
  }
  std::ranges::sort(chosen);  // unshuffled data keeps the order of its source
  for (auto [c, take] : chosen) pieces_.push_back(PieceOf(c, take));
}

Permutation Plan::PieceOrder(std::uint64_t epoch) const {
  return {pieces_.size(), KeyOf(options_.seed, Purpose::kPieces, epoch, 0)};
}

EpochOrder Plan::OrderOf(std::uint64_t epoch) const {
  EpochOrder order{.epoch = epoch};
  Permutation pieces = PieceOrder(epoch);
  std::uint64_t unit = 0, records = 0, bytes = 0;
  std::uint64_t limit = shuffled() ? kWindowBytes : kPlainWindowBytes;
  for (std::uint64_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[shuffled() ? pieces(i) : i];
    std::uint64_t size = chunks_[piece.chunk].bytes;
    bool full = (shuffled() && records >= options_.window) || bytes + size > limit;
    if (i == 0 || full) {
      order.windows.push_back({i, unit});
      records = bytes = 0;
    }
    records += piece.records;
    bytes += size;
    unit += piece.units;
    order.largest_window_bytes = std::max(order.largest_window_bytes, bytes);
  }
  order.windows.push_back({pieces_.size(), unit});
  return order;
}

std::vector<std::uint32_t> Plan::ChunksOf(const EpochOrder& epoch, std::size_t window) const {
  Permutation pieces = PieceOrder(epoch.epoch);
  std::vector<std::uint32_t> chunks;
  for (std::uint64_t i = epoch.windows[window].first_piece; i < epoch.windows[window + 1].first_piece; ++i) {
    chunks.push_back(pieces_[shuffled() ? pieces(i) : i].chunk);
  }
  return chunks;
}

WindowOrder Plan::OrderOf(const EpochOrder& epoch, std::size_t window) const {
  Permutation pieces = PieceOrder(epoch.epoch);
  WindowOrder order{.first_unit = epoch.windows[window].first_unit};
  order.starts.push_back(0);
  for (std::uint64_t i = epoch.windows[window].first_piece; i < epoch.windows[window + 1].first_piece; ++i) {
    order.pieces.push_back(pieces_[shuffled() ? pieces(i) : i]);
    order.starts.push_back(order.starts.back() + order.pieces.back().records);
  }
  std::uint64_t key = KeyOf(options_.seed, Purpose::kRecords, epoch.epoch, window);
  order.order = shuffled() ? Permutation(order.documents(), key) : Permutation::Identity(order.documents());
  if (options_.mode == Mode::kPad) return order;

  std::vector<std::uint32_t> units;
  units.reserve(order.documents());
  for (const Piece& piece : order.pieces) {
    std::vector<RecordExtent> extents = Extents(piece.chunk);
    std::uint32_t added = AddedTokens(chunks_[piece.chunk]);
    for (std::uint32_t i = 0; i < piece.records; ++i) units.push_back(extents[i].tokens + added);
  }
  order.ends.reserve(units.size());
  std::uint32_t end = 0;
  for (std::uint32_t k = 0; k < units.size(); ++k) order.ends.push_back(end += units[order.order(k)]);
  return order;
}

}  // namespace millrace::data
