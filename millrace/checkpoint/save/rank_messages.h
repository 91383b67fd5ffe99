// The messages of a save: reports of all ranks to rank 0, and rank 0's outcome for all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "millrace/base/result.h"
#include "millrace/checkpoint/commit/commit.h"
#include "millrace/checkpoint/format/manifest.h"

namespace millrace::checkpoint {

/// A rank's report about the file that it uploaded.
struct RankReport {
  enum class Contents : std::uint8_t {
    kFull = 1,      ///< tensors, slices and the file
    kFileOnly = 2,  ///< the file; its layout is that of the rank's last full report
  };
  Contents contents = Contents::kFull;
  Manifest part;  ///< without coverage of whole tensors; no file if the rank has nothing to save
};

/// Rank 0's word at the beginning of a save.
struct SaveBegin {
  Result<std::string> attempt;
  bool is_lost = false;  ///< with an error: as CommitOutcome has it
};

std::string EncodeBegin(const SaveBegin& begin);
SaveBegin DecodeBegin(std::string message);

/// Encodes a report, or the error that kept the rank from uploading.
std::string EncodeReport(const Result<RankReport>& report);
/// Returns the report of `rank`.
/// Errors: the rank's own, with its number in front; kInternal if the message has another form; kCorrupt if the
/// report's manifest does not parse.
Result<RankReport> DecodeReport(std::string message, std::size_t rank);

std::string EncodeOutcome(const CommitOutcome& outcome);
/// Returns the outcome. If the message cannot be decoded, the outcome is unknown.
CommitOutcome DecodeOutcome(std::string message);

}  // namespace millrace::checkpoint
