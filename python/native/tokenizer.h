#pragma once

#include <memory>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::python {

/// Not ProcessBound, because a tokenizer has no threads. A forked child can use it.
struct TokenizerHandle {
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
};

}  // namespace millrace::python
