// A whole data set: indexed records of several sources, in an order that does not depend on who reads them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/base/log.h"
#include "millrace/data/batch/token.h"
#include "millrace/data/options/dataset_options.h"
#include "millrace/object/connection.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::data {

class SampleReader;
struct SequenceRow;
struct Forecast;
struct SimulationParameters;

/// The data set of a run. Its length is known before training starts. Immutable; thread-safe.
class Dataset final {
 public:
  /// Builds or loads the indexes of all objects, and logs progress. Blocks. If several ranks open the same data, let
  /// one open them first, so that the index is built once. `connection` must outlive the data set. `progress` is
  /// called on any thread while indexes are built: with the bytes that are done, and with all of them.
  static Result<std::shared_ptr<Dataset>> Open(object::Connection& connection,
                                               std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                                               DatasetOptions options, Logger log, object::Call call = {},
                                               std::function<void(std::uint64_t, std::uint64_t)> progress = nullptr);
  ~Dataset();

  std::uint64_t samples_per_epoch() const;  ///< sequences
  std::uint64_t tokens_per_epoch() const;   ///< samples_per_epoch() · sequence_length
  std::uint64_t records() const;            ///< usable records in this part of the split, each object counted once
  std::uint64_t broken_records() const;     ///< skipped records; `millrace data inspect` names them
  /// The same by reason, each with its name (records/broken_reason.h) and more than 0 records.
  std::vector<std::pair<std::string, std::uint64_t>> broken_by_reason() const;
  std::uint64_t bytes() const;  ///< size of all objects
  /// Bytes that one pass over all sources fetches from the stores. Columnar formats take less than bytes().
  /// Compressed data whose seek points are far apart take more, because some bytes are read several times.
  std::uint64_t bytes_fetched() const;
  /// Documents that are cut because they are longer than a row. 0 in mode pad without best_fit, which does not count.
  std::uint64_t truncated_documents() const;
  /// The part that one source contributes.
  struct SourceShare {
    std::uint64_t samples_per_pass = 0;   ///< sequences of the whole source
    std::uint64_t samples_per_epoch = 0;  ///< sequences of the part that an epoch takes: DataSource::weight
  };
  std::vector<SourceShare> source_shares() const;  ///< in the order of the sources
  /// Everything that the order depends on, as words "name=value".
  const std::string& fingerprint() const;
  /// Returns the options with the members that the objective decides: mode kPad and boundaries for kMlm and others.
  const DatasetOptions& options() const;

  /// Fills `row` with sample `index` of the epoch's order. A pure function of (epoch, index).
  /// REQUIRES: index < samples_per_epoch().
  Status ReadSample(std::uint64_t epoch, std::uint64_t index, SequenceRow& row, object::Call call = {});
  /// As above, for rows without boundaries. The spans have sequence_length elements each.
  Status ReadSample(std::uint64_t epoch, std::uint64_t index, std::span<TokenId> inputs, std::span<TokenId> labels,
                    object::Call call = {});

  /// Predicts how long a rank on another machine waits for the first `batches` batches of `rows` rows. The model is in
  /// data/simulate.h.
  Forecast Simulate(const SimulationParameters& parameters, int rows, std::uint64_t batches) const;
  /// Returns the seconds of one thread for a byte of records, measured on a part of these data. For Simulate.
  Result<double> MeasureEncoding(object::Call call = {});

  /// Bytes of cache for one reader. With less than `least`, the same bytes are fetched repeatedly. With `best`, the
  /// next shuffle window is fetched while the current one is read.
  struct ReaderNeeds {
    std::uint64_t least = 0;  ///< bytes
    std::uint64_t best = 0;   ///< bytes
  };
  ReaderNeeds reader_needs() const;  ///< for one reader of this data set
  /// Returns a reader with its own caches. `read_ahead_threads` threads fetch what later samples need; 0: none.
  /// The data set must outlive the reader.
  std::unique_ptr<SampleReader> NewReader(std::uint64_t cache_bytes, int read_ahead_threads);

 private:
  struct Rep;
  explicit Dataset(std::unique_ptr<Rep> rep);
  const std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::data
