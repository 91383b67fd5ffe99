#include "millrace/data/reading/sample_reader.h"

#include <algorithm>
#include <memory>
#include <span>

#include "millrace/data/batch/sequence_row.h"
#include "millrace/data/batch/stage_trace.h"
#include "millrace/data/documents/document_encoder.h"
#include "millrace/data/formats/megatron.h"
#include "millrace/data/hdf5/stored_sample.h"
#include "millrace/data/reading/row_writer.h"

namespace millrace::data {
namespace {

/// Writes the two documents of each pair, one behind the other. Each gets half of the row at most, and is cut if it is
/// longer. Padding is documents of at most half of the row. If a document has no label, its pair has none and the
/// pair's label is kIgnoreLabel. REQUIRES: the documents fit into the row.
void WritePairs(std::span<const std::shared_ptr<const EncodedDocument>> pairs, TokenId padding, SequenceRow& row) {
  const std::size_t most = row.inputs.size() / 2;
  RowWriter writer(row, /*boundaries=*/true);
  std::vector<std::size_t> ends;  // of documents
  for (const auto& pair : pairs) {
    for (const auto& [first, last] : {std::pair<std::size_t, std::size_t>{0, pair->first_text},
                                      std::pair<std::size_t, std::size_t>{pair->first_text, pair->ids.size()}}) {
      const std::size_t written = writer.Append(*pair, first, std::min(last - first, most));
      ends.push_back((ends.empty() ? 0 : ends.back()) + written);
    }
  }
  writer.Finish(padding);
  // A model may have no more positions than an answer has tokens.
  const auto used = static_cast<std::size_t>(row.length);
  for (std::size_t t = used; t < row.positions.size(); ++t)
    row.positions[t] = static_cast<std::int32_t>((t - used) % most);
  const auto labels_of = [&](std::size_t document, std::size_t count) {
    const std::size_t begin = document == 0 ? 0 : ends[document - 1];
    return row.labels.subspan(begin, ends[document + count - 1] - begin);
  };
  const auto learns = [](std::span<const TokenId> labels) {
    return std::ranges::any_of(labels, [](TokenId label) { return label != kIgnoreLabel; });
  };
  row.pair_labels.clear();
  for (std::size_t document = 0; document < ends.size(); document += 2) {
    const bool complete = learns(labels_of(document, 1)) && learns(labels_of(document + 1, 1));
    row.pair_labels.push_back(complete ? 0 : kIgnoreLabel);
    if (!complete) std::ranges::fill(labels_of(document, 2), kIgnoreLabel);
  }
}

}  // namespace

SampleReader::SampleReader(std::shared_ptr<const Corpus> corpus, Options options)
    : corpus_(std::move(corpus)),
      reads_ahead_(options.read_ahead_threads > 0),
      chunk_bytes_(options.cache_bytes > 2 * kDocumentCacheBytes ? options.cache_bytes - kDocumentCacheBytes
                                                                 : options.cache_bytes / 2),
      passes_(2 * corpus_->plan->streams().size()),
      windows_(3 * corpus_->plan->streams().size()),
      documents_(options.cache_bytes - chunk_bytes_),
      chunks_(corpus_, chunk_bytes_, options.read_ahead_threads) {}

Status SampleReader::Read(std::uint64_t epoch, std::uint64_t index, SequenceRow& row, object::Call call,
                          StageTrace* trace) {
  const Plan& plan = *corpus_->plan;
  const std::uint64_t length = plan.options().sequence_length;
  bool fits = row.inputs.size() == length && row.labels.size() == length &&
              (row.positions.empty() || row.positions.size() == length) &&
              (row.segments.empty() || row.segments.size() == length);
  if (index >= plan.samples() || !fits) {
    return Fail(Code::kInvalidArgument,
                "no sample {} of {} tokens in epochs of {} samples of {} tokens; expected a smaller number, or rows of "
                "that length",
                index, row.inputs.size(), plan.samples(), length);
  }
  ScopedStage packing(trace, LoadStage::kPack);
  SampleLocation at = plan.Locate(epoch, index);
  auto pass = MR_TRY(Pass(at.stream, at.pass, call.stop));
  Reading reading{at.stream, std::move(pass), std::move(call), trace};
  if (corpus_->bert) {
    return FillBertRow(reading, at.sample, BertSampler::DrawOf(plan.options().seed, epoch, index), row);
  }
  const TokenId eos = corpus_->tokenizer->eos(), padding = eos == tokenizer::kNoToken ? 0 : eos;
  if (corpus_->objective == Objective::kDpo) {
    const UnitLocation unit = MR_TRY(FindUnit(reading, at.sample));
    std::vector<Document> pairs;
    for (const DocumentLocation place : MR_TRY(DocumentsOf(reading, unit))) {
      pairs.push_back(MR_TRY(DocumentAt(reading, place)));
    }
    WritePairs(pairs, padding, row);
    return {};
  }
  RowWriter writer(row, corpus_->boundaries);
  if (plan.options().joins()) {
    MR_TRY(AppendStream(reading, at.sample * length, writer));
  } else {
    MR_TRY(AppendUnit(reading, at.sample, writer));
  }
  writer.Finish(padding);
  return {};
}

Status SampleReader::AppendStream(const Reading& reading, std::uint64_t first, RowWriter& row) {
  std::size_t number = reading.pass->Find(first);
  auto window = MR_TRY(EnterWindow(reading, number, first));
  auto hit = window->Find(static_cast<std::uint32_t>(first - window->first_unit));
  std::size_t skip = first - window->first_unit - hit.start;
  std::uint32_t k = hit.item;
  while (true) {
    Document document = MR_TRY(DocumentAt(reading, corpus_->plan->DocumentOf(reading.stream, window->At(k))));
    row.Append(*document, skip, document->ids.size());
    if (row.room() == 0) return {};
    skip = 0;
    if (++k == window->items()) {
      ++number;
      window = MR_TRY(EnterWindow(reading, number, reading.pass->windows[number].first_unit));
      k = 0;
    }
  }
}

Status SampleReader::AppendUnit(const Reading& reading, std::uint64_t unit, RowWriter& row) {
  const UnitLocation at = MR_TRY(FindUnit(reading, unit));
  for (const DocumentLocation place : MR_TRY(DocumentsOf(reading, at))) {
    Document document = MR_TRY(DocumentAt(reading, place));
    row.Append(*document, at.part * corpus_->plan->options().sequence_length, document->ids.size());
  }
  return {};
}

Result<FittedRow> SampleReader::DocumentsOf(const Reading& reading, const UnitLocation& at) {
  const Plan& plan = *corpus_->plan;
  const WindowOrder::Item item = at.window->At(at.item);
  if (!plan.options().best_fit) return FittedRow{plan.DocumentOf(reading.stream, item)};
  return (*MR_TRY(RowsOf(reading.stream, item.group, reading.call.stop)))[item.number];
}

Result<SampleReader::UnitLocation> SampleReader::FindUnit(const Reading& reading, std::uint64_t unit) {
  auto window = MR_TRY(EnterWindow(reading, reading.pass->Find(unit), unit));
  const auto within = static_cast<std::uint32_t>(unit - window->first_unit);
  const auto hit = window->Find(within);
  return UnitLocation{.window = std::move(window), .item = hit.item, .part = within - hit.start};
}

Status SampleReader::FillBertRow(const Reading& reading, std::uint64_t unit, Random draw, SequenceRow& row) {
  const UnitLocation at = MR_TRY(FindUnit(reading, unit));
  const DocumentLocation place = corpus_->plan->DocumentOf(reading.stream, at.window->At(at.item));
  if (corpus_->stored_samples) return FillStoredRow(reading, place, row);
  if (corpus_->objective == Objective::kMlm) return FillMaskedRow(reading, at, draw, row);
  Document document = MR_TRY(DocumentAt(reading, place));
  corpus_->bert->WriteClass(*document, row);
  return {};
}

std::span<const TokenId> SampleReader::TextOf(const EncodedDocument& document) const {
  const tokenizer::Tokenizer& tokenizer = *corpus_->tokenizer;
  const std::size_t begin = tokenizer.text_begin() != tokenizer::kNoToken, end = tokenizer.eos() != tokenizer::kNoToken;
  return std::span(document.ids).subspan(begin, document.ids.size() - begin - end);
}

Status SampleReader::FillMaskedRow(const Reading& reading, const UnitLocation& at, Random draw, SequenceRow& row) {
  const BertSampler& bert = *corpus_->bert;
  Document document = MR_TRY(DocumentAt(reading, corpus_->plan->DocumentOf(reading.stream, at.window->At(at.item))));
  // The pieces of a document have nearly the same length, so that none is a leftover of some tokens.
  const std::span<const TokenId> text = TextOf(*document);
  const std::size_t pieces = (text.size() + bert.text_tokens() - 1) / bert.text_tokens();
  const std::size_t begin = text.size() * at.part / pieces, end = text.size() * (at.part + 1) / pieces;
  BertSampler::TextPair pair = bert.Cut(text.subspan(begin, end - begin), draw);
  Document other;  // keeps the tokens that the pair refers to
  if (pair.wanted > 0) {
    other = MR_TRY(OtherDocument(reading, *at.window, at.item, draw));
    if (other) {
      bert.TakeRandom(TextOf(*other), pair, draw);
    } else {
      BertSampler::GiveUp(pair);
    }
  }
  bert.WriteMasked(pair, draw, row);
  return {};
}

Status SampleReader::FillStoredRow(const Reading& reading, DocumentLocation place, SequenceRow& row) {
  const Chunk& chunk = corpus_->plan->chunks()[place.chunk];
  const DataObject& object = corpus_->objects[chunk.object];
  std::shared_ptr<const LoadedChunk> loaded;
  {
    ScopedStage fetching(reading.trace, LoadStage::kNetwork);
    loaded = MR_TRY(chunks_.Get(place.chunk, reading.call));
  }
  const Frame& frame = corpus_->plan->index(chunk.object).FrameAt(chunk.offset).frame;
  const StoredSampleLayout layout = MR_TRY(StoredSampleFrame::Decode(frame.state)).layout;
  const RecordExtent& extent = loaded->extents[place.record];
  const std::uint64_t begin = extent.offset - loaded->offset;
  Status written = extent.bytes < layout.bytes()
                       ? Fail(Code::kCorrupt, "the index is not of these samples; delete it to have it rebuilt")
                       : WriteStoredSample(loaded->bytes.span().subspan(begin, extent.bytes), layout,
                                           corpus_->bert->vocab_size(), corpus_->bert->tokens().pad, row);
  if (written) return {};
  return Fail(written.error().Context(fmt::format("{}: sample {}", object.url, extent.offset / layout.bytes())));
}

Result<SampleReader::Document> SampleReader::OtherDocument(const Reading& reading, const WindowOrder& window,
                                                           std::uint32_t item, Random& draw) {
  // A window in random order has unrelated neighbours, which were encoded just now or will be soon. 64 is a guess.
  constexpr std::uint64_t kNeighbours = 64;
  const std::uint64_t others = window.items() - 1;
  const std::uint64_t reach = corpus_->plan->options().shuffled() ? std::min(others, kNeighbours) : others;
  const std::uint64_t first = reach > 0 ? draw.Below(reach) : 0;
  for (std::uint64_t i = 0; i < others; ++i) {
    // The first candidates are the neighbours in turn, then all others of the window.
    const std::uint64_t distance = 1 + (i < reach ? (first + i) % reach : i);
    const auto candidate = static_cast<std::uint32_t>((item + distance) % window.items());
    if (window.ends[candidate] == (candidate == 0 ? 0 : window.ends[candidate - 1])) continue;  // no text
    return DocumentAt(reading, corpus_->plan->DocumentOf(reading.stream, window.At(candidate)));
  }
  return Document();
}

Result<std::shared_ptr<const PassOrder>> SampleReader::Pass(std::uint32_t stream, std::uint64_t pass,
                                                            std::stop_token stop) {
  return passes_.Get({stream, pass}, std::move(stop),
                     [&]() -> Result<SingleFlightCache<PassKey, PassOrder>::MadeValue> {
                       return {{std::make_shared<PassOrder>(corpus_->plan->OrderOf(stream, pass)), 1}};
                     });
}

Result<std::shared_ptr<const WindowOrder>> SampleReader::EnterWindow(const Reading& reading, std::size_t window,
                                                                     std::uint64_t unit) {
  auto order = MR_TRY(windows_.Get({reading.stream, reading.pass->pass, window}, reading.call.stop,
                                   [&]() -> Result<SingleFlightCache<WindowKey, WindowOrder>::MadeValue> {
                                     WindowOrder made = corpus_->plan->OrderOf(reading.stream, *reading.pass, window);
                                     return {{std::make_shared<WindowOrder>(std::move(made)), 1}};
                                   }));
  if (reads_ahead_) MR_TRY(ReadAhead(reading, window, *order, unit));
  return order;
}

Result<std::shared_ptr<const SampleReader::Rows>> SampleReader::RowsOf(std::uint32_t stream, std::uint32_t group,
                                                                       std::stop_token stop) {
  return rows_.Get({stream, group}, std::move(stop), [&]() -> Result<SingleFlightCache<PassKey, Rows>::MadeValue> {
    auto rows = std::make_shared<Rows>(corpus_->plan->FitRows(stream, group));
    std::uint64_t cost = 0;
    for (const FittedRow& row : *rows) cost += sizeof(FittedRow) + row.size() * sizeof(DocumentLocation);
    return {{std::move(rows), cost}};
  });
}

Result<SampleReader::Document> SampleReader::DocumentAt(const Reading& reading, DocumentLocation place) {
  std::uint64_t number = corpus_->plan->chunks()[place.chunk].first_document + place.record;
  ScopedStage tokenizing(reading.trace, LoadStage::kTokenize);
  return documents_.Get(number, reading.call.stop, [&] { return Encode(reading, place); });
}

Result<SampleReader::MadeDocument> SampleReader::Encode(const Reading& reading, DocumentLocation place) {
  const Chunk& chunk = corpus_->plan->chunks()[place.chunk];
  std::shared_ptr<const LoadedChunk> loaded;
  {
    ScopedStage fetching(reading.trace, LoadStage::kNetwork);
    loaded = MR_TRY(chunks_.Get(place.chunk, reading.call));
  }
  const DataObject& object = corpus_->objects[chunk.object];
  const RecordExtent& extent = loaded->extents[place.record];
  ByteSpan bytes = loaded->bytes.span().subspan(extent.offset - loaded->offset, extent.bytes);
  auto document = std::make_shared<EncodedDocument>();
  if (object.token_bytes > 0) {
    const PlanOptions& options = corpus_->plan->options();
    std::size_t wanted = options.joins() || options.divides() ? SIZE_MAX : options.sequence_length + 1;
    MR_TRY(ParseTokens(bytes.first(std::uint64_t{extent.tokens} * object.token_bytes), object.token_bytes, wanted,
                       corpus_->tokenizer->vocab_size(),
                       fmt::format("{}: the document at byte {}", object.url, extent.offset), document->ids));
    document->trained.push_back({0, static_cast<std::uint32_t>(document->ids.size())});
  } else {
    std::string_view line = AsText(bytes);
    MR_TRY(EncodeText(reading, chunk, extent, line.substr(0, line.find('\n')), *document));
  }
  std::uint64_t cost = document->ids.size() * sizeof(TokenId) + document->trained.size() * sizeof(TokenRange) + 128;
  return {{std::move(document), cost}};
}

Status SampleReader::EncodeText(const Reading& reading, const Chunk& chunk, const RecordExtent& extent,
                                std::string_view line, EncodedDocument& document) {
  const PlanOptions& options = corpus_->plan->options();
  const std::string& url = corpus_->objects[chunk.object].url;
  // A row needs one token more than it has inputs, for its last label. Two answers share a row.
  std::size_t wanted = options.joins() || options.divides() ? SIZE_MAX : options.sequence_length + 1;
  if (corpus_->objective == Objective::kDpo) wanted = options.sequence_length / 2;
  auto encoder = BorrowEncoder();
  auto broken = MR_TRY(encoder->Encode(line, wanted, document, reading.trace));
  ReturnEncoder(std::move(encoder));
  if (broken) {
    return Fail(Code::kCorrupt,
                "{}: the record at byte {} is unusable ({}), but its index says otherwise; delete the "
                "index beside it to have it rebuilt",
                url, extent.offset, BrokenReasonName(*broken));
  }
  std::uint64_t expected = std::uint64_t{extent.tokens} + options.added_tokens;
  // The documents of a pair were cut to their lengths when they were counted.
  const bool is_whole = corpus_->objective == Objective::kDpo || expected <= wanted;
  if (corpus_->counted && is_whole && document.ids.size() != expected) {
    return Fail(Code::kCorrupt,
                "{}: the record at byte {} has {} tokens, but its index says {}; delete the index beside "
                "it to have it rebuilt",
                url, extent.offset, document.ids.size(), expected);
  }
  return {};
}

std::unique_ptr<DocumentEncoder> SampleReader::BorrowEncoder() {
  MutexLock lock(mutex_);
  if (encoders_.empty()) return std::make_unique<DocumentEncoder>(*corpus_->form, corpus_->tokenizer);
  auto encoder = std::move(encoders_.back());
  encoders_.pop_back();
  return encoder;
}

void SampleReader::ReturnEncoder(std::unique_ptr<DocumentEncoder> encoder) {
  MutexLock lock(mutex_);
  encoders_.push_back(std::move(encoder));
}

Status SampleReader::ReadAhead(const Reading& reading, std::size_t window, const WindowOrder& order,
                               std::uint64_t unit) {
  bool first;
  {
    MutexLock lock(mutex_);
    std::pair entered{reading.pass->pass, window};
    auto [at, fresh] = ahead_of_.try_emplace(reading.stream, entered);
    if (!fresh && entered <= at->second) return {};
    first = fresh;
    at->second = entered;
  }
  const Plan& plan = *corpus_->plan;
  const Stream& stream = plan.streams()[reading.stream];
  std::vector<ChunkCache::Due> due;
  auto add = [&](std::uint32_t number, double time) {
    const ChunkGroup& group = stream.groups[number];
    for (std::uint32_t c = group.first; c < group.first + group.chunks; ++c) due.push_back({stream.chunks[c], time});
  };
  double now = plan.TimeOf(reading.stream, reading.pass->pass, unit);
  auto from = order.Find(static_cast<std::uint32_t>(unit - order.first_unit)).item;
  for (std::uint32_t group : order.FirstUse(from)) add(order.groups[group], now);
  std::size_t entered = due.size();
  std::shared_ptr<const PassOrder> pass = reading.pass;
  std::size_t next = window + 1;
  if (next + 1 == pass->windows.size()) {
    pass = MR_TRY(Pass(reading.stream, pass->pass + 1, reading.call.stop));
    next = 0;
  }
  double then = plan.TimeOf(reading.stream, pass->pass, pass->windows[next].first_unit);
  for (std::uint32_t group : plan.GroupsOf(reading.stream, *pass, next)) add(group, then);
  Announce(std::span(due).subspan(first ? 0 : entered));
  chunks_.FetchAhead(reading.stream, std::move(due));
  return {};
}

void SampleReader::Announce(std::span<const ChunkCache::Due> chunks) const {
  std::map<object::Store*, std::vector<std::string>> keys;
  for (const ChunkCache::Due& due : chunks) {
    const Chunk& chunk = corpus_->plan->chunks()[due.chunk];
    const DataObject& object = corpus_->objects[chunk.object];
    if (2 * std::uint64_t{chunk.bytes} > object.info.size) keys[object.store.get()].push_back(object.info.key);
  }
  for (const auto& [store, some] : keys) store->WillRead(some);
}

}  // namespace millrace::data
