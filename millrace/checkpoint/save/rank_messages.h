// What ranks tell each other in a save: reports to rank 0, and the outcome from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "millrace/base/result.h"
#include "millrace/checkpoint/commit/commit.h"
#include "millrace/checkpoint/format/manifest.h"

namespace millrace::checkpoint {

/// What a rank reports of the file that it uploaded.
struct RankReport {
  enum class Contents : std::uint8_t {
    kFull = 1,      ///< tensors, slices and the file
    kFileOnly = 2,  ///< the file; it is laid out as the one that the rank last reported in full
  };
  Contents contents = Contents::kFull;
  Manifest part;  ///< without coverage of whole tensors; no file if the rank has nothing to save
};

/// A report, or the error that kept the rank from uploading.
std::string EncodeReport(const Result<RankReport>& report);
/// Returns what `rank` reported.
/// Errors: the rank's own, with its number in front; kInternal if the message has another form; kCorrupt if the
/// report's manifest does not parse.
Result<RankReport> DecodeReport(std::string message, std::size_t rank);

std::string EncodeOutcome(const CommitOutcome& outcome);
/// A message that cannot be decoded is an unknown outcome.
CommitOutcome DecodeOutcome(std::string message);

}  // namespace millrace::checkpoint
