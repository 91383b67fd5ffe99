// Token ids as the rows of a batch hold them.
#pragma once

#include "millrace/tokenizer/tokenizer.h"

namespace millrace::data {

using tokenizer::TokenId;

/// Label value that the loss ignores, as in PyTorch.
inline constexpr TokenId kIgnoreLabel = -100;

}  // namespace millrace::data
