#include "millrace/data/order/plan.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "millrace/data/order/packing.h"

namespace millrace::data {
namespace {

/// Keys of independent permutations. Part of the order of every run: never changes.
enum class Purpose : std::uint64_t { kStream = 1, kGroups = 2, kItems = 3, kSplit = 4 };
std::uint64_t KeyOf(std::uint64_t seed, Purpose purpose, std::uint64_t a, std::uint64_t b = 0) {
  std::uint64_t key = Mix64(seed);
  for (std::uint64_t word : {static_cast<std::uint64_t>(purpose), a, b}) key = Mix64(key + word);
  return key;
}

}  // namespace

std::size_t PassOrder::Find(std::uint64_t unit) const {
  auto after = std::ranges::upper_bound(windows, unit, {}, &Window::first_unit);
  return static_cast<std::size_t>(after - windows.begin()) - 1;
}

WindowOrder::Item WindowOrder::At(std::uint32_t k) const {
  auto at = static_cast<std::uint32_t>(order(k));
  auto group = static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), at) - starts.begin()) - 1;
  return {groups[group], at - starts[group]};
}

WindowOrder::ItemAtUnit WindowOrder::Find(std::uint32_t unit) const {
  if (ends.empty()) return {unit, unit};
  auto k = static_cast<std::uint32_t>(std::upper_bound(ends.begin(), ends.end(), unit) - ends.begin());
  return {k, k == 0 ? 0 : ends[k - 1]};
}

std::vector<std::uint32_t> WindowOrder::FirstUse(std::uint32_t from) const {
  std::vector<std::uint32_t> used;
  std::vector<bool> seen(groups.size());
  for (std::uint32_t k = from; k < items() && used.size() < groups.size(); ++k) {
    auto at = static_cast<std::uint32_t>(order(k));
    auto group = static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), at) - starts.begin()) - 1;
    if (seen[group]) continue;
    seen[group] = true;
    used.push_back(static_cast<std::uint32_t>(group));
  }
  return used;
}

Result<Plan> Plan::Make(std::span<const RecordIndex> indexes, std::span<const std::vector<std::uint32_t>> by_source,
                        std::span<const DataSource> sources, PlanOptions options) {
  Plan plan(indexes, options);
  for (std::uint32_t i = 0; i < indexes.size(); ++i) plan.MakeChunks(i);
  plan.object_chunks_.push_back(static_cast<std::uint32_t>(plan.chunks_.size()));
  plan.records_ = plan.documents_;
  std::vector<std::uint64_t> counts;
  for (std::size_t s = 0; s < sources.size(); ++s) {
    Stream stream = plan.MakeStream(s, by_source[s]);
    if (stream.samples == 0) {
      return Fail(
          Code::kInvalidArgument,
          "{} holds less than one sample{}: {} usable records, {} {}; add records, or lower data.sequence_length",
          sources[s].url, options.split.held_out > 0 ? " of this part of the split" : "", stream.records, stream.units,
          options.joins() ? "tokens" : "samples");
    }
    double wanted = std::floor(sources[s].weight * static_cast<double>(stream.samples) + 0.5);
    if (wanted < 1) {
      return Fail(Code::kInvalidArgument, "{}: a weight of {} leaves nothing of its {} samples; give it a larger one",
                  sources[s].url, sources[s].weight, stream.samples);
    }
    counts.push_back(static_cast<std::uint64_t>(wanted));
    plan.streams_.push_back(std::move(stream));
  }
  plan.blend_ = Blend(std::move(counts));
  plan.ShareWindow(sources);
  return plan;
}

bool Plan::Selects(const RecordExtent& record) const {
  const HeldOutSplit& split = options_.split;
  if (split.held_out <= 0) return true;
  // Permutes the 65,536 values of the hashes, and holds out the wanted share of the values exactly.
  constexpr std::uint64_t kHashes = 65'536;
  auto held = static_cast<std::uint64_t>(std::llround(split.held_out * static_cast<double>(kHashes)));
  bool out = Permutation(kHashes, KeyOf(split.seed, Purpose::kSplit, 0))(record.hash) < held;
  return out == (split.part == SplitPart::kHeldOut);
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
      if (open.span == 0 || !fits) {
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
      ++open.span;
      open.bytes = static_cast<std::uint32_t>(record.offset + record.bytes - open.offset);
      if (!Selects(record)) continue;
      ++open.records;
      ++documents_;
      open.tokens += record.tokens;
    }
  }
  close();
}

std::vector<RecordExtent> Plan::Extents(std::uint32_t number) const {
  const Chunk& chunk = chunks_[number];
  std::vector<RecordExtent> extents;
  extents.reserve(chunk.skip + chunk.span + 256);
  for (std::size_t b = chunk.block; extents.size() < std::size_t{chunk.skip} + chunk.span; ++b) {
    indexes_[chunk.object].Decode(b, extents);
  }
  extents.erase(extents.begin(), extents.begin() + chunk.skip);
  extents.resize(chunk.span);
  if (chunk.records < chunk.span) std::erase_if(extents, [this](const RecordExtent& r) { return !Selects(r); });
  return extents;
}

std::uint32_t Plan::UnitsOf(std::uint32_t tokens) const {
  if (options_.joins()) return tokens;
  if (options_.piece > 0) {
    return static_cast<std::uint32_t>((tokens - options_.added_tokens + options_.piece - 1) / options_.piece);
  }
  if (!options_.split_long) return 1;
  // Samples overlap by one token: the last label of one is the first input of the next.
  return tokens < 2 ? 1 : static_cast<std::uint32_t>((tokens - 2) / options_.sequence_length + 1);
}

Stream Plan::MakeStream(std::size_t number, std::span<const std::uint32_t> objects) {
  Stream stream{.key = KeyOf(options_.seed, Purpose::kStream, number)};
  for (std::uint32_t object : objects) {
    for (std::uint32_t c = object_chunks_[object]; c < object_chunks_[object + 1]; ++c) stream.chunks.push_back(c);
  }
  MakeGroups(stream);
  for (const ChunkGroup& group : stream.groups) stream.units += group.units;
  for (std::uint32_t c : stream.chunks) stream.records += chunks_[c].records;
  stream.samples = !options_.joins()   ? stream.units
                   : stream.units == 0 ? 0
                                       : (stream.units - 1) / options_.sequence_length;
  return stream;
}

void Plan::CountTruncated(std::uint32_t chunk) {
  for (const RecordExtent& record : Extents(chunk)) {
    truncated_ += TokensOf(chunks_[chunk], record) > options_.row_tokens();
  }
}

void Plan::MakeGroups(Stream& stream) {
  if (!options_.best_fit) {
    for (std::uint32_t i = 0; i < stream.chunks.size(); ++i) {
      const Chunk& chunk = chunks_[stream.chunks[i]];
      std::uint64_t units = chunk.records;
      if (options_.joins()) {
        units = TokensOf(chunk);
      } else if (options_.divides()) {
        units = 0;
        for (const RecordExtent& record : Extents(stream.chunks[i])) units += UnitsOf(TokensOf(chunk, record));
      }
      if (options_.mode == SequenceMode::kSft) CountTruncated(stream.chunks[i]);
      stream.groups.push_back({i, 1, chunk.records, units});
    }
    return;
  }
  for (std::uint32_t i = 0; i < stream.chunks.size();) {
    ChunkGroup group{.first = i};
    std::uint64_t tokens = 0, bytes = 0;
    while (i < stream.chunks.size() && tokens < kGroupRows * options_.sequence_length && bytes < kGroupBytes) {
      const Chunk& chunk = chunks_[stream.chunks[i++]];
      tokens += TokensOf(chunk);
      bytes += chunk.bytes;
      ++group.chunks;
      CountTruncated(stream.chunks[i - 1]);
    }
    group.items = static_cast<std::uint32_t>(FitRows(stream, group).size());
    group.units = group.items;
    stream.groups.push_back(group);
  }
}

std::vector<FittedRow> Plan::FitRows(std::uint32_t stream, std::uint32_t group) const {
  return FitRows(streams_[stream], streams_[stream].groups[group]);
}

std::vector<FittedRow> Plan::FitRows(const Stream& stream, const ChunkGroup& group) const {
  const auto capacity = static_cast<std::uint32_t>(options_.row_tokens());
  std::vector<DocumentLocation> places;
  std::vector<std::uint32_t> lengths;
  for (std::uint32_t i = group.first; i < group.first + group.chunks; ++i) {
    std::vector<RecordExtent> extents = Extents(stream.chunks[i]);
    for (std::uint32_t r = 0; r < extents.size(); ++r) {
      places.push_back({stream.chunks[i], r});
      lengths.push_back(std::min(capacity, TokensOf(chunks_[stream.chunks[i]], extents[r])));
    }
  }
  std::vector<FittedRow> rows;
  for (const auto& bin : BestFitDecreasing(lengths, capacity)) {
    FittedRow& row = rows.emplace_back();
    for (std::uint32_t item : bin) row.push_back(places[item]);
  }
  return rows;
}

/// Divides the limits of a shuffle window among the sources, in proportion to what an epoch reads of each.
void Plan::ShareWindow(std::span<const DataSource> sources) {
  std::vector<double> bytes, records;
  double all_bytes = 0, all_records = 0;
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    double sum = 0;
    for (std::uint32_t c : streams_[s].chunks) sum += chunks_[c].bytes;
    bytes.push_back(sources[s].weight * sum);
    records.push_back(sources[s].weight * static_cast<double>(streams_[s].records));
    all_bytes += bytes.back();
    all_records += records.back();
  }
  auto limit = static_cast<double>(options_.shuffled() ? kShuffleWindowBytes : kPlainWindowBytes);
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    streams_[s].window_bytes = static_cast<std::uint64_t>(std::ceil(limit * (bytes[s] / all_bytes)));
    streams_[s].window_records =
        static_cast<std::uint64_t>(std::ceil(static_cast<double>(options_.window) * (records[s] / all_records)));
  }
}

SampleLocation Plan::Locate(std::uint64_t epoch, std::uint64_t index) const {
  SourceSample pick = blend_.At(index);
  auto position = static_cast<unsigned __int128>(epoch) * blend_.counts()[pick.source] + pick.number;
  std::uint64_t samples = streams_[pick.source].samples;
  return {pick.source, static_cast<std::uint64_t>(position / samples), static_cast<std::uint64_t>(position % samples)};
}

double Plan::TimeOf(std::uint32_t stream, std::uint64_t pass, std::uint64_t unit) const {
  std::uint64_t sample = options_.joins() ? unit / options_.sequence_length : unit;
  auto samples = static_cast<double>(streams_[stream].samples);
  return (static_cast<double>(pass) * samples + static_cast<double>(sample)) /
         static_cast<double>(blend_.counts()[stream]);
}

Permutation Plan::GroupOrder(const Stream& stream, std::uint64_t pass) const {
  if (!options_.shuffled()) return Permutation::Identity(stream.groups.size());
  return {stream.groups.size(), KeyOf(stream.key, Purpose::kGroups, pass)};
}

PassOrder Plan::OrderOf(std::uint32_t number, std::uint64_t pass) const {
  const Stream& stream = streams_[number];
  PassOrder order{.pass = pass};
  Permutation groups = GroupOrder(stream, pass);
  std::uint64_t unit = 0, records = 0, bytes = 0;
  for (std::uint64_t i = 0; i < stream.groups.size(); ++i) {
    const ChunkGroup& group = stream.groups[groups(i)];
    std::uint64_t size = 0, held = 0;
    for (std::uint32_t c = group.first; c < group.first + group.chunks; ++c) {
      size += chunks_[stream.chunks[c]].bytes;
      held += chunks_[stream.chunks[c]].records;
    }
    bool full = (options_.shuffled() && records >= stream.window_records) || bytes + size > stream.window_bytes;
    if (i == 0 || full) {
      order.windows.push_back({i, unit});
      records = bytes = 0;
    }
    records += held;
    bytes += size;
    unit += group.units;
    order.largest_window_bytes = std::max(order.largest_window_bytes, bytes);
  }
  order.windows.push_back({stream.groups.size(), unit});
  return order;
}

std::vector<std::uint32_t> Plan::GroupsOf(std::uint32_t number, const PassOrder& pass, std::size_t window) const {
  Permutation order = GroupOrder(streams_[number], pass.pass);
  std::vector<std::uint32_t> groups;
  for (std::uint64_t i = pass.windows[window].first_group; i < pass.windows[window + 1].first_group; ++i) {
    groups.push_back(static_cast<std::uint32_t>(order(i)));
  }
  return groups;
}

WindowOrder Plan::OrderOf(std::uint32_t number, const PassOrder& pass, std::size_t window) const {
  const Stream& stream = streams_[number];
  WindowOrder order{.first_unit = pass.windows[window].first_unit, .groups = GroupsOf(number, pass, window)};
  order.starts.push_back(0);
  for (std::uint32_t group : order.groups) order.starts.push_back(order.starts.back() + stream.groups[group].items);
  order.order = options_.shuffled() ? Permutation(order.items(), KeyOf(stream.key, Purpose::kItems, pass.pass, window))
                                    : Permutation::Identity(order.items());
  if (!options_.joins() && !options_.divides()) return order;

  std::vector<std::uint32_t> units;
  units.reserve(order.items());
  for (std::uint32_t group : order.groups) {
    std::uint32_t number_of_chunk = stream.chunks[stream.groups[group].first];
    for (const RecordExtent& record : Extents(number_of_chunk)) {
      units.push_back(UnitsOf(TokensOf(chunks_[number_of_chunk], record)));
    }
  }
  order.ends.reserve(units.size());
  std::uint32_t end = 0;
  for (std::uint32_t k = 0; k < units.size(); ++k) order.ends.push_back(end += units[order.order(k)]);
  return order;
}

}  // namespace millrace::data
