// Words of other programs for what train.parallel says, and the words of the job file for them.
#pragma once

#include <span>
#include <string_view>

namespace millrace::jobs {

/// A word that is refused as a key of train.parallel.
struct ForeignWord {
  std::string_view word;     ///< in lower case, with underscores
  std::string_view program;  ///< whose word it is
  std::string_view advice;   ///< what to write instead
};

/// Returns the words of torchtitan, Megatron-LM, DeepSpeed and NVIDIA's BERT, and those of SageMaker's model-parallel
/// library that are not read as keys of ours. docs/guide/job-file.md has the same table. Valid as long as the process.
std::span<const ForeignWord> ForeignParallelWords();

/// Returns the word that a key is, or null. Dashes count as underscores, and leading ones do not count: so a flag of a
/// command line is found, too.
const ForeignWord* FindForeignWord(std::span<const ForeignWord> words, std::string_view key);

}  // namespace millrace::jobs
