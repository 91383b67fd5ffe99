// From a bucket of records to token batches, in an order that does not depend on who reads them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/object/connection.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::data {

using tokenizer::TokenId;

/// Label value that the loss ignores, as in PyTorch.
inline constexpr TokenId kIgnoreLabel = -100;

struct Source {
  /// Object, prefix ending in '/', glob ("s3://corpus/wiki/*.jsonl"), or '@' and a list of them; "#train" chooses a
  /// split. See ResolveSources.
  std::string url;
  /// Passes over this source per epoch: 0.5 reads one half in the first epoch and the other in the second.
  double weight = 1.0;
  std::string format;  ///< of its objects, as data/formats/format.h names them; empty: as their names say
  std::string split;   ///< as "#train" behind the URL says it; empty: what the URL says
};

enum class Mode {
  kPack,  ///< documents (BOS text EOS) joined and cut into full sequences; the tail shorter than one is dropped
  kPad,   ///< one document a sequence, truncated or padded with EOS
  kSft,   ///< as kPad, of prompts and answers (see `layout`): labels of all but the answers are kIgnoreLabel
};

enum class Part { kTrain, kHeldOut };

/// A record is held out or not by a hash of its content alone: moving data or adding to it moves no record over.
struct HeldOutSplit {
  double held_out = 0;  ///< share of the records, to 1/65536
  Part part = Part::kTrain;
  std::uint64_t seed = 1;
};

struct DatasetOptions {
  std::vector<Source> sources;
  std::string template_text = "{text}";  ///< fields of the JSON record in braces; "{{" and "}}" are braces
  int sequence_length = 256;
  Mode mode = Mode::kPack;
  /// What sft makes of a record: "alpaca", "guanaco" (of template_text), or as a chat model's template writes it:
  /// "llama2", "llama3", "chatml", "zephyr", "gemma". Empty: template_text is the prompt, response_text the answer.
  std::string layout;
  std::string response_text = "{response}";
  /// Pad, sft: documents share rows, fitted without cutting them; those longer than a row are still cut.
  bool best_fit = false;
  /// Pad: a document longer than a row is several rows.
  bool split_long = false;
  /// Rows tell where documents begin, so that attention can stay within them, and no label crosses into the next one.
  bool boundaries = false;
  HeldOutSplit split;
  std::uint64_t shuffle_seed = 1;
  /// Records among which the order is random (at most 64 MiB of them, from chunks picked over the whole data; sources
  /// have their shares of both); 0 or 1: each source's own order. data/README.md defines the order.
  std::uint64_t shuffle_window = 262'144;
  /// For how long a store that does not answer is asked again while reading, before a run fails.
  Duration patience = std::chrono::minutes(10);
  Clock* clock = &SystemClock();
  /// A folder on a local disk where contents are kept for later epochs and for every process of this machine that names
  /// it with the same size; it may be a mount's cache. Empty: none.
  std::filesystem::path disk_cache;
  std::uint64_t disk_cache_bytes = 20 * kGiB;
  std::string cache_url;  ///< where indexes go when the data's own bucket is read-only; empty: beside the data
  /// Records that may be unusable before that is an error; nothing: 100, or a thousandth of all if that is more.
  std::optional<std::uint64_t> max_broken;
  int threads = 2;
};

/// True if the number of samples depends on the documents' tokens, so that they are counted when the index is made.
bool CountsTokens(const DatasetOptions& options);

/// Consecutive sequences of the global order. Row-major, int32.
struct Batch {
  int rows = 0;
  int sequence_length = 0;
  std::vector<TokenId> inputs;  ///< [rows, sequence_length]
  std::vector<TokenId>
      labels;  ///< [rows, sequence_length], shifted by one: labels[t] is to be predicted from inputs[..t]
  std::uint64_t first_sample = 0;     ///< index of row 0 in the epoch's global order; row i is that sample + i
  std::uint64_t loss_tokens = 0;      ///< labels that are not kIgnoreLabel
  std::vector<std::int32_t> lengths;  ///< [rows]: inputs in front of the padding
  /// With DatasetOptions::boundaries, else empty. Padding counts as a document.
  std::vector<std::int32_t> positions;  ///< [rows, sequence_length]: within the document, or the part of it in this row
  std::vector<std::int32_t> cu_seqlens;  ///< where documents begin in all rows put together, and where the last ends
};

/// One sequence to be filled.
struct Row {
  std::span<TokenId> inputs, labels;       ///< sequence_length of each
  std::span<std::int32_t> positions = {};  ///< as many where boundaries are wanted, else none
  std::int32_t length = 0;                 ///< set: inputs in front of the padding
};

/// What a thread that makes a batch can be busy with.
enum class Stage { kNetwork, kParse, kTokenize, kPack };
inline constexpr int kStages = 4;
std::string_view StageName(Stage stage);  ///< "network", "parse", "tokenize", "pack"
class StageTrace;
struct SimulatedPlace;
struct Forecast;

/// Where a run is in its data; small, and the same for every rank. Restores on any number of ranks.
struct State {
  std::uint64_t epoch = 0;
  std::uint64_t samples = 0;  ///< consumed of this epoch, over all ranks
  std::string fingerprint;    ///< names and short hashes of all that the order depends on; under 700 bytes
  Json ToJson() const;
  static Result<State> FromJson(const Json& json);
};

/// Reads samples through caches of its own: samples near each other share what was read and tokenized for them. Any
/// thread may call it. The Dataset must outlive it.
class SampleReader {
 public:
  virtual ~SampleReader() = default;
  /// As Dataset::ReadSample.
  virtual Status Read(std::uint64_t epoch, std::uint64_t index, Row& row, object::Call call,
                      StageTrace* trace = nullptr) = 0;
};

/// The whole data set of a run: indexed, its length known before training starts. Immutable; thread-safe.
class Dataset {
 public:
  /// Builds or loads the index. Blocks; progress goes to the log. `connection` must outlive it. Several ranks: let one
  /// open the data before the others, so that the index is built once.
  static Result<std::shared_ptr<Dataset>> Open(object::Connection& connection,
                                               std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                                               DatasetOptions options, Logger log, object::Call call = {});
  virtual ~Dataset() = default;

  virtual std::uint64_t samples_per_epoch() const = 0;  ///< sequences
  virtual std::uint64_t tokens_per_epoch() const = 0;   ///< samples times sequence length
  virtual std::uint64_t records() const = 0;            ///< usable ones of this part of the split, each object once
  virtual std::uint64_t broken_records() const = 0;     ///< skipped; `millrace data inspect` names them
  virtual std::uint64_t bytes() const = 0;              ///< of source data
  /// What one pass over all sources takes from their stores: less than bytes() of columns, more where compressed data
  /// are read again from an entry far in front.
  virtual std::uint64_t bytes_fetched() const = 0;
  /// Best-fit: documents cut because they are longer than a row. Otherwise unknown, 0.
  virtual std::uint64_t truncated_documents() const = 0;
  struct SourceShare {
    std::uint64_t samples_per_pass = 0, samples_per_epoch = 0;
  };
  virtual std::vector<SourceShare> source_shares() const = 0;  ///< in the order of the sources
  /// What the order depends on, as words "name=value".
  virtual const std::string& fingerprint() const = 0;
  virtual const DatasetOptions& options() const = 0;

  /// Fills a row. A pure function of (epoch, index in the epoch's order).
  virtual Status ReadSample(std::uint64_t epoch, std::uint64_t index, Row& row, object::Call call = {}) = 0;
  Status ReadSample(std::uint64_t epoch, std::uint64_t index, std::span<TokenId> inputs, std::span<TokenId> labels,
                    object::Call call = {}) {
    Row row{.inputs = inputs, .labels = labels};
    return ReadSample(epoch, index, row, std::move(call));
  }

  /// What a rank waits for its data elsewhere, in the first `batches` batches of `rows` rows: a model, see simulate.h.
  virtual Forecast Simulate(const SimulatedPlace& place, int rows, std::uint64_t batches) const = 0;
  /// Seconds that one thread takes to make rows of a byte of records, measured on some of these data; for Simulate.
  virtual Result<double> MeasureEncoding(object::Call call = {}) = 0;

  /// Bytes of cache for one reader: with fewer than `least` the same bytes are fetched again and again, with `best` the
  /// next window is fetched while this one is read.
  struct ReaderNeeds {
    std::uint64_t least = 0, best = 0;
  };
  virtual ReaderNeeds reader_needs() const = 0;
  /// `read_ahead_threads` fetch what samples further on will need; 0: none.
  virtual std::unique_ptr<SampleReader> NewReader(std::uint64_t cache_bytes, int read_ahead_threads) = 0;
};

/// Feeds one rank. Global batch b of an epoch is samples [b·G, (b+1)·G) of the order; rank r of n takes the r-th n-th
/// of them, contiguous, micro_batch rows at a time: neighbouring rows share documents, so few are tokenized on two
/// ranks. A trailing partial batch is dropped, so every rank sees the same number of batches. Prefetches on its own
/// threads; all its memory is one reservation of the budget. One consumer thread.
class Loader {
 public:
  struct Options {
    int rank = 0, ranks = 1;
    int global_batch = 8;      ///< sequences; divisible by ranks · micro_batch
    int micro_batch = 1;       ///< rows of each Batch returned
    int prefetch_batches = 8;  ///< of those that Next returns
    int threads = 2;           ///< that tokenize
    /// Of its batches a loader takes every stride-th, from the phase-th after `state` on: loaders of phases 0 to
    /// stride - 1 share a rank's batches, each in a process of its own.
    int stride = 1, phase = 0;
  };
  struct Stats {
    Duration waited{0};  ///< the consumer stood still
    /// Of that, by what the thread that made the awaited batch was doing meanwhile; network is waiting for bytes and
    /// undoing compressed ones, pack is everything else.
    std::array<Duration, kStages> waited_on{};
    std::uint64_t batches = 0, tokens = 0;
  };
  /// Starts at `state` (a default one: at the beginning). Fails with kPreconditionFailed if it belongs to other data,
  /// naming what differs; with kInvalidArgument if the batch does not divide or an epoch holds no whole one; with
  /// kResourceExhausted if the budget cannot hold one shuffle window. `budget` must outlive it.
  static Result<std::unique_ptr<Loader>> Start(std::shared_ptr<Dataset> dataset, MemoryBudget& budget, Options options,
                                               State state, Logger log = {});
  virtual ~Loader() = default;

  /// The rank's next micro-batch. Rolls over into the next epoch by itself. Blocks. After a failure other than
  /// kCancelled every call fails alike: start a new loader at state().
  virtual Result<Batch> Next(std::stop_token stop = {}) = 0;
  /// The position after the last whole global batch returned by Next: where another loader goes on. With a stride:
  /// that of the batch which this loader takes next, in phase 0.
  virtual State state() const = 0;
  virtual Stats stats() const = 0;
  virtual std::uint64_t batches_per_epoch() const = 0;  ///< global batches
};

}  // namespace millrace::data
