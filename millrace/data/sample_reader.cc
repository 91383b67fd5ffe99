#include "millrace/data/sample_reader.h"

#include <algorithm>
#include <map>
#include <optional>

#include "millrace/data/megatron.h"
#include "millrace/object/blocking.h"

namespace millrace::data {

CorpusReader::CorpusReader(std::shared_ptr<const Corpus> corpus, Options options)
    : corpus_(std::move(corpus)),
      reads_ahead_(options.read_ahead_threads > 0),
      chunk_cache_bytes_(options.cache_bytes > 2 * kDocumentCacheBytes ? options.cache_bytes - kDocumentCacheBytes
                                                                       : options.cache_bytes / 2),
      chunks_(chunk_cache_bytes_),
      documents_(options.cache_bytes - chunk_cache_bytes_) {
  for (int i = 0; i < options.read_ahead_threads; ++i) {
    threads_.Spawn("data-fetch", [this](std::stop_token stop) { ReadAheadLoop(std::move(stop)); });
  }
}

CorpusReader::~CorpusReader() {
  threads_.RequestStop();
  threads_.Join();
}

Status CorpusReader::Read(std::uint64_t epoch_number, std::uint64_t index, std::span<TokenId> inputs,
                          std::span<TokenId> labels, object::Call call) {
  const PlanOptions& options = corpus_->plan->options();
  if (index >= corpus_->plan->samples() || inputs.size() != options.sequence_length ||
      labels.size() != options.sequence_length) {
    return Fail(Code::kInvalidArgument, "no sample {} of {} tokens in epochs of {} samples of {} tokens", index,
                inputs.size(), corpus_->plan->samples(), options.sequence_length);
  }
  auto epoch = MR_TRY(Epoch(epoch_number, call.stop));
  if (options.mode == Mode::kPad) {
    std::size_t number = epoch->Find(index);
    auto window = MR_TRY(EnterWindow(*epoch, number, call.stop));
    auto document = static_cast<std::uint32_t>(index - window->first_unit);
    FillPadded(*MR_TRY(Document(window->Document(document), call)), inputs, labels);
    return {};
  }
  Tokens stream;
  stream.reserve(options.sequence_length + 1);
  MR_TRY(ReadStream(*epoch, index * options.sequence_length, options.sequence_length + 1, stream, call));
  std::copy_n(stream.begin(), inputs.size(), inputs.begin());
  std::copy_n(stream.begin() + 1, labels.size(), labels.begin());
  return {};
}

Status CorpusReader::ReadStream(const EpochOrder& epoch, std::uint64_t first, std::size_t count, Tokens& into,
                                object::Call call) {
  std::size_t number = epoch.Find(first);
  auto window = MR_TRY(EnterWindow(epoch, number, call.stop));
  auto hit = window->Find(static_cast<std::uint32_t>(first - window->first_unit));
  std::size_t skip = first - window->first_unit - hit.start;
  std::uint32_t k = hit.document;
  while (true) {
    auto document = MR_TRY(Document(window->Document(k), call));
    std::size_t take = std::min(count - into.size(), document->size() - skip);
    into.insert(into.end(), document->begin() + skip, document->begin() + skip + take);
    if (into.size() == count) return {};
    skip = 0;
    if (++k == window->documents()) {
      window = MR_TRY(EnterWindow(epoch, ++number, call.stop));
      k = 0;
    }
  }
}

void CorpusReader::FillPadded(const Tokens& document, std::span<TokenId> inputs, std::span<TokenId> labels) const {
  TokenId eos = corpus_->tokenizer->eos();
  TokenId padding = eos == tokenizer::kNoToken ? 0 : eos;
  for (std::size_t t = 0; t < inputs.size(); ++t) {
    inputs[t] = t < document.size() ? document[t] : padding;
    labels[t] = t + 1 < document.size() ? document[t + 1] : kIgnoreLabel;
  }
}

Result<std::shared_ptr<const EpochOrder>> CorpusReader::Epoch(std::uint64_t epoch, std::stop_token stop) {
  return epochs_.Get(epoch, std::move(stop), [&]() -> Result<FlightCache<std::uint64_t, EpochOrder>::Made> {
    return {{std::make_shared<EpochOrder>(corpus_->plan->OrderOf(epoch)), 1}};
  });
}

Result<std::shared_ptr<const WindowOrder>> CorpusReader::EnterWindow(const EpochOrder& epoch, std::size_t window,
                                                                     std::stop_token stop) {
  auto order =
      MR_TRY(windows_.Get({epoch.epoch, window}, stop, [&]() -> Result<FlightCache<WindowKey, WindowOrder>::Made> {
        return {{std::make_shared<WindowOrder>(corpus_->plan->OrderOf(epoch, window)), 1}};
      }));
  if (reads_ahead_) MR_TRY(ReadAhead(epoch, window, *order, stop));
  return order;
}

Result<std::shared_ptr<const CorpusReader::Tokens>> CorpusReader::Document(WindowOrder::Place place,
                                                                           object::Call call) {
  std::uint64_t number = corpus_->plan->chunks()[place.chunk].first_document + place.record;
  return documents_.Get(number, call.stop, [&] { return Tokenize(place, call); });
}

Result<FlightCache<std::uint64_t, CorpusReader::Tokens>::Made> CorpusReader::Tokenize(WindowOrder::Place place,
                                                                                      object::Call call) {
  const Chunk& chunk = corpus_->plan->chunks()[place.chunk];
  auto loaded = MR_TRY(ChunkBytes(place.chunk, call));
  const RecordExtent& extent = loaded->extents[place.record];
  if (corpus_->objects[chunk.object].token_bytes > 0) return ReadTokens(chunk, *loaded, extent);
  std::string_view line = AsText(loaded->bytes.span().subspan(extent.offset - loaded->offset, extent.bytes));
  RecordParser parser(*corpus_->record_template);
  auto document = parser.Parse(line.substr(0, line.find('\n')));
  const std::string& url = corpus_->objects[chunk.object].url;
  if (!document) {
    return Fail(Code::kCorrupt,
                "{}: the record at byte {} is unusable ({}), but its index says otherwise; delete the "
                "index beside it to have it rebuilt",
                url, extent.offset, BrokenName(document.error()));
  }
  auto tokens = std::make_shared<Tokens>();
  TokenId bos = corpus_->tokenizer->bos(), eos = corpus_->tokenizer->eos();
  if (bos != tokenizer::kNoToken) tokens->push_back(bos);
  std::size_t before = tokens->size();
  bool pack = corpus_->plan->options().mode == Mode::kPack;
  // A padded sequence is cut after one token more than it has inputs.
  std::size_t wanted = pack ? std::string_view::npos : corpus_->plan->options().sequence_length + 1;
  MR_TRY(corpus_->tokenizer->EncodeFirst(*document, wanted, *tokens));
  if (pack && tokens->size() - before != extent.tokens) {
    return Fail(Code::kCorrupt,
                "{}: the record at byte {} has {} tokens, but its index says {}; delete the index beside "
                "it to have it rebuilt",
                url, extent.offset, tokens->size() - before, extent.tokens);
  }
  if (eos != tokenizer::kNoToken) tokens->push_back(eos);
  std::uint64_t cost = tokens->size() * sizeof(TokenId) + 128;
  return {{std::move(tokens), cost}};
}

Result<FlightCache<std::uint64_t, CorpusReader::Tokens>::Made> CorpusReader::ReadTokens(
    const Chunk& chunk, const LoadedChunk& loaded, const RecordExtent& extent) const {
  const DataObject& object = corpus_->objects[chunk.object];
  ByteSpan bytes = loaded.bytes.span().subspan(extent.offset - loaded.offset, extent.bytes);
  bool pack = corpus_->plan->options().mode == Mode::kPack;
  std::size_t wanted = pack ? SIZE_MAX : corpus_->plan->options().sequence_length + 1;
  auto tokens = std::make_shared<Tokens>();
  MR_TRY(ParseTokens(bytes.first(std::uint64_t{extent.tokens} * object.token_bytes), object.token_bytes, wanted,
                     corpus_->tokenizer->vocab_size(),
                     fmt::format("{}: the document at byte {}", object.url, extent.offset), *tokens));
  std::uint64_t cost = tokens->size() * sizeof(TokenId) + 128;
  return {{std::move(tokens), cost}};
}

Result<std::shared_ptr<const CorpusReader::LoadedChunk>> CorpusReader::ChunkBytes(std::uint32_t chunk,
                                                                                  object::Call call) {
  return chunks_.Get(chunk, call.stop, [&] { return FetchChunk(chunk, call); });
}

Result<FlightCache<std::uint32_t, CorpusReader::LoadedChunk>::Made> CorpusReader::FetchChunk(std::uint32_t number,
                                                                                             object::Call call) const {
  const Chunk& chunk = corpus_->plan->chunks()[number];
  const DataObject& object = corpus_->objects[chunk.object];
  auto loaded = std::make_shared<LoadedChunk>();
  if (object.content) {
    const IndexedFrame& frame = corpus_->plan->index(chunk.object).FrameAt(chunk.offset);
    loaded->bytes = MR_TRY(object.content->ReadFrame(frame.frame, std::move(call)));
    loaded->offset = frame.content_offset;
    if (loaded->bytes.size() != frame.content_bytes) {
      return Fail(Code::kCorrupt,
                  "{}: the records at byte {} of the object are not those of its index; delete the index "
                  "to have it rebuilt",
                  object.url, frame.frame.offset);
    }
  } else {
    loaded->bytes = Buffer(chunk.bytes);
    loaded->offset = chunk.offset;
    MR_TRY(ReadRange(object, chunk.offset, loaded->bytes.span(), "reading records of", std::move(call)));
  }
  loaded->extents = corpus_->plan->Extents(number);
  std::uint64_t cost = loaded->bytes.size() + loaded->extents.size() * sizeof(RecordExtent);
  return {{std::move(loaded), cost}};
}

Status CorpusReader::ReadAhead(const EpochOrder& epoch, std::size_t window, const WindowOrder& order,
                               std::stop_token stop) {
  bool first;
  {
    MutexLock lock(mutex_);
    WindowKey entered{epoch.epoch, window};
    if (ahead_of_ && entered <= *ahead_of_) return {};
    first = !ahead_of_;
    ahead_of_ = entered;
  }
  const Plan& plan = *corpus_->plan;
  std::vector<std::uint32_t> chunks;
  for (const Piece& piece : order.pieces) chunks.push_back(piece.chunk);
  bool last = window + 2 == epoch.windows.size();
  std::ranges::copy(last ? plan.ChunksOf(*MR_TRY(Epoch(epoch.epoch + 1, stop)), 0) : plan.ChunksOf(epoch, window + 1),
                    std::back_inserter(chunks));
  Announce(std::span(chunks).subspan(first ? 0 : order.pieces.size()));
  std::uint64_t bytes = 0;
  std::size_t fit = 0;
  for (; fit < chunks.size(); ++fit) {
    bytes += plan.chunks()[chunks[fit]].bytes;
    if (bytes > chunk_cache_bytes_ - chunk_cache_bytes_ / 8) break;
  }
  chunks.resize(fit);
  std::ranges::reverse(chunks);
  MutexLock lock(mutex_);
  ahead_ = std::move(chunks);
  lock.Unlock();
  more_ahead_.NotifyAll();
  return {};
}

void CorpusReader::Announce(std::span<const std::uint32_t> chunks) const {
  std::map<object::Store*, std::vector<std::string>> keys;
  for (std::uint32_t number : chunks) {
    const Chunk& chunk = corpus_->plan->chunks()[number];
    const DataObject& object = corpus_->objects[chunk.object];
    if (2 * std::uint64_t{chunk.bytes} > object.info.size) keys[object.store.get()].push_back(object.info.key);
  }
  for (const auto& [store, some] : keys) store->WillRead(some);
}

void CorpusReader::ReadAheadLoop(std::stop_token stop) {
  while (!stop.stop_requested()) {
    std::uint32_t chunk;
    {
      MutexLock lock(mutex_);
      if (!more_ahead_.Wait(mutex_, stop, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return !ahead_.empty(); })) return;
      chunk = ahead_.back();
      ahead_.pop_back();
    }
    // A failure here is nobody's: whoever needs the chunk fetches it again and reports what happens then.
    if (!chunks_.Has(chunk)) (void)ChunkBytes(chunk, {.stop = stop});
  }
}

}  // namespace millrace::data
