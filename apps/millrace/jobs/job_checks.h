// Checks of a job before its first rank starts: data, tokenizer, model, stores and folders. Without them, a missing
// bucket would cost three starts of all ranks before the job fails.
#pragma once

#include <filesystem>
#include <optional>

#include "apps/millrace/doctor/doctor.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::cli {

struct JobChecks {
  Findings findings;
  std::optional<Code> failure;  ///< of the first finding that is a failure
};

/// Checks the program of a rank, the data, the tokenizer, the model, and the places that the job writes to. In each
/// such place it writes an object of a few bytes, reads it, tries to write it again (the conditional write must be
/// refused), and deletes it. Nothing else is written. Blocks for a few requests. A store that does not answer within
/// seconds is not asked again. Its findings are failures, or warnings if the caller `starts` the job, because ranks try
/// for longer.
JobChecks CheckJob(const Context& context, const jobs::Spec& spec, const std::filesystem::path& program, bool starts);

}  // namespace millrace::cli
