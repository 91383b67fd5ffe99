// Writes traces in the JSON format of Chrome's trace viewer, which Perfetto reads (docs/formats/traces.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/trace/recorder.h"

namespace millrace::trace {

/// The rank that a trace belongs to.
struct RankFacts {
  int rank = 0, ranks = 1;
  std::string job, node;
  std::uint64_t first_step = 0, last_step = 0;
  /// This rank's clock minus rank 0's, and how far that may be off.
  Duration clock_offset{0}, clock_error{0};
};

/// Spans of threads that are only in the trace, for work that no thread of the process waits for.
struct OtherSpans {
  std::vector<std::string> threads;
  std::vector<TraceEvent> events;  ///< TraceEvent::thread is an index into `threads`
  std::uint64_t dropped = 0;
};

/// Returns the trace of one rank as JSON: a process whose number is the rank, with its threads, those of `others`
/// behind the recorder's. Times are those of rank 0's clock, in microseconds.
std::string RankTrace(const RankFacts& facts, const Recorder& recorder, const OtherSpans& others = {});

/// Puts the traces of several ranks, as RankTrace() makes them, into one. Errors: kCorrupt if one is none.
Result<std::string> JoinTraces(std::span<const std::string> traces);

/// Compresses with gzip, which trace viewers read.
Result<std::string> Compress(std::string_view text);
/// Errors: kCorrupt if `bytes` is not gzip; kResourceExhausted beyond `most_bytes` of text.
Result<std::string> Decompress(std::string_view bytes, std::uint64_t most_bytes);

/// The most text of a rank's trace: that of a full Recorder.
inline constexpr std::uint64_t kMaxTraceBytes = std::uint64_t{1} << 30;

/// Returns the key of a trace in the folder of a run, for the steps `first` to `last`: "traces/steps-10-12.json.gz".
std::string TraceKey(std::uint64_t first, std::uint64_t last);
/// Returns that of one rank: "traces/steps-10-12/rank-3.json.gz".
std::string RankTraceKey(std::uint64_t first, std::uint64_t last, int rank);

}  // namespace millrace::trace
