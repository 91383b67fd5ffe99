// A small job file for tests, nearly all of it defaults.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/jobs/spec/spec.h"

namespace millrace::jobs {

inline constexpr std::string_view kSmall = R"(name: small
data:
  sources: [{url: "s3://corpus/wiki/*.jsonl"}]
  tokenizer: s3://models/tokenizer.model
train: {steps: 100}
)";

/// Parses kSmall with these assignments.
inline Result<Spec> ParseSmall(const std::vector<std::string>& overrides) {
  return Spec::Parse(kSmall, "job.yaml", overrides);
}

}  // namespace millrace::jobs
