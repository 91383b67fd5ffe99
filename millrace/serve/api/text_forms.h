// The forms of texts that requests want, as constraints.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <utility>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/serve/constraint/constraint.h"
#include "millrace/serve/protocol/request.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

/// Makes constraints, and keeps those that were wanted last: requests of the same form share what was found out about
/// it. Thread-safe.
class TextForms {
 public:
  /// REQUIRES: `tokenizer` outlives this object.
  explicit TextForms(const tokenizer::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  /// Returns null for any text. Errors: those of JsonSchemaGrammar and AddRegex.
  Result<std::shared_ptr<Constraint>> Get(const TextForm& form) MR_EXCLUDES(mutex_);

 private:
  const tokenizer::Tokenizer& tokenizer_;
  Mutex mutex_;
  std::shared_ptr<const TokenBytes> vocabulary_ MR_GUARDED_BY(mutex_);  ///< null until it is needed
  std::list<std::pair<std::string, std::shared_ptr<Constraint>>> made_ MR_GUARDED_BY(mutex_);  ///< the last first
};

}  // namespace millrace::serve
