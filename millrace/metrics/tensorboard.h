// Writes TensorBoard event files without TensorFlow. docs/formats/tensorboard.md describes the records.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/metrics/float_histogram.h"
#include "millrace/object/connection.h"

namespace millrace::metrics {

/// One value of a step.
struct Scalar {
  std::string_view tag;  ///< "loss"
  float value = 0;
};

/// The hyperparameters of a run, by name: "train.optimizer.lr". TensorBoard's HPARAMS tab compares runs by them.
using HyperParameters = std::map<std::string, std::variant<double, std::string>>;

/// Encode events. The bytes of EventFileHeader() followed by those of the other functions' calls are an event file.
std::string EventFileHeader(WallTime time);
std::string EventFileScalars(WallTime time, std::int64_t step, std::initializer_list<Scalar> scalars);
/// The TEXT tab shows `markdown` under `tag`.
std::string EventFileText(WallTime time, std::int64_t step, std::string_view tag, std::string_view markdown);
/// The HISTOGRAMS and DISTRIBUTIONS tabs show the buckets under `tag`.
std::string EventFileHistogram(WallTime time, std::int64_t step, std::string_view tag,
                               std::span<const HistogramBucket> buckets);
/// The HPARAMS tab shows `run` with these parameters, and from EventFileSessionEnd() on as a success.
std::string EventFileSessionStart(WallTime time, std::string_view run, const HyperParameters& parameters);
std::string EventFileSessionEnd(WallTime time);

/// Writes event files under a URL prefix (folder or bucket). A bucket has no append, so each Flush() puts the whole
/// object, and a new file begins after `roll_bytes`. One thread at a time.
class EventWriter {
 public:
  struct Options {
    std::uint64_t roll_bytes =
        1 << 20;         ///< bounds what each flush uploads again; a step's scalars have some hundred bytes
    std::string suffix;  ///< distinguishes writers: "rank0"
  };
  /// REQUIRES: `connection` and `clock` outlive the writer.
  static Result<std::unique_ptr<EventWriter>> Open(object::Connection& connection, std::string_view url_prefix,
                                                   Options options, Clock& clock);
  /// Add an event to the current file. Drop it if too many bytes wait for a flush; the next Flush() then fails.
  void Add(std::int64_t step, std::initializer_list<Scalar> scalars);
  void AddText(std::int64_t step, std::string_view tag, std::string_view markdown);
  void AddHistogram(std::int64_t step, std::string_view tag, std::span<const HistogramBucket> buckets);
  void AddSessionStart(std::string_view run, const HyperParameters& parameters);
  void AddSessionEnd();
  /// Writes all changed files. Blocks until the store has the bytes. After a failure the bytes wait for the next flush.
  /// Errors: those of the store; kResourceExhausted if events were dropped since the last flush.
  Status Flush(object::Call call = {});

 private:
  struct File {
    std::string key;
    std::string bytes;
    bool changed = false;  ///< since it was last put
  };
  void AddRecord(std::string_view record, std::uint64_t values);
  EventWriter(object::Location location, std::string name, std::uint64_t roll_bytes, Clock& clock);

  // Constant after construction.
  const object::Location location_;
  const std::string name_;
  const std::uint64_t roll_bytes_;
  Clock& clock_;

  std::deque<File> files_;  ///< the last one is the current file; the others wait for their last put
  std::uint64_t pending_bytes_ = 0, dropped_ = 0;
  int next_number_ = 0;
};

}  // namespace millrace::metrics
