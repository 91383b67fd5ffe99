#pragma once

#include <memory>

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::python {

/// No threads, hence no ProcessBound: a forked child may go on using it.
struct TokenizerHandle {
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
};

}  // namespace millrace::python
