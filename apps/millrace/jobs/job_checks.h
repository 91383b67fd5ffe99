// What a job needs of its stores and folders, looked at before any rank is started: a rank that finds its bucket
// missing has cost a start, and the supervisor tries three times.
#pragma once

#include <filesystem>
#include <optional>

#include "apps/millrace/doctor/doctor.h"
#include "millrace/jobs/spec.h"

namespace millrace::cli {

struct JobChecks {
  Findings findings;
  std::optional<Code> failure;  ///< of the first finding that is a failure
};

/// Looks at the program of a rank, the data, the tokenizer, the model, and the places that the job writes to. Each such
/// place gets an object of a few bytes, which is read, refused a second time (conditional write) and deleted. Nothing
/// else is written. Blocks for a few requests. A store that does not answer within seconds is not asked again; its
/// findings are failures, or warnings where the caller `starts` the job: its ranks try for longer.
JobChecks CheckJob(const Context& context, const jobs::Spec& spec, const std::filesystem::path& program, bool starts);

}  // namespace millrace::cli
