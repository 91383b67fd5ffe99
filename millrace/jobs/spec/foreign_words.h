// Words of other programs for what a job file says, and the keys of the job file for them. One table: errors about
// unknown keys, the guide and the Python package's hyperparameters read it.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace millrace::jobs {

/// A word of another program that users write into job files. It is not a key, or it is a key of another section.
struct ForeignWord {
  std::string_view word;          ///< in lower case, with underscores
  std::string_view programs;      ///< whose word it is
  std::string_view advice;        ///< what to write instead; keys of `section` without their path
  std::string_view section = {};  ///< "train.parallel"; empty: the advice has whole paths
  std::string_view key = {};      ///< path of the key that takes the same values; empty: none does
};

/// Returns the words of transformers, PEFT, trl, axolotl, LLaMA-Factory, torchtitan, Megatron-LM, DeepSpeed and
/// NVIDIA's BERT, and those of SageMaker's model-parallel library that are not read as keys of ours. Valid as long as
/// the process.
std::span<const ForeignWord> ForeignWords();

/// Returns the word that a key is, or null. Dashes count as underscores, and leading ones do not count: so a flag of a
/// command line is found, too.
const ForeignWord* FindForeignWord(std::string_view key);

/// Returns what to write instead of the key `name`, which the section `section` ("train.parallel"; "" for the file)
/// does not have: it is another program's word, or a key of another section. Returns "" if it is neither.
std::string KeyHint(std::string_view section, std::string_view name);

}  // namespace millrace::jobs
