// Evaluates a model on the documents of a task.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/eval/documents.h"
#include "millrace/eval/metrics.h"
#include "millrace/serve/language_model.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::eval {

using serve::TokenId;

struct EvaluateOptions {
  bool add_bos = false;         ///< texts begin with the tokenizer's beginning-of-text token
  std::size_t most_texts = 32;  ///< that the model computes at a time
  // The next members are for Task::kMatch alone.
  int most_tokens = 256;                    ///< of an answer
  std::vector<std::string> until = {"\n"};  ///< texts that end an answer
  std::vector<TokenId> ends = {};           ///< tokens that do
  bool ignore_case = false;                 ///< of ASCII letters
  bool ignore_punctuation = false;          ///< of ASCII
};

/// A document's result, for those who want to look at it.
struct DocumentResult {
  std::vector<double> logprobs;  ///< of its choices, or of the whole text
  std::string said;              ///< of Task::kMatch
  bool is_right = false;
};

struct Evaluation {
  std::vector<Metric> metrics;
  std::map<std::string, Metric> subjects;  ///< MMLU's accuracy of each
  std::vector<DocumentResult> documents;
  std::uint64_t scored_tokens = 0;    ///< that metrics are of
  std::uint64_t computed_tokens = 0;  ///< by the model
};

/// Computes the metrics of a task, as lm-evaluation-harness does (0.4.13):
///   kPerplexity  word_perplexity, byte_perplexity, bits_per_byte; and token_perplexity. A text that is longer than the
///                model's context is cut into windows. Before the tokens of a window are as many others as fit: one,
///                and more for the last window.
///   choices      acc: the likeliest choice is right; acc_norm: the one that is likeliest per character
///   kMatch       exact_match: the model's text, greedy, is the answer. White space at both ends does not count.
/// Calls `done` after each document's part, of `all` parts. Blocks. Errors: kInvalidArgument on documents that no
/// score follows from; those of Scorer::Run() and of the tokenizer.
Result<Evaluation> Evaluate(serve::LanguageModel& model, const tokenizer::Tokenizer& tokenizer, Task task,
                            const std::vector<Document>& documents, const EvaluateOptions& options,
                            std::stop_token stop,
                            const std::function<void(std::size_t done, std::size_t all)>& done = {});

}  // namespace millrace::eval
