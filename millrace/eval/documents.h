// The documents of an evaluation, out of JSONL, as lm-evaluation-harness makes questions of them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::eval {

/// A kind of question to a model.
enum class Task {
  kPerplexity,  ///< {"text"}: how likely are whole texts
  kChoice,      ///< {"query", "choices", "gold"}: which of several endings is the likeliest
  kHellaSwag,   ///< the same, of HellaSwag's own files (Zellers et al. 2019)
  kMmlu,        ///< the same, of MMLU's own files (Hendrycks et al. 2021): the letter of the answer
  kMatch,       ///< {"prompt", "answer"}: does the model say the answer
};
/// "perplexity", "choice", "hellaswag", "mmlu", "match"
std::optional<Task> ParseTask(std::string_view name);

/// One question, or one text.
struct Document {
  std::string text;                  ///< of perplexity; else what the model sees before its answer
  std::vector<std::string> choices;  ///< possible answers, without the space before them
  std::size_t gold = 0;              ///< the right one
  std::vector<std::string> answers;  ///< of kMatch: any of them is right
  std::string subject;               ///< of MMLU
  std::string description;           ///< comes once, before the examples
};

/// Reads a line. `what` names it in messages. Errors: kInvalidArgument, with the member, on lines of another form;
/// kUnsupported on a HellaSwag text whose capital letters are beyond ASCII.
Result<Document> ParseDocument(Task task, std::string_view line, std::string_view what);
/// Reads all lines of a file; empty ones are left out. `most`: no more than these.
Result<std::vector<Document>> ParseDocuments(Task task, std::string_view lines, std::string_view what,
                                             std::size_t most);

/// Puts answered questions before each document's text, as lm-evaluation-harness does: the first `count` of `examples`,
/// of the document's subject if it has one. Errors: kInvalidArgument if there are too few.
Status AddExamples(std::vector<Document>& documents, const std::vector<Document>& examples, std::size_t count);

}  // namespace millrace::eval
