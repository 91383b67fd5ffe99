#include "millrace/data/loader.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/base/text.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/data/batch/stage_trace.h"
#include "millrace/data/order/batch_schedule.h"
#include "millrace/data/reading/chunk_disk.h"
#include "millrace/data/reading/sample_reader.h"

namespace millrace::data {
namespace {

constexpr int kReadAheadThreads = 16;  ///< the most fetches at a time; read_ahead.h chooses how many are in use
// What the reservation counts beside the caches.
constexpr std::uint64_t kPerThreadBytes = 2 * kMiB;       ///< a chunk, and a document that is being made
constexpr std::uint64_t kPerReadAheadBytes = 512 * kKiB;  ///< a chunk that is being fetched (kChunkBytes)

/// Returns how the words that two fingerprints do not share differ: "length differs (64 then, 128 now)".
std::string Differences(std::string_view ours, std::string_view theirs) {
  std::string text;
  const std::vector<std::string_view> theirs_words = Split(theirs, ' ');
  for (const std::string_view word : Split(ours, ' ')) {
    if (std::ranges::find(theirs_words, word) != theirs_words.end()) continue;
    const std::string_view name = word.substr(0, word.find('='));
    const auto value = [&name](std::string_view of) { return of.substr(std::min(name.size() + 1, of.size())); };
    const auto before = std::ranges::find_if(theirs_words, [&](std::string_view w) {
      return w.starts_with(name) && w.substr(name.size()).starts_with('=');
    });
    text += text.empty() ? "" : ", ";
    text += fmt::format("{} differs ({} then, {} now)", name, before == theirs_words.end() ? "none" : value(*before),
                        value(word));
  }
  return text;
}

Status CheckOptions(const Dataset& dataset, const Loader::Options& o) {
  if (o.ranks < 1 || o.rank < 0 || o.rank >= o.ranks) {
    return Fail(Code::kInvalidArgument, "rank {} of {} does not exist; ranks are numbered from 0 on", o.rank, o.ranks);
  }
  if (o.stride < 1 || o.phase < 0 || o.phase >= o.stride) {
    return Fail(Code::kInvalidArgument, "phase {} of {} does not exist; phases are numbered from 0 on", o.phase,
                o.stride);
  }
  if (o.threads < 1 || o.prefetch_batches < 1) {
    return Fail(Code::kInvalidArgument, "loading needs a thread and room for a batch, not {} and {}", o.threads,
                o.prefetch_batches);
  }
  if (o.micro_batch < 1 || o.global_batch < 1 ||
      o.global_batch % (static_cast<std::int64_t>(o.ranks) * o.micro_batch) != 0) {
    return Fail(Code::kInvalidArgument,
                "a global batch of {} does not divide into {} ranks of {} rows at a time; train.global_batch must be a "
                "multiple of their product",
                o.global_batch, o.ranks, o.micro_batch);
  }
  if (dataset.samples_per_epoch() < static_cast<std::uint64_t>(o.global_batch)) {
    return Fail(Code::kInvalidArgument,
                "an epoch of {} samples holds no whole batch of {}; lower train.global_batch, or add data",
                dataset.samples_per_epoch(), o.global_batch);
  }
  return {};
}

/// Adds what a row tells of its pairs to the batch.
void AddPairs(const SequenceRow& row, Batch& batch) {
  auto next = static_cast<std::int32_t>(2 * batch.row_labels.size());
  for (const std::int32_t label : row.pair_labels) {
    batch.row_labels.push_back(label);
    batch.answers.push_back(next++);
    batch.answers.push_back(next++);
  }
  const auto documents = static_cast<std::size_t>(std::ranges::count(row.positions, 0));
  batch.answers.resize(batch.answers.size() + documents - 2 * row.pair_labels.size(), -1);
}

Status CheckState(const Dataset& dataset, const LoaderState& state) {
  bool fresh = state.epoch == 0 && state.samples == 0;
  if (state.fingerprint != dataset.fingerprint() && !(fresh && state.fingerprint.empty())) {
    return Fail(Code::kPreconditionFailed, "the position to resume from belongs to other data: {}",
                state.fingerprint.empty() ? "it names no data" : Differences(dataset.fingerprint(), state.fingerprint));
  }
  if (state.samples > dataset.samples_per_epoch()) {
    return Fail(Code::kPreconditionFailed,
                "the position to resume from, sample {}, is beyond the epoch's {}; resume with the data of that run",
                state.samples, dataset.samples_per_epoch());
  }
  return {};
}

}  // namespace

/// Threads take the numbers of micro-batches in order, fill them in any order, and leave them in a ring for the
/// consumer.
struct Loader::Rep {
  /// A micro-batch that is ready, and what its thread did.
  struct FilledSlot {
    Result<Batch> batch;
    StageTrace trace;
  };

  Rep(std::shared_ptr<Dataset> data, std::unique_ptr<SampleReader> from, Reservation reserved, Options chosen,
      const LoaderState& start)
      : dataset(std::move(data)),
        options(std::move(chosen)),
        clock(*dataset->options().clock),
        schedule(dataset->samples_per_epoch(), options, {.epoch = start.epoch, .sample = start.samples}),
        memory(std::move(reserved)),
        reader(std::move(from)),
        ring(options.prefetch_batches) {
    for (int i = 0; i < options.threads; ++i) {
      threads.Spawn("data-load", [this](std::stop_token stop) { Fill(std::move(stop)); });
    }
  }
  ~Rep() {
    threads.RequestStop();
    threads.Join();
  }

  Result<Batch> Next(std::stop_token stop) MR_EXCLUDES(mutex);
  /// The loop of a thread.
  void Fill(std::stop_token stop) MR_EXCLUDES(mutex);
  Result<Batch> Make(std::uint64_t number, StageTrace& trace, const std::stop_token& stop);

  // Constant after construction.
  const std::shared_ptr<Dataset> dataset;
  const Options options;
  const Clock& clock;
  const BatchSchedule schedule;
  Reservation memory;
  std::unique_ptr<SampleReader> reader;

  Mutex mutex;
  CondVar filled, freed;
  // Guarded by mutex.
  std::vector<std::optional<FilledSlot>> ring MR_GUARDED_BY(mutex);
  std::uint64_t started MR_GUARDED_BY(mutex) = 0;  ///< micro-batches that a thread has begun
  std::uint64_t taken MR_GUARDED_BY(mutex) = 0;    ///< micro-batches that Next has returned
  Stats stats MR_GUARDED_BY(mutex);
  TaskScope threads;
};

Result<Batch> Loader::Rep::Next(std::stop_token stop) {
  MutexLock lock(mutex);
  auto& slot = ring[taken % ring.size()];
  auto ready = [&slot]() MR_NO_THREAD_SAFETY_ANALYSIS { return slot.has_value(); };
  if (!ready()) {
    TimePoint since = clock.Now();
    bool is_filled = filled.Wait(mutex, stop, ready);
    TimePoint until = clock.Now();
    stats.waited += until - since;
    if (!is_filled) return Fail(Code::kCancelled, "interrupted while waiting for data");
    auto spent = slot->trace.Within(since, until);
    for (int s = 0; s < kLoadStages; ++s) stats.waited_on[s] += spent[s];
  }
  if (!slot->batch) return Fail(slot->batch.error());
  Batch batch = *std::move(slot->batch);
  slot.reset();
  ++taken;
  ++stats.batches;
  stats.tokens += static_cast<std::uint64_t>(batch.rows) * batch.sequence_length;
  lock.Unlock();
  freed.NotifyOne();
  return batch;
}

void Loader::Rep::Fill(std::stop_token stop) {
  while (true) {
    std::uint64_t number;
    {
      MutexLock lock(mutex);
      auto room = [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return started < taken + ring.size(); };
      if (!freed.Wait(mutex, stop, room) || stop.stop_requested()) return;
      number = started++;
    }
    FilledSlot made{.trace = StageTrace(clock)};
    made.batch = Make(number, made.trace, stop);
    if (options.on_made) options.on_made(number, made.trace);
    {
      MutexLock lock(mutex);
      ring[number % ring.size()] = std::move(made);
    }
    filled.NotifyOne();
  }
}

Result<Batch> Loader::Rep::Make(std::uint64_t number, StageTrace& trace, const std::stop_token& stop) {
  ScopedStage packing(&trace, LoadStage::kPack);
  SamplePosition at = schedule.MicroBatch(number);
  std::size_t length = dataset->options().sequence_length;
  std::size_t rows = options.micro_batch;
  Batch batch{.rows = options.micro_batch,
              .sequence_length = dataset->options().sequence_length,
              .inputs = std::vector<TokenId>(rows * length),
              .labels = std::vector<TokenId>(rows * length),
              .first_sample = at.sample};
  if (dataset->options().boundaries) batch.positions.resize(rows * length);
  if (dataset->options().IsForBert()) batch.segments.resize(rows * length);
  for (std::size_t r = 0; r < rows; ++r) {
    SequenceRow row{.inputs = std::span(batch.inputs).subspan(r * length, length),
                    .labels = std::span(batch.labels).subspan(r * length, length)};
    if (!batch.positions.empty()) row.positions = std::span(batch.positions).subspan(r * length, length);
    if (!batch.segments.empty()) row.segments = std::span(batch.segments).subspan(r * length, length);
    MR_TRY(reader->Read(at.epoch, at.sample + r, row, {.stop = stop}, &trace));
    batch.lengths.push_back(row.length);
    if (dataset->options().objective == Objective::kDpo) {
      AddPairs(row, batch);
    } else if (dataset->options().objective != Objective::kCausalLm) {
      batch.row_labels.push_back(row.row_label);
    }
  }
  for (std::size_t t = 0; t < batch.positions.size(); ++t) {
    if (batch.positions[t] == 0) batch.cu_seqlens.push_back(static_cast<std::int32_t>(t));
  }
  if (!batch.positions.empty()) batch.cu_seqlens.push_back(static_cast<std::int32_t>(batch.positions.size()));
  if (dataset->options().LearnsTokens()) {
    batch.loss_tokens = batch.labels.size() - std::ranges::count(batch.labels, kIgnoreLabel);
  }
  batch.loss_rows = batch.row_labels.size() - std::ranges::count(batch.row_labels, kIgnoreLabel);
  return batch;
}

Loader::Loader(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
Loader::~Loader() = default;

Result<Batch> Loader::Next(std::stop_token stop) { return rep_->Next(std::move(stop)); }

LoaderState Loader::state() const {
  MutexLock lock(rep_->mutex);
  SamplePosition next = rep_->schedule.GlobalBatch(rep_->taken / rep_->schedule.micro_batches());
  return {.epoch = next.epoch, .samples = next.sample, .fingerprint = rep_->dataset->fingerprint()};
}

Loader::Stats Loader::stats() const {
  MutexLock lock(rep_->mutex);
  return rep_->stats;
}

std::uint64_t Loader::batches_per_epoch() const { return rep_->schedule.epoch_batches(); }

Result<std::unique_ptr<Loader>> Loader::Start(std::shared_ptr<Dataset> dataset, MemoryBudget& budget, Options options,
                                              LoaderState state, Logger log) {
  MR_TRY(CheckOptions(*dataset, options));
  MR_TRY(CheckState(*dataset, state));
  // Inputs and labels; positions, cu_seqlens, and segments or answers where the options ask for them.
  const bool has_rows = dataset->options().objective != Objective::kCausalLm;
  const std::uint64_t arrays = 2 + (dataset->options().boundaries ? 2 : 0) + (has_rows ? 1 : 0);
  const std::uint64_t row_bytes =
      arrays * sizeof(TokenId) * static_cast<std::uint64_t>(dataset->options().sequence_length);
  std::uint64_t fixed = row_bytes * options.micro_batch * (options.prefetch_batches + 1) +
                        kPerThreadBytes * options.threads + kPerReadAheadBytes * kReadAheadThreads +
                        (dataset->options().disk_cache.empty() ? 0 : ChunkDisk::kWaitingBytes);
  Dataset::ReaderNeeds needs = dataset->reader_needs();
  for (std::uint64_t cache : {needs.best, (needs.best + needs.least) / 2, needs.least}) {
    auto memory = budget.TryAcquire(cache + fixed, MemoryBudget::Priority::kForeground);
    if (!memory) continue;
    log.Debug("loader started", {{"epoch", state.epoch}, {"samples", state.samples}, {"cache_bytes", cache}});
    return std::unique_ptr<Loader>(new Loader(std::make_unique<Loader::Rep>(
        dataset, dataset->NewReader(cache, kReadAheadThreads), *std::move(memory), options, state)));
  }
  return Fail(Code::kResourceExhausted,
              "loading data needs {} for its shuffle window and batches, and the memory budget has "
              "{} of {} left; raise the budget or make the shuffle window smaller",
              FormatBytes(needs.least + fixed), FormatBytes(budget.total() - budget.used()),
              FormatBytes(budget.total()));
}

}  // namespace millrace::data
